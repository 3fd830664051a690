"""Bytes per stored Atari transition, and time to sample a batch, beside Stable-Baselines3."""

from collections.abc import Iterator

import numpy as np

from benchmarks.tools import Row, alternate, medians, row
from rlplast.agents.replay import Replay
from rlplast.envs.base import EnvSpec

SIZE = 20_000  # transitions
FRAMES = EnvSpec("frames", (84, 84), "uint8", 4, 18, 4, None)


def replay(threads: int, rounds: int) -> Iterator[Row]:
    """Yield bytes and times of both sides."""
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common.buffers import ReplayBuffer

    size, n, rng = SIZE, 4, np.random.default_rng(0)
    ours = Replay(size, n, FRAMES, 1, 0.99, 32, rng)
    box = Box(0, 255, (4, 84, 84), np.uint8)
    theirs = ReplayBuffer(size, box, Discrete(9), n_envs=n, optimize_memory_usage=False)
    frames = rng.integers(0, 255, (64, n, 84, 84), dtype=np.uint8)
    stacks = rng.integers(0, 255, (8, n, 4, 84, 84), dtype=np.uint8)
    no, action = np.zeros(n, bool), np.zeros(n, np.int64)
    ours.start(frames[0])
    for i in range(size // n):
        ours.add(action, np.zeros(n), no, no, frames[i % 64], frames[i % 64])
        theirs.add(stacks[i % 8], stacks[(i + 1) % 8], action[:, None], no * 1.0, no, [{}] * n)
    arrays = [v for v in vars(theirs).values() if isinstance(v, np.ndarray)]
    yield row("replay, ours", ours.nbytes / size, "bytes/transition")
    other = sum(a.nbytes for a in arrays) / size
    yield row("replay, Stable-Baselines3", other, "bytes/transition")
    sides = {"ours": ours.sample, "Stable-Baselines3": lambda: theirs.sample(32)}
    for name, seconds in medians(alternate(sides, 200 * rounds)).items():
        yield row(f"replay sample of 32, {name}", 1e3 * seconds, "ms")
