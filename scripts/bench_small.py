"""Env steps per second of agents with small networks, where overhead rules.

SAC on Pendulum and Hopper (2 layers of 256, batch 256) and DQN on CartPole (2 layers of 256, batch
32), one environment, an update per env_step: ours beside Stable-Baselines3 and SBX, its JAX
edition, if it is installed (``pip install sbx-rl``). DQN on MinAtar: ours alone.
"""

from functools import partial
from typing import Any

from bench_tools import Row, alternate, medians, row

from rlplast.run.config_file import read_config
from rlplast.run.timing import on_cores, peers, ready, training

STEPS = 200  # env_steps per call
CARTPOLE = {
    "env.id": "gym/CartPole-v1",
    "env.num_envs": 1,
    "agent.network": "mlp",
    "agent.batch_size": 32,
    "agent.target_every": 500,
    "agent.n_step": 1,
    "replay_ratio": 1,
}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {  # name → config, its overrides
    "sac pendulum": ("sac/pendulum", {}),
    "sac hopper": ("sac/hopper", {}),
    "dqn cartpole": ("dqn/demo", CARTPOLE),
    "dqn minatar": ("dqn/minatar_breakout", {}),
}


def bench_small(threads: int, rounds: int) -> list[Row]:
    """Env steps per second of small agents."""
    rows = []
    for name, (source, keys) in TASKS.items():
        fixed = {"device": "cpu", "threads": threads, "total": "400k env_steps"}
        config: Any = read_config(source, fixed | keys)
        with on_cores(threads):
            agents = {how: ready(config, how)[0] for how in ("off", "compile")}
            found, missing = peers(config, agents["off"])
            for peer, reason in missing.items():
                print(f"{name}, {peer}: {reason}")
            found |= {f"ours, accelerate {how}": training(one) for how, one in agents.items()}
            steps = STEPS // config.env.num_envs
            seconds = alternate({k: partial(run, steps) for k, run in found.items()}, rounds, 3)
        median = medians(seconds)
        rows += [row(f"{name}, {k}", STEPS / median[k], "env_steps/s", seconds[k]) for k in found]
        best = min(v for k, v in median.items() if k.startswith("ours"))
        for peer in [k for k in found if not k.startswith("ours")]:
            rows.append(row(f"{name}, ours over {peer}", median[peer] / best, "x"))
    return rows
