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
from tests.marks import slow, slow_but
from tests.runs import TINY, Killed, final, kill, lines
from tests.sac_runs import small_sac

CHANGES = {"replay_ratio": [{"value": 0.5}, {"from": "60%", "value": 2}]}
PRIMED = {"initial_steps": 30, "initial_updates": 20}
HOOKS = [{"method": "full_reset", "at": "20 updates", "params": {"init": "fresh"}}]
ANNEAL = {"anneal": {"every": 25, "updates": 15, "n_step": 4, "gamma": 0.5}}
DQN = TINY | CHANGES | {"hooks": HOOKS, "agent": TINY["agent"] | PRIMED | ANNEAL}
REDQ = {"network": "mlp", "critics": 4, "critic_subset": 2, "actor_every": 3}
SAC = small_sac(agent=PRIMED | REDQ, hooks=HOOKS, **CHANGES)
LAKE = {
    "kind": "dqn",
    "threads": 1,
    "device": "cpu",
    "total": "90 episodes",
    "env": {"id": "toy/switching_frozen_lake", "num_envs": 2, "options": {"switch_after": 20}},
    "replay_ratio": 1,
    "agent": {
        "hidden": [8],
        "output": "softmax",
        "batch_size": 8,
        "initial_steps": 20,
        "buffer_size": 500,
        "target_every": 2,
        "tau": 0.5,
    },
    "hooks": [{"method": "full_reset", "every": "30 episodes", "params": {"init": "fresh"}}],
    "log": {"every": "7 episodes", "to": []},
    "evaluate": {"every": None},
    "metrics": {"every": "40 episodes", "batch_size": 8},
    "checkpoint": {"every": "25%"},
}
ENDLESS = "rlplast-tests/Endless-v0"
RUNS = {"dqn": DQN, "sac": SAC, "lake": LAKE}


@pytest.fixture(scope="module", params=["dqn", slow("sac"), "lake"])
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


MOMENTS = {
    "before the first update": at(28, "env_steps"),
    "after the first one": at(1, "updates"),
    "inside the priming": at(9, "updates"),
    "at its end": at(20, "updates"),
    "just after": at(32, "env_steps"),
    "before the ratio changes": at(70, "env_steps"),
    "at the change": at(72, "env_steps"),
    "after it": at(81, "env_steps"),
}


@pytest.mark.parametrize("moment", slow_but(list(MOMENTS)[::2], MOMENTS))
def test_killed_and_resumed_equals(
    moment: str, through: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    (config, uninterrupted), when = through, MOMENTS[moment]

    def observe(loop: Loop) -> None:
        if when(loop.trainable.clock):
            loop._checkpoint()
            loop._settle()
            kill()

    with pytest.raises(Killed):
        api.train(config, tmp_path / "run", observer=observe)
    api.resume(tmp_path / "run")
    assert final(tmp_path / "run") == final(uninterrupted)


def test_counts_of_a_run_are_those_of_its_config(through: tuple[dict[str, Any], Path]) -> None:
    config_file, folder = through
    config: Any = read_config(config_file)
    last = lines(folder, "metrics")[-1]
    if config.total_time().unit == "episodes":
        assert 90 <= last["episodes"] < 90 + 2  # both environments may end one at once
    else:
        assert last["env_steps"] == 120
        assert config.horizon()["updates"] == last["updates"]
    assert last["updates"] == config.updates_at(last["env_steps"])


def test_a_hook_at_the_end_of_the_priming_fires_before_the_next_env_step(
    through: tuple[dict[str, Any], Path],
) -> None:
    config, folder = through
    if config is LAKE:
        pytest.skip("it is not primed")
    assert {row["clock"]["env_steps"] for row in lines(folder, "receipts")} == {30}
    assert {row["clock"]["updates"] for row in lines(folder, "receipts")} == {20}


def test_episodes_are_counted_where_a_time_of_the_run_is_in_them(tmp_path: Path) -> None:
    api.train(LAKE, tmp_path / "counted")
    fired = [row["clock"]["episodes"] for row in lines(tmp_path / "counted", "receipts")]
    assert [count // 30 for count in fired] == [1, 2]
    assert all("episodes" in row for row in lines(tmp_path / "counted", "metrics"))
    other = LAKE | {"total": "150 env_steps", "hooks": [], "metrics": {"every": None}}
    other |= {"log": {"every": "7 env_steps"}}
    api.train(other, tmp_path / "plain")
    assert not any("episodes" in row for row in lines(tmp_path / "plain", "metrics"))


def test_episodes_are_as_many_as_the_environments_have_ended(tmp_path: Path) -> None:
    def observe(loop: Loop) -> None:
        agent: Any = loop.trainable
        states = agent.experience.env.state_dict()["envs"]
        begun = [state["simulator"]["episodes"] for state in states]
        assert agent.clock.episodes == sum(begun) - len(begun)

    api.train(LAKE, tmp_path / "run", observer=observe)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"env": {"id": f"gym/{ENDLESS}"}},
            r"total = '90 episodes': episodes of gym/\S+ have no limit.*a total in env_steps",
        ),
        ({"total": "0 episodes"}, r"total = '0 episodes'"),
        ({"total": "90 epsiodes"}, r"total = '90 epsiodes'.*did you mean.*episodes"),
    ],
)
def test_totals_in_episodes_that_are_not_allowed_are_named(
    changes: dict[str, Any], says: str
) -> None:
    if ENDLESS not in gymnasium.registry:
        gymnasium.register(ENDLESS, entry_point="tests.envs.own_envs:Walk")
    with pytest.raises(ConfigError, match=says):
        read_config(LAKE | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"total": "5 episodes"},
            r"initial_steps = 20: .* less than the total, 5 episodes \(10 env",
        ),
        ({"hooks": [{"method": "fire", "at": "180 env_steps"}]}, r"past the end .*180 env_steps\)"),
        ({"hooks": [{"method": "fire", "at": "170 updates"}]}, r"past the end .*160 updates\)"),
        ({"hooks": [{"method": "fire", "every": "181 env_steps"}]}, "is longer than the run"),
        ({"evaluate": {"every": "10%"}}, "evaluate.every: env 'toy/.*' changes as its episodes"),
        ({"evaluate": {"overestimation": True, "every": None}}, "is measured in evaluations"),
        (
            {"total": "50 env_steps", "hooks": [{"method": "fire", "at": "51 episodes"}]}
            | {"metrics": {"every": None}},
            r"at = 51 episodes is at or past the end of the run \(50 episodes\)",
        ),
    ],
)
def test_what_could_never_be_due_is_refused_in_any_unit(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        api.train(LAKE | changes, tmp_path / "run")


def test_a_lake_that_changes_is_not_evaluated(tmp_path: Path) -> None:
    run = api.train(LAKE, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"evaluation: env .toy/.*. changes as its episodes"):
        run.evaluate(episodes=1)


def test_lines_without_an_update_of_the_actor_say_nothing_of_it(tmp_path: Path) -> None:
    config = small_sac(agent=REDQ | {"actor_every": 20}, log={"every": "4 env_steps"})
    api.train(config, tmp_path / "run")
    rows = [row for row in lines(tmp_path / "run", "metrics") if "train/loss" in row]
    counts = [row["updates"] for row in rows if "train/loss_actor" in row]
    assert [count // 20 for count in counts] == [1, 2]
    assert len(rows) > 10
