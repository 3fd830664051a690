"""What a run's folder says of the run: how far it is, what it measured, what fires next."""

import os
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.core.clock import UNITS, Clock, Time
from rlplast.core.errors import DamagedFile
from rlplast.core.method.schedule import KEYS, Schedule, next_due
from rlplast.run.info import device_words, resume_words
from rlplast.run.read import check_is_run, read_best, read_info, read_lines, status_in, unaltered
from rlplast.run.read import read_config as read_keys
from rlplast.training.files import is_locked
from rlplast.training.manifest import KINDS, check_seal

__all__ = ["disk_used", "next_firing", "share_done", "show_run", "status_of"]

_RECEIPTS = 5  # the newest ones of a method
_FILES = {  # what for → where, in a run's folder
    "config": "config.yaml",
    "metrics": "metrics.jsonl",
    "receipts": "receipts.jsonl",
    "picture": "plot.png",
    "report": "report/report.html",
}


def show_run(folder: Path) -> dict[str, Any]:
    """Return what a run's folder says, as JSON can hold it.

    Returns:
        ``status`` (running, done, failed, interrupted; stopped: run.json says running, but no
        process of this machine has the folder; absent: no run.json) with ``since``, ``diverged``,
        ``command``, ``host``; ``resume``, how it goes on after an interruption; ``progress``
        (``done`` of ``total`` in ``unit``, ``share``, ``rate`` per second, ``seconds`` so far,
        ``seconds_left`` while it runs; None where run.json does not say how long the run is);
        ``clock``; ``train``, ``eval`` and ``metrics`` (of whole networks), the newest lines of
        each; ``receipts``: their ``count``, how many ``of`` each method, and the ``newest`` ones
        of each; ``next`` firing; ``checkpoints``; ``bytes`` on disk; ``files``.

    Raises:
        ConfigError: if it is no run's folder.
        DamagedFile: naming the file that is cut or altered.
    """
    check_is_run(folder)
    with unaltered(folder):
        info, keys = read_info(folder), read_keys(folder)
        metrics, receipts = (read_lines(folder / f"{n}.jsonl") for n in ("metrics", "receipts"))
        status, clock = status_of(folder, info), _newest_clock(metrics, receipts)
        found: dict[str, Any] = {
            "what": "run",
            "folder": str(folder),
            "kind": keys.get("kind"),
            "status": status,
            "since": info.get("ended"),  # None if a kill left no word of it
            "diverged": bool(info.get("diverged")),
            **{key: info.get(key) for key in ("command", "host", "seed", "threads")},
            "device": ", then ".join(map(device_words, info.get("devices", []))),
            "resume": resume_words(info),
            "clock": clock,
            "train": _newest(metrics, r"train/"),
            "eval": _newest(metrics, r"eval/"),
            "metrics": _newest(metrics, r"metric/(?!units_reset/)[^/]+(/[^/]+)?$"),
            "receipts": {
                "count": len(receipts),
                "of": dict(Counter(str(row["method"]) for row in receipts)),
                "newest": _newest_of_each(receipts),
            },
            "checkpoints": _checkpoints(folder / "checkpoints"),
            "best": None if (best := read_best(folder)) is None else best.checkpoint,
            "bytes": disk_used(folder),
            "files": {k: str(folder / p) for k, p in _FILES.items() if (folder / p).exists()},
        }
        if status == "running":
            found["since"] = info.get("resumed") or info.get("started")
        return found | _ahead(keys, info, metrics, clock, status)


def _ahead(
    keys: Mapping[str, Any],
    info: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    clock: dict[str, int],
    status: str,
) -> dict[str, Any]:
    """Return how far the run is of its total, and what fires next."""
    if info.get("length") is None:  # killed before run.json was written
        return {"progress": None, "next": None}
    total = Time.parse(info["length"]["total"])
    following = next_firing(keys["hooks"], info["length"], clock)
    done, (per_second, seconds) = clock.get(total.unit, 0), _speed(metrics, total.unit)
    left = None
    if status == "running" and per_second:
        left = max(0.0, total.value - done) / per_second
    progress = {
        "done": done,
        "total": total.value,
        "unit": total.unit,
        "share": min(1.0, done / total.value),
        "rate": per_second,
        "seconds": seconds,
        "seconds_left": left,
    }
    if status == "done" or following is None:
        return {"progress": progress, "next": None}
    return {"progress": progress, "next": {"method": following[0], "at": str(following[1])}}


def share_done(row: Mapping[str, Any], starts: Sequence[Time], stops: Sequence[Time]) -> float:
    """Return the share that is done, in [0, 1], of training that ends at any of `stops`.

    It began at `starts`; units that are not in it began at 0.

    Examples:
        >>> share_done({"updates": 75}, [Time(50, "updates")], [Time(100, "updates")])
        0.5
    """
    begun = {time.unit: time.value for time in starts}
    shares = []
    for stop in stops:
        start = begun.get(stop.unit, 0.0)
        shares.append((row.get(stop.unit, 0) - start) / max(stop.value - start, 1e-9))
    return min(1.0, max(0.0, *shares))


def next_firing(
    hooks: Sequence[Mapping[str, Any]], length: Mapping[str, Any], clock: Mapping[str, int]
) -> tuple[str, Time] | None:
    """Return the method and time of the scheduled hook that is due next; None without one."""
    now, end = Clock(**{unit: clock.get(unit, 0) for unit in UNITS}), Clock(**length["known"])
    reference = Time.parse(length["percentages_of"])
    schedules = []
    for number, hook in enumerate(hooks):
        if hook.get("when") is None:  # else nobody knows
            keys = {key: hook.get(key) for key in KEYS}
            schedule = Schedule.parse(keys, reference, f"hooks[{number}]", end)
            schedules.append((str(hook.get("method")), schedule))
    return next_due(schedules, now, end, lambda: length["expected"])


def disk_used(folder: Path) -> int:
    """Return the bytes of all files in a folder; hard links count once."""
    sizes = {}
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                about = os.lstat(os.path.join(root, name))
            except OSError:  # deleted meanwhile
                continue
            sizes[about.st_dev, about.st_ino] = about.st_size
    return sum(sizes.values())


def status_of(folder: Path, info: Mapping[str, Any]) -> str:
    """Return a run's status; ``stopped`` if run.json says running, but no process has it."""
    status = status_in(info)
    here = info.get("host") == socket.gethostname()
    return "stopped" if status == "running" and here and not is_locked(folder / ".lock") else status


def _newest(rows: Sequence[dict[str, Any]], pattern: str) -> dict[str, Any] | None:
    """Return the newest line that has keys with this beginning: those, and its clock."""
    for row in reversed(rows):
        values = {key: value for key, value in row.items() if re.match(pattern, key)}
        if values:
            return {unit: row[unit] for unit in UNITS if unit in row} | values
    return None


def _newest_of_each(receipts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest receipts of each method, oldest first."""
    after = Counter[str]()
    found = []
    for row in reversed(receipts):
        after[str(row["method"])] += 1
        found += [row] if after[str(row["method"])] <= _RECEIPTS else []
    return found[::-1]


def _newest_clock(
    metrics: Sequence[dict[str, Any]], receipts: Sequence[dict[str, Any]]
) -> dict[str, int]:
    rows = [*metrics[-1:], *(row["clock"] for row in receipts[-1:])]
    return {u: max(r.get(u, 0) for r in rows) for u in UNITS if any(u in r for r in rows)}


def _speed(rows: Sequence[Mapping[str, Any]], unit: str) -> tuple[float | None, float | None]:
    """Return the rate per second in the later half of the time, and the seconds so far."""
    points = [(r["time/seconds"], r.get(unit, 0)) for r in rows if r.get("time/seconds")]
    if not points:
        return None, None
    seconds, done = points[-1]
    moment, before = next(p for p in [(0.0, 0), *points] if p[0] >= seconds / 2 or len(points) < 3)
    if moment == seconds:
        moment, before = points[-2]
    return ((done - before) / (seconds - moment) if seconds > moment else None), seconds


def _checkpoints(root: Path) -> list[dict[str, Any]]:
    """Return name, bytes and completeness of each checkpoint, the newest last."""
    found = []
    for path in (path for kind in KINDS for path in root.glob(f"{kind}-*")):
        try:
            position, whole = check_seal(path)["position"], True
        except DamagedFile:
            position, whole = [], False
        row = {"name": path.name, "bytes": disk_used(path), "complete": whole}
        found.append((position, path.name, row))
    return [row for _, _, row in sorted(found, key=lambda f: f[:2])]
