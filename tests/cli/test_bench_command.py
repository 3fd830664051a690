"""`rlplast bench`: its table, its conclusion, its errors, and what it leaves behind."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlplast.cli.bench_command import conclusion
from rlplast.cli.main import main
from rlplast.run import bench, timing
from rlplast.run.bench import Side
from rlplast.run.config_file import read_config
from tests.agents.toy_env import trace_alone
from tests.cli.commands import Outcome, command
from tests.cli.runs import refused
from tests.every_kind import small_run
from tests.marks import slow


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measure for moments only, and let `torch.compile` trace; returns where files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(timing, "TURN", 0.01)
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "FIRST", 1)
    trace_alone(monkeypatch, "eager")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def small_file(kind: str, folder: Path, **changes: Any) -> Path:
    """Write the config of a run of a second, which is shorter than what is measured of it."""
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(small_run(kind, {}, **changes)))
    return path


def table(outcome: Outcome) -> dict[str, list[str]]:
    """Return the rows of the table by their first cell."""
    assert outcome.code == 0, outcome.err
    lines = [line for line in outcome.out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len({len(row) for row in cells}) == 1
    return {row[0]: row[1:] for row in cells[2:]}


@pytest.mark.parametrize("kind", ["supervised", slow("dqn"), slow("ppo")])
def test_every_kind_of_run_is_measured_and_leaves_nothing(kind: str, tmp_path: Path, quick: Path):
    before = dict(os.environ)
    outcome = command("bench", small_file(kind, tmp_path))
    rows = table(outcome)
    assert list(rows) == ["off", "compile"], outcome.out
    for cells in rows.values():
        middle, least, most = map(float, re.findall(r"[\d.e+-]+", cells[0]))
        assert 0 < least <= middle <= most
    assert re.search(r"`(agent\.)?accelerate: \w+`, .* here", outcome.out)
    assert f"{torch.__version__}" in outcome.out.splitlines()[-1]
    assert "updates in turn" in outcome.err and "in turn" not in outcome.out
    assert not list(quick.iterdir())
    assert dict(os.environ) == before


def test_updates_are_timed_in_blocks_as_large_as_those_of_a_run(monkeypatch: pytest.MonkeyPatch):
    agent, _ = timing.ready(read_config(small_run("dqn", {}, replay_ratio=4)), "off")
    blocks: list[int] = []
    monkeypatch.setattr(agent, "update", blocks.append)
    timing.updates(agent)(10)
    agent.close()
    assert blocks == [8, 2]  # two environments


def test_updates_with_and_without_an_actors_are_compiled_before_any_is_timed(
    monkeypatch: pytest.MonkeyPatch,
):
    agents: list[Any] = []

    def ready(*about: Any) -> Any:
        agents.append(timing.ready(*about))
        return agents[-1]

    def paced(sides: Any, *limits: Any) -> Any:
        assert set(agents[-1][0]._whole) == {"learn", "learn_critic"}
        return {name: [1.0] for name in sides}

    monkeypatch.setattr(bench, "ready", ready)
    monkeypatch.setattr(bench, "paced", paced)
    config = read_config(small_run("sac", {}), {"agent.actor_every": 5})
    assert list(bench.measure(config, lambda what: None)) == ["off", "compile"]


def test_what_does_not_compile_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_compiler(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no C++ compiler | found")

    monkeypatch.setattr(torch, "compile", no_compiler)
    outcome = command("bench", small_file("supervised", tmp_path), "--accelerate", "compile")
    assert table(outcome)["compile"] == ["no C++ compiler / found", "", "", ""]
    assert "does not run here: set `--accelerate off`" in outcome.out


def test_what_is_wrong_is_named():
    for words, named in (
        (["sac/pendulun"], "sac/pendulum"),
        (["sac/pendulum", "--agent.batchsize", "3"], "batch_size"),
        (["sac/pendulum", "--threads", "0"], "threads"),
    ):
        assert named in refused(command("bench", *words))


SIDES = {"off": Side([0.004]), "compile": Side([0.003], setup=20.0)}  # equal at 20,000 updates


def test_a_choice_is_right_if_the_run_takes_no_longer():
    for choice, count, message in (
        ("off", 1000, "is right"),
        ("compile", 1000, "but `--agent.accelerate off` would save 19 s"),
        ("off", 100_000, "but `--agent.accelerate compile` would save 80 s"),
        ("compile", 100_000, "is right"),
        ("compile", 19_990, "is right"),  # next to it
        ("off", 20_010, "is right"),
        ("graph", 20_010, "does not run here: set `--agent.accelerate compile`"),
    ):
        assert message in conclusion("agent.accelerate", choice, SIDES, count)


def test_the_table_says_when_compiling_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slower = Side([0.005], setup=1.0)
    measured = SIDES | {"graph": slower}
    monkeypatch.setattr("rlplast.cli.bench_command.measure", lambda config, report: measured)
    rows = table(command("bench", small_file("dqn", tmp_path)))
    assert [row[-1] for row in rows.values()] == ["", "20,000 updates", "never"]
    assert [row[1] for row in rows.values()] == ["0.0", "20.0", "1.0"]


def test_an_interruption_leaves_nothing(
    tmp_path: Path, quick: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*args: Any) -> Any:
        (cache,) = quick.iterdir()  # an empty one, so that what compiling takes is seen
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "paced", interrupted)
    assert main(["bench", str(small_file("supervised", tmp_path))]) == 130
    assert not list(quick.iterdir())
