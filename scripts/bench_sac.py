"""SAC updates with SimBa's sizes beside Stable-Baselines3's SAC with critic MLPs of those sizes.

Both sides update on batches of 256 from a filled replay of one made-up environment with the
sizes of HumanoidBench's h1 (51 observations, 19 actions), so that only updates are measured.
"""

import statistics
from typing import Any

import gymnasium
import numpy as np
import torch
from bench_tools import Row, alternate, row

from rlplast.run import api
from rlplast.run.build import build

OBS, ACTIONS = 51, 19
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


class Ours:
    """Our SAC with a filled replay."""

    def __init__(self, threads: int, keys: dict[str, Any] | None = None, fill: int = 2000) -> None:
        settings = {
            "env.id": "gym/RlplastBenchNoise-v0",
            "env.options": {},
            "threads": threads,
            "total": "400k env_steps",
            "agent.initial_steps": fill,
            "agent.buffer_size": 20_000,
            "device": "cpu",
        }
        config = api.read_config("sac/h1_walk", settings | (keys or {}))
        self.trainable, hooks = build(config)
        self.trainable.after_update = hooks.after_update
        while not self.trainable.owes():
            self.trainable.step()

    def run(self) -> None:
        agent: Any = self.trainable
        for _ in range(UPDATES):
            agent._update()


class StableBaselines:
    """Stable-Baselines3's SAC with MLPs of SimBa's widths and a filled replay."""

    def __init__(self, fill: int = 2000) -> None:
        from stable_baselines3 import SAC

        arch = {"pi": [128, 512, 128], "qf": [512, 2048, 512, 2048, 512]}
        self.model = SAC(
            "MlpPolicy",
            gymnasium.make("RlplastBenchNoise-v0"),
            learning_rate=1e-4,
            buffer_size=20_000,
            learning_starts=fill,
            policy_kwargs={"net_arch": arch},
            seed=1,
            device="cpu",
        )
        self.model.learn(fill)

    def run(self) -> None:
        self.model.train(gradient_steps=UPDATES, batch_size=256)


def bench_sac(threads: int, rounds: int) -> list[Row]:
    """Milliseconds per update, ours and Stable-Baselines3's; what layers and hooks add."""
    bf16, compiled = {"agent.precision": "bf16"}, {"agent.accelerate": "compile"}
    sides: dict[str, Any] = {
        "Stable-Baselines3 fp32": StableBaselines(),
        "ours fp32, eager": Ours(threads),
        "ours fp32, compiled": Ours(threads, compiled),
        "ours bf16, eager": Ours(threads, bf16),
        "ours bf16, compiled": Ours(threads, bf16 | compiled),
        "ours fp32, eager, lifecycle critics": Ours(threads, {"layers": [LIFECYCLE]}),
        "ours fp32, eager, swr": Ours(threads, {"hooks": [SWR]}),
    }
    torch.set_num_threads(threads)
    calls = {name: side.run for name, side in sides.items()}
    alternate(calls, 2)
    seconds = {n: [t / UPDATES for t in s] for n, s in alternate(calls, rounds).items()}
    medians = {n: statistics.median(s) for n, s in seconds.items()}
    rows = [row(f"sac, {n}", 1e3 * medians[n], "ms/update", seconds[n]) for n in sides]
    peer, plain = medians["Stable-Baselines3 fp32"], medians["ours fp32, eager"]
    for name, value in medians.items():
        if "lifecycle" in name or "swr" in name:
            rows.append(row(f"sac, {name} over plain", value / plain, "x"))
        elif name.startswith("ours"):
            rows.append(row(f"sac, SB3 over {name}", peer / value, "x"))
    return rows
