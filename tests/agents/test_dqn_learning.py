from typing import Any

import pytest
import torch

from rlplast.agents.dqn import DQN
from rlplast.run.config_file import read_config

pytestmark = pytest.mark.slow


def trained(keys: dict[str, Any]) -> DQN:
    config: Any = read_config("dqn/minatar_breakout", {"seed": 1} | keys)
    agent = DQN(config, torch.device("cpu"))
    while agent.clock.env_steps < config.env_steps_total() or agent.owes():
        agent.step()
    return agent


def test_minatar_breakout_reaches_more_than_twice_random_play():
    agent = trained({"total": "6k env_steps", "agent.initial_steps": 1000})
    learnt = agent.play(0, 30).returns.mean()
    agent.config.agent.epsilon_eval = 1.0
    baseline = agent.play(0, 100).returns.mean()
    assert 0.3 < baseline < 0.8
    assert learnt >= 2.2 * baseline  # seeds 1 to 5 reach 1.4 to 3.1


@pytest.mark.parametrize(("kind", "least"), [(None, 100), ("hl_gauss", 60), ("c51", 60)])
def test_cartpole_balances(kind: str | None, least: int):
    keys = {
        "total": "5k env_steps",
        "env": {"id": "gym/CartPole-v1", "num_envs": 4},
        "agent.network": "mlp",
        "optimizer.lr": 1e-3,
        "agent.initial_steps": 500,
        "agent.target_every": 200,
    }
    keys |= {"agent.values": {"kind": kind, "low": 0, "high": 100}} if kind else {}
    assert trained(keys).play(0, 10).returns.mean() >= least  # random play: about 22
