"""Env steps per second of agents with small networks, where overhead rules.

SAC on Pendulum and Hopper (2 layers of 256, batch 256) and DQN on CartPole (2 layers of 256, batch
32), one environment, an update per env_step: ours beside Stable-Baselines3 and SBX, its JAX
edition, if it is installed (``pip install sbx-rl``). DQN on MinAtar: ours alone.
"""

import os
from collections.abc import Callable
from typing import Any

from bench_tools import Row, alternate, built, medians, row

STEPS = 200  # env_steps per call
CARTPOLE = {
    "env__id": "gym/CartPole-v1",
    "env__num_envs": 1,
    "agent__network": "mlp",
    "agent__batch_size": 32,
    "agent__initial_steps": 100,
    "agent__target_every": 500,
    "agent__n_step": 1,
    "replay_ratio": 1,
}
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {  # name → theirs, our config, its overrides
    "sac pendulum": ("Pendulum-v1", "sac/pendulum", {}),
    "sac hopper": ("Hopper-v5", "sac/hopper", {}),
    "dqn cartpole": ("CartPole-v1", "dqn/demo", CARTPOLE),
    "dqn minatar": ("", "dqn/minatar_breakout", {"agent__initial_steps": 500}),
}


def ours(config: str, threads: int, **keys: Any) -> Callable[[], None]:
    """Return what takes STEPS env_steps of our agent, past initial steps and compilation."""
    fixed = {"threads": threads, "total": "400k env_steps", "agent__buffer_size": 20_000}
    agent, _ = built(config, **(fixed | keys))

    def run(steps: int = STEPS) -> None:
        goal = agent.clock.env_steps + steps
        while agent.clock.env_steps < goal or agent.owes():
            agent.step()

    run(600)
    return run


def peers(env_id: str, algorithm: str) -> dict[str, Callable[[], None]]:
    """Return the same of Stable-Baselines3, and of SBX if it is installed."""
    import stable_baselines3

    options: dict[str, Any] = {"seed": 1, "learning_starts": 100, "buffer_size": 20_000}
    policy: dict[str, Any] = {"net_arch": [256, 256]}
    if algorithm == "DQN":
        options |= {"batch_size": 32, "train_freq": 1, "target_update_interval": 500}
    kinds = {"Stable-Baselines3": getattr(stable_baselines3, algorithm)}
    try:
        import sbx
    except ImportError:
        print("SBX is not installed: pip install sbx-rl")
    else:
        kinds["SBX"] = getattr(sbx, algorithm)

    def side(name: str) -> Callable[[], None]:
        own = {"device": "cpu"} if name == "Stable-Baselines3" else {}
        model = kinds[name]("MlpPolicy", env_id, policy_kwargs=dict(policy), **options, **own)
        model.learn(600)
        return lambda: model.learn(STEPS, reset_num_timesteps=False)

    return {name: side(name) for name in kinds}


def bench_small(threads: int, rounds: int) -> list[Row]:
    """Env steps per second of small agents."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:threads])  # JAX has as many threads as it is allowed cores
    rows = []
    for name, (env_id, config, keys) in TASKS.items():
        sides = peers(env_id, name.split()[0].upper()) if env_id else {}
        for how in ("off", "compile"):
            sides[f"ours, accelerate {how}"] = ours(config, threads, **keys, agent__accelerate=how)
        seconds = alternate(sides, rounds, 1)
        median = medians(seconds)
        rows += [row(f"{name}, {k}", STEPS / median[k], "env_steps/s", seconds[k]) for k in sides]
        best = min(v for k, v in median.items() if k.startswith("ours"))
        for peer in [k for k in sides if not k.startswith("ours")]:
            rows.append(row(f"{name}, ours over {peer}", median[peer] / best, "x"))
    os.sched_setaffinity(0, cores)
    return rows
