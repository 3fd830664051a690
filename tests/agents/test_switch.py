from typing import Any

import numpy as np
import pytest
import torch

from rlplast.agents.agent import Agent
from rlplast.agents.experience import Experience
from rlplast.agents.off_policy import OffPolicyAgent
from rlplast.agents.tasks import Tasks
from rlplast.core.clock import Clock
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents.toy_env import everything, hooked, same
from tests.sequences import EACH, dqn_tasks, ppo_tasks, sac_tasks


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


# The step itself.


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


# Data.


@pytest.mark.parametrize("n_step", [1, 3])
def test_no_window_reaches_across_and_the_last_observation_bootstraps(n_step: int):
    agent = made(dqn_tasks(env={"switch": "pt_dqn"}, agent={"n_step": n_step}))
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
        fresh = agent.spec.id and not ends.any()  # its episode had just begun: nothing leads to it
        assert fresh or batch.discount[ends].max() == pytest.approx(0.99)


def test_cleared_replay_holds_the_new_task_alone_and_updates_wait_for_it():
    agent = into(made(dqn_tasks()), 1)
    assert agent.experience.replay.size > 0  # hooks that fire here find the old task's
    agent.step()
    updates = agent.clock.updates
    while agent.clock.env_steps < EACH + 10:
        agent.step()
        assert agent.clock.updates == updates
    while not over(agent):
        agent.step()
        assert (replayed(agent).obs[:, 4:] != 0).any(1).all()
    assert agent.clock.updates == updates + 15


def test_replay_that_was_cleared_counts_and_loads_as_one_that_was_not(tmp_path: Any):
    agent = made(dqn_tasks(agent={"buffer_size": 50}))
    at_end_of(agent, 2)
    replay, state = agent.experience.replay, agent.state_dict()
    assert replay.size == len(replayed(agent).obs)
    agent.save_files(None)(tmp_path)
    other = made(dqn_tasks(agent={"buffer_size": 50}))
    other.load_state_dict(state)
    other.load_files(tmp_path)
    assert other.experience.phase == 2
    assert same(list(replayed(other)), list(replayed(agent)))
    assert other.experience.replay.size == replay.size


def test_stack_of_frames_begins_anew_in_a_task():
    env = {"sequence": ["atari/Pong", "atari/Breakout"], "steps_per_task": EACH}
    agent = {"network": "nature", "initial_steps": 10, "buffer_size": 100}
    config: Any = read_config({"kind": "dqn", "env": env | {"num_envs": 1}, "agent": agent})
    rng, clock = np.random.default_rng(0), Clock()
    experience = Experience(config, Tasks(config.env, 3), rng, torch.device("cpu"), True)
    for _ in range(5):
        clock = experience.step(np.zeros(1, np.int64), clock)
    assert experience.obs().any((2, 3)).all()
    experience.switch(1)
    assert experience.obs().any((2, 3)).tolist() == [[False, False, False, True]]
    experience.close()


def test_later_visit_finds_the_same_task_but_other_episodes():
    shift = {"sequence": [], "id": "gym/CartPole-v1", "shift": "shifted_observations", "tasks": 2}
    agent = made(dqn_tasks(env=shift))
    firsts = []
    for phase in (1, 3):
        into(agent, phase)
        agent._enter_task()
        firsts.append(agent.experience.obs().copy())
    offset = agent.tasks._shifts[1].offset
    assert offset is not None
    assert np.abs(offset).max() > 0.1
    assert all(np.abs(first - offset).max() < 0.051 for first in firsts)  # CartPole's first ones
    assert not same(*firsts)


def test_what_a_task_is_depends_on_seed_and_number_alone():
    env = {"sequence": [], "id": "gym/CartPole-v1", "shift": "permuted_observations", "tasks": 4}
    config: Any = read_config(dqn_tasks(env=env))
    fewer: Any = read_config(dqn_tasks(env=env | {"tasks": 3, "steps_per_task": 80}))
    one, same_seed, other = (
        [vars(shift) for shift in Tasks(c.env, seed)._shifts]
        for c, seed in ((config, 5), (fewer, 5), (config, 6))
    )
    assert same(one[2], same_seed[2])
    assert not same(one, other)
    assert one[0]["order"] is None  # the first is not shifted
    assert not same(one[2], one[3])
    # A factor multiplies the environment's own option.
    shift = {"name": "gravity", "low": 0.5, "high": 0.5}
    config = read_config(sac_tasks(env={"options": {"gravity": 3.0}, "shift": shift}))
    tasks = Tasks(config.env, 5)
    assert [tasks.of(k)[1]["gravity"] for k in range(3)] == [3.0, 1.5, 1.5]


# Networks.


def weights(agent: Agent) -> dict[str, Any]:
    state = everything(agent)
    return {k: v for k, v in state.items() if k != "rest" and "initial" not in k}


@pytest.mark.parametrize("choice", ["keep", "copy", "renew"])
@pytest.mark.parametrize("make", [dqn_tasks, sac_tasks])
def test_target_at_a_switch(choice: str, make: Any):
    agent, drawn = made(make(env={"switch": {"target": choice}})), []
    for phase in (0, 1):
        before = weights(at_end_of(agent, phase))
        agent.step()
        after = weights(agent)
        name = "q" if "q" in before else "critic"
        assert {k for k in before if not same(before[k], after[k])} <= {"target"}
        kept, copied = (same(after["target"], before[k]) for k in ("target", name))
        assert (kept, copied) == (choice == "keep", choice == "copy")
        drawn.append(after["target"])
    assert not same(*drawn)


@pytest.mark.parametrize("make", [dqn_tasks, sac_tasks, ppo_tasks])
def test_optimizer_at_a_switch_is_kept_or_as_new(make: Any):
    target = {} if make is ppo_tasks else {"target": "keep"}
    agent = at_end_of(made(make(env={"switch": {"optimizer": "renew"} | target})), 0)
    before = weights(agent)
    agent.step()
    after = weights(agent)
    for key, found in after.items():
        if key.endswith("optimizer"):
            assert not any(tensor.any() for each in found for tensor in each.values())
        else:
            assert same(found, before[key])


def test_statistics_restart_with_the_first_observation_of_the_task():
    for choice, count in (("restart", 1), ("keep", EACH + 2)):
        agent = into(made(sac_tasks(env={"switch": {"statistics": choice}})), 1)
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


# Exploration: by the env_steps in the task, and those of the run.


def epsilon(taken: int, length: float) -> float:
    return 1.0 - 0.99 * min(1.0, max(0, taken - 10) / length)


@pytest.mark.parametrize(
    ("explore", "expected"),
    [
        ("restart", lambda task, run: epsilon(task, 0.5 * EACH)),
        ("random_only", lambda task, run: epsilon(run if task >= 10 else 0, 0.5 * 4 * EACH)),
        ("keep", lambda task, run: epsilon(run, 0.5 * 4 * EACH)),
    ],
)
def test_epsilon_at_every_env_step(explore: str, expected: Any):
    agent = made(dqn_tasks(env={"switch": {"explore": explore}}))
    while agent.clock.env_steps < 3 * EACH:
        run = agent.clock.env_steps
        if not agent.owes() and not agent.phase_over():
            assert agent.epsilon() == pytest.approx(expected(run - EACH * agent.clock.phase, run))
        agent.step()


# Evaluation.


def test_evaluation_is_of_the_current_task_and_at_its_end_of_all_seen():
    agent, other = (
        made(dqn_tasks(evaluate={"every": "30%", "episodes": 2, "tasks": tasks}))
        for tasks in ("current", "seen")
    )
    per_task = [f"{name}/return_mean" for name in agent.sequence.names]
    into(agent, 1), into(other, 1)
    scores, of_all = agent.evaluate(0, 2), other.evaluate(0, 2)
    assert scores.items() < of_all.items()
    assert [key for key in scores if "/" in key] == per_task[1:]
    assert scores[per_task[1]] == scores["return_mean"] < 0  # Acrobot pays -1 a step
    at_end_of(agent, 1), at_end_of(other, 1)
    assert same(everything(agent), everything(other))
    scores = agent.evaluate(0, 2)
    assert [key for key in scores if "/" in key] == per_task
    assert scores[per_task[0]] > 0 > scores[per_task[1]]
    assert scores["return_mean"] == scores[per_task[1]]


# The oracle.


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
