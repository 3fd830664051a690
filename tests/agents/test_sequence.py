import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.agents.sequence import EnvConfig, TaskSequence
from rlplast.agents.switch import PRESETS
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.tasks import tasks_of
from tests.sequences import TWO, dqn_tasks, sac_tasks

PARTS = ("replay", "explore", "optimizer", "target", "statistics")
SHIFT = {"sequence": [], "id": "gym/CartPole-v1", "shift": "permuted_observations", "tasks": 3}


def test_phases_go_through_the_sequence_as_often_as_there_are_cycles():
    longer = {"id": TWO[0], "options": {"max_episode_steps": 9}}
    env = EnvConfig(
        sequence=[*TWO, TWO[0], longer],
        options={"max_episode_steps": 5},
        steps_per_task="1k",
        cycles=2,
    )
    sequence = TaskSequence.parse(env)
    assert sequence.tasks == (0, 1, 0, 2) * 2  # what comes again is the same task
    assert sequence.names == (*TWO, f"{TWO[0]}-2")
    assert sequence.length == 8000
    assert (sequence.seen(1), sequence.seen(7)) == ([0, 1], [0, 1, 2])
    assert [options["max_episode_steps"] for _, options in sequence.envs] == [5, 5, 9]


def test_total_is_the_whole_sequence_unless_it_is_given():
    config = read_config(dqn_tasks())
    assert config.total == "160 env_steps"
    assert config.horizon() == Clock(updates=60, env_steps=160, episodes=160, phase=4)
    shorter = read_config(dqn_tasks(total="100 env_steps"))
    assert shorter.horizon() == Clock(updates=35, env_steps=100, episodes=100, phase=3)
    assert read_config(dqn_tasks(), {"env.cycles": 1}).total == "80 env_steps"
    alone = read_config({"kind": "dqn", "env": {"id": "gym/CartPole-v1"}})
    assert alone.horizon().phase == 0 and "phase" not in alone.units


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
def test_updates_that_are_owed_by_a_count_of_env_steps(switch: Any):
    for ratio in (0.3, 2.0):
        config: Any = read_config(dqn_tasks(env={"switch": switch}, replay_ratio=ratio))
        waits, learning = config.sequence().switch.waits, 0
        for done in range(1, 161):
            place = (done - 1) % 40 if waits else done - 1
            learning += place >= 10
            assert config.updates_at(done) == int(ratio * learning + 1e-9)


ONE = {"sequence": [], "id": TWO[0]}
REFUSED = [
    ({"env": {"steps_per_task": None}}, "env.steps_per_task"),
    ({"env": {"steps_per_task": 41}}, "env.num_envs"),
    ({"env": {"steps_per_task": "5 updates"}}, "env.steps_per_task"),
    ({"env": {"steps_per_task": 10**19}}, "env.steps_per_task"),
    ({"env": ONE}, "env.steps_per_task"),
    ({"env": ONE | {"steps_per_task": None, "cycles": 1, "switch": "c_chain"}}, "no switch"),
    ({"env": {"shift": "gravity"}}, "env.shift"),
    ({"env": {"tasks": 3}}, "env.tasks"),
    ({"env": SHIFT | {"tasks": None}}, "env.tasks"),
    ({"env": SHIFT | {"shift": {"name": "gravity", "hi": 3}}}, "env.shift .* 'hi'"),
    ({"env": SHIFT | {"shift": {"name": "gravity", "low": 3}}}, "env.shift.low"),
    ({"env": SHIFT | {"shift": {"std": 3}}}, "env.shift.name"),
    ({"env": {"id": "gym/Pendulum-v1"}}, "env.id"),
    ({"env": {"sequence": [{"name": "x"}]}}, r"env.sequence\[0\]"),
    ({"env": {"sequence": [{"id": TWO[0], "option": {}}]}}, r"env.sequence\[0\] .* 'option'"),
    ({"total": "161 env_steps"}, "total"),
    ({"total": "9 updates"}, "total"),
    ({"agent": {"initial_steps": 40}}, "initial_steps"),
]


def test_keys_that_do_not_go_together_are_refused_by_name():
    for changes, says in REFUSED:
        with pytest.raises(ConfigError, match=says):
            read_config(dqn_tasks(**changes))


def test_presets_are_those_of_the_table_in_the_guide():
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "train-on-a-sequence.md"
    row = re.compile(r"^\| `(\w+)` " + r"\| (\w+) " * 5 + r"\|", re.MULTILINE)
    table = {
        name: dict(zip(PARTS, parts, strict=True))
        for name, *parts in row.findall(guide.read_text())
    }
    assert {name: vars(switch) for name, switch in PRESETS.items()} == table
