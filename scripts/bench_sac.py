"""SAC updates with SimBa's sizes beside Stable-Baselines3's SAC with critic MLPs of those sizes.

Both sides update on batches of 256 from a filled replay of one made-up environment with the
sizes of HumanoidBench's h1 (51 observations, 19 actions), so that only updates are measured.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from bench_tools import Row, alternate, built, medians, row

OBS, ACTIONS = 51, 19
FILL = 2000  # env_steps
LIFECYCLE = {"method": "lifecycle", "networks": ["critic"]}
SWR = {"method": "swr", "every": "1 updates", "networks": ["actor", "critic"]}
UPDATES = 5  # per call


class Noise(gymnasium.Env):
    """Random observations and rewards: an environment that costs nothing."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self._obs(), float(self.np_random.normal()), False, False, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.normal(size=OBS).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


gymnasium.register("RlplastBenchNoise-v0", "bench_sac:Noise", max_episode_steps=1000)


def ours(threads: int, **keys: Any) -> Callable[[], None]:
    """Return what takes UPDATES updates of our SAC with a filled replay."""
    fixed: dict[str, Any] = {
        "env__id": "gym/RlplastBenchNoise-v0",
        "env__options": {},
        "threads": threads,
        "total": "400k env_steps",
        "agent__initial_steps": FILL,
        "agent__buffer_size": 20_000,
        "agent__accelerate": "off",
    }
    agent, _ = built("sac/h1_walk", **(fixed | keys))
    while not agent.owes():
        agent.step()

    def run() -> None:
        for _ in range(UPDATES):
            agent.update()

    return run


def stable_baselines() -> Callable[[], None]:
    """Return the same of Stable-Baselines3's SAC, with MLPs of SimBa's widths."""
    from stable_baselines3 import SAC

    arch = {"pi": [128, 512, 128], "qf": [512, 2048, 512, 2048, 512]}
    model = SAC(
        "MlpPolicy",
        gymnasium.make("RlplastBenchNoise-v0"),
        learning_rate=1e-4,
        buffer_size=20_000,
        learning_starts=FILL,
        policy_kwargs={"net_arch": arch},
        seed=1,
        device="cpu",
    )
    model.learn(FILL)
    return lambda: model.train(gradient_steps=UPDATES, batch_size=256)


def bench_sac(threads: int, rounds: int) -> list[Row]:
    """Milliseconds per update, ours and Stable-Baselines3's; what layers and hooks add."""
    bf16, compiled = {"agent__precision": "bf16"}, {"agent__accelerate": "compile"}
    sides = {
        "Stable-Baselines3 fp32": stable_baselines(),
        "ours fp32, eager": ours(threads),
        "ours fp32, compiled": ours(threads, **compiled),
        "ours bf16, eager": ours(threads, **bf16),
        "ours bf16, compiled": ours(threads, **bf16, **compiled),
        "ours fp32, eager, lifecycle critics": ours(threads, layers=[LIFECYCLE]),
        "ours fp32, eager, swr": ours(threads, hooks=[SWR]),
    }
    torch.set_num_threads(threads)
    seconds = {n: [t / UPDATES for t in s] for n, s in alternate(sides, rounds, 2).items()}
    median = medians(seconds)
    rows = [row(f"sac, {n}", 1e3 * median[n], "ms/update", seconds[n]) for n in sides]
    peer, plain = median["Stable-Baselines3 fp32"], median["ours fp32, eager"]
    for name, value in median.items():
        if "lifecycle" in name or "swr" in name:
            rows.append(row(f"sac, {name} over plain", value / plain, "x"))
        elif name.startswith("ours"):
            rows.append(row(f"sac, SB3 over {name}", peer / value, "x"))
    return rows
