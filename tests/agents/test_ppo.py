import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlplast
from rlplast.agents.ppo_config import PPOAgentConfig, PPOConfig
from rlplast.agents.ppo_networks import SharedNetwork, networks_of
from rlplast.core.errors import ConfigError, Diverged
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order
from rlplast.methods.features import Reading, head_layers
from rlplast.metrics.output_probe import measure_outputs, weights_of
from rlplast.run import api
from rlplast.run.build import build, build_trainable
from rlplast.run.config_file import read_config
from tests.agents.toy_control import recorded
from tests.agents.toy_env import advanced, everything, hooked, ppo, same
from tests.ppo_runs import small_control, small_ppo
from tests.runs import final, interrupt
from tests.sequences import EACH, ppo_tasks

ROLLOUT, OWED = 20, 12  # env_steps and updates of the small agent


def test_an_epoch_reads_every_transition_once_in_an_order_of_its_own(toy: str):
    agent, orders = ppo(), []
    while not agent.owes():
        agent.step()
    for _ in range(3):
        seen = []
        for _ in range(ROLLOUT // 5):
            seen += [tuple(row) for row in next(agent._drawn(1)).obs.tolist()]
            agent.update()
        assert sorted(seen) == sorted(tuple(row) for row in agent.rollout.data.obs.tolist())
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_truncated_episodes_are_worth_their_last_observation(toy: str):
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


def test_values_are_those_of_the_critic_when_the_rollout_is_full(toy: str):
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


def test_env_steps_of_updates_are_the_fewest_that_owe_them():
    config = PPOConfig(agent=PPOAgentConfig(rollout_steps=16, batch_size=32, epochs=3))
    assert config.updates_per_rollout == 12
    for updates in (1, 11, 12, 13, 60):
        env_steps = config.env_steps_of(updates)
        assert config.updates_at(env_steps) >= updates > config.updates_at(env_steps - 1)


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


def test_a_hook_resets_actor_or_critic_alone(slide: None):
    agent = advanced(ppo(), 15)
    fresh = {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}}
    for network in ("actor", "critic"):
        hooks, before = hooked(agent, fresh | {"networks": [network]}), everything(agent)
        (receipt,) = hooks.fire(agent.clock, agent.clock.advance(env_steps=300))
        assert receipt.network == network
        after = everything(agent)
        changed = {name for name in before if not same(before[name], after[name])}
        assert changed == {network, f"{network} optimizer"}
        if network == "actor":
            log_std = [state["actor"]["log_std"].tolist() for state in (before, after)]
            assert log_std[0] != log_std[1] == [0, 0]
        advanced(agent, agent.clock.updates + 15)
    one, two = (ppo(max_grad_norm=None, activation="relu") for _ in range(2))
    row = {"method": "swr", "every": "1 updates", "networks": ["critic"], "params": {"coef": 0.1}}
    two.after_update = hooked(two, row).after_update
    advanced(one, OWED), advanced(two, OWED)  # the common bound of gradients would tell them
    assert same(one.actor.state_dict(), two.actor.state_dict())
    assert not same(one.critic.state_dict(), two.critic.state_dict())


# Interrupted, wherever it is: in the first rollout, as it gets full, after its updates, in the next
# rollout, and where a hook cuts updates: in an epoch, and between two.
MOMENTS = (3, 10, 11, 15, 20, 33, 56)


def test_interrupted_anywhere_and_resumed_equals(tmp_path: Path):
    cbp = {"maturity": 3, "replacement_rate": 0.1}
    hooks = [
        {"method": "shrink_perturb", "every": "9 updates"},
        {"method": "cbp", "every": "1 updates", "params": cbp},
    ]
    config = small_control(hooks=hooks, penalties=[{"method": "l2_init"}])
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
        assert not made.rewards.state_dict()["sums"].any()


def test_interrupted_in_any_task_and_resumed_equals(tmp_path: Path):
    hooks = [{"method": "shrink_perturb", "on": "phase_start"}]
    config = ppo_tasks(hooks=hooks, env={"switch": {"statistics": "restart"}})
    api.train(config, tmp_path / "through")
    # At the end of a task, its switch, the first step after it, and later.
    interrupt(config, tmp_path / "run", (21, 30, 31, 63))
    assert final(tmp_path / "run") == final(tmp_path / "through")


def test_what_does_not_fit_is_refused():
    for keys, message in (
        ({"agent.batch_size": 7}, "batch_size = 7: .* such as 5$"),
        ({"total": "19 env_steps"}, "rollout_steps"),
        ({"agent.network": "nature"}, "image observations"),
        ({"replay_ratio": 1}, "replay_ratio"),
        ({"agent.initial_steps": 1}, "initial_steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_trainable(read_config(small_ppo(), keys))
    for env, message in (
        ({"steps_per_task": 18}, "steps_per_task = 18"),
        ({"switch": "c_chain"}, "env.switch.replay"),
        ({"switch": {"target": "keep"}}, "env.switch.optimizer"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_config(ppo_tasks(env=env))


def test_a_policy_that_diverged_stops_the_run(slide: None):
    for name in ("head.bias", "log_std"):
        agent = ppo()
        with torch.no_grad():
            agent.actor.get_parameter(name).fill_(torch.nan)
        with pytest.raises(Diverged, match="not finite"):
            agent.step()


# A trunk that actor and critic share; its updates: test_ppo_parity.py.

SHARED = {"shared_trunk": True}
OWN = {"network": "tests.agents.own_ppo_nets:one", "hidden": None}


def test_units_of_a_shared_trunk_are_read_by_both_heads() -> None:
    def network(shape: tuple[int, ...], **keys: Any) -> SharedNetwork:
        return networks_of(PPOAgentConfig(**SHARED, **keys), shape, 3)["actor_critic"]

    groups = Network("actor_critic", network((4,), hidden=[8, 6])).units().groups
    assert [group.name for group in groups] == ["fc1", "fc2"]
    readers = {part.block.path for part in groups[1].parts if part.block.path != "fc2"}
    assert readers == {"head", "value"}
    pictures = torch.randint(2, (5, 4, 10, 10), dtype=torch.uint8)
    assert network((4, 10, 10))(pictures).shape == (5, 4)
    bare = network((4,), hidden=[])
    assert bare(torch.zeros(2, 4)).shape == (2, 4)
    assert not Network("actor_critic", bare).units().groups


def test_a_reset_of_heads_reaches_both_and_one_of_the_network_all(slide: None) -> None:
    agent = advanced(ppo(**SHARED), 15)
    handle = agent.networks["actor_critic"]
    before = {block.name: block.view.clone() for block in handle.blocks}
    rlplast.head_reset(handle)
    changed = {b.name.split(".")[0] for b in handle.blocks if not same(b.view, before[b.name])}
    assert changed == {"head", "value"}
    row = {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}}
    (receipt,) = hooked(agent, row).fire(agent.clock, agent.clock.advance(env_steps=300))
    assert receipt.network == "actor_critic"
    assert agent.actor.log_std.tolist() == [0, 0]
    advanced(agent, 30)


def test_the_value_is_no_action_whose_rank_could_change(toy: str) -> None:
    agent = advanced(ppo(**SHARED), 1)
    handle, batch = agent.networks["actor_critic"], agent.sample(32, 0)
    with torch.no_grad():
        agent.critic.value.bias.fill_(20)
        agent.actor.head.bias.zero_()
        before = weights_of(handle.module)
        agent.actor.head.weight.neg_()
    found = measure_outputs(agent, handle, batch, ["churn_argmax", "churn"], 0, before)
    assert found["churn_argmax"] == 1
    assert found["churn"] > 0


def test_last_features_count_once_though_each_head_scales_them(slide: None) -> None:
    agent = advanced(ppo(**SHARED, layers=[{"method": "unit_features"}]), 1)
    handle, batch = agent.networks["actor_critic"], agent.sample(8, 0)
    reading = Reading(handle.module, head_layers(handle, "infer"))
    agent.outputs("actor_critic", batch, reading)
    ((layer, features),) = reading.found
    assert layer is agent.actor.head
    torch.testing.assert_close(features.norm(dim=1), torch.ones(8))


def test_methods_find_a_users_trunk_below_two_heads_and_say_what_it_has_not() -> None:
    agent, _ = build(read_config(small_control(agent=SHARED | OWN)))
    handle = agent.networks["actor_critic"]
    assert forward_order(handle) == ["net.0", "net.2", "head", "value"]
    with pytest.raises(ConfigError, match=r"tanh, after actor_critic\.net\.0"):
        rlplast.apply("scale_weights", handle)
    reset = {"method": "full_reset", "at": "50%", "networks": ["critic"]}
    penalty = {"method": "l2_init", "networks": ["actor_critic"]}
    pair = OWN | {"network": "tests.agents.own_ppo_nets:mlp"}
    for config, message in (
        (small_ppo(agent=SHARED | pair), "shared_trunk"),
        (small_ppo(agent=SHARED, hooks=[reset]), "'critic': did you mean 'actor_critic'"),
        (small_ppo(penalties=[penalty]), "'actor_critic': did you mean 'critic'"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(read_config(config))
