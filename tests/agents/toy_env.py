"""A tiny environment with large rewards, and agents that play it."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.dqn import DQN
from rlplast.agents.dqn_config import DQNAgentConfig, DQNConfig
from rlplast.agents.off_policy_config import EnvConfig
from rlplast.core.network.optimizers import OptimizerConfig
from rlplast.envs.base import EnvSpec, EpisodicEnv, rng_state
from rlplast.envs.vector import VectorEnv

__all__ = ["ROUND", "Wheel", "configs", "dqn", "parts", "use_wheel"]

ROUND = 7  # steps in an episode
SPEC = EnvSpec("toy/wheel", (3,), "float32", 1, 3, 2, ROUND)


class Wheel:
    """Pays 5 for action 0, -30 for action 1 and 0.5 for action 2; action 1 may terminate it."""

    step_frames = 2

    def __init__(self, rng: np.random.Generator, terminates: bool):
        self.rng, self.terminates, self.obs = rng, terminates, np.zeros(3, np.float32)

    def reset(self) -> np.ndarray:
        self.obs = self.rng.standard_normal(3).astype(np.float32)
        return self.obs.copy()

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        self.obs = (np.roll(self.obs, action) + self.rng.standard_normal(3)).astype(np.float32)
        lost = self.terminates and action == 1 and bool(self.rng.random() < 0.5)
        return self.obs.copy(), (5.0, -30.0, 0.5)[action], lost

    def render(self) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"obs": self.obs.copy()}

    def load_state_dict(self, state: dict[str, Any]):
        self.obs = state["obs"].copy()

    def close(self):
        pass


def make(rng: np.random.Generator, terminates: bool) -> EpisodicEnv:
    return EpisodicEnv(SPEC, Wheel(rng, terminates), rng)


def use_wheel(monkeypatch: pytest.MonkeyPatch, terminates: bool = True):
    """Let every id stand for the wheel."""

    def make_vector(env_id: str, rngs, *others: Any, **options: Any) -> VectorEnv:
        del env_id, others, options
        return VectorEnv(SPEC, partial(make, terminates=terminates), rngs)

    monkeypatch.setattr(envs, "make_vector", make_vector)
    monkeypatch.setattr(envs, "spec", lambda env_id, **options: SPEC)


OF_OPTIMIZER = ("name", "lr", "weight_decay", "clip_norm", "eps", "schedule")


def parts(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of the optimizer and those of the agent."""
    of_optimizer = {k: v for k, v in options.items() if k in OF_OPTIMIZER}
    return of_optimizer, {k: v for k, v in options.items() if k not in OF_OPTIMIZER}


def configs(**options: Any) -> dict[str, Any]:
    """The sections agent and optimizer of a small DQN."""
    of_optimizer, agent = parts(options)
    small = {"batch_size": 8, "buffer_size": 400, "initial_steps": 24, "target_every": 10}
    return {
        "agent": DQNAgentConfig(**(small | agent)),
        "optimizer": OptimizerConfig(**({"lr": 1e-3, "eps": 1.5e-4} | of_optimizer)),
    }


def dqn(
    num_envs: int = 1,
    replay_ratio: float = 1.0,
    total: str = "400 env_steps",
    env: str = "gym/CartPole-v1",
    seed: int = 3,
    hooks: Sequence[dict[str, Any]] = (),
    **agent: Any,
) -> DQN:
    config = DQNConfig(
        seed=seed,
        total=total,
        env=EnvConfig(env, num_envs),
        replay_ratio=replay_ratio,
        **configs(**agent),
    )
    config.hooks = list(hooks)  # those that bring modules are installed
    config.check()
    return DQN(config, torch.device("cpu"))


def everything(agent: DQN) -> dict[str, Any]:
    """All that decides an agent's future, as copies."""
    q = agent.networks["q"]
    (optimizer,) = q.optimizers
    return {
        "online": {k: v.clone() for k, v in agent.online.state_dict().items()},
        "target": {k: v.clone() for k, v in agent.target.state_dict().items()},
        "optimizer": [
            {k: v.clone() for k, v in optimizer.state[p].items()} for p in agent.online.parameters()
        ],
        "initial": {k: v.clone() for k, v in q.initial.items()},
        "rest": without_weights(agent),
    }


def without_weights(agent: DQN) -> dict[str, Any]:
    """Streams, environments, replay content, stacks and counters, as copies."""
    state = copy.deepcopy(agent.state_dict())
    size = agent.experience.replay.size
    if size:
        batch = agent.experience.replay.sample_from(64, np.random.default_rng(0))
        state["sampled"] = [tensor.clone() for tensor in batch]
    return state | {"clock": agent.clock, "size": size, "exploration": exploration_state(agent)}


def exploration_state(agent: DQN) -> dict[str, Any]:
    return rng_state(agent.streams.numpy("exploration"))


def same(one: Any, two: Any) -> bool:
    """Equality of nested states, bit for bit; NaN equals NaN."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and same(one.detach().numpy(), two.detach().numpy())
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.tobytes() == two.tobytes()
    return bool(one == two)
