"""Which cells workers take, in which order, and what becomes of those that fail."""

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.core.errors import ConfigError
from rlplast.run.info import versions
from rlplast.study import work as module
from rlplast.study.api import _try_again
from rlplast.study.claims import BEAT, Claim, Claims
from rlplast.study.executors import Executor
from rlplast.study.folder import StudyFolder, cell_row, is_done, log_file
from rlplast.study.plan import Cell, PlannedRun, plan
from rlplast.study.state import Row, StudyState, pending
from rlplast.study.watch import Failure, Progress, watch
from rlplast.study.work import reason_of, work
from rlplast.training.config import RunConfig
from rlplast.training.run_folder import write_json


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlplast.study.watch._PAUSE", 0.0)
        yield


Exits = Callable[[Row, int], int]  # the exit code of a cell's attempt
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


def finish(root: Path, folder: str, status: str = "done") -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    write_json(root / folder / "run.json", {"status": status})


class Nothing(Executor):
    """A worker in this process whose cells do nothing but end with the codes of `exits`."""

    slots = 1

    def __init__(self, exits: Exits = lambda row, attempt: 0) -> None:
        self.exits, self.taken = exits, list[str]()

    def start(self, root: Path, cells: int) -> None:
        work(root, run=self.run)

    def ended(self) -> str:
        return ""

    def run(self, state: StudyState, row: Row, claim: Claim, over: Any) -> tuple[int, str]:
        parent = state.cells.get(row["parent"])
        assert parent is None or is_done(state.root / parent["folder"])
        assert not is_done(state.root / row["folder"])
        self.taken.append(row["key"])
        code = self.exits(row, self.taken.count(row["key"]))
        if code == 0:
            finish(state.root, row["folder"])
        return code, f"exit code {code}" if code else ""


def run(
    cells: Sequence[Cell],
    root: Path,
    exits: Exits = lambda row, attempt: 0,
    retries: int = 1,
    observer: Callable[[Progress], None] = lambda progress: None,
) -> tuple[list[str], list[Failure]]:
    """Run a study whose cells do nothing; returns the keys that were taken, and failures."""
    folder = StudyFolder(root)
    try:
        folder.write_plan({"versions": versions(), "retries": retries}, cells)
        rows = [cell_row(cell) for cell in cells]
        _try_again(root, {row["key"] for row in pending(rows, root)})
        executor = Nothing(exits)
        return executor.taken, watch(root, cells, executor, observer)
    finally:
        folder.close()


def test_two_prefixes_of_one_name_end_each_as_itself(tmp_path: Path):
    cells = cells_of()
    bad, good = sorted((c for c in cells if c.name == LATE), key=lambda c: c.config.hooks == [A])
    _, failures = run(cells, tmp_path, lambda row, attempt: int(row["key"] == bad.key))
    dependents = {
        c.key: (None, f"not run: its prefix {LATE} failed") for c in cells if c.parent == bad.key
    }
    reasons = {f.cell.key: (f.log, f.reason) for f in failures}
    assert reasons == {bad.key: (tmp_path / log_file(bad.folder), "exit code 1"), **dependents}
    done = {c.arm for c in cells if is_done(tmp_path / c.folder)}
    assert done == {None, "none", "a", "ac"}
    assert is_done(tmp_path / good.folder)


@pytest.mark.parametrize(
    ("code", "retries", "ends"),
    [
        (1, 3, ["failed", "failed", "failed", "done"]),
        (1, 2, ["failed", "failed", "failed"]),
        (2, 5, ["failed"]),  # a bad config
    ],
)
def test_cell_that_failed_is_tried_as_often_as_asked(
    code: int, retries: int, ends: list[str], tmp_path: Path
):
    cells = cells_of()
    exits: Exits = lambda row, n: code * (row["arm"] == "a" and n < 4)  # noqa: E731
    _, failures = run(cells, tmp_path, exits, retries=retries)
    (key,) = (cell.key for cell in cells if cell.arm == "a")
    files = sorted((tmp_path / "claims").glob(f"{key}.*"), key=lambda path: int(path.suffix[1:]))
    assert [json.loads(path.read_bytes())["end"] for path in files] == ends
    assert [f.cell.arm for f in failures] == ["a"] * (ends[-1] == "failed")


@given(st.data())
@settings(max_examples=30)
def test_whatever_fails_the_rest_is_done_and_a_second_start_does_what_is_left(data: st.DataObject):
    lists = data.draw(st.lists(st.sampled_from(list(LISTS)), min_size=1, unique=True))
    cells = cells_of(**{name: LISTS[name] for name in lists})
    codes = {c.key: data.draw(st.sampled_from([0, 0, 0, 1, 2, 137])) for c in cells}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _, failures = run(cells, root, lambda row, _: codes[row["key"]])
        lost = {c.key for c in cells if codes[c.key] != 0}
        for cell in cells:  # a prefix comes before what goes on from it
            lost |= {cell.key} if cell.parent in lost else set()
        assert {f.cell.key for f in failures} == lost
        assert {c.key for c in cells if not is_done(root / c.folder)} == lost
        again, failures = run(cells, root)
        assert failures == []
        assert sorted(again) == sorted(lost)  # each once


def test_those_with_the_longest_way_to_go_come_first(tmp_path: Path):
    long = RunConfig(total="25 updates", seed=1)
    cells = cells_of(none=[], a=[A], ac=[A, C])
    alone = plan([PlannedRun("alone", 1, "none", long)])
    taken, _ = run([*cells, *alone], tmp_path)
    names = {c.key: c.name for c in (*cells, *alone)}
    early, half = "seed-1/prefix to 6 updates", "seed-1/prefix to 12 updates"
    # 100% of a run lies before early's leaves and before the other task; then 75%, 75%, 50%, 50%.
    assert [names[key] for key in taken] == [
        *(early, "alone/seed-1/none", "seed-1/none", half, "seed-1/a", "seed-1/ac"),
    ]


def test_prefix_is_needed_only_by_what_has_not_begun(tmp_path: Path):
    cells = cells_of(none=[], a=[A], ac=[A, C])
    names = {cell.key: cell.arm or cell.name[-10:] for cell in cells}
    by_arm = {names[cell.key]: cell for cell in cells}

    def left() -> list[str]:
        rows = [{"key": c.key, "folder": c.folder, "parent": c.parent} for c in cells]
        for row, cell in zip(rows, cells, strict=True):
            row["kind"] = "prefix" if cell.arm is None else "arm"
        return [names[str(row["key"])] for row in pending(rows, tmp_path)]

    early, none, late, a, ac = names.values()
    assert left() == [early, none, late, a, ac]
    finish(tmp_path, by_arm[none].folder, "interrupted")
    finish(tmp_path, by_arm[a].folder, "running")
    assert left() == [early, none, late, a, ac]  # ac needs late, and late early
    finish(tmp_path, by_arm[ac].folder)
    assert left() == [none, a]
    finish(tmp_path, by_arm[late].folder)
    (tmp_path / by_arm[a].folder / "run.json").unlink()
    assert left() == [none, a]
    (tmp_path / by_arm[late].folder / "run.json").write_text('{"status": "do')
    assert left() == [none, late, a]
    (tmp_path / by_arm[late].folder / "run.json").unlink()
    assert left() == [early, none, late, a]


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (1, "resuming x\nrlplast: loss = nan\n", "loss = nan"),
        (2, "rlplast: hooks[0]: no\n\n", "hooks[0]: no"),
        (9, "=== attempt 1, x\nrlplast: old\n=== attempt 2, y\n", "exit code 9"),
        (9, "=== attempt 1, x\nresuming x\n", "exit code 9, after 'resuming x'"),
        (9, None, "exit code 9"),  # somebody has deleted it
    ],
)
def test_reason_is_what_the_last_attempt_said(
    code: int, log: str | None, reason: str, tmp_path: Path
):
    if log is not None:
        (tmp_path / "log").write_text(log)
    assert reason_of(code, tmp_path / "log") == reason


def test_observer_is_told_every_event_once_and_where_the_study_is(tmp_path: Path):
    cells, seen = cells_of(), []

    def observe(progress: Progress) -> None:
        seen.append((progress.event, len(progress.done), len(progress.failures)))

    run(cells, tmp_path, lambda row, attempt: int(row["arm"] == "a"), observer=observe)
    events = [event for event, *_ in seen if event]
    assert events.count("failed, trying again: seed-1/a (exit code 1)") == 1
    assert events.count("failed: seed-1/a (exit code 1)") == 1
    done = [event for event in events if event.startswith("done: ")]
    assert len(done) == len(cells) - 1 == len(events) - 2
    assert (seen[0], seen[-1]) == (("", 0, 0), ("", len(cells) - 1, 1))
    seen.clear()
    run(cells, tmp_path, lambda row, attempt: 0, observer=observe)  # what ended before is no news
    assert {event for event, *_ in seen} == {"", "done: seed-1/a"}


def planned(root: Path, cells: Sequence[Cell], **about: Any) -> Path:
    folder = StudyFolder(root)
    folder.write_plan({"versions": versions()} | about, cells)
    folder.close()
    return root


def test_worker_ends_after_so_many_cells_or_so_long(tmp_path: Path):
    root = planned(tmp_path, cells_of())
    assert work(root, cells=3, run=Nothing().run) == 3
    assert work(root, seconds=0.0, run=Nothing().run) == 0
    asked = []

    def save(
        state: StudyState, row: Row, claim: Claim, over: Callable[[], bool]
    ) -> tuple[int, str]:
        while not over():
            pass
        asked.append(row["name"])
        return 130, ""

    assert work(root, seconds=0.05, run=save) == 0
    assert len(asked) == 1
    rest = Nothing()
    assert work(root, run=rest.run) == len(cells_of()) - 3 == len(set(rest.taken))


def test_study_of_another_version_is_refused(tmp_path: Path):
    root = planned(tmp_path, cells_of(), versions=versions() | {"torch": "1.0"})
    with pytest.raises(ConfigError, match=r"torch 1\.0"):
        work(root, run=Nothing().run)


@pytest.mark.parametrize("waits", [True, False])
def test_cell_of_a_worker_that_dies_is_taken_over_by_one_that_waits(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_IDLE", (0.01, 0.01))
    (cell,) = cells_of(none=[])
    root, gone = planned(tmp_path, [cell]), threading.Event()
    other = StudyState(root).claims.claim(cell.key)
    assert other is not None
    monkeypatch.setattr(
        "rlplast.study.claims._born",
        lambda pid, born=other._row["born"]: None if gone.is_set() else born,
    )
    timer = threading.Timer(0.2, gone.set)
    timer.start()
    assert work(root, waits=waits, run=Nothing().run) == int(waits)
    timer.join()


@pytest.mark.parametrize("lives", [True, False])
def test_one_that_does_not_wait_takes_over_from_a_machine_that_died_before_it_looked(
    lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The job of a dead node, which Slurm starts elsewhere, is the last one that looks."""
    now, look = [0.0], StudyState.look
    monkeypatch.setattr(module, "_IDLE", (0.0, 0.0))
    monkeypatch.setattr("rlplast.study.claims._uptime", lambda: now[0])
    (cell,) = cells_of(none=[])
    root = planned(tmp_path, [cell])
    other = StudyState(root).claims.claim(cell.key)
    assert other is not None
    other._row["node"] = "another"
    other._write()

    def later(state: StudyState) -> None:
        now[0] += BEAT
        assert not lives or other.beat()
        look(state)

    monkeypatch.setattr(StudyState, "look", later)
    assert work(root, waits=False, run=Nothing().run) == int(not lives)
    assert now[0] < 20 * BEAT


@pytest.mark.parametrize("words", [None, "{", '{"worker": "another"}'])
def test_worker_that_lost_a_cell_holds_it_no_more(
    words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It stood still, as a laptop that sleeps. Its process lives on, so nobody takes it over."""
    (cell,) = cells_of(none=[])
    root, now = planned(tmp_path, [cell]), [0.0]
    monkeypatch.setattr("rlplast.study.claims._uptime", lambda: now[0])

    def run(state: StudyState, row: Row, claim: Claim, over: Callable[[], bool]) -> tuple[int, str]:
        if claim.number > 1:
            return Nothing().run(state, row, claim, over)
        now[0] += 7 * BEAT
        assert not claim.beat()
        if words is not None:
            (root / "claims" / f"{cell.key}.1").write_text(words)
        return 137, "killed"

    ends = [] if words and "another" in words else ["stopped", "done"]
    assert work(root, run=run, seconds=1.0) == (1 if ends else 0)  # another holds it, so it waits
    claims = Claims(root, 0)
    claims.look()
    assert [own.end for own in claims.attempts[cell.key]] == (ends or [None])


def test_no_worker_is_started_for_what_others_hold(tmp_path: Path):
    (cell,) = cells_of(none=[])
    held = StudyState(planned(tmp_path, [cell])).claims.claim(cell.key)
    assert held is not None
    looks = list[object]()

    def observe(progress: Progress) -> None:
        looks.append(len(progress.running))
        if len(looks) == 3:
            held.finish("failed", 1)

    class Told(Nothing):
        def start(self, root: Path, cells: int) -> None:
            looks.append("started")
            super().start(root, cells)

    assert watch(tmp_path, [cell], Told(), observe) == []
    assert looks[:3] == [1, 1, 1] and looks.count("started") == 1


def test_workers_take_what_is_planned_while_they_work(tmp_path: Path):
    first, both = cells_of(none=[]), cells_of(none=[], a=[{"method": "a", "at": "0%"}])
    root = planned(tmp_path, first)
    nothing = Nothing(lambda row, n: planned(root, both) and 0)
    assert work(root, run=nothing.run) == 2
    assert sorted(nothing.taken) == sorted(cell.key for cell in both)
