"""A diagnosis of models of Stable-Baselines3, on observations."""

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, PPO, SAC, TD3

from rlplast.adapters.sb3_diagnosis import diagnose_sb3

KINDS = {
    "ppo": (PPO, "CartPole-v1", {"actor", "critic"}),
    "dqn": (DQN, "CartPole-v1", {"q"}),
    "sac": (SAC, "Pendulum-v1", {"actor", "critic"}),
    "td3": (TD3, "Pendulum-v1", {"actor", "critic"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_dead_networks_are_found_and_nothing_changes(kind: str) -> None:
    algorithm, env, names = KINDS[kind]
    model = algorithm("MlpPolicy", env, seed=1, policy_kwargs={"net_arch": [32, 32]})
    space = model.observation_space
    space.seed(1)
    draw = np.random.default_rng(1).normal(size=(64, *space.shape)).astype(np.float32)
    fresh = diagnose_sb3(model, draw, updates=150, targets=2, lr=3e-3)
    assert fresh.keys() == names
    assert "lost" not in {own.verdict for own in fresh.values()}
    with torch.no_grad():
        for name, parameter in model.policy.named_parameters():
            if parameter.ndim == 1 and "log_std" not in name:
                parameter.fill_(-50.0)  # units of ReLU and tanh that never move again
    before = {k: v.clone() for k, v in model.policy.state_dict().items()}
    found = diagnose_sb3(model, draw, updates=150, targets=2, lr=3e-3)
    assert all(own.fit.now < 0.1 < own.fit.fresh for own in found.values())
    after = model.policy.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
