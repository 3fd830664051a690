"""Who runs which cell of a study: a file for each attempt, which one worker writes.

    STUDY/claims/<key>.<n>   attempt n of a cell, from 1, as JSON

- A worker claims a cell by creating the file of its next attempt. Only one process can: the file
  system sees to it, NFS too.
- While the cell runs, its worker counts ``beats`` in the file. At last it writes how it ended.
- A cell is free again once its newest attempt has ended without success, or its worker is gone. On
  this machine it is gone if its process is. Elsewhere it is gone if the beats stand still for
  `MISSED` looks, `BEAT` seconds apart by the clock of who looks. So clocks may differ.
- A worker that finds a newer attempt, another's words in its file, or that its own last beat was
  too long ago, has lost the cell. It kills the cell's process, which writes nothing more, and holds
  it no more.

Nothing is deleted or renamed, so the files also say what happened when.
"""

import contextlib
import json
import os
import platform
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BEAT", "MISSED", "Attempt", "Claim", "Claims"]

BEAT = 10.0  # seconds between beats
MISSED = 9  # looks without a beat after which a worker elsewhere is gone
CONFIG_ERROR = 2  # exit code: trying again would say the same
_LOST = 6  # beats after which a worker gives up its own cell: earlier than others take it
_LOSSES = 10  # workers that may die with a cell
_SIZE = 4096  # bytes of a file from the start: a full disk stops no beat and no end
_REASON = 800  # characters


@dataclass
class Attempt:
    """An attempt at a cell, as its file said when it was read last.

    Attributes:
        cell: key of the cell.
        number: from 1.
        row: ``host``, ``node``, ``pid``, ``born``, ``worker``, ``began``, ``beats``; at the end
            also ``end`` (done, failed, stopped, or again: what was before counts no more),
            ``exit``, ``reason`` and ``seconds``.
        since: when the row changed or a missing beat was counted, in seconds.
        missed: beats that did not come.
        beating: whether a beat came between two looks.
    """

    cell: str
    number: int
    row: dict[str, Any] = field(default_factory=dict)
    since: float = 0.0
    missed: int = 0
    beating: bool = False

    @property
    def end(self) -> str | None:
        """How it ended; None while it runs, or if its worker died."""
        return self.row.get("end")

    def is_gone(self) -> bool:
        """Whether its worker is gone."""
        if self.row.get("node") == _node() != "":
            return _born(self.row.get("pid")) != self.row.get("born")
        return self.missed >= MISSED

    def is_seen(self) -> bool:
        """Whether its worker, which is not gone, is known to live."""
        return self.beating or self.row.get("node") == _node() != ""


class Claims:
    """What is known of a study's attempts; `look` learns what is new.

    Attributes:
        retries: how often a cell that failed is tried again.
        attempts: of each cell, in order.
        states: of each cell that has any: free, held, done or failed for good.
    """

    def __init__(self, study: Path, retries: int) -> None:
        self.retries = retries
        self.attempts: dict[str, list[Attempt]] = defaultdict(list)
        self.states: dict[str, str] = {}
        self._folder = study / "claims"
        self._seen: set[str] = set()
        self._open: dict[str, Attempt] = {}  # the newest of a cell, if it has not ended

    def look(self) -> list[Attempt]:
        """Read new files, and those of attempts that run; return those that have ended since."""
        names = set(os.listdir(self._folder)) if self._folder.is_dir() else set()
        parts = (name.rpartition(".") for name in names - self._seen)
        new = [(cell, int(n)) for cell, _, n in parts if n.isdecimal()]  # others are of NFS
        self._seen |= names
        open_ = list(self._open.values())
        for cell, number in sorted(new, key=lambda own: own[1]):
            open_.append(Attempt(cell, number, since=_uptime()))
            self.attempts[cell].append(open_[-1])
            self._open[cell] = open_[-1]
        for attempt in open_:
            self._read(attempt)
            if attempt.end is None and attempt.is_gone():  # its last words may be newer
                self._read(attempt)
        for attempt in open_:
            self.states[attempt.cell] = self._state(attempt.cell)
            if attempt.end is not None and self._open.get(attempt.cell) is attempt:
                del self._open[attempt.cell]
        return [attempt for attempt in open_ if attempt.end is not None]

    def claim(self, cell: str) -> "Claim | None":
        """Claim a cell's next attempt; None if another worker was faster."""
        known = self.attempts.get(cell)
        number = known[-1].number + 1 if known else 1
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{cell}.{number}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            return None
        try:
            return Claim(path, number)
        except OSError:  # the disk is full
            path.unlink()
            raise

    def reason(self, cell: str) -> str:
        """Return why a cell failed for good."""
        last = self.attempts[cell][-1]
        return (
            str(last.row.get("reason", "")) if last.end else f"{_LOSSES + 1} workers died with it"
        )

    def _read(self, attempt: Attempt) -> None:
        now = _uptime()
        row = _words(self._folder / f"{attempt.cell}.{attempt.number}")
        if row and row != attempt.row:
            attempt.beating = bool(attempt.row)  # else this is the first look
            attempt.row, attempt.since, attempt.missed = row, now, 0
        elif now - attempt.since >= BEAT:  # one for each look: a file system may stand still
            attempt.since, attempt.missed = now, attempt.missed + 1

    def _state(self, cell: str) -> str:
        own = self.attempts[cell]
        again = max((i for i, a in enumerate(own) if a.end == "again"), default=-1)
        *before, last = own[again + 1 :] or [own[-1]]
        if last.end is None and not last.is_gone():
            return "held"
        if last.end in ("done", "again"):
            return "done" if last.end == "done" else "free"
        ends = [attempt.end for attempt in (*before, last)]
        if last.end == "failed":
            final = last.row.get("exit") == CONFIG_ERROR or ends.count("failed") > self.retries
            return "failed" if final else "free"
        return "failed" if ends.count(None) > _LOSSES else "free"


class Claim:
    """A cell that this process holds, by a file that it has created.

    Attributes:
        number: of the attempt.
        lost: whether another worker may have the cell.
    """

    def __init__(self, path: Path, number: int) -> None:
        self.number, self.lost = number, False
        self._path, self._began = path, _uptime()
        self._last = self._began
        self._row: dict[str, Any] = {
            "host": platform.node(),
            "node": _node(),
            "pid": os.getpid(),
            "born": _born(os.getpid()),
            "worker": uuid.uuid4().hex,
            "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "beats": 0,
        }
        self._write()

    def beat(self) -> bool:
        """Say that the cell still runs, if it is time to; False if it is lost."""
        now = _uptime()
        if now - self._last < BEAT or self.lost:
            return not self.lost
        self.lost = now - self._last > _LOST * BEAT  # till then it is tried again
        with contextlib.suppress(OSError):
            newer = self._path.with_name(f"{self._path.stem}.{self.number + 1}").exists()
            self.lost |= newer or self._is_anothers()
            if not self.lost:
                self._row["beats"] += 1
                self._write()
                self._last = now
        return not self.lost

    def finish(self, end: str, code: int = 0, reason: str = "") -> None:
        """Write how it ended."""
        seconds = round(_uptime() - self._began, 3)
        self._row |= {"end": end, "exit": code, "reason": reason[:_REASON], "seconds": seconds}
        self._write()

    def leave(self) -> None:
        """Write that it was stopped, once the lost cell's process has ended.

        Raises:
            OSError: as of `finish`.
        """
        if not self._is_anothers():
            self.finish("stopped")

    def _is_anothers(self) -> bool:
        words = _words(self._path)
        return bool(words) and words.get("worker") != self._row["worker"]

    def _write(self) -> None:
        text = json.dumps(self._row, ensure_ascii=False).encode()
        with self._path.open("r+b") as file:
            file.write(text.ljust(_SIZE))


def _words(path: Path) -> dict[str, Any]:
    """Return what a file says; nothing while it is being written, or if it is nonsense."""
    try:
        row = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _uptime() -> float:
    """Return seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _node() -> str:
    """Name what has process ids of its own; empty where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no Linux
        return ""


def _born(pid: Any) -> int | None:
    """Return when a process was started, in clock ticks; None if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])
