"""Which cells run, in which order, and what becomes of those that fail."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.core.training.config import RunConfig
from rlplast.core.training.run_folder import write_json
from rlplast.study.executors import Job, Outcome
from rlplast.study.folder import StudyFolder
from rlplast.study.plan import Cell, PlannedRun, plan
from rlplast.study.scheduler import Failure, Progress, pending, run_cells

A, B, C = ({"method": name, "at": at} for name, at in (("a", "25%"), ("b", "25%"), ("c", "50%")))
# A prefix to 25% for all, one to 50% for a's two arms and one of the same name for b's.
LISTS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "a": [A],
    "ac": [A, C],
    "b": [B],
    "bc": [B, C],
}
EARLY, LATE = "seed-1/prefix to 6 updates", "seed-1/prefix to 12 updates"


def cells_of(seeds: Sequence[int] = (1,), **lists: list[dict[str, Any]]) -> list[Cell]:
    return plan(
        PlannedRun("", seed, arm, RunConfig(total="24 updates", seed=seed, hooks=hooks))
        for seed in seeds
        for arm, hooks in (lists or LISTS).items()
    )


class Fake:
    """Finishes jobs one by one, the newest first; a job that succeeds leaves a run that is done.

    Args:
        root: the study's folder.
        exits: exit codes of a cell's attempts, by its folder's name without the hash; then 0.
    """

    def __init__(
        self, cells: Sequence[Cell], root: Path, slots: int, exits: Callable[[Cell, int], int]
    ) -> None:
        self.slots = slots
        self.cells = {cell.key: cell for cell in cells}
        self.root, self.exits = root, exits
        self.running: list[Job] = []
        self.log: list[str] = []  # keys, as they were started

    def submit(self, job: Job) -> None:
        cell = self.cells[job.command[0]]
        assert len(self.running) < self.slots
        assert cell.parent is None or done(self.root, self.cells[cell.parent])
        assert not done(self.root, cell)
        assert job.threads == cell.config.threads
        self.running.append(job)
        self.log.append(cell.key)

    def wait(self, seconds: float) -> list[Outcome]:
        if not self.running:
            return []
        job = self.running.pop()
        key = job.command[0]
        code = self.exits(self.cells[key], self.log.count(key))
        if code == 0:
            finish(self.root, self.cells[key])
        return [Outcome(job, code)]


def finish(root: Path, cell: Cell, status: str = "done") -> None:
    folder = root / cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", {"status": status})


def done(root: Path, cell: Cell) -> bool:
    path = root / cell.folder / "run.json"
    return path.exists() and json.loads(path.read_text())["status"] == "done"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StudyFolder]:
    made = StudyFolder(tmp_path / "study")
    yield made
    made.close()


def run(
    cells: Sequence[Cell],
    folder: StudyFolder,
    exits: Callable[[Cell, int], int] = lambda cell, attempt: 0,
    slots: int = 2,
    retries: int = 1,
    observer: Callable[[Progress], None] = lambda progress: None,
) -> tuple[Fake, list[Failure]]:
    fake = Fake(cells, folder.path, slots, exits)
    failures = run_cells(cells, folder, fake, lambda c: (c.key,), retries, observer)  # type: ignore[arg-type]
    return fake, failures


def names(cells: Sequence[Cell]) -> list[str]:
    return [cell.name for cell in cells]


def rows(folder: StudyFolder) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (folder.path / "journal.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("slots", [1, 2, 50])
def test_every_cell_runs_once_and_after_its_prefix(slots: int, folder: StudyFolder):
    cells = cells_of(seeds=(1, 2))
    fake, failures = run(cells, folder, slots=slots)
    assert failures == []
    assert sorted(fake.log) == sorted(cell.key for cell in cells)
    assert run(cells, folder)[0].log == []


def test_two_prefixes_of_one_name_end_each_as_itself(folder: StudyFolder):
    cells = cells_of()
    assert names(cells).count(LATE) == 2
    bad = next(c for c in cells if c.name == LATE and c.config.hooks == [B])
    _, failures = run(cells, folder, lambda cell, attempt: int(cell is bad), slots=50)
    assert {f.cell.key: f.log is None for f in failures} == {
        bad.key: False,
        **{c.key: True for c in cells if c.parent == bad.key},
    }
    assert {c.arm for c in cells if done(folder.path, c)} == {None, "none", "a", "ac"}


def test_cell_that_failed_is_tried_as_often_as_asked(folder: StudyFolder):
    cells = cells_of()
    fake, failures = run(cells, folder, lambda c, attempt: int(c.arm == "a" and attempt < 4), 2, 3)
    key = next(c.key for c in cells if c.arm == "a")
    assert (fake.log.count(key), failures) == (4, [])
    mine = [(r["event"], r["attempt"]) for r in rows(folder) if r["cell"] == key]
    assert mine == [
        *[(event, n) for n in (1, 2, 3) for event in ("started", "retried")],
        ("started", 4),
        ("done", 4),
    ]


def test_cell_whose_config_is_bad_is_not_tried_again(folder: StudyFolder):
    cells = cells_of()
    fake, (failure,) = run(cells, folder, lambda cell, attempt: 2 * (cell.arm == "b"), retries=5)
    assert failure.cell.arm == "b"
    assert fake.log.count(failure.cell.key) == 1


def test_nothing_that_goes_on_from_a_lost_prefix_is_run_and_all_else_is(folder: StudyFolder):
    cells = cells_of(seeds=(1, 2))
    _, failures = run(cells, folder, lambda cell, attempt: int(cell.name == EARLY), retries=0)
    assert names([f.cell for f in failures]) == [c.name for c in cells if c.seed == 1]
    assert failures[0].log == folder.log(cells[0])
    assert {f.log for f in failures[1:]} == {None}
    assert failures[1].reason == f"not run: its prefix {EARLY} failed"
    assert all(done(folder.path, c) for c in cells if c.seed == 2)
    assert {r["name"] for r in rows(folder) if r["event"] == "skipped"} == {
        c.name for c in cells if c.seed == 1 and c.parent is not None
    }


@given(st.data())
@settings(max_examples=60)
def test_whatever_fails_the_rest_is_done_and_a_second_start_does_what_is_left(data: st.DataObject):
    lists = data.draw(st.lists(st.sampled_from(list(LISTS)), min_size=1, unique=True))
    cells = cells_of(**{name: LISTS[name] for name in lists})
    codes = {c.key: data.draw(st.sampled_from([0, 0, 0, 1, 2, 137])) for c in cells}
    with tempfile.TemporaryDirectory() as root, closing(StudyFolder(Path(root))) as folder:
        _, failures = run(cells, folder, lambda c, _: codes[c.key], data.draw(st.integers(1, 4)))
        lost = {c.key for c in cells if codes[c.key] != 0}
        for cell in cells:  # a prefix comes before what goes on from it
            lost |= {cell.key} if cell.parent in lost else set()
        assert {f.cell.key for f in failures} == lost
        assert {c.key for c in cells if done(folder.path, c)} == {c.key for c in cells} - lost
        again, failures = run(cells, folder)
        assert failures == []
        assert set(again.log) == lost


# What is left to do.


def test_prefix_is_needed_only_by_what_has_not_begun(tmp_path: Path):
    cells = cells_of(none=[], a=[A], ac=[A, C])
    early, none, late, a, ac = cells
    assert [c.arm for c in cells] == [None, "none", None, "a", "ac"]
    assert pending(cells, tmp_path) == cells
    finish(tmp_path, none, "interrupted")
    finish(tmp_path, a, "running")
    assert pending(cells, tmp_path) == cells  # ac needs late, and late early
    finish(tmp_path, ac)
    assert pending(cells, tmp_path) == [none, a]
    finish(tmp_path, late)
    assert pending(cells, tmp_path) == [none, a]
    (tmp_path / a.folder / "run.json").unlink()
    assert pending(cells, tmp_path) == [none, a]
    (tmp_path / late.folder / "run.json").unlink()
    assert pending(cells, tmp_path) == [early, none, late, a]


def test_run_whose_status_cannot_be_read_is_not_done(tmp_path: Path):
    cells = cells_of(none=[])
    finish(tmp_path, cells[0])
    (tmp_path / cells[0].folder / "run.json").write_text('{"status": "do')
    assert pending(cells, tmp_path) == cells


# Reasons.


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (1, "resuming x\nrlplast: loss = nan\n", "loss = nan"),
        (2, "rlplast: hooks[0]: no\n\n", "hooks[0]: no"),
        (9, "=== attempt 1, today: python\n", "exit code 9"),
        (9, "=== attempt 1, x\nrlplast: old\n=== attempt 2, y\n", "exit code 9"),
        (9, "=== attempt 1, x\nresuming x\n", "exit code 9, after 'resuming x'"),
        (1, "Traceback\nKeyError: 3\n", "exit code 1, after 'KeyError: 3'"),
        (7, None, "exit code 7"),
    ],
)
def test_reason_is_what_the_last_attempt_said(
    code: int, log: str | None, reason: str, folder: StudyFolder
):
    cells = cells_of(none=[])
    if log is not None:
        folder.log(cells[0]).parent.mkdir()
        folder.log(cells[0]).write_text(log)
    _, (failure,) = run(cells, folder, lambda cell, attempt: code, retries=0)
    assert failure.reason == reason


def test_observer_is_told_every_event_and_where_the_study_is(folder: StudyFolder):
    cells, told = cells_of(), []

    def observe(progress: Progress) -> None:
        told.append((progress.event, len(progress.done), len(progress.running)))

    run(cells, folder, lambda c, attempt: int(c.arm == "a"), slots=2, retries=1, observer=observe)
    events = [event for event, *_ in told if event]
    assert events.count("failed, trying again: seed-1/a (exit code 1)") == 1
    assert events.count("failed: seed-1/a (exit code 1)") == 1
    assert sum(event.startswith("done: ") for event in events) == len(cells) - 1
    assert [n for _, n, _ in told] == sorted(n for _, n, _ in told)
    assert told[-1] == ("", len(cells) - 1, 0)
    assert max(n for *_, n in told) == 1  # one of the two had just ended
