"""Whole runs at replay ratios that change, primed, or counted in episodes: what lines say, resumes.

Kills lie before, inside and after a priming, and around a change of ratio.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.config_file import read_config
from rlplast.training.loop import Loop
from tests.runs import TINY, final, kill_at, lines
from tests.sac_runs import small_sac

CHANGES = {"replay_ratio": [{"value": 0.5}, {"from": "60%", "value": 2}]}
PRIMED = {"initial_steps": 30, "initial_updates": 20}
HOOKS = [{"method": "full_reset", "at": "20 updates", "params": {"init": "fresh"}}]
ANNEAL = {"anneal": {"every": 25, "updates": 15, "n_step": 4, "gamma": 0.5}}
DQN = TINY | CHANGES | {"hooks": HOOKS, "agent": TINY["agent"] | PRIMED | ANNEAL}
LAKE = TINY | {
    "total": "90 episodes",
    "env": {"id": "toy/switching_frozen_lake", "num_envs": 2, "options": {"switch_after": 20}},
    "replay_ratio": 1,
    "agent": {
        **{"hidden": [8], "output": "softmax", "batch_size": 8, "initial_steps": 20},
        **{"buffer_size": 500, "target_every": 2, "tau": 0.5},
    },
    "hooks": [{"method": "full_reset", "every": "30 episodes", "params": {"init": "fresh"}}],
    "log": {"every": "7 episodes", "to": []},
    "evaluate": {"every": None},
    "metrics": {"every": "40 episodes", "batch_size": 8},
    "checkpoint": {"every": "25%"},
}
ENDLESS = "rlplast-tests/Endless-v0"
RUNS = {"dqn": DQN, "lake": LAKE}


@pytest.fixture(scope="module", params=RUNS)
def through(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """A config and the run that went through."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    config = RUNS[request.param]
    api.train(config, folder)
    return config, folder


def at(count: int, unit: str) -> Callable[[Clock], bool]:
    return lambda clock: clock[unit] >= count


# Before the first update, after it, inside the priming, at its end and after it, and before, at and
# after the change of the ratio.
MOMENTS = [
    *(at(28, "env_steps"), at(1, "updates"), at(9, "updates"), at(20, "updates")),
    *(at(count, "env_steps") for count in (32, 70, 72, 81)),
]


def test_killed_and_resumed_equals(through: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    config, uninterrupted = through
    kill_at(config, tmp_path / "run", MOMENTS)
    assert final(tmp_path / "run") == final(uninterrupted)


def test_counts_and_firings_are_those_of_the_config(through: tuple[dict[str, Any], Path]) -> None:
    config_file, folder = through
    config: Any = read_config(config_file)
    last = lines(folder, "metrics")[-1]
    assert last["updates"] == config.updates_at(last["env_steps"])
    clocks = [row["clock"] for row in lines(folder, "receipts")]
    if config_file is LAKE:
        assert 90 <= last["episodes"] < 90 + 2  # both environments may end one at once
        assert [clock["episodes"] // 30 for clock in clocks] == [1, 2]
        assert all("episodes" in row for row in lines(folder, "metrics"))
    else:  # hooks at the end of the priming, before the next env_step
        assert (last["env_steps"], last["updates"]) == (120, config.horizon()["updates"])
        assert {(clock["env_steps"], clock["updates"]) for clock in clocks} == {(30, 20)}
        assert not any("episodes" in row for row in lines(folder, "metrics"))


def test_episodes_are_as_many_as_the_environments_have_ended(tmp_path: Path) -> None:
    def observe(loop: Loop) -> None:
        agent: Any = loop.trainable
        states = agent.experience.env.state_dict()["envs"]
        begun = [state["simulator"]["episodes"] for state in states]
        assert agent.clock.episodes == sum(begun) - len(begun)

    run = api.train(LAKE, tmp_path / "run", observer=observe)
    with pytest.raises(ConfigError, match="evaluation"):  # of a lake that changes
        run.evaluate(episodes=1)


def fire(**when: str) -> dict[str, Any]:
    return {"hooks": [{"method": "fire"} | when]}


def test_what_could_never_be_due_is_refused_in_any_unit(tmp_path: Path) -> None:
    if ENDLESS not in gymnasium.registry:
        gymnasium.register(ENDLESS, entry_point="tests.envs.own_envs:Walk")
    short = {"total": "50 env_steps", "metrics": {"every": None}}
    for changes, message in (
        ({"env": {"id": f"gym/{ENDLESS}"}}, "total"),
        ({"total": "0 episodes"}, "total"),
        ({"total": "5 episodes"}, "initial_steps"),
        (fire(at="180 env_steps"), "180 env_steps"),
        (fire(at="170 updates"), "160 updates"),
        (fire(every="181 env_steps"), "never be due"),
        ({"evaluate": {"every": "10%"}}, "evaluate.every"),
        ({"evaluate": {"overestimation": True, "every": None}}, "measured in evaluations"),
        (short | fire(at="51 episodes"), "51 episodes"),
    ):
        with pytest.raises(ConfigError, match=message):
            api.train(LAKE | changes, tmp_path / "run")


def test_lines_without_an_update_of_the_actor_say_nothing_of_it(tmp_path: Path) -> None:
    config = small_sac(agent={"actor_every": 20}, log={"every": "4 env_steps"})
    api.train(config, tmp_path / "run")
    rows = [row for row in lines(tmp_path / "run", "metrics") if "train/loss" in row]
    counts = [row["updates"] for row in rows if "train/loss_actor" in row]
    assert [count // 20 for count in counts] == [1, 2]
    assert len(rows) > 10
