"""What the replay tests share: small memories and random streams of episodes."""

from pathlib import Path
from typing import Any

import numpy as np

from rlplast.agents.replay import Batch, Replay
from rlplast.envs.base import EnvSpec

FRAME = (3,)  # environment, episode, step of the episode; counted from 1, so blank is none


def make(rows: int = 20, num_envs: int = 1, seed: int = 0, **options: Any) -> Replay:
    seen = {"obs_shape": FRAME, "obs_dtype": "int32", "frame_stack": 1, "action_dim": None}
    seen |= {key: options.pop(key) for key in (*seen, "repeat_first") if key in options}
    actions = 3 if seen["action_dim"] is None else None
    arguments = {
        "spec": EnvSpec("", num_actions=actions, frames_per_step=1, max_episode_steps=9, **seen),
        "n_step": 1,
        "gamma": 0.9,
        "batch_size": 16,
        "rng": np.random.default_rng(seed),
    }
    capacity = options.pop("capacity", rows * num_envs)
    return Replay(capacity, num_envs, **(arguments | options))


class Episodes:
    """Random episodes in several environments, as the arguments of `start` and `add`."""

    def __init__(
        self,
        num_envs: int,
        seed: int,
        p_terminated: float = 0.1,
        p_truncated: float = 0.1,
        action_dim: int | None = None,
    ):
        self.action_dim = action_dim
        self.rng = np.random.default_rng(seed)
        self.ends = p_terminated, p_truncated
        self.now = np.stack([[env + 1, 1, 1] for env in range(num_envs)]).astype(np.int32)

    def start(self) -> np.ndarray:
        return self.now.copy()

    def reset(self) -> np.ndarray:
        self.now[:, 1] += 1
        self.now[:, 2] = 1
        return self.now.copy()

    def step(self) -> tuple[np.ndarray, ...]:
        num_envs = len(self.now)
        terminated, truncated = (self.rng.random(num_envs) < p for p in self.ends)
        obs_final = self.now + np.array([0, 0, 1], np.int32)
        obs_reset = self.now * [1, 1, 0] + [0, 1, 1]
        obs_next = np.where((terminated | truncated)[:, None], obs_reset, obs_final)
        self.now = obs_next.astype(np.int32)
        if self.action_dim is None:
            action = self.rng.integers(0, 18, num_envs)
        else:
            action = self.rng.uniform(-1, 1, (num_envs, self.action_dim)).astype(np.float32)
        reward = self.rng.normal(size=num_envs)
        return action, reward, terminated, truncated, self.now.copy(), obs_final


def fill(replay: Replay, episodes: Episodes, steps: int) -> None:
    for _ in range(steps):
        replay.add(*episodes.step())


def save(replay: Replay, folder: Path, previous: Path | None = None) -> None:
    replay.begin_save(previous)(folder)


def copy(batch: Batch) -> list[np.ndarray]:
    return [tensor.cpu().numpy().copy() for tensor in batch]


def assert_equal(left: Batch, right: Batch) -> None:
    for a, b in zip(copy(left), copy(right), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
