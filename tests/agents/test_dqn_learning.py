"""The agent learns: short seeded runs end far above what random play scores."""

from typing import Any

import pytest
import torch

from rlplast.agents.dqn import DQN
from rlplast.agents.dqn_config import DQNConfig
from rlplast.run.config_file import read_config

pytestmark = pytest.mark.slow


def trained(**overrides: Any) -> DQN:
    config = read_config(
        "dqn/minatar_breakout", {k.replace("__", "."): v for k, v in overrides.items()}
    )
    assert isinstance(config, DQNConfig)
    agent = DQN(config, torch.device("cpu"))
    while agent.clock.env_steps < config.env_steps_total() or agent.owes():
        agent.step()
    return agent


def test_minatar_breakout_reaches_more_than_twice_random_play():
    agent = trained(seed=1, total="6k env_steps", agent__initial_steps=1000)
    random = agent.config.agent
    learnt = agent.play(0, 30).returns.mean()
    random.epsilon_eval = 1.0
    baseline = agent.play(0, 100).returns.mean()
    assert 0.3 < baseline < 0.8
    assert learnt >= 2.2 * baseline  # seeds 1 to 5 reach 1.4 to 3.1


def test_cartpole_balances():
    agent = trained(
        seed=1,
        total="5k env_steps",
        env={"id": "gym/CartPole-v1", "num_envs": 4},
        agent__network="mlp",
        optimizer__lr=1e-3,
        agent__initial_steps=500,
        agent__target_every=200,
    )
    assert agent.play(0, 10).returns.mean() >= 100  # random play: about 22
