import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.run import api
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents.toy_control import recorded
from tests.agents.toy_env import advanced, everything, hooked, ppo, same
from tests.ppo_runs import small_control, small_ppo
from tests.runs import final, interrupt
from tests.sequences import EACH, ppo_tasks

ROLLOUT, OWED = 20, 12  # env_steps and updates of the small agent


# Steps, rollouts and updates.


def test_updates_follow_each_whole_rollout_one_at_a_time(toy: str):
    agent = ppo()
    while agent.clock.env_steps < 3 * ROLLOUT + 6 or agent.owes():
        before = agent.clock
        agent.step()
        stepped = agent.clock.env_steps - before.env_steps
        assert (stepped, agent.clock.updates - before.updates) in ((2, 0), (0, 1))
        if not agent.owes():
            assert agent.clock.updates == OWED * (agent.clock.env_steps // ROLLOUT)
            assert agent.clock.updates == agent.config.updates_at(agent.clock.env_steps)
    assert agent.clock.frames == 2 * agent.clock.env_steps
    assert agent.rollout.position == 3


def test_an_epoch_reads_every_transition_once_in_an_order_of_its_own(toy: str):
    agent, orders = ppo(), []
    while not agent.owes():
        agent.step()
    for _ in range(3):
        seen = []
        for _ in range(ROLLOUT // 5):
            seen += [tuple(row) for row in agent._batch().obs.tolist()]
            agent.update()
        assert sorted(seen) == sorted(tuple(row) for row in agent.rollout.data.obs.tolist())
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_first_update_of_a_rollout_finds_the_policy_that_acted(toy: str):
    agent = ppo(epochs=1, batch_size=20)
    for _ in range(3):
        while not agent.owes():
            agent.step()
        _, logged, _ = agent.actor_loss(agent._batch())
        assert [float(value) for value in logged[1:]] == pytest.approx([0, 0], abs=1e-6)
        agent.update()


def test_truncated_episodes_are_worth_their_last_observation_and_terminated_ones_nothing(
    toy: str,
):
    agent = ppo(gamma=0.9, rollout_steps=40)
    with recorded(agent) as steps:
        for _ in range(40):
            agent.step()
    kinds = set()
    for t, (obs, _, step) in enumerate(steps):
        value = agent.critic(torch.from_numpy(step.obs_final)).detach()[:, 0].numpy()
        expected = step.reward + np.where(step.truncated, 0.9 * value, 0)
        np.testing.assert_allclose(agent.rollout.reward[t], expected, rtol=1e-5)
        assert same(agent.rollout.ended[t], step.terminated | step.truncated)
        assert same(agent.rollout.obs[t], obs)
        kinds |= {(bool(a), bool(b)) for a, b in zip(step.terminated, step.truncated, strict=True)}
    assert kinds == {(False, False), (True, False), (False, True)}


def test_values_of_a_rollout_are_those_of_the_critic_as_it_is_when_the_rollout_is_full(
    toy: str, tmp_path: Path
):
    agent = ppo(gamma=0.9, gae_lambda=0.0, rollout_steps=30)
    with torch.no_grad():
        agent.critic.head.bias.fill_(100.0)
    hooks = hooked(agent, {"method": "full_reset", "at": "40 env_steps", "networks": ["critic"]})
    with recorded(agent) as steps:
        while not agent.owes():
            before = agent.clock
            agent.step()
            hooks.fire(before, agent.clock)
            if agent.clock.env_steps == 38:  # between a truncated step and the edit
                agent.load_state_dict(copy.deepcopy(agent.state_dict()))
    assert any(step.truncated.any() for _, _, step in steps[:19])

    def value(obs: np.ndarray) -> np.ndarray:
        return agent.critic(torch.from_numpy(obs)).detach()[:, 0].numpy()

    expected = [
        step.reward + np.where(step.terminated, 0, 0.9 * value(step.obs_final))
        for _, _, step in steps
    ]
    np.testing.assert_allclose(agent.rollout.data.returns, np.ravel(expected), rtol=1e-4)


def test_actions_are_clipped_where_they_are_played_and_not_where_they_are_learnt(slide: None):
    agent = ppo()
    with recorded(agent) as steps:
        for _ in range(9):
            agent.step()
    learnt = agent.rollout.action[:9]
    assert np.abs(learnt).max() > 1
    assert same(learnt.clip(-1, 1), np.stack([actions for _, actions, _ in steps]))


@pytest.mark.slow
def test_an_agent_learns_cartpole():
    agent = {"rollout_steps": 32, "batch_size": 256, "epochs": 20, "gamma": 0.98}
    agent |= {"gae_lambda": 0.8, "hidden": None, "accelerate": "off"}
    env = {"num_envs": 8, "options": {}}
    made: Any = build_trainable(read_config(small_ppo(total="8k env_steps", agent=agent, env=env)))
    while made.clock.env_steps < 8000:
        made.step()
    assert made.play(0, 10).returns.mean() > 80  # of 500; a random agent has 20


# Statistics.


def test_observations_and_rewards_are_normalised_for_the_learner_alone():
    made: Any = build_trainable(read_config(small_control()))
    raw = made.experience.obs()
    assert made.statistics.count == 2
    advanced(made, 4)
    assert made.statistics.count == 2 + made.clock.env_steps
    assert made.rewards.statistics.count == made.clock.env_steps
    assert made.rollout.data.obs.abs().max() <= 10
    assert made.rollout.data.obs.mean().abs() < 1
    assert np.abs(made.rollout.reward).max() < 16 <= -made.play(0, 1).returns.mean()
    expected = made.actor(made.statistics.normalise(torch.from_numpy(raw)).clamp(-10, 10))
    np.testing.assert_allclose(made.act(raw), expected.detach().clamp(-1, 1), atol=1e-6)


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_evaluation_probes_and_acting_leave_training_bit_identical(shared: bool, toy: str):
    plain, watched = (ppo(normalize_obs=True, shared_trunk=shared) for _ in range(2))
    for i in range(60):
        plain.step()
        watched.step()
        if i % 7 == 0:
            watched.evaluate(i, 2)
            batch = watched.sample(16, i)
            assert (batch is None) == (watched.clock.env_steps < ROLLOUT)
            for name in watched.networks if batch is not None else ():
                watched.activations(name, batch)
                watched.loss(name, batch)
                found = watched.outputs(name, batch)
                assert not shared or found.shape == (16, watched.width + 1)
            watched.act(watched.experience.obs())
    assert plain.clock.updates > 10
    assert same(everything(plain), everything(watched))


# Hooks.


@pytest.mark.parametrize("network", ["actor", "critic"])
def test_a_hook_resets_actor_or_critic_alone(network: str, toy: str):
    agent = advanced(ppo(), 15)
    row = {"method": "full_reset", "at": "50%", "networks": [network], "params": {"init": "fresh"}}
    hooks = hooked(agent, row)
    before = everything(agent)
    (receipt,) = hooks.fire(agent.clock, agent.clock.advance(env_steps=300))
    assert receipt.network == network
    after = everything(agent)
    changed = {name for name in before if not same(before[name], after[name])}
    assert changed == {network, f"{network} optimizer"}
    if network == "actor" and toy == "continuous":
        assert after["actor"]["log_std"].tolist() == [0, 0] != before["actor"]["log_std"].tolist()
    advanced(agent, 30)


def test_every_update_hooks_of_one_network_leave_the_other_but_for_the_common_bound(toy: str):
    one, two = (ppo(max_grad_norm=None, activation="relu") for _ in range(2))
    row = {"method": "swr", "every": "1 updates", "networks": ["critic"], "params": {"coef": 0.1}}
    two.after_update = hooked(two, row).after_update
    advanced(one, OWED), advanced(two, OWED)
    assert same(one.actor.state_dict(), two.actor.state_dict())
    assert not same(one.critic.state_dict(), two.critic.state_dict())


# Interrupted, wherever it is: in the first rollout, as it gets full, after its updates, in the next
# rollout, and where a hook cuts updates: in an epoch, and between two.
MOMENTS = (3, 10, 11, 15, 20, 33, 56)


@pytest.mark.parametrize("make", [small_ppo, small_control])
def test_interrupted_anywhere_and_resumed_equals(make: Any, tmp_path: Path):
    cbp = {"maturity": 3, "replacement_rate": 0.1}
    hooks = [
        {"method": "shrink_perturb", "every": "9 updates"},
        {"method": "cbp", "every": "1 updates", "params": cbp},
    ]
    config = make(hooks=hooks, penalties=[{"method": "l2_init"}])
    api.train(config, tmp_path / "through")
    interrupt(config, tmp_path / "run", MOMENTS)
    assert final(tmp_path / "run") == final(tmp_path / "through")


def test_where_episodes_cannot_go_on_they_end_as_truncated(toy: str, tmp_path: Path):
    agent, other = ppo(), ppo()
    for _ in range(4):
        agent.step()
    other.load_state_dict(agent.state_dict())
    obs = other.experience.obs().copy()
    other.experience.env.restarts = True  # as an environment says that cannot be put back
    other.load_files(tmp_path)
    assert same(other.rollout.reward, agent.rollout.reward)
    still_open = np.flatnonzero(~agent.rollout.ended[3])
    assert same(other.rollout.cuts, [(3, still_open, obs[still_open])])
    assert other.rollout.ended[3].all()
    assert (other.experience.obs() != obs).all()


# A sequence of tasks.


def test_no_rollout_reaches_into_another_task():
    agent: Any = build_trainable(read_config(ppo_tasks(env={"steps_per_task": 50})))
    seen = []
    while agent.clock.env_steps < 50 + 6:
        agent.step()
        seen.append((agent.clock.phase, agent.rollout.position))
    assert (0, 5) in seen  # 10 env_steps of the first task are not learnt from
    assert agent.clock.updates == 2 * 4 == agent.config.updates_at(50)
    assert agent.rollout.position == 3
    assert agent.rollout.obs[:3, :, 4:].all()  # Acrobot has 6 coordinates, CartPole 4


def test_statistics_restart_with_the_first_observation_of_a_task():
    env = {"sequence": [], "id": "gym/Pendulum-v1", "shift": "gravity", "tasks": 2, "cycles": 1}
    agent = {"normalize_obs": True, "normalize_rewards": True}
    for choice, counts in (("restart", (2, 0)), ("keep", (EACH + 4, EACH))):
        tasks = ppo_tasks(env=env | {"switch": {"statistics": choice}}, agent=agent)
        made: Any = build_trainable(read_config(tasks))
        while made.clock.phase < 1:
            made.step()
        made._enter_task()
        assert (made.statistics.count, made.rewards.statistics.count) == counts


def test_interrupted_in_any_task_and_resumed_equals(tmp_path: Path):
    hooks = [{"method": "shrink_perturb", "on": "phase_start"}]
    config = ppo_tasks(hooks=hooks, env={"switch": {"statistics": "restart"}})
    api.train(config, tmp_path / "through")
    # At the end of a task, its switch, the first step after it, and later.
    interrupt(config, tmp_path / "run", (21, 30, 31, 63))
    assert final(tmp_path / "run") == final(tmp_path / "through")


# What is refused.


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"agent.batch_size": 7}, "batch_size = 7: .* such as 5$"),
        ({"total": "19 env_steps"}, "rollout_steps"),
        ({"agent.network": "nature"}, "image observations"),
        ({"replay_ratio": 1}, "replay_ratio"),
        ({"agent.initial_steps": 1}, "initial_steps"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        build_trainable(read_config(small_ppo(), keys))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"steps_per_task": 18}, "steps_per_task = 18"),
        ({"switch": "c_chain"}, "env.switch.replay"),
        ({"switch": {"target": "keep"}}, "env.switch.optimizer"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(env: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read_config(ppo_tasks(env=env))


def test_a_policy_that_diverged_stops_the_run(slide: None):
    agent = ppo()
    with torch.no_grad():
        agent.actor.get_parameter("log_std").fill_(torch.nan)
    with pytest.raises(RlplastError, match="not finite"):
        agent.step()
