import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rlplast.agents.agent import Agent
from rlplast.agents.environments import Environments
from rlplast.agents.off_policy import OffPolicyAgent
from rlplast.agents.sequence import EnvConfig, TaskSequence
from rlplast.agents.switch import PRESETS
from rlplast.agents.tasks import Tasks
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.rng import Streams
from rlplast.run.build import build_trainable
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.tasks import tasks_of
from tests.agents.toy_env import everything, hooked, same
from tests.sequences import EACH, TWO, dqn_tasks, ppo_tasks, sac_tasks


def made(config: dict[str, Any]) -> Any:
    return build_trainable(read_config(config))


def at_end_of(agent: Any, phase: int) -> Any:
    """Step an agent to where the next step starts a phase."""
    while not (agent.clock.phase == phase and over(agent)):
        agent.step()
    return agent


def over(agent: Any) -> bool:
    return agent.phase_over() and not agent.owes()


def into(agent: Any, phase: int) -> Any:
    """Step an agent to the start of a phase: not yet into its task."""
    at_end_of(agent, phase - 1).step()
    assert agent.clock.phase == phase
    return agent


def replayed(agent: OffPolicyAgent) -> Any:
    """Everything that can be sampled, as one batch."""
    (batch,) = agent.experience.replay.batches(None, 10_000, np.random.default_rng(0))
    return batch


@pytest.mark.parametrize("make", [dqn_tasks, sac_tasks, ppo_tasks])
def test_switch_is_a_step_of_its_own_after_the_last_update_at_exactly_its_time(make: Any):
    agent = made(make())
    phases = 4 if make is not sac_tasks else 3
    while agent.clock.env_steps < phases * EACH or agent.owes():
        before, last = agent.clock, over(agent)
        agent.step()
        after = agent.clock
        assert (after.phase > before.phase) == last
        if last:
            assert after == before.advance(phase=1)
            assert after.env_steps == EACH * after.phase
        if not agent.owes():
            assert after.updates == agent.config.updates_at(after.env_steps)
    assert agent.clock.phase == phases - 1 and not agent.phase_over()  # the last has no end


def test_no_window_reaches_across_and_the_last_observation_bootstraps():
    agent = made(dqn_tasks(env={"switch": "pt_dqn"}, agent={"n_step": 3}))
    at_end_of(agent, 0)
    cut = agent.experience.obs()[:, :4].copy()  # what CartPole showed last
    for _ in range(2 + 5):
        agent.step()
    batch = replayed(agent)
    poles = (batch.obs[:, 4:] == 0).all(1)
    goes_on = batch.discount > 0  # else obs_next means nothing
    assert torch.equal((batch.obs_next[:, 4:] == 0).all(1)[goes_on], poles[goes_on])
    assert 0 < poles.sum() < len(poles)
    for last in cut:
        ends = (batch.obs_next[:, :4] == torch.from_numpy(last)).all(1) & poles & goes_on
        if ends.any():  # else its episode had just begun: nothing leads to it
            assert batch.discount[ends].max() == pytest.approx(0.99)


def test_cleared_replay_holds_the_new_task_alone_and_updates_wait_for_it():
    agent = into(made(dqn_tasks(agent={"buffer_size": 50})), 1)
    replay = agent.experience.replay
    assert replay.size > 0  # hooks that fire here find the old task's
    agent.step()
    updates = agent.clock.updates
    while agent.clock.env_steps < EACH + 10:
        agent.step()
        assert agent.clock.updates == updates
    while not over(agent):
        agent.step()
        assert (replayed(agent).obs[:, 4:] != 0).any(1).all()
        assert replay.size == len(replayed(agent).obs)  # where old rows are overwritten too
    assert agent.clock.updates == updates + 15


def test_stack_of_frames_begins_anew_in_a_task():
    env = {"sequence": ["atari/Pong", "atari/Breakout"], "steps_per_task": EACH, "num_envs": 1}
    config: Any = read_config({"kind": "dqn", "env": env, "agent": {"initial_steps": 10}})
    experience = Environments(config, Tasks(config.env, 3), Streams(3))
    for _ in range(5):
        experience.go_on(experience.play(np.zeros(1, np.int64), Clock()), Clock())
    assert experience.obs().any((2, 3)).all()
    experience.switch(1)
    assert experience.obs().any((2, 3)).tolist() == [[False, False, False, True]]
    experience.close()


def test_what_a_task_is_depends_on_seed_and_number_and_episodes_on_the_visit():
    env = {"sequence": [], "id": "gym/CartPole-v1", "shift": "shifted_observations", "tasks": 2}
    config: Any = read_config(dqn_tasks(env=env))
    more: Any = read_config(dqn_tasks(env=env | {"tasks": 3}))  # which changes no other task
    one, other = (Tasks(config.env, seed)._shifts[1].offset for seed in (3, 6))
    _, again, next_one = (shift.offset for shift in Tasks(more.env, 3)._shifts)
    assert same(one, again) and not same(one, other) and not same(one, next_one)
    agent, firsts = made(dqn_tasks(env=env)), []
    for phase in (1, 3):
        into(agent, phase)
        agent._enter_task()
        firsts.append(agent.experience.obs().copy())
    assert np.abs(one).max() > 0.1
    assert all(np.abs(first - one).max() < 0.051 for first in firsts)  # CartPole's first ones
    assert not same(*firsts)
    # A factor multiplies the environment's own option.
    shift = {"name": "gravity", "low": 0.5, "high": 0.5}
    config = read_config(sac_tasks(env={"options": {"gravity": 3.0}, "shift": shift}))
    tasks = Tasks(config.env, 5)
    assert [tasks.of(k)[1]["gravity"] for k in range(3)] == [3.0, 1.5, 1.5]


def weights(agent: Agent) -> dict[str, Any]:
    state = everything(agent)
    return {k: v for k, v in state.items() if k != "rest" and "initial" not in k}


@pytest.mark.parametrize("make", [dqn_tasks, sac_tasks])
def test_target_and_optimizers_at_a_switch(make: Any):
    for choice, renewed in (("keep", "renew"), ("copy", "keep"), ("renew", "keep")):
        agent = made(make(env={"switch": {"target": choice, "optimizer": renewed}}))
        optimizers = {f"{name} optimizer" for name in agent.networks if renewed == "renew"}
        drawn = []
        for phase in (0, 1):
            before = weights(at_end_of(agent, phase))
            agent.step()
            after = weights(agent)
            name = "q" if "q" in before else "critic"
            assert {k for k in before if not same(before[k], after[k])} - {"target"} == optimizers
            for key in optimizers:
                assert not any(tensor.any() for each in after[key] for tensor in each.values())
            kept, copied = (same(after["target"], before[k]) for k in ("target", name))
            assert (kept, copied) == (choice == "keep", choice == "copy")
            drawn.append(after["target"])
        assert not same(*drawn)


def test_statistics_restart_with_the_first_observation_of_the_task():
    for switch, count in (
        ({"statistics": "restart"}, 1),
        ({"statistics": "keep"}, EACH + 2),
        ({"replay": "keep"}, EACH + 3),  # with the last one of what the switch cut off
    ):
        agent = into(made(sac_tasks(env={"switch": switch})), 1)
        assert agent.statistics.count == EACH + 1  # with the last of an episode
        agent.step()
        assert agent.statistics.count == count
        # Of 25 steps; what the switch cut off does not count.
        assert agent.metrics()["train/episodes"] == 1


def test_learning_rate_begins_anew_with_every_task():
    agent = made(dqn_tasks(optimizer={"lr": 1.0, "schedule": "linear"}, replay_ratio=1))
    rates = []
    while agent.clock.env_steps < 2 * EACH or agent.owes():
        updates = agent.clock.updates
        agent.step()
        if agent.clock.updates > updates:
            rates.append(agent.updaters["q"].lr)
    alone = [1 - i / (EACH - 10) for i in range(EACH - 10)]
    assert rates == pytest.approx(alone + alone)


def epsilon(taken: int, length: float) -> float:
    return 1.0 - 0.99 * min(1.0, max(0, taken - 10) / length)


@pytest.mark.parametrize("explore", ["restart", "random_only", "keep"])
def test_epsilon_counts_the_env_steps_of_the_task_or_of_the_run(explore: str):
    agent = made(dqn_tasks(env={"switch": {"explore": explore}}))
    while agent.clock.env_steps < 3 * EACH:
        run = agent.clock.env_steps
        if not agent.owes() and not agent.phase_over():
            task = run - EACH * agent.clock.phase
            expected = {
                "restart": epsilon(task, 0.5 * EACH),
                "random_only": epsilon(run if task >= 10 else 0, 0.5 * 4 * EACH),
                "keep": epsilon(run, 0.5 * 4 * EACH),
            }
            assert agent.epsilon() == pytest.approx(expected[explore])
        agent.step()


def test_evaluation_is_of_the_current_task_or_of_all_seen():
    agent, other = (
        into(made(dqn_tasks(evaluate={"every": "30%", "episodes": 2, "tasks": tasks})), 1)
        for tasks in ("current", "seen")
    )
    pole, acrobot = (f"{name}/return_mean" for name in agent.sequence.names)
    scores, of_all = agent.evaluate(0, 2), other.evaluate(0, 2)
    assert scores.items() == of_all.items() - {(pole, of_all[pole])}
    assert scores[acrobot] == scores["return_mean"] < 0 < of_all[pole]  # Acrobot pays -1 a step


@pytest.mark.parametrize("make", [dqn_tasks, sac_tasks])
def test_oracle_begins_a_task_as_a_fresh_agent_begins_a_run(make: Any):
    config = make(env={"switch": {"statistics": "restart"}})
    config["hooks"] = f"{config['kind']}/hooks/oracle"
    agent = at_end_of(made(config), 0)
    hooks = hooked(agent, *agent.config.hooks)
    before, start = weights(agent), agent.clock
    agent.step()
    hooks.fire(start, agent.clock)
    agent.step()  # the first of the new task
    fresh = made(config)
    new, drawn = weights(agent), weights(fresh)
    for name in agent.networks:
        assert not any(t.any() for each in new[f"{name} optimizer"] for t in each.values())
        for key, value in new[name].items():
            assert value.shape == drawn[name][key].shape
            if drawn[name][key].unique().numel() > 1:  # another draw by the same law
                assert not same(value, drawn[name][key])
                assert not same(value, before[name][key])
                assert value.std() == pytest.approx(drawn[name][key].std(), rel=0.5)
            else:
                assert same(value, drawn[name][key])
    assert same(new["target"], new["q" if "q" in new else "critic"])
    fresh.step()
    assert agent.experience.replay.size == fresh.experience.replay.size
    assert agent.experience.credit == fresh.experience.credit
    assert agent._steps_of_schedule() == fresh._steps_of_schedule()
    if make is dqn_tasks:
        assert agent.epsilon() == fresh.epsilon()
    else:
        assert agent.statistics.count == fresh.statistics.count == 1


# What a config says of tasks.

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


def test_names_are_those_of_the_run_config_and_of_what_it_leaves():
    config = read_config(dqn_tasks(env=SHIFT | {"switch": "c_chain"}))
    left = yaml.safe_load(dump_config(config))
    assert read_config(left) == config
    assert tasks_of(left) == tasks_of(config) == ["task-0", "task-1", "task-2"] * 2
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
    ({"env": {"steps_per_task": "40 updates"}}, "env.steps_per_task"),
    ({"env": {"steps_per_task": 10**19}}, "env.steps_per_task"),
    ({"env": ONE}, "env.steps_per_task"),
    ({"env": ONE | {"steps_per_task": None, "cycles": 1, "switch": "c_chain"}}, "env.switch"),
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
