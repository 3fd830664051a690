"""Which task comes when, and what the keys refuse."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.agents.off_policy_config import OffPolicyConfig
from rlplast.agents.sequence import EnvConfig, TaskSequence
from rlplast.agents.switch import PRESETS, switch_of
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.tasks import tasks_of
from tests.sequences import TWO, dqn_tasks, sac_tasks

PARTS = ("replay", "explore", "optimizer", "target", "statistics")
SHIFT = {"sequence": [], "id": "gym/CartPole-v1", "shift": "permuted_observations", "tasks": 3}


def parsed(**env: Any) -> OffPolicyConfig:
    config = read_config(dqn_tasks(env=env))
    assert isinstance(config, OffPolicyConfig)
    return config


def test_phases_go_through_the_sequence_as_often_as_there_are_cycles():
    longer = {"id": TWO[0], "options": {"max_episode_steps": 9}}
    sequence = TaskSequence.parse(
        EnvConfig(sequence=[*TWO, TWO[0], longer], steps_per_task="1k", cycles=2)
    )
    assert sequence.tasks == (0, 1, 0, 2) * 2  # what comes again is the same task
    assert sequence.names == (*TWO, f"{TWO[0]}-2")
    assert sequence.length == 8000
    assert sequence.seen(1) == [0, 1]
    assert sequence.seen(7) == [0, 1, 2]


def test_options_are_of_all_environments_and_those_of_an_entry_come_first():
    entry = {"id": TWO[1], "options": {"max_episode_steps": 9}}
    env = EnvConfig(sequence=[TWO[0], entry], options={"max_episode_steps": 5}, steps_per_task=8)
    limits = [options["max_episode_steps"] for _, options in TaskSequence.parse(env).envs]
    assert limits == [5, 9]


def test_total_is_the_whole_sequence_unless_it_is_given():
    config = parsed()
    assert config.total == "160 env_steps"
    assert config.horizon() == Clock(updates=60, env_steps=160, episodes=160, phase=4)
    shorter = read_config(dqn_tasks(total="100 env_steps"))
    assert shorter.horizon() == Clock(updates=35, env_steps=100, episodes=100, phase=3)
    again = read_config(dqn_tasks(), {"env.cycles": 1})
    assert again.total == "80 env_steps"


def test_one_environment_has_no_phases_and_the_total_of_always():
    config = read_config({"kind": "dqn", "env": {"id": "gym/CartPole-v1"}})
    assert config.total == "200k env_steps"
    assert config.horizon().phase == 0
    assert config.units == ("updates", "env_steps", "frames")
    assert tasks_of(config) == ["gym/CartPole-v1"]


def test_a_resolved_config_says_the_same_again():
    for data in (dqn_tasks(), sac_tasks(), dqn_tasks(env={"switch": "c_chain"})):
        config = read_config(data)
        assert read_config(yaml.safe_load(dump_config(config))) == config


def test_names_are_those_of_the_run_config_and_of_what_it_leaves():
    config = read_config(dqn_tasks(env=SHIFT))
    assert tasks_of(config) == ["task-0", "task-1", "task-2"] * 2
    assert tasks_of(yaml.safe_load(dump_config(config))) == tasks_of(config)
    assert tasks_of({"kind": "supervised"}) == []


@pytest.mark.parametrize("switch", [*PRESETS, {}, {"replay": "keep"}])
@pytest.mark.parametrize("ratio", [0.3, 2.0])
def test_updates_that_are_owed_by_a_count_of_env_steps(switch: Any, ratio: float):
    config = read_config(dqn_tasks(env={"switch": switch}, replay_ratio=ratio))
    assert isinstance(config, OffPolicyConfig)
    waits, learning = config.sequence().switch.waits, 0
    for done in range(1, 161):
        place = (done - 1) % 40 if waits else done - 1
        learning += place >= 10
        assert config.updates_at(done) == int(ratio * learning + 1e-9)


REFUSED = [
    ({"steps_per_task": None}, "env.steps_per_task = null: a sequence of tasks needs"),
    ({"steps_per_task": 41}, "env.num_envs = 2 in env_steps, at most 1e18, such as 40"),
    ({"steps_per_task": "5 updates"}, "env.steps_per_task = '5 updates': allowed is a multiple"),
    ({"steps_per_task": "many"}, "env.steps_per_task = 'many': allowed is a multiple"),
    ({"steps_per_task": -4}, "env.steps_per_task = -4: allowed is a multiple of env.num_envs"),
    ({"steps_per_task": 10**19}, "env.steps_per_task = 1000.*: allowed is .*, at most 1e18"),
    ({"sequence": [], "id": TWO[0]}, "env.steps_per_task = 40: it goes with env.sequence"),
    ({"shift": "gravity"}, "env.shift = 'gravity' with env.sequence: a shift makes tasks out of"),
    ({"tasks": 3}, "env.tasks = 3 with env.sequence"),
    (SHIFT | {"tasks": None}, "env.tasks = null: a shift needs a number of tasks"),
    (SHIFT | {"shift": "permuted_observation"}, "did you mean 'permuted_observations'"),
    (SHIFT | {"shift": {"name": "gravity", "hi": 3}}, "env.shift has an unknown key 'hi'"),
    (SHIFT | {"shift": {"name": "gravity", "low": 3}}, "env.shift.low = 3.0: allowed is at most"),
    (SHIFT | {"shift": {"name": "friction", "low": 0}}, r"env.shift.low = 0: allowed is \(0, "),
    (SHIFT | {"shift": {"std": 3}}, "env.shift.name = None"),
    ({"id": "gym/Pendulum-v1"}, "env.id = 'gym/Pendulum-v1' with env.sequence"),
    ({"sequence": [3]}, r"env.sequence\[0\] = 3: allowed is text or a mapping"),
    ({"sequence": [{"name": "x"}]}, r"env.sequence\[0\] = .* allowed is an environment's id, or"),
    (
        {"sequence": [{"id": TWO[0], "option": {}}]},
        r"env.sequence\[0\] has an unknown key 'option'",
    ),
    ({"switch": "cchain"}, "env.switch = 'cchain': did you mean 'c_chain'"),
    ({"switch": {"replays": "keep"}}, "env.switch has an unknown key 'replays'"),
    ({"switch": {"replay": "clean"}}, "env.switch.replay = 'clean': did you mean 'clear'"),
    ({"switch": {"replay": True}}, "env.switch.replay = True: allowed is one of clear, keep"),
    ({"cycles": 0}, r"env.cycles = 0: allowed is \[1, 10000\]"),
]


@pytest.mark.parametrize(("env", "says"), REFUSED, ids=lambda v: str(v)[:40])
def test_keys_that_do_not_go_together_are_refused_by_name(env: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        parsed(**env)


def test_switch_of_one_environment_is_refused():
    env = {"sequence": [], "id": TWO[0], "steps_per_task": None, "cycles": 1}
    with pytest.raises(ConfigError, match="one environment has no switch"):
        parsed(**env, switch="c_chain")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"total": "161 env_steps"},
            "total = '161 env_steps': allowed is at most .* 160 env_steps",
        ),
        ({"total": "9 updates"}, "total = '9 updates': a sequence of tasks counts env_steps"),
        ({"agent": {"initial_steps": 40}}, "initial_steps = 40: .* env.steps_per_task = 40"),
        ({"evaluate": {"tasks": "all"}}, "evaluate.tasks = 'all': allowed: current, seen"),
    ],
)
def test_lengths_that_do_not_fit_the_sequence_are_refused(changes: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        read_config(dqn_tasks(**changes))


def test_a_part_that_is_not_said_is_the_default():
    assert switch_of({"replay": "keep"}).explore == "restart"
    assert switch_of("pt_dqn").replay == "keep"


def test_presets_are_those_of_the_table_in_the_guide():
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "train-on-a-sequence.md"
    row = re.compile(r"^\| `(\w+)` " + r"\| (\w+) " * 5 + r"\|", re.MULTILINE)
    table = {
        name: dict(zip(PARTS, parts, strict=True))
        for name, *parts in row.findall(guide.read_text())
    }
    assert {name: vars(switch) for name, switch in PRESETS.items()} == table
