"""A tiny continuous environment, SACs that play it, and all that decides such an agent's future."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.off_policy_config import EnvConfig
from rlplast.agents.sac import SAC
from rlplast.agents.sac_config import SACAgentConfig, SACConfig
from rlplast.core.network.optimizers import OptimizerConfig
from rlplast.envs.base import EnvSpec, EpisodicEnv
from rlplast.envs.vector import VectorEnv, VectorStep
from tests.agents.toy_env import parts

__all__ = [
    "ACTION_DIM",
    "OBS_DIM",
    "ROUND",
    "Slide",
    "everything",
    "recorded",
    "sac",
    "trained",
    "use_slide",
    "without_weights",
]

OBS_DIM, ACTION_DIM, ROUND = 3, 2, 7
SPEC = EnvSpec("toy/slide", (OBS_DIM,), "float32", 1, None, 2, ROUND, action_dim=ACTION_DIM)


class Slide:
    """Moves with its action on three scales; pays for small positions and may terminate."""

    step_frames = 2
    scale = np.array([1.0, 10.0, 0.1])  # and an offset, so that normalising matters

    def __init__(self, rng: np.random.Generator, terminates: bool):
        self.rng, self.terminates, self.place = rng, terminates, np.zeros(OBS_DIM)

    def obs(self) -> np.ndarray:
        return (self.scale * self.place + 2).astype(np.float32)

    def reset(self) -> np.ndarray:
        self.place = self.rng.standard_normal(OBS_DIM)
        return self.obs()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        push = np.array([action[0], action[1], action[0] - action[1]])
        self.place = 0.9 * self.place + push + 0.1 * self.rng.standard_normal(OBS_DIM)
        lost = self.terminates and bool(self.rng.random() < 0.15)
        return self.obs(), -float(np.abs(self.place).sum()), lost

    def render(self) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place.copy()}

    def load_state_dict(self, state: dict[str, Any]):
        self.place = state["place"].copy()

    def close(self):
        pass


def make(rng: np.random.Generator, terminates: bool) -> EpisodicEnv:
    return EpisodicEnv(SPEC, Slide(rng, terminates), rng)


def use_slide(monkeypatch: pytest.MonkeyPatch, terminates: bool = True):
    """Let every id stand for the slide."""

    def make_vector(env_id: str, rngs, *others: Any, **options: Any) -> VectorEnv:
        del env_id, others, options
        return VectorEnv(SPEC, partial(make, terminates=terminates), rngs)

    monkeypatch.setattr(envs, "make_vector", make_vector)
    monkeypatch.setattr(envs, "spec", lambda env_id, **options: SPEC)


def sac(
    num_envs: int = 1,
    replay_ratio: float = 1.0,
    total: str = "400 env_steps",
    seed: int = 3,
    layers: list[dict[str, Any]] | None = None,
    hooks: Sequence[dict[str, Any]] = (),
    **agent: Any,
) -> SAC:
    of_optimizer, agent = parts(agent)
    small = {
        "actor_width": 8,
        "critic_width": 12,
        "critic_blocks": 1 if agent.get("network", "simba") == "simba" else 2,
        "batch_size": 8,
        "buffer_size": 400,
        "initial_steps": 24,
    }
    config = SACConfig(
        seed=seed,
        total=total,
        env=EnvConfig("gym/Hopper-v5", num_envs),
        replay_ratio=replay_ratio,
        agent=SACAgentConfig(**(small | agent)),
        optimizer=OptimizerConfig(
            **({"name": "adamw", "lr": 1e-3, "weight_decay": 0.01} | of_optimizer)
        ),
    )
    config.layers, config.hooks = layers or [], list(hooks)
    config.check()
    return SAC(config, torch.device("cpu"))


def trained(updates: int, **options: Any) -> SAC:
    agent = sac(**options)
    while agent.clock.updates < updates:
        agent.step()
    return agent


@contextmanager
def recorded(agent: SAC) -> Iterator[list[tuple[np.ndarray, np.ndarray, VectorStep]]]:
    """Note what the agent acted on, what it did and what came of it, step by step."""
    seen: list[tuple[np.ndarray, np.ndarray, VectorStep]] = []
    step = agent.experience.env.step

    def noted(actions: np.ndarray) -> VectorStep:
        before = agent.experience.env.obs.copy()
        done = step(actions)
        seen.append((before, actions.copy(), done))
        return done

    agent.experience.env.step = noted
    try:
        yield seen
    finally:
        agent.experience.env.step = step


def everything(agent: SAC) -> dict[str, Any]:
    """All that decides an agent's future, as copies."""
    modules = {"actor": agent.actor, "critic": agent.critic, "target": agent.target}
    modules["temperature"] = agent.temperature
    state: dict[str, Any] = {
        name: {k: v.clone() for k, v in module.state_dict().items()}
        for name, module in modules.items()
    }
    for name, network in agent.networks.items():
        state[f"{name} optimizer"] = [
            {k: v.clone() for k, v in optimizer.state[p].items()}
            for optimizer in network.optimizers
            for p in network.module.parameters()
        ]
        state[f"{name} initial"] = {k: v.clone() for k, v in network.initial.items()}
    return state | {"rest": without_weights(agent)}


def without_weights(agent: SAC) -> dict[str, Any]:
    """Streams, environments, statistics, replay content and counters, as copies."""
    state = copy.deepcopy(agent.state_dict())
    replay = agent.experience.replay
    if replay.size:
        batch = replay.sample_from(64, np.random.default_rng(0))
        state["sampled"] = [tensor.clone() for tensor in batch]
    statistics = [agent.statistics.mean.clone(), agent.statistics.inv_std.clone()]
    return state | {"clock": agent.clock, "size": replay.size, "applied": statistics}
