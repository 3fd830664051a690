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

from rlplast.study.executors import Executor, Job
from rlplast.study.folder import StudyFolder, is_done
from rlplast.study.plan import Cell, PlannedRun, plan
from rlplast.study.scheduler import Failure, Progress, pending, run_cells
from rlplast.training.config import RunConfig
from rlplast.training.run_folder import write_json
from tests.study.inline import InlineBackend

Exits = Callable[[Cell, int], int]  # the exit code of a cell's attempt
A, B, C = ({"method": name, "at": at} for name, at in (("a", "25%"), ("b", "25%"), ("c", "50%")))
# A prefix to 25% for all, one to 50% for a's two arms and one of the same name for b's.
LISTS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "a": [A],
    "ac": [A, C],
    "b": [B],
    "bc": [B, C],
}
LATE = "seed-1/prefix to 12 updates"


def cells_of(**lists: list[dict[str, Any]]) -> list[Cell]:
    return plan(
        PlannedRun("", 1, arm, RunConfig(total="24 updates", seed=1, hooks=hooks))
        for arm, hooks in (lists or LISTS).items()
    )


def finish(root: Path, cell: Cell, status: str = "done") -> None:
    folder = root / cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", {"status": status})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StudyFolder]:
    made = StudyFolder(tmp_path / "study")
    yield made
    made.close()


def run(
    cells: Sequence[Cell],
    folder: StudyFolder,
    exits: Exits = lambda cell, attempt: 0,
    slots: int = 2,
    retries: int = 1,
    observer: Callable[[Progress], None] = lambda progress: None,
) -> tuple[list[str], list[Failure]]:
    """Run a study whose cells do nothing; returns the keys that were started, and failures."""
    by_key = {cell.key: cell for cell in cells}
    started: list[str] = []

    def start(job: Job) -> tuple[int, str]:
        cell = by_key[job.command[0]]
        assert cell.parent is None or is_done(folder.path / by_key[cell.parent].folder)
        assert not is_done(folder.path / cell.folder)
        started.append(cell.key)
        code = exits(cell, started.count(cell.key))
        if code == 0:
            finish(folder.path, cell)
        return code, ""

    def observe(progress: Progress) -> None:
        assert len(progress.running) <= slots
        observer(progress)

    backend = InlineBackend()
    backend.start = start  # type: ignore[method-assign]
    executor = Executor(backend, slots)
    return started, run_cells(cells, folder, executor, lambda c: (c.key,), retries, observe)


def rows(folder: StudyFolder) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (folder.path / "journal.jsonl").read_text().splitlines()]


def test_two_prefixes_of_one_name_end_each_as_itself(folder: StudyFolder):
    cells = cells_of()
    bad, good = sorted((c for c in cells if c.name == LATE), key=lambda c: c.config.hooks == [A])
    _, failures = run(cells, folder, lambda cell, attempt: int(cell is bad), slots=50)
    dependents = {
        c.key: (None, f"not run: its prefix {LATE} failed") for c in cells if c.parent == bad.key
    }
    reasons = {f.cell.key: (f.log, f.reason) for f in failures}
    assert reasons == {bad.key: (folder.log(bad), "exit code 1"), **dependents}
    assert [r["cell"] for r in rows(folder) if r["event"] == "skipped"] == list(dependents)
    done = {c.arm for c in cells if is_done(folder.path / c.folder)}
    assert done == {None, "none", "a", "ac"}
    assert is_done(folder.path / good.folder)


@pytest.mark.parametrize(
    ("code", "retries", "events"),
    [
        (1, 3, 3 * ["started", "retried"] + ["started", "done"]),
        (1, 2, 2 * ["started", "retried"] + ["started", "failed"]),
        (2, 5, ["started", "failed"]),  # a bad config
    ],
)
def test_cell_that_failed_is_tried_as_often_as_asked(
    code: int, retries: int, events: list[str], folder: StudyFolder
):
    cells = cells_of()
    _, failures = run(cells, folder, lambda c, n: code * (c.arm == "a" and n < 4), retries=retries)
    mine = [row for row in rows(folder) if row["name"] == "seed-1/a"]
    assert [row["event"] for row in mine] == events
    assert [row["attempt"] for row in mine] == [1 + i // 2 for i in range(len(events))]
    assert [f.cell.arm for f in failures] == ["a"] * events.count("failed")


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
        assert {c.key for c in cells if not is_done(Path(root) / c.folder)} == lost
        again, failures = run(cells, folder)
        assert failures == []
        assert sorted(again) == sorted(lost)  # each once


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
    (tmp_path / a.folder / "run.json").unlink()
    assert pending(cells, tmp_path) == [none, a]
    (tmp_path / late.folder / "run.json").write_text('{"status": "do')
    assert pending(cells, tmp_path) == [none, late, a]
    (tmp_path / late.folder / "run.json").unlink()
    assert pending(cells, tmp_path) == [early, none, late, a]


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (1, "resuming x\nrlplast: loss = nan\n", "loss = nan"),
        (2, "rlplast: hooks[0]: no\n\n", "hooks[0]: no"),
        (9, "=== attempt 1, x\nrlplast: old\n=== attempt 2, y\n", "exit code 9"),
        (9, "=== attempt 1, x\nresuming x\n", "exit code 9, after 'resuming x'"),
    ],
)
def test_reason_is_what_the_last_attempt_said(
    code: int, log: str, reason: str, folder: StudyFolder
):
    cells = cells_of(none=[])
    folder.log(cells[0]).parent.mkdir()
    folder.log(cells[0]).write_text(log)
    _, (failure,) = run(cells, folder, lambda cell, attempt: code, retries=0)
    assert failure.reason == reason


def test_observer_is_told_every_event_and_where_the_study_is(folder: StudyFolder):
    cells, seen = cells_of(), []

    def observe(progress: Progress) -> None:
        seen.append((progress.event, len(progress.done), len(progress.running)))

    run(cells, folder, lambda c, attempt: int(c.arm == "a"), observer=observe)
    events = [event for event, *_ in seen if event]
    assert events.count("failed, trying again: seed-1/a (exit code 1)") == 1
    assert events.count("failed: seed-1/a (exit code 1)") == 1
    assert sum(event.startswith("done: ") for event in events) == len(cells) - 1
    assert [n for _, n, _ in seen] == sorted(n for _, n, _ in seen)
    assert seen[-1] == ("", len(cells) - 1, 0)
    assert max(n for *_, n in seen) == 1  # one of the two had just ended


def test_news_of_the_cluster_are_told_once(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch):
    news, seen = ["", "Slurm does not answer", ""], []
    monkeypatch.setattr(InlineBackend, "news", lambda self: news.pop(0) if news else "")
    run(cells_of(), folder, slots=1, observer=lambda progress: seen.append(progress.event))
    assert seen.count("Slurm does not answer") == 1
