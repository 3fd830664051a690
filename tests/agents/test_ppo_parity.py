"""PPO's updates beside Stable-Baselines3's, from equal weights and on the same rollouts."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO as SB3PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from rlplast.agents.ppo import PPO
from rlplast.agents.running_statistics import RewardScale, RunningStatistics
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.ppo_runs import small_ppo

ENVS, STEPS, BATCH, EPOCHS = 3, 16, 12, 3  # 12 updates for each rollout


class Body(BaseFeaturesExtractor):
    """A trunk that actor and critic share: sizes and gains of the MLP that each has else."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, 64)
        self.layers = nn.Sequential(
            nn.Linear(*space.shape, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(obs)


SHARED = {"features_extractor_class": Body, "net_arch": []}


def theirs(env_id: str, shared: bool = False) -> Any:
    def make() -> gymnasium.Env:
        return gymnasium.make(env_id, max_episode_steps=7)  # so that some are truncated

    model = SB3PPO(
        "MlpPolicy",
        DummyVecEnv([make] * ENVS),
        learning_rate=1e-3,
        n_steps=STEPS,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        ent_coef=0.01,
        max_grad_norm=0.1,
        policy_kwargs=SHARED if shared else {},
        seed=1,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    model._setup_learn(10_000)
    return model


def ours(env_id: str, shared: bool = False) -> PPO:
    agent = {"rollout_steps": STEPS, "batch_size": BATCH, "epochs": EPOCHS, "hidden": None}
    agent |= {"shared_trunk": shared, "entropy_coef": 0.01, "max_grad_norm": 0.1}
    env = {"num_envs": ENVS}
    config = read_config(small_ppo(f"gym/{env_id}", total="10k env_steps", agent=agent, env=env))
    made = build_trainable(config)
    assert isinstance(made, PPO)
    return made


def weights_of(policy: Any) -> dict[str, torch.Tensor]:
    """Return Stable-Baselines3's weights by our names."""
    actor, critic = "actor", "critic"
    of_actor, of_critic = policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net
    if isinstance(policy.features_extractor, Body):
        actor = critic = "actor_critic"
        of_actor = of_critic = policy.features_extractor.layers
    modules = {f"{actor}.fc1": of_actor[0], f"{actor}.fc2": of_actor[2]}
    modules |= {f"{critic}.fc1": of_critic[0], f"{critic}.fc2": of_critic[2]}
    modules[f"{actor}.head"] = policy.action_net
    modules[f"{critic}.head" if critic != actor else "actor_critic.value"] = policy.value_net
    found = {
        f"{layer}.{key}": value
        for layer, module in modules.items()
        for key, value in module.state_dict().items()
    }
    if hasattr(policy, "log_std"):
        found[f"{actor}.log_std"] = policy.log_std.detach()
    return found


def own_weights(agent: PPO) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value
        for name, network in agent.networks.items()
        for key, value in network.module.state_dict().items()
    }


def take_rollout(agent: PPO, model: Any) -> None:
    """Let the agent have the steps that Stable-Baselines3 has just collected."""
    buffer, rollout = model.rollout_buffer, agent.rollout
    ended = np.concatenate([buffer.episode_starts[1:], model._last_episode_starts[None]])
    actions = buffer.actions if agent.spec.action_dim else buffer.actions[..., 0]
    for t in range(STEPS):
        rollout.add(
            buffer.observations[t],
            actions[t],
            buffer.log_probs[t],
            buffer.rewards[t],
            ended[t].astype(bool),
        )
    value = agent._value(rollout.obs.reshape(STEPS * ENVS, -1)).reshape(STEPS, ENVS)
    last = agent._value(model._last_obs)
    np.testing.assert_allclose(value, buffer.values, atol=1e-5)
    rollout.finish(value, last, model.gae_lambda, model.gamma)
    agent.left = agent.config.updates_per_rollout


def by_environment(rows: np.ndarray) -> np.ndarray:
    """Return the places of our transitions where environments come one after the other."""
    return rows % ENVS * STEPS + rows // ENVS


@pytest.mark.parametrize(("env_id", "shared"), [("CartPole-v1", True), ("Pendulum-v1", False)])
def test_updates_equal_stable_baselines3s(
    env_id: str, shared: bool, monkeypatch: pytest.MonkeyPatch
):
    model, agent = theirs(env_id, shared), ours(env_id, shared)
    first = weights_of(model.policy)
    assert own_weights(agent).keys() == first.keys()
    for name, value in own_weights(agent).items():
        assert value.shape == first[name].shape
        if name.endswith("weight"):  # of orthogonal matrices it is the gain's alone
            assert value.norm() == pytest.approx(first[name].norm().item(), rel=1e-4)
        else:
            torch.testing.assert_close(value, first[name])
        value.copy_(first[name])
    for _ in range(2):
        callback = CallbackList([])
        callback.init_callback(model)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
        take_rollout(agent, model)
        flat = model.rollout_buffer.swap_and_flatten
        for data, array in (
            (agent.rollout.data.advantage, model.rollout_buffer.advantages),
            (agent.rollout.data.returns, model.rollout_buffer.returns),
        ):
            places = by_environment(np.arange(STEPS * ENVS))
            np.testing.assert_allclose(data.numpy(), flat(array)[places, 0], atol=1e-5)
        orders = []
        while agent.owes():
            if agent.left % (STEPS * ENVS // BATCH) == 0:
                next(agent._drawn(1))
                orders.append(by_environment(agent._order.numpy().copy()))
            agent.update()
        left = iter(orders)
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "permutation", lambda size, left=left: next(left))
            model.train()
        assert next(left, None) is None
        expected = weights_of(model.policy)
        for name, value in own_weights(agent).items():
            torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=0, msg=name)
    assert agent.clock.updates == 2 * EPOCHS * STEPS * ENVS // BATCH == 24


def test_observations_and_rewards_are_normalised_as_by_vec_normalize():
    gamma = 0.9
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * ENVS), gamma=gamma)
    env.obs_rms.count = env.ret_rms.count = 0.0  # no made-up observation
    env.seed(1)
    statistics, scale = RunningStatistics((4,)), RewardScale(ENVS, gamma)
    rng, obs = np.random.default_rng(0), env.reset()
    for _ in range(60):
        raw = env.get_original_obs()
        statistics.update(raw)
        found = statistics.normalise(torch.from_numpy(raw)).clamp(-10, 10)
        np.testing.assert_allclose(found, obs, atol=1e-4)
        obs, reward, done, _ = env.step(rng.integers(0, 2, ENVS))
        scaled = scale.scaled(env.get_original_reward(), done).clip(-10, 10)
        np.testing.assert_allclose(scaled, reward, rtol=1e-4)
