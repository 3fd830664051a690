"""`rlplast bench`: its table, its verdict, its errors, and what it leaves behind."""

import functools
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.agents import compiled
from rlplast.cli.bench_command import agent_config, conclusion
from rlplast.cli.main import main
from rlplast.run import bench, timing
from rlplast.run.bench import Measured, verdict
from tests.cli.commands import Outcome, command
from tests.cli.runs import refused

TINY_DQN = (
    *("dqn/demo", "--env.id", "gym/CartPole-v1", "--env.num_envs", 2, "--agent.network"),
    *("mlp_small", "--agent.n_step", 1, "--agent.batch_size", 8, "--agent.initial_steps", 20),
    *("--replay_ratio", 0.1, "--device", "cpu", "--agent.buffer_size", 500),
)
TINY_SAC = (
    *("sac/pendulum", "--agent.actor_width", 8, "--agent.critic_width", 8, "--device", "cpu"),
    *("--agent.batch_size", 8, "--agent.initial_steps", 20, "--agent.buffer_size", 500),
)
HOOKS = "[{method: head_reset, at: 50%}, {method: cbp, every: 1 updates}]"
NAMES = [
    *("environment alone, N side by side", "acting, N side by side"),
    "replay, a batch of N from N transitions",
    *("update, eager", "update, compiled", "compilation, without caches"),
    *("training, eager", "training, compiled", "training, Stable-BaselinesN", "training, SBX"),
    *("checkpoint with N transitions, time", "checkpoint with N transitions, size"),
]
METHODS = ["fire, a firing", "shrink_perturb, a firing", "redo, a firing"]
METHODS.append("swr, added to an update")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measure for moments only, and let `torch.compile` trace alone; returns where files go."""
    monkeypatch.setattr(timing, "TURN", 0.01)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(bench, "_make_headers", lambda say: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("stable_baselines3", "sbx"):
        monkeypatch.setitem(sys.modules, module, None)


def table(outcome: Outcome) -> dict[str, tuple[str, str]]:
    """Return the rows of the table, by name without numbers; of two of a name the last."""
    assert outcome.code == 0, outcome.err
    lines = [line for line in outcome.out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert cells[:2] == [["part", "median", "least to most"], ["---"] * 3]
    assert {len(row) for row in cells} == {3}
    names = [re.sub(r"\d+", "N", row[0]) for row in cells[2:]]
    assert names[: len(NAMES)] == NAMES
    return {name: (row[1], row[2]) for name, row in zip(names, cells[2:], strict=True)}


@pytest.mark.usefixtures("without_peers")
def test_a_dqn_with_hooks_of_its_own_is_measured_and_leaves_nothing(quick: Path):
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    outcome = command("bench", *TINY_DQN, "--hooks", HOOKS, "--rounds", 1, "--threads", 1)
    rows = table(outcome)
    own = ["head_reset, a firing", "cbp, added to an update"]
    assert list(rows)[len(set(NAMES)) :] == [*own, *METHODS]
    for name in ("update, eager", "update, compiled", "training, compiled", "fire, a firing"):
        value, unit = rows[name][0].split()
        assert float(value.replace(",", "")) > 0
        assert unit == ("env_steps/s" if name.startswith("training") else "ms")
    assert rows["training, SBX"] == ("not installed: pip install sbx-rl", "")
    assert "stable-baselines3" in rows["training, Stable-BaselinesN"][0]
    assert "`agent.accelerate: auto` chooses `" in outcome.out
    assert "threads 1" in outcome.out and "torch" in outcome.out
    assert "methods" in outcome.err and "methods" not in outcome.out
    assert not list(quick.iterdir())
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before


def test_sac_runs_beside_stable_baselines3_and_what_does_not_compile_is_said(
    quick: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("stable_baselines3")
    monkeypatch.setitem(sys.modules, "sbx", None)

    def no_compiler(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no C++ compiler | found")

    monkeypatch.setattr(torch, "compile", no_compiler)
    outcome = command("bench", *TINY_SAC, "--rounds", 1)
    assert outcome.code == 0, outcome.err
    assert re.search(r"\| training, Stable-Baselines3 \| [\d.,]+ env_steps/s \|", outcome.out)
    assert "| training, compiled" not in outcome.out
    assert r"no C++ compiler \| found" in outcome.out
    assert "Updates do not compile here" in outcome.out
    assert not list(quick.iterdir())


def test_theirs_have_our_sizes_batches_and_ratio(monkeypatch: pytest.MonkeyPatch):
    sb3 = pytest.importorskip("stable_baselines3")
    made = []
    monkeypatch.setitem(sys.modules, "sbx", None)
    logged = sb3.common.base_class.BaseAlgorithm.set_logger
    remember = lambda model, logger: made.append(model) or logged(model, logger)  # noqa: E731
    monkeypatch.setattr(sb3.common.base_class.BaseAlgorithm, "set_logger", remember)
    for words in (TINY_DQN, TINY_SAC):
        config = agent_config([str(word) for word in words])
        agent, _ = timing.ready(config, "off")
        sides, reasons = timing.peers(config, agent)
        assert list(sides) == ["Stable-Baselines3"] and list(reasons) == ["SBX"]
        model = made[-1]
        model._n_updates = 0
        before = model.num_timesteps
        n = config.env.num_envs
        for _ in range(5):
            sides["Stable-Baselines3"](2)
        assert model.num_timesteps - before == 10 * n
        assert model._n_updates == 10 * n * config.replay_ratio
        assert model.batch_size == config.agent.batch_size
        agent.close()
    ours = sum(p.numel() for p in agent.critic.parameters())
    assert sum(p.numel() for p in model.critic.parameters()) == ours


@pytest.mark.parametrize(
    ("key", "value"), [("activation", "tanh"), ("actor_every", 2), ("critic_subset", 1)]
)
def test_updates_of_another_kind_are_not_compared(key: str, value: Any):
    config = agent_config([*map(str, TINY_SAC), f"--agent.{key}", str(value)])
    agent, _ = timing.ready(config, "off")
    sides, reasons = timing.peers(config, agent)
    assert not sides
    assert all(f"its update has no agent.{key} = {value}" in why for why in reasons.values())
    agent.close()


def test_a_method_that_refuses_gets_a_row(monkeypatch: pytest.MonkeyPatch):
    agent, _ = timing.ready(agent_config([str(word) for word in TINY_SAC]), "off")
    monkeypatch.setattr(bench, "METHODS", ({"method": "swr", "at": "50%", "networks": ["no"]},))
    (row,) = bench._methods(agent, 1)
    assert row.value is None and row.note.startswith("refused: ") and "no" in row.note
    agent.close()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["supervised/digits_warm_start"], ["supervised", "dqn and sac"]),
        (["sac/pendulum", "--rounds", "0"], ["--rounds 0", "from 1"]),
        (["sac/pendulun"], ["sac/pendulum"]),
        (["--agent.batchsize", "3"], ["batch_size"]),
        (["--threads", "0"], ["threads"]),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(words: list[str], named: list[str]):
    message = refused(command("bench", *words))
    assert all(part in message for part in named)


def test_the_config_comes_first_or_is_left_out():
    assert agent_config([]).env.id == "gym/Pendulum-v1"
    assert agent_config(["--seed", "4"]).seed == 4
    config = agent_config(["dqn/minatar_breakout", "--threads=3"], 2)
    assert (config.kind, config.threads) == ("dqn", 2)


@pytest.mark.parametrize(
    ("choice", "updates", "best", "right", "lost"),
    [
        ("off", 1000, "off", True, -19),
        ("compile", 1000, "off", False, 19),
        ("off", 100_000, "compile", False, 80),
        ("compile", 100_000, "compile", True, -80),
        ("compile", 19_990, "off", True, 0.01),  # next to it
        ("off", 20_010, "compile", True, 0.01),
    ],
)
def test_a_choice_is_right_if_the_run_takes_no_longer(
    choice: str, updates: int, best: str, right: bool, lost: float
):
    found = verdict(choice, updates, compile=20.0, eager=0.004, compiled=0.003)
    assert (found.best, found.right) == (best, right)
    assert found.lost == pytest.approx(lost)
    assert found.pays_from == pytest.approx(20_000)


def test_compiled_updates_that_are_slower_never_pay():
    found = verdict("compile", 10**9, 1.0, 0.003, 0.004)
    assert (found.best, found.right, found.pays_from) == ("off", False, None)


@pytest.mark.parametrize("choice", ["off", "compile"])
def test_the_conclusion_agrees_with_the_figures(choice: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "chosen", lambda config: choice)
    config = agent_config([])  # of 19,900 updates
    pays = conclusion(config, Measured([], 10.0, 0.004, 0.003))
    never = conclusion(config, Measured([], 10.0, 0.003, 0.004))
    broken = conclusion(config, Measured([], None, 0.003, float("inf")))
    assert ("right here" in pays) == (choice == "compile")
    assert ("right here" in never) == (choice == "off")
    assert "pays from 10,000 updates" in pays and "never pays" in never
    assert ("set `agent.accelerate: off`" in broken) == (choice == "compile")


def test_an_interruption_leaves_nothing(quick: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*args: Any) -> Any:
        assert any(quick.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_methods", interrupted)
    monkeypatch.setattr(bench, "peers", lambda config, agent: ({}, {}))
    assert main(["bench", *map(str, TINY_DQN), "--rounds", "1"]) == 130
    assert not list(quick.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code
def test_with_a_real_compiler(monkeypatch: pytest.MonkeyPatch, quick: Path):
    monkeypatch.undo()
    monkeypatch.setattr(timing, "TURN", 0.01)
    outcome = command("bench", *TINY_SAC, "--rounds", 1)
    assert "Compiling takes" in outcome.out, outcome.out
    assert table(outcome)["update, compiled"][0].endswith("ms")
