"""The progress of a study: its lines fit a terminal, and say how far cells are."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from rlplast.cli import live
from rlplast.cli.study_progress import (
    CellReading,
    StudyProgress,
    StudyReading,
    plain_line,
    study_progress,
    terminal_lines,
)
from rlplast.study.api import read_study_config, study_cells
from rlplast.study.plan import Cell
from rlplast.study.scheduler import Failure, Progress
from tests.cli.studies import ARMS, TINY
from tests.cli.terminals import rows, terminal
from tests.study.inline import write_study

LONG = "minatar_space_invaders_with_a_long_name/seed-12/shrink_perturb_and_a_long_name_of_an_arm"


def reading(names: list[str]) -> StudyReading:
    cells = [CellReading(name, 0.42, "67 env_steps/s", 95.0) for name in names]
    return StudyReading(0.25, 3, 1, 8, 3725.0, (CellReading("seed-1/first", None), *cells))


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
@pytest.mark.parametrize(
    "names", [["seed-1/none"], [LONG, "seed-1/fire"], ["強" * 70], [LONG] * 70]
)
def test_lines_fit_the_terminal(names: list[str], columns: int):
    found = terminal_lines(reading(names), columns, 23)
    assert len(found) == min(23, len(names) + 2)
    assert all(cell_len(line) <= columns for line in found)
    head = found[0].split("  ")
    assert head[0].startswith("study ━")
    assert (
        head[1:6] == ["25%", "3 of 12 done", "1 failed", "1:02:05 left", "8 to do"][: len(head) - 1]
    )
    assert len(head) >= 5
    assert "starting" in found[1]
    assert "42%" in found[2] and "1:35 left" in found[2]
    assert ("67 env_steps/s" in found[2]) == (columns >= 80)


def test_long_names_keep_both_ends():
    name, *figures = terminal_lines(reading([LONG]), 80, 23)[2].split("  ")[1:]
    assert name.startswith("minatar_space") and name.endswith("_name_of_an_arm") and "…" in name
    assert [text.strip() for text in figures if text] == ["42%", "1:35 left", "67 env_steps/s"]


def test_cells_that_have_no_row_are_counted():
    found = terminal_lines(reading([f"seed-{i}/fire" for i in range(40)]), 80, 10)
    assert len(found) == 10
    assert found[-1].strip() == "and 33 more"  # of 41, 8 have a row


@pytest.mark.parametrize("lines", range(4))
def test_few_rows_are_not_exceeded(lines: int):
    assert len(terminal_lines(reading(["a", "b"]), 80, lines)) == max(1, lines)


def test_before_the_first_cells_nothing_is_counted():
    assert terminal_lines(None, 60, 23) == [plain_line(None)] == ["study: starting the first cells"]


def test_a_plain_line_names_the_running_cells():
    assert plain_line(reading(["seed-1/fire"])) == (
        "study: 3 of 12 done, 1 failed, 1:02:05 left, 8 to do; seed-1/first starting; "
        "seed-1/fire 42% (1:35 left)"
    )
    assert plain_line(reading(["x"] * 20)).endswith("; and 13 more")


@pytest.fixture
def cells(tmp_path: Path) -> dict[str, Cell]:
    """A prefix to 50 of 100 env_steps, and its arms among others."""
    study = read_study_config(str(write_study(tmp_path, TINY, ARMS)))
    return {cell.name.removeprefix("seed-3/"): cell for cell in study_cells(study)}


def write_metrics(root: Path, cell: Cell, **row: Any) -> None:
    path = root / cell.folder / "metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _reading(watched: StudyProgress) -> StudyReading:
    assert watched.reading is not None
    return watched.reading


def test_cells_are_as_far_as_their_metrics_say(cells: dict[str, Cell], tmp_path: Path):
    seconds = [0.0]
    watched = StudyProgress(tmp_path, lambda: seconds[-1])
    prefix, fire = cells["prefix to 50 env_steps"], cells["fire"]
    progress = Progress(list(cells.values()), set(), {prefix.key: 0.0})
    watched.observe(progress)
    assert _reading(watched).running == (CellReading("seed-3/prefix to 50 env_steps", None),)
    for second, env_steps in ((1.0, 10), (3.0, 20)):
        seconds.append(second)
        write_metrics(tmp_path, prefix, env_steps=env_steps, updates=0)
        watched.observe(progress)
    (found,) = _reading(watched).running
    assert (found.share, found.rate) == (0.4, "5 env_steps/s")
    assert found.left == pytest.approx(6)  # 30 env_steps
    assert _reading(watched).seconds_left is not None

    progress.done.add(prefix.key)
    progress.running = {fire.key: 3.0}
    write_metrics(tmp_path, fire, env_steps=75, updates=30)
    watched.observe(progress)
    assert _reading(watched).running[0].share == 0.5  # it began at 50
    # Of 1.75 runs (two prefixes of 0.5 and 0.25, arms of 0.5, 0.25, 0.25) the first, and half fire.
    assert _reading(watched).share == pytest.approx(0.75 / 1.75)
    assert (_reading(watched).done, _reading(watched).left) == (1, 4)


def test_failed_cells_are_no_longer_waited_for(cells: dict[str, Cell], tmp_path: Path):
    watched = StudyProgress(tmp_path, lambda: 0.0)
    failures = [Failure(cells["fire"], "why", None)]
    done = {cell.key for name, cell in cells.items() if name != "fire"}
    watched.observe(Progress(list(cells.values()), done, {}, failures))
    assert _reading(watched).said == ["4 of 5 done", "1 failed"]
    assert (_reading(watched).share, _reading(watched).left) == (pytest.approx(1), 0)


def test_a_study_draws_on_a_terminal_and_names_its_events(
    cells: dict[str, Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, *others = cells.values()
    with terminal(monkeypatch, 60) as written, study_progress(tmp_path) as observer:
        observer(Progress(list(cells.values()), set(), {one.key: 0.0}, event="began: [red]x[/y]"))
        observer(Progress(list(cells.values()), {cell.key for cell in others}, {one.key: 0.0}))
    found = rows(written)
    assert "[0/5] began: [red]x[/y]" in found
    assert max(map(cell_len, found)) <= 60
    assert found[-2].startswith("study ━") and found[-2].split("  ")[1:3] == ["71%", "4 of 5 done"]
    assert found[-1].split() == ["seed-3/prefix", "to", "50", "env_steps", "starting"]


def test_without_a_terminal_each_event_is_a_line(
    cells: dict[str, Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "_BEAT", 1000.0)
    with contextlib.redirect_stderr(io.StringIO()) as err, study_progress(tmp_path) as observer:
        progress = Progress(list(cells.values()), {"x"}, event="done: [seed]-3/none")
        observer(Progress([], set()))
        observer(Progress(progress.cells, set(), event=progress.event))
    assert err.getvalue() == "[0/5] done: [seed]-3/none\n"
