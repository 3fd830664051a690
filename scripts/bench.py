"""Benchmarks: ours and the peer's side by side, in one run on one machine.

    python scripts/bench.py [NAME ...] [--threads 2] [--rounds 5] [--json FILE]

NAME: dqn, replay, fire, methods, sac, small, supervised, gpt; all of them if none is given.

Each comparison alternates between the two sides, so that whatever else the machine does
falls on both, and reports medians with the spread. Speed is never asserted in tests.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_methods import bench_methods
from bench_sac import bench_sac
from bench_small import bench_small
from bench_supervised import bench_gpt, bench_supervised
from bench_tools import Row, alternate, built, medians, rates, row

import rlplast
from rlplast.agents.networks import ARCHITECTURES, QNetwork
from rlplast.agents.replay import Replay
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.run.timing import machine, training
from rlplast.supervised.models import ModelConfig, build_model


def ours(env_steps: int, **keys: Any) -> Callable[[], object]:
    """Return what takes so many env_steps of our DQN at replay ratio 1, past its initial steps."""
    fixed: dict[str, Any] = {"total": "400k env_steps", "agent__accelerate": "off"}
    fixed |= {"agent__initial_steps": 200, "agent__buffer_size": 20_000}
    trainable, _ = built("dqn/asterix", **(fixed | keys))
    run, n = training(trainable), trainable.config.env.num_envs
    run(300 // n)
    return partial(run, env_steps // n)


def stable_baselines(env_steps: int) -> Callable[[], object]:
    """Return the same of Stable-Baselines3's DQN, with its own Atari wrapper."""
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.atari_wrappers import AtariWrapper
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    gymnasium.register_envs(ale_py)

    def make() -> Any:
        env = gymnasium.make("AsterixNoFrameskip-v4")
        return AtariWrapper(env, noop_max=0, terminal_on_life_loss=False)

    model = DQN(
        "CnnPolicy",
        VecFrameStack(DummyVecEnv([make] * 4), 4),
        learning_rate=6.25e-5,
        buffer_size=20_000,
        learning_starts=200,
        batch_size=32,
        gamma=0.99,
        train_freq=1,
        gradient_steps=-1,  # as many updates as env_steps: replay ratio 1
        target_update_interval=2000,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
        seed=1,
        device="cpu",
    )
    model.learn(300)

    def run() -> None:
        before = model.num_timesteps
        model.learn(env_steps, reset_num_timesteps=False)
        if model.num_timesteps - before != env_steps:
            raise RuntimeError("Stable-Baselines3 took another number of env_steps than asked for")

    return run


def bench_dqn(threads: int, rounds: int) -> list[Row]:
    """Env steps per second at replay ratio 1 on Asterix, four environments."""
    steps = 80  # per call
    keys, bf16 = {"threads": threads}, {"agent__precision": "bf16"}
    compiled = {"agent__accelerate": "compile"}
    sides = {
        "Stable-Baselines3 fp32": stable_baselines(steps),
        "ours fp32, eager": ours(steps, **keys),
        "ours fp32, compiled": ours(steps, **keys, **compiled),
        "ours bf16, eager": ours(steps, **keys, **bf16),
        "ours bf16, compiled": ours(steps, **keys, **bf16, **compiled),
    }
    torch.set_num_threads(threads)
    seconds = alternate(sides, rounds)
    rate = rates(seconds, steps)
    rows = [row(f"dqn asterix, {n}", rate[n], "env_steps/s", seconds[n]) for n in sides]
    peer = rate.pop("Stable-Baselines3 fp32")
    return rows + [row(f"dqn asterix, {n} over SB3", r / peer, "x") for n, r in rate.items()]


def bench_replay(threads: int, rounds: int) -> list[Row]:
    """Bytes per stored Atari transition, and time to sample a batch."""
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common.buffers import ReplayBuffer

    size, n, rng = 20_000, 4, np.random.default_rng(0)
    ours = Replay(size, n, (84, 84), "uint8", 4, 1, 0.99, 32, rng)
    box = Box(0, 255, (4, 84, 84), np.uint8)
    theirs = ReplayBuffer(size, box, Discrete(9), n_envs=n, optimize_memory_usage=False)
    frames = rng.integers(0, 255, (64, n, 84, 84), dtype=np.uint8)
    stacks = rng.integers(0, 255, (8, n, 4, 84, 84), dtype=np.uint8)
    no = np.zeros(n, bool)
    action = np.zeros(n, np.int64)
    ours.start(frames[0])
    for i in range(size // n):
        ours.add(action, np.zeros(n), no, no, frames[i % 64], frames[i % 64])
        theirs.add(stacks[i % 8], stacks[(i + 1) % 8], action[:, None], no * 1.0, no, [{}] * n)
    arrays = [v for v in vars(theirs).values() if isinstance(v, np.ndarray)]
    mine = ours.nbytes / size
    other = sum(a.nbytes for a in arrays) / size
    sides = {"ours": ours.sample, "sb3": lambda: theirs.sample(32)}
    sampling = medians(alternate(sides, 200 * rounds))
    return [
        row("replay, ours", mine, "bytes/transition"),
        row("replay, Stable-Baselines3", other, "bytes/transition"),
        *(row(f"replay sample of 32, {k}", 1e3 * v, "ms") for k, v in sampling.items()),
    ]


@torch.no_grad()
def loop_fire(
    network: torch.nn.Module, scope: str, iterations: int, start: dict[str, torch.Tensor]
) -> None:
    """FIRE as the papers' scripts do it: one slice after the other in float32."""
    for name, module in network.named_modules():
        if not isinstance(module, torch.nn.Conv2d | torch.nn.Linear) or name == "lm_head":
            continue
        if scope == "dqn" and isinstance(module, torch.nn.Linear):
            for key, tensor in module.named_parameters(prefix=name):
                tensor.copy_(start[key])
            continue
        for part in module.weight.chunk(3 if name.endswith("c_attn") else 1):
            weight = (part[:, :, None, None] if part.ndim == 2 else part).clone()
            d_out, d_in, height, width = weight.shape
            for i in range(height):
                for j in range(width):
                    weight[:, :, i, j] = newton_schulz(weight[:, :, i, j], iterations)
            part.copy_(weight.view(part.shape) * ((d_out / d_in) ** 0.5 / (height * width)))


def newton_schulz(weight: torch.Tensor, iterations: int) -> torch.Tensor:
    """Return Algorithm 1's iterate for one matrix."""
    wide = weight.shape[0] < weight.shape[1]
    x = weight.T if wide else weight
    x = x / x.norm()
    for _ in range(iterations):
        x = 1.5 * x - 0.5 * x @ (x.T @ x)
    return x.T if wide else x


def nature() -> QNetwork:
    return QNetwork(ARCHITECTURES["nature"], (4, 84, 84), 9)


def classifier(name: str, size: int, hidden: list[int], num_classes: int) -> torch.nn.Module:
    """Return a classifier as FIRE's experiments have it."""
    config = ModelConfig(name, hidden=hidden, init="torch")
    return build_model(config, (3, size, size), num_classes)


FIRED: dict[str, tuple[Callable[[], torch.nn.Module], str, int]] = {  # network, scope, iterations
    "Nature CNN": (nature, "all", 10),
    "Nature CNN, scope dqn": (nature, "dqn", 10),
    "ResNet-18": (lambda: classifier("resnet18", 32, [512], 10), "resnet", 10),
    "VGG-16": (lambda: classifier("vgg16", 64, [1024, 1024], 200), "vgg", 10),
    "12-layer GPT": (lambda: GPT(GPTModelConfig(vocab_size=1024)), "gpt", 5),
}


def bench_fire(threads: int, rounds: int) -> list[Row]:
    """CPU time of FIRE, receipt included, over that of the per-slice loop."""
    rows = []
    for name, (make, scope, iterations) in FIRED.items():
        network, theirs = rlplast.Network("model", make()), make()
        start = {key: tensor.clone() for key, tensor in theirs.state_dict().items()}
        sides = {
            "ours": partial(rlplast.fire, network, scope=scope, iterations=iterations),
            "loop": partial(loop_fire, theirs, scope, iterations, start),
        }
        seconds = alternate(sides, rounds, 1, time.process_time)
        ms = {side: 1e3 * value for side, value in medians(seconds).items()}
        rows += [row(f"fire, {name}, {side}", ms[side], "CPU ms", seconds[side]) for side in sides]
        rows.append(row(f"fire, {name}, ours over the loop", ms["ours"] / ms["loop"], "x"))
    return rows


BENCHES = {
    "dqn": bench_dqn,
    "replay": bench_replay,
    "fire": bench_fire,
    "methods": bench_methods,
    "sac": bench_sac,
    "small": bench_small,
    "supervised": bench_supervised,
    "gpt": bench_gpt,
}


def main() -> int:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="alternations per comparison")
    parser.add_argument("--json", type=Path, help="also write the rows to a file")
    args = parser.parse_args()
    unknown = set(args.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: {', '.join(BENCHES)}")
    torch.set_num_threads(args.threads)
    rows: list[Row] = []
    print(json.dumps(machine()))
    for name in args.names or BENCHES:
        for found in BENCHES[name](args.threads, args.rounds):
            rows.append(found)
            line = f"{found['name']:48s} {found['value']:10.4g} {found['unit']:18s}"
            print(f"{line}{found['spread']}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
