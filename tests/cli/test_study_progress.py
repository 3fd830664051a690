"""The progress of a study: its lines fit a terminal, and say how far cells are."""

import contextlib
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from rlplast.cli import live
from rlplast.cli.study_progress import StudyProgress, study_progress
from rlplast.study.api import read_study_config, study_cells
from rlplast.study.plan import Cell
from rlplast.study.watch import Failure, Progress
from tests.cli.studies import ARMS, TINY
from tests.cli.terminals import rows, terminal
from tests.study.inline import write_study

LONG = "minatar_space_invaders_with_a_long_name/seed-12/shrink_perturb_and_a_long_name_of_an_arm"


def drawn(names: list[str], columns: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Return the rows of a study with such running cells, a first one that has just begun too."""
    seconds = [0.0]
    with terminal(patch, columns) as written:
        watched = StudyProgress(Path(), lambda: seconds[0])
        several = [watched.add_task(name, total=None) for name in names]
        watched.add_task("seed-1/first", total=None, waiting="starting")
        watched.details = ["3 of 12 done", "1 failed", "9 running", "8 waiting"]
        for second, share in ((0, 0.2), (16, 0.25)):
            seconds[0] = second
            watched.move(watched.tasks[0].id, share, 1.0, "")
            for number in several:
                watched.move(number, 2 * share, 1.0, "env_steps", 67)
        with watched.shown():
            pass
    return rows(written)


def test_lines_fit_the_terminal_and_long_names_are_cut(monkeypatch: pytest.MonkeyPatch):
    lists = (["seed-1/none"], [LONG, "seed-1/fire"], ["強" * 70], [LONG] * 15)
    for names, columns in itertools.product(lists, (60, 80)):
        found = drawn(names, columns, monkeypatch)
        assert all(cell_len(line) <= columns for line in found), (names, columns)
        whole, words, *cells = found[-len(names) - 3 :]
        assert whole.startswith("study ━") and whole.split()[-4:] == ["25%", "4", "min", "left"]
        assert words.split("  ")[1:] == ["3 of 12 done", "1 failed", "9 running", "8 waiting"]
        assert len(cells) == len(names) + 1
        for cell in cells[:-1]:
            assert "50%" in cell and "25 env_steps/min" in cell and "80 s left" in cell
        assert cells[-1].split() == ["seed-1/first", cells[-1].split()[1], "starting"]
        if columns == 80 and names[0] == LONG:
            name = cells[0].split()[0]
            assert name.startswith("minatar_space") and name.endswith("…")


def test_a_plain_line_names_the_running_cells():
    watched = StudyProgress(Path(), lambda: 0.0)
    assert watched.plain() == "study: starting the first cells"
    for number in range(20):
        watched.add_task(f"seed-{number}/fire", total=100.0, completed=42 * (number > 0))
    watched.details = ["3 of 12 done", "20 running"]
    found = watched.plain().split("; ")
    assert found[:3] == ["study: 3 of 12 done, 20 running", "seed-0/fire: 0%", "seed-1/fire: 42%"]
    assert found[8:] == ["seed-7/fire: 42%", "and 12 more"]


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


def figures(watched: StudyProgress) -> list[list[str]]:
    """Return what a plain line says of the whole and of each running cell."""
    return [part.split(": ")[1].split(", ") for part in watched.plain().split("; ")]


def test_cells_are_as_far_as_their_metrics_say(
    cells: dict[str, Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seconds = [0.0]
    watched = StudyProgress(tmp_path, lambda: seconds[-1])
    prefix, fire = cells["prefix to 50 env_steps"], cells["fire"]
    progress = Progress(list(cells.values()), set(), {prefix.key})
    watched.observe(progress)
    assert figures(watched) == [["0%", "0 of 5 done", "1 running", "4 waiting"], ["starting"]]
    for second, env_steps in ((1.0, 10), (3.0, 20)):
        seconds.append(second)
        write_metrics(tmp_path, prefix, env_steps=env_steps, updates=0)
        watched.observe(progress)
    assert figures(watched)[1] == ["40%", "5 env_steps/s", "6 s left"]  # 30 env_steps
    assert figures(watched)[0][1].endswith(" left")

    progress.done.add(prefix.key)
    progress.running = {fire.key}
    write_metrics(tmp_path, fire, env_steps=75, updates=30)
    watched.observe(progress)
    # Of 1.75 runs (two prefixes of 0.5 and 0.25, arms of 0.5, 0.25, 0.25) the first, and half fire.
    assert watched.tasks[0].completed == pytest.approx(0.75 / 1.75)
    assert figures(watched)[0][-3:] == ["1 of 5 done", "1 running", "3 waiting"]
    assert figures(watched)[1] == ["50%"]  # it began at 50
    seconds.append(5.0)
    write_metrics(tmp_path, fire, env_steps=80, updates=30)
    watched.observe(progress)
    assert figures(watched)[1] == ["60%", "2.5 env_steps/s", "8 s left"]

    # Weights of a big study take seconds.
    monkeypatch.setattr("rlplast.cli.study_progress.weights", None)
    watched.observe(progress)

    # What failed is no longer waited for.
    monkeypatch.undo()
    watched = StudyProgress(tmp_path, lambda: 0.0)
    done = {cell.key for cell in cells.values()} - {fire.key}
    watched.observe(Progress(progress.cells, done, set(), [Failure(fire, "why", None)]))
    assert figures(watched) == [["100%", "4 of 5 done", "1 failed", "0 running", "0 waiting"]]


def test_a_study_names_its_events_on_a_terminal_and_elsewhere(
    cells: dict[str, Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, *others = cells.values()
    began = Progress(list(cells.values()), set(), {one.key}, event="began: [red]x[/y]")
    with terminal(monkeypatch, 60) as written, study_progress(tmp_path) as observer:
        observer(began)
        observer(Progress(list(cells.values()), {cell.key for cell in others}, {one.key}))
    found = rows(written)
    assert "[0/5] began: [red]x[/y]" in [row.strip() for row in found]
    assert max(map(cell_len, found)) <= 60
    assert found[-3].startswith("study ━") and "71%" in found[-3]
    assert found[-2].split("  ")[1] == "4 of 5 done"
    assert found[-1].startswith("seed-3/prefix to 50 env_steps ") and "starting" in found[-1]
    monkeypatch.setattr(live, "_BEAT", 1000.0)
    with contextlib.redirect_stderr(io.StringIO()) as err, study_progress(tmp_path) as observer:
        observer(Progress([], set()))
        observer(began)
    assert err.getvalue() == "[0/5] began: [red]x[/y]\n"
