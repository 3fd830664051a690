"""The progress of a run: what stands in the line, that it fits, and plain lines elsewhere."""

import contextlib
import io
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from rlplast.cli import live
from rlplast.cli.live import Rows
from rlplast.cli.main import main
from rlplast.cli.progress import RunProgress, progress
from rlplast.core.clock import Clock, Time
from tests.cli.runs import small_config
from tests.cli.terminals import LONG, rows, terminal
from tests.core import toy
from tests.study.commands import until

ROOT = Path(__file__).resolve().parents[2]


class Seconds:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def stub(**changes: Any) -> Any:
    """A loop that does not move."""
    horizon = Clock(**{"phase": 1, **changes.pop("horizon", {})})
    following = changes.pop("following", None)
    trainable = SimpleNamespace(clock=Clock(), about_to_compile=False, config=None)
    hooks = SimpleNamespace(horizon=horizon, next_due=lambda clock: following)
    found = {"trainable": trainable, "hooks": hooks, "latest": {}, "doing": "training"}
    return SimpleNamespace(**found | {"total": Time(10, "epochs")} | changes)


def plain(loop: Any) -> str:
    watched = RunProgress()
    watched.begins(loop)
    return watched.plain()


def halfway(**changes: Any) -> RunProgress:
    """Return the progress of a run that has done 2,540 of 6,000 env_steps, 1,200 in 20 s."""
    scores = {"train/return": 400.0, "train/loss": 0.0114, "eval/return_mean": 412.0}
    following = ("fire", Time(3000, "env_steps"))
    loop = stub(
        **{"total": Time(6000, "env_steps"), "latest": scores, "following": following} | changes
    )
    seconds = Seconds()
    loop.trainable.clock = Clock(env_steps=1340)
    watched = RunProgress(seconds)
    watched.begins(loop)
    seconds.now = 20.0
    loop.trainable.clock = Clock(env_steps=2540)
    return watched


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "long method": {"following": (LONG, Time(123_456_789, "env_steps"))},
    "letters of two columns": {"following": ("強" * 60, Time(1, "epochs"))},
    "long run": {"total": Time(2e12, "env_steps")},
    "phases": {"horizon": {"phase": 10}, "following": ("fire", Time(3, "phase"))},
    "markup": {"following": ("[bold]x[/nope]", Time(1, "updates"))},
}


def drawn(columns: int, patch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """Return the last two rows of a run on such a terminal."""
    with terminal(patch, columns) as written, halfway(**changes).shown():
        pass
    return rows(written)[-2:]


def test_rows_fit_the_terminal_and_say_what_a_run_does_and_what_comes(
    monkeypatch: pytest.MonkeyPatch,
):
    for name, columns in itertools.product(CASES, (3, 60, 80, 160)):
        first, second = drawn(columns, monkeypatch, **CASES[name])
        assert cell_len(first) <= columns and cell_len(second) <= columns, (name, columns)
        if columns < 60:
            continue
        assert first.startswith("training ━") and first.split()[2] in ("42%", "0%"), name
        assert "60 env_steps/s" in first and first.rstrip().endswith(" left"), name
        assert "next: " in second, name
        parts = second.strip().split("  ")
        if name == "plain":
            assert re.split(" +", first.strip())[2:] == "42% 60 env_steps/s 58 s left".split()
            assert parts[:3] == ["next: fire at 3,000 env_steps", "return 400", "loss 0.0114"]
            assert ("2,540 of 6,000 env_steps" in parts) == (columns >= 100)
        if name == "phases" and columns == 160:
            assert parts[:2] == ["phase 1/10", "next: fire at phase 3"]
        if name == "long method" and columns == 80:
            assert second.rstrip().endswith("…")
        if name == "markup" and columns == 160:
            assert "next: [bold]x[/nope] at 1 updates" in second
    assert halfway().plain() == (
        "training: 42%, 60 env_steps/s, 58 s left, next: fire at 3,000 env_steps, "
        "return 400, loss 0.0114, eval return 412, 2,540 of 6,000 env_steps"
    )


def moved(counts: Iterable[tuple[float, float]], total: float, now: float) -> list[str]:
    """Return what a plain line says of a task's rate and time left."""
    seconds = Seconds()
    drawn = Rows(seconds)
    number = drawn.add_task("x", total=None)
    for seconds.now, done in counts:
        drawn.move(number, done, total, "updates")
    seconds.now = now
    return drawn.plain().split(", ")[1:]


def test_a_rate_is_that_of_late_and_known_once_something_was_done():
    # A hundred updates a second for 10 s, then ten a second.
    slower = [(s, 100 * s if s <= 10 else 1000 + 10 * (s - 10)) for s in range(41)]
    for now, left in ((40, 30), (50, 20), (1e6, 0)):  # nothing since
        assert moved(slower, 1600, now) == ["10 updates/s", f"{left} s left"]
    assert moved([(0, 7), (1, 7), (2, 7)], 10, 3) == []
    for hours in range(2, 40):
        found = moved([(1800.0 * n, n) for n in range(hours + 1)], 100, 1800 * hours)
        assert found[0] == "2 updates/h"
    # Pauses of 10 min each hour, for 20 h: rich keeps 1,000 samples, half a minute apart here.
    counts, done = [], 0
    for second in range(0, 72_000, 5):
        done += 5 * (second % 3600 < 3000)
        counts.append((float(second), done))
    rate, left = moved(counts, 72_000, 72_000)
    assert rate == "50 updates/min" and left.endswith(" h left")
    assert 3.5 < float(left.split()[0]) < 5  # 12,000 at 3000 an hour are 4 h


def test_a_run_says_how_far_it_is_what_fires_next_and_that_it_evaluates(tmp_path: Path):
    made, seconds, states, found = toy.loop(tmp_path / "run"), Seconds(), [], list[str]()
    watched = RunProgress(seconds)

    def note(call: Any) -> Any:
        return lambda *args: (states.append(watched.plain().split(":")[0]), call(*args))[1]

    class Observer:
        def begins(self, loop: Any) -> None:
            watched.begins(loop)

        def __call__(self, loop: Any) -> None:
            seconds.now += 1
            watched(loop)
            found.append(watched.plain())

    made.trainable.evaluate, made.measure = note(made.trainable.evaluate), note(made.measure)
    made.observer = Observer()
    toy.run(made)
    assert set(states) == {"evaluating", "measuring"}
    assert {line.split(":")[0] for line in found} == {"training"}
    shares = [int(line.split()[1].strip("%,")) for line in found]
    assert shares == sorted(shares) and shares[-1] == 100
    assert all(line.endswith(" of 16 env_steps") for line in found)
    assert "left" not in found[-1]  # the end is still evaluated
    names = re.findall(r"next: (\w+)", " ".join(found))
    assert {"fire", "shrink_perturb", "head_reset"} >= set(names) and "fire" in names
    assert any("loss" in line for line in found)
    # A second for each of 24 steps, of which 16 count: two thirds of an env_step a second.
    per_minute = float(found[-1].split(", ")[1].removesuffix(" env_steps/min"))
    assert per_minute == pytest.approx(60 * 16 / 24, rel=0.1)


def test_a_run_says_that_it_compiles_and_then_no_time_left():
    watched, loop = RunProgress(), stub()
    loop.trainable.about_to_compile = True
    watched.begins(loop)
    loop.trainable.about_to_compile = False  # as soon as it does
    assert watched.plain().startswith("compiling the update: 0%, up to a minute, ")
    assert watched.urgent
    watched(loop)
    assert watched.plain().startswith("training: 0%") and not watched.urgent
    # The rate would be that of the steps before, which made no updates.
    seconds = Seconds()
    watched, loop = RunProgress(seconds), stub(total=Time(6000, "env_steps"))
    watched.begins(loop)
    for second in range(5):
        seconds.now, loop.trainable.clock = second, Clock(env_steps=second)
        watched(loop)
        trained = watched.plain()
    loop.trainable.about_to_compile = True
    watched(loop)
    assert "left" in trained and "left" not in watched.plain()
    assert "env_steps/" in trained and "env_steps/" not in watched.plain()


def test_phases_tasks_primings_and_long_epochs_are_named():
    loop = stub(horizon={"phase": 3})
    assert "phase 1/3" in plain(loop).split(", ")
    loop.trainable.config = {"env": {"sequence": ["a/x", "a/y"], "steps_per_task": "9k"}}
    loop.trainable.clock = Clock(phase=1)
    assert "phase 2/3: a/y" in plain(loop).split(", ")
    loop.trainable.config = SimpleNamespace(env="a/x")  # of a plug-in: no sequence of tasks
    assert "phase 2/3" in plain(loop).split(", ")
    loop = stub(total=Time(50, "env_steps"), horizon={"updates": 500})
    loop.trainable.clock = Clock(updates=100, env_steps=10)
    assert "20%" in plain(loop).split(": ")[1] and "10 of 50" in plain(loop)
    loop.trainable.config = SimpleNamespace(agent=SimpleNamespace(initial_updates=400))
    assert plain(loop) == "training: 20%, 100 of 500 updates"
    loop = stub(horizon={"updates": 500})
    loop.trainable.clock = Clock(updates=100, epochs=1)
    assert plain(loop) == "training: 20%, 100 of 500 updates"


@pytest.mark.parametrize(
    ("urgent", "spoken_at"),
    [([""] * 70, [4, 34, 64]), (["", "compiling", "compiling", *[""] * 40], [2, 32])],
)
def test_plain_lines_are_due_after_4_s_and_every_30_s_and_at_once_if_urgent(
    urgent: list[str], spoken_at: list[float], monkeypatch: pytest.MonkeyPatch
):
    """A clock goes on by a second whenever rows are looked at."""
    monkeypatch.setattr(live, "_BEAT", 0.0001)
    seconds, said, moments = Seconds(), list[float](), iter(urgent)
    beats: Any = Rows(seconds)

    def look() -> str:
        seconds.now += 1
        beats.urgent = next(moments, "over")
        return "x"

    beats.plain = look
    beats.say = lambda text: said.append(seconds.now) if beats.urgent != "over" else None
    with beats.shown():
        until(lambda: beats.urgent == "over", 20)
    assert said == spoken_at


def test_without_a_terminal_lines_are_said_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch):
    count = itertools.count()  # goes on by a second whenever it is looked at
    monkeypatch.setattr(live, "_BEAT", 0.001)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        with progress(lambda: float(next(count))):
            until(lambda: err.getvalue().count("\n") >= 2, 20)
    found = err.getvalue().splitlines()
    assert len(found) >= 3 and all(line.startswith("starting, ") for line in found)


def test_ranks_but_the_first_are_silent(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    with terminal(monkeypatch, 80) as written, progress() as observer:
        observer(stub())
    assert written == b""


def test_command_draws_on_a_terminal_and_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = tmp_path / "run"
    with terminal(monkeypatch, 80) as written:
        assert main(["train", str(small_config(tmp_path)), "--out", str(run)]) == 0
        assert main(["resume", str(run), "--total", "260 env_steps"]) == 0
    ends = [row for row in rows(written) if row.startswith("done in ")]
    assert len(ends) >= 2 and all("100%" in row for row in ends)
    assert any(row.startswith("resuming") for row in rows(written))
    assert max(map(cell_len, rows(written))) <= 80
