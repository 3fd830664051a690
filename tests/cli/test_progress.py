"""The progress of a run: what stands in the line, that it fits, and plain lines elsewhere."""

import contextlib
import io
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from rich.cells import cell_len

from rlplast.cli import live
from rlplast.cli.lines import GAP, Pace, bar, clock_time, fitted, middle
from rlplast.cli.live import Plain
from rlplast.cli.main import main
from rlplast.cli.progress import Reading, RunProgress, plain_line, progress, terminal_line
from rlplast.core.clock import Clock, Time
from rlplast.run import api
from tests.cli.runs import small_config
from tests.cli.terminals import rows, terminal
from tests.core import toy
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.study.commands import until

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (60, 80, 100, 160)
LONG = "a_method_of_ones_own_whose_name_is_as_long_as_a_whole_row_of_a_usual_terminal_or_longer"

PLAIN = Reading(
    doing=("training",),
    done=2540,
    total=6000,
    unit="env_steps",
    rate=67.4,
    left=51.3,
    following=("fire", Time(3000, "env_steps")),
    scores=("return 400", "loss 0.0114", "eval return 412"),
)
READINGS = {
    "plain": PLAIN,
    "starting": Reading(("starting, 0:02",)),
    "long method": Reading(**vars(PLAIN) | {"following": (LONG, Time(123_456_789, "env_steps"))}),
    "long task": Reading(**vars(PLAIN) | {"doing": (f"training 3/10 {LONG}", "training 3/10")}),
    "nothing but long": Reading(**vars(PLAIN) | {"doing": (LONG,)}),
    "letters of two columns": Reading(
        **vars(PLAIN) | {"following": ("強" * 60, Time(1, "epochs"))}
    ),
    "long run": Reading(**vars(PLAIN) | {"total": 2e12, "done": 1e12, "rate": 1e7, "left": 9e7}),
    "compiling": Reading(**vars(PLAIN) | {"doing": ("compiling the update: up to a minute",)}),
}


@pytest.mark.parametrize("columns", [*WIDTHS, 20, 3])
@pytest.mark.parametrize("name", READINGS)
def test_the_line_never_has_more_columns_than_the_terminal(name: str, columns: int):
    line = terminal_line(READINGS[name], columns)
    assert cell_len(line) <= columns
    assert line[0] == READINGS[name].doing[0][0]  # the phase comes first


@pytest.mark.parametrize("columns", [c for c in WIDTHS if c >= 80])
def test_a_usual_terminal_shows_phase_bar_rate_time_and_next_firing(columns: int):
    line = terminal_line(PLAIN, columns)
    assert line.startswith("training ━")
    parts = line.split(GAP)[1:]
    assert parts[:3] == ["42%", "67 env_steps/s", "0:51 left"]
    assert parts[3].startswith("next: fire at 3")
    assert ("2,540 of 6,000 env_steps" in parts) == (columns == 160)


def test_a_phase_is_named_by_its_number():
    reading = Reading(**vars(PLAIN) | {"following": ("fire", Time(3, "phase"))})
    assert "next: fire at phase 3" in terminal_line(reading, 160).split(GAP)
    assert "next: fire at phase 3" in plain_line(reading)


def test_sixty_columns_still_say_what_fires_next():
    parts = terminal_line(PLAIN, 60).split(GAP)[1:]
    assert parts == ["42%", "67 env_steps/s", "0:51 left", "fire at 3k"]


def test_more_columns_show_more():
    shown = [set(terminal_line(PLAIN, columns).split(GAP)[1:]) for columns in (60, 100, 160)]
    assert [len(parts) for parts in shown] == sorted(len(parts) for parts in shown)
    assert {"return 400", "loss 0.0114"} <= shown[2] and "loss 0.0114" not in shown[0]


def test_a_long_method_is_shortened_before_it_is_left_out():
    line = terminal_line(READINGS["long method"], 80)
    assert "…" in line and " at 123M" in line
    assert "67 env_steps/s" in line and "0:51 left" in line


def test_names_are_no_markup(monkeypatch: pytest.MonkeyPatch):
    reading = Reading(**vars(PLAIN) | {"following": ("[bold]x[/nope]", Time(1, "updates"))})
    with (
        terminal(monkeypatch, 160) as written,
        live.shown(lambda columns, n, plain: [terminal_line(reading, columns)], str),
    ):
        pass
    assert "next: [bold]x[/nope] at 1 updates" in rows(written)[-1]


@hypothesis.given(st.lists(st.lists(st.text(), min_size=1), max_size=6), st.integers(0, 90))
def test_what_is_fitted_fits(parts: list[list[str]], columns: int):
    found = fitted(parts, columns)
    assert not found or cell_len(GAP.join(found)) <= columns
    forms = iter(parts)
    assert all(any(text in part for part in forms) for text in found)  # in order


@hypothesis.given(st.text(), st.integers(3, 40))
def test_a_shortened_name_fits_and_keeps_both_ends(name: str, columns: int):
    short = middle(name, columns)
    assert cell_len(short) <= columns
    assert short == name or (cell_len(name) > columns and "…" in short)


@pytest.mark.parametrize("share", [-1, 0, 0.01, 0.5, 0.999, 1, 2])
@pytest.mark.parametrize("columns", [0, 1, 10])
def test_a_bar_has_its_columns(share: float, columns: int):
    assert cell_len(bar(share, columns)) == columns == len(bar(share, columns, plain=True))


def test_time_left_follows_from_the_later_half():
    pace = Pace()
    for second in range(101):  # a hundred a second at first, then ten
        pace.add(second, 100 * second if second <= 50 else 5000 + 10 * (second - 50))
    assert pace.rate() == pytest.approx(10)
    assert pace.left(100, 5600) == pytest.approx(10)
    assert pace.left(104, 5600) == pytest.approx(6)  # nothing has happened since
    assert pace.left(1e6, 5600) == 0


def test_time_left_is_not_known_before_something_was_done():
    pace = Pace()
    assert (pace.rate(), pace.left(0, 10)) == (None, None)
    for second in range(3):
        pace.add(second, 7)
    assert (pace.rate(), pace.left(3, 10)) == (None, None)


def test_pace_keeps_few_points_of_a_long_run():
    pace = Pace()
    for second in range(100_000):
        pace.add(second, 3 * second)
    assert len(pace._points) <= 401
    assert pace.rate() == pytest.approx(3)


class Clockwork:
    """A clock that goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.seconds = itertools.count()

    def __call__(self) -> float:
        return float(next(self.seconds))


def observed(made: Any, watched: RunProgress) -> list[Reading]:
    """Run a loop with an observer that reads after every step; returns what it read."""
    found = []

    class Observer:
        def begins(self, loop: Any) -> None:
            watched.begins(loop)

        def __call__(self, loop: Any) -> None:
            watched(loop)
            found.append(watched.reading())

    made.observer = Observer()
    toy.run(made)
    return found


def test_a_run_says_how_far_it_is_and_what_fires_next(tmp_path: Path):
    made = toy.loop(tmp_path / "run")
    found = observed(made, RunProgress(Clockwork()))
    assert [reading.done for reading in found] == sorted(reading.done for reading in found)
    assert {(reading.total, reading.unit) for reading in found} == {(16, "env_steps")}
    assert found[-1].share == 1 and found[-1].left is None  # the end is still evaluated
    names = [reading.following[0] for reading in found if reading.following]
    assert {"fire", "shrink_perturb", "head_reset"} >= set(names) and "fire" in names
    assert any("loss" in text for reading in found for text in reading.scores)
    # A second for each of 24 steps, of which 16 count: two thirds of an env_step a second.
    assert found[-1].rate == pytest.approx(16 / 24, rel=0.1)


def test_a_run_says_that_it_evaluates_and_measures(tmp_path: Path):
    made = toy.loop(tmp_path / "run")
    watched, said = RunProgress(), []
    evaluate, measure = made.trainable.evaluate, made.measure

    def note(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            said.append(watched.reading().doing[-1])
            return call(*args)

        return noted

    made.trainable.evaluate = note(evaluate)
    made.measure = note(measure)
    found = observed(made, watched)
    assert set(said) == {"evaluating", "measuring"}
    assert {reading.doing for reading in found} == {("training",)}


def stub(**changes: Any) -> Any:
    """A loop that does not move."""
    horizon = Clock(**{"phase": 1, **changes.pop("horizon", {})})
    trainable = SimpleNamespace(clock=Clock(), about_to_compile=False, config=None)
    hooks = SimpleNamespace(horizon=horizon, next_due=lambda clock: None)
    found = {"trainable": trainable, "hooks": hooks, "latest": {}, "doing": "training"}
    return SimpleNamespace(**found | {"total": Time(10, "epochs")} | changes)


def test_a_run_says_that_it_compiles_even_in_its_first_step():
    watched, loop = RunProgress(), stub()
    loop.trainable.about_to_compile = True
    watched.begins(loop)
    loop.trainable.about_to_compile = False  # as soon as it does
    assert watched.reading().doing == ("compiling the update: up to a minute",)
    watched(loop)
    assert watched.reading().doing == ("training",)


def test_phases_and_tasks_are_named():
    loop = stub(horizon={"phase": 3})
    watched = RunProgress()
    watched.begins(loop)
    assert watched.reading().doing == ("training, phase 1/3", "training 1/3")
    loop.trainable.config = {"env": {"sequence": ["a/x", "a/y"], "steps_per_task": "9k"}}
    loop.trainable.clock = Clock(phase=1)
    watched.begins(loop)
    assert watched.reading().doing[0] == "training 2/3 a/y"


def test_what_a_plug_in_calls_env_is_no_sequence_of_tasks():
    loop = stub(horizon={"phase": 2})
    loop.trainable.config = SimpleNamespace(env="a/x")
    watched = RunProgress()
    watched.begins(loop)
    assert watched.reading().doing[-1] == "training 1/2"


def test_long_epochs_are_counted_in_updates():
    watched, loop = RunProgress(), stub(horizon={"updates": 500})
    loop.trainable.clock = Clock(updates=100, epochs=1)
    watched.begins(loop)
    assert (watched.reading().share, watched.reading().unit) == (0.2, "updates")


def test_plain_lines_are_due_after_4_s_and_every_30_s():
    state = Plain(now=100.0)
    assert [second for second in range(100, 170) if state.due(second)] == [104, 134, 164]


def test_a_long_compilation_is_said_at_once_and_once():
    state = Plain(now=0.0)
    moments = [(0.5, ""), (1.0, "compiling"), (1.5, "compiling"), (20.0, "compiling"), (30.9, "")]
    assert [state.due(*moment) for moment in moments] == [False, True, False, False, False]
    assert state.due(31.0)


def test_a_plain_line_says_what_a_terminal_shows():
    assert plain_line(PLAIN) == (
        "training: 42% (2,540 of 6,000 env_steps), 67 env_steps/s, 0:51 left, "
        "next: fire at 3,000 env_steps, return 400, loss 0.0114, eval return 412"
    )


def said_meanwhile(lines: int, monkeypatch: pytest.MonkeyPatch, now: Any) -> list[str]:
    """Return what is said on stderr, no terminal, until there are so many lines, and after."""
    monkeypatch.setattr(live, "_BEAT", 0.001)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        with progress(now):
            until(lambda: err.getvalue().count("\n") >= lines, 20)
    return err.getvalue().splitlines()


def test_without_a_terminal_lines_are_said_meanwhile_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
):
    found = said_meanwhile(2, monkeypatch, Clockwork())
    assert len(found) >= 3
    assert all(line.startswith("starting, 0:") for line in found)


def test_a_short_run_without_a_terminal_is_silent(monkeypatch: pytest.MonkeyPatch):
    assert said_meanwhile(0, monkeypatch, lambda: 0.0) == []


def test_ranks_but_the_first_are_silent(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    with terminal(monkeypatch, 80) as written, progress() as observer:
        observer(stub())
    assert written == b""


@pytest.mark.parametrize(("kind", "columns"), [*zip(KINDS, WIDTHS, strict=True), ("dqn", 80)])
def test_no_row_of_a_terminal_is_longer_than_it(
    kind: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = small_run(kind, write_corpora(tmp_path))
    with terminal(monkeypatch, columns) as written, progress() as observer:
        api.train(config, tmp_path / "run", observer=observer)
    assert isinstance(observer, RunProgress) and observer._loop is None  # nothing is held
    found = rows(written)
    assert max(map(cell_len, found)) <= columns
    assert found[-1].startswith("done in 0:") and "100%" in found[-1]


def test_command_draws_on_a_terminal_and_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = tmp_path / "run"
    with terminal(monkeypatch, 80) as written:
        assert main(["train", str(small_config(tmp_path)), "--out", str(run)]) == 0
        assert main(["resume", str(run), "--total", "260 env_steps"]) == 0
    ends = [row for row in rows(written) if row.startswith("done in 0:")]
    assert len(ends) >= 2 and all("100%" in row for row in ends)
    assert any(row.startswith("resuming ") for row in rows(written))


def test_times_are_short():
    assert [clock_time(s) for s in (0.4, 59.6, 3599, 86_399)] == [
        "0:00",
        "1:00",
        "59:59",
        "23:59:59",
    ]


def test_a_slow_import_is_said():
    code = (
        "import sys, time\n"
        "import rlplast.__main__ as program\n"
        "class Slow:\n"
        "    def find_spec(self, name, *others):\n"
        "        time.sleep(0.2 * (name == 'numpy'))\n"
        "sys.meta_path.insert(0, Slow())\n"
        "program._LATE = 0.01\n"
        "sys.argv = ['rlplast', '--version']\n"
        "program.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"starting: PyTorch is being imported\n")
