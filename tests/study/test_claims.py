"""Who holds a cell: one worker at most, whatever dies, stands still, or writes nonsense."""

import errno
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.study import claims as module
from rlplast.study.claims import BEAT, MISSED, Claims

CELL = "0123456789abcdef"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands; its first entry is the time."""
    now = [1000.0]
    monkeypatch.setattr(module, "_uptime", lambda: now[0])
    return now


def known(study: Path, retries: int = 1) -> Claims:
    found = Claims(study, retries)
    found.look()
    return found


def write(study: Path, number: int, row: Any) -> Path:
    path = study / "claims" / f"{CELL}.{number}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(row if isinstance(row, str) else json.dumps(row))
    return path


def _claim_all(study: Path, cells: list[str], queue: Any) -> None:
    own = Claims(study, 1)
    queue.put([cell for cell in cells if own.claim(cell) is not None])


def test_each_attempt_is_had_by_one_of_eight_processes(tmp_path: Path):
    cells = [f"{number:016x}" for number in range(200)]
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    racers = [fork.Process(target=_claim_all, args=(tmp_path, cells, queue)) for _ in range(8)]
    for racer in racers:
        racer.start()
    had = [cell for _ in racers for cell in queue.get(timeout=60)]
    for racer in racers:
        racer.join()
    assert sorted(had) == cells
    # Whoever died with a claim is gone, so all are free again, for one more each.
    later = known(tmp_path)
    assert set(later.states.values()) == {"free"}
    assert [own.number for own in (later.claim(cell) for cell in cells) if own] == 200 * [2]


ENDS = st.sampled_from(["done", "failed", "config", "stopped", "again", "died"])


@given(st.lists(ENDS, max_size=16), st.integers(0, 3), st.booleans())
@settings(max_examples=200)
def test_state_is_that_of_the_twin_that_reads_from_the_start(
    ends: list[str], retries: int, held: bool
):
    state, failures, deaths = "free", 0, 0
    for end in ends:
        failures += end in ("failed", "config")
        deaths += end == "died"
        state = "done" if end == "done" else "free"
        if end == "config" or (end == "failed" and failures > retries):
            state = "failed"
        if end == "died" and deaths > 10:
            state = "failed"
        if end == "again":
            failures = deaths = 0
    found = Claims(Path(), retries)
    rows = [{"node": module._node(), "pid": 0, "born": 1} for _ in ends]
    for row, end in zip(rows, ends, strict=True):
        if end != "died":
            row |= {"end": "failed" if end == "config" else end, "exit": 1 + (end == "config")}
    if held:
        rows.append({"node": module._node(), "pid": os.getpid(), "born": module._born(os.getpid())})
        state = "held"
    for number, row in enumerate(rows, start=1):
        found.attempts[CELL].append(module.Attempt(CELL, number, row))
    assert not rows or found._state(CELL) == state


def test_worker_elsewhere_is_gone_when_its_beats_stand_still_by_the_clock_of_who_looks(
    tmp_path: Path, clock: list[float]
):
    row = {"node": "another", "pid": 1, "born": 1, "began": "2001-01-01T00:00:00+0000", "beats": 0}
    write(tmp_path, 1, row)
    found = known(tmp_path)
    for beats in range(1, 30):  # it beats slowly, but it does
        clock[0] += 5 * BEAT
        write(tmp_path, 1, row | {"beats": beats})
        found.look()
        assert found.states[CELL] == "held"
    for _ in range(MISSED - 1):
        clock[0] += 100 * BEAT  # a file system that stood still: it counts as one
        found.look()
        found.look()
        assert found.states[CELL] == "held"
    clock[0] += BEAT
    found.look()
    assert found.states[CELL] == "free"
    taken = found.claim(CELL)
    assert taken is not None and taken.number == 2


def test_worker_here_is_gone_with_its_process(tmp_path: Path):
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Event(), fork.Event()

    def hold() -> None:
        Claims(tmp_path, 1).claim(CELL)
        ready.set()
        end.wait(60)

    worker = fork.Process(target=hold)
    worker.start()
    assert ready.wait(60)
    found = known(tmp_path)
    assert found.states == {CELL: "held"}
    worker.kill()
    while worker.exitcode is None:
        time.sleep(0.01)
    found.look()
    assert found.states == {CELL: "free"}


def test_process_that_got_the_number_of_a_dead_one_holds_nothing(tmp_path: Path):
    born = module._born(os.getpid())
    write(tmp_path, 1, {"node": module._node(), "pid": os.getpid(), "born": born})
    assert known(tmp_path).states[CELL] == "held"
    write(tmp_path, 1, {"node": module._node(), "pid": os.getpid(), "born": born - 1})
    assert known(tmp_path).states[CELL] == "free"


@pytest.mark.parametrize("how", ["newer", "another's words", "stood still", "no file", "full"])
def test_worker_notices_that_its_cell_may_be_anothers(
    how: str, tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
):
    own = known(tmp_path).claim(CELL)
    assert own is not None
    for _ in range(20):
        clock[0] += BEAT
        assert own.beat()
    clock[0] += BEAT
    if how == "newer":
        write(tmp_path, 2, {})
    elif how == "another's words":
        write(tmp_path, 1, {"worker": "another"})
    elif how == "stood still":
        clock[0] += (MISSED - 1) * BEAT  # others need one look more to take it
    else:

        def refuse() -> None:
            raise OSError(errno.EROFS, "read-only")

        monkeypatch.setattr(own, "_write", refuse)
        if how == "no file":
            (tmp_path / "claims" / f"{CELL}.1").unlink()
        for _ in range(6):
            assert own.beat()  # it may get better
            clock[0] += BEAT
    assert not own.beat()
    assert own.lost


def test_file_has_its_length_from_the_start_so_that_a_full_disk_stops_no_word(tmp_path: Path):
    found = known(tmp_path)
    own = found.claim(CELL)
    assert own is not None
    path = tmp_path / "claims" / f"{CELL}.1"
    before = path.stat()
    own.finish("failed", 1, "no \N{SNOWMAN} 'more' " * 1000)
    after = path.stat()
    assert (after.st_size, after.st_ino) == (before.st_size, before.st_ino)
    (ended,) = found.look()
    assert ended.row["reason"].startswith("no \N{SNOWMAN} 'more' no") and ended.row["exit"] == 1


def test_claim_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as full:
        full.setattr(module.Claim, "_write", refuse)
        with pytest.raises(OSError, match="full"):
            known(tmp_path).claim(CELL)
    taken = known(tmp_path).claim(CELL)
    assert taken is not None and taken.number == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"end": 3}', "[" * 10**5])
def test_words_that_nobody_of_ours_wrote_hold_a_cell_until_they_stand_still(
    text: str, tmp_path: Path, clock: list[float]
):
    write(tmp_path, 1, text)
    (tmp_path / "claims" / ".nfs0000001.2").touch()
    (tmp_path / "claims" / "notes.txt").touch()
    found = known(tmp_path)
    for _ in range(MISSED):
        clock[0] += BEAT
        found.look()
    assert found.states[CELL] == "free"
