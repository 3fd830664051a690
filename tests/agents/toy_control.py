"""A tiny continuous environment, SACs that play it, and all that decides such an agent's future."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rlplast.agents.agent import Agent
from rlplast.agents.agent_config import EnvConfig
from rlplast.agents.sac import SAC
from rlplast.agents.sac_config import SACConfig
from rlplast.envs.base import EnvSpec
from rlplast.envs.vector import VectorStep
from tests.agents.toy_env import SMALL, Toy, advanced, built, use_toy

OBS_DIM, ACTION_DIM, ROUND = 3, 2, 7
SPEC = EnvSpec("toy/slide", (OBS_DIM,), "float32", 1, None, 2, ROUND, action_dim=ACTION_DIM)


class Slide(Toy):
    """Moves with its action on three scales; pays for small positions and may terminate."""

    scale = np.array([1.0, 10.0, 0.1])  # and an offset, so that normalising matters

    def obs(self) -> np.ndarray:
        return (self.scale * self.place + 2).astype(np.float32)

    def reset(self) -> np.ndarray:
        self.place = self.rng.standard_normal(OBS_DIM)
        return self.obs()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        push = np.array([action[0], action[1], action[0] - action[1]])
        self.place = 0.9 * self.place + push + 0.1 * self.rng.standard_normal(OBS_DIM)
        lost = self.terminates and bool(self.rng.random() < 0.15)
        return self.obs(), -float(np.abs(self.place).sum()), lost, False


def use_slide(monkeypatch: pytest.MonkeyPatch, terminates: bool = True):
    use_toy(monkeypatch, SPEC, Slide, terminates)


def sac(num_envs: int = 1, replay_ratio: float = 1.0, **options: Any) -> SAC:
    small = SMALL | {"actor_width": 8, "critic_width": 12}
    small["critic_blocks"] = 1 if options.get("network", "simba") == "simba" else 2
    usual = small, {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01}
    keys = {"env": EnvConfig("gym/Hopper-v5", num_envs), "replay_ratio": replay_ratio}
    return built(SAC, SACConfig, usual, options, **keys)


def trained(updates: int, **options: Any) -> SAC:
    return advanced(sac(**options), updates)


@contextmanager
def recorded(agent: Agent) -> Iterator[list[tuple[np.ndarray, np.ndarray, VectorStep]]]:
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
