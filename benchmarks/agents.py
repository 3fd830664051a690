"""How many env_steps a second our agents train for, beside Stable-Baselines3 and SBX.

- `dqn`: Asterix, four environments, Nature's network, replay ratio 1, also in bf16.
- `sac`: networks of SimBa's sizes on a made-up environment with the sizes of HumanoidBench's h1.
- `ppo`: whole rollouts with their updates, on CartPole and Hopper.
- `small`: networks where overhead rules; an update per env_step, then 16.

A DQN explores as little as at the end of its decay, ours and theirs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import PEERS, atari, minatar, normalised, peer, simba
from benchmarks.tools import Row, medians, on_cores, row, stride, training
from rlplast.run.config_file import read_config
from rlplast.run.timing import Steps, paced, ready

BOTH, SB3 = tuple(PEERS), ("Stable-Baselines3",)
CARTPOLE = {
    "env.id": "gym/CartPole-v1",
    "env.num_envs": 1,
    "agent.network": "mlp",
    "agent.batch_size": 32,
    "agent.target_every": 500,
    "agent.n_step": 1,
    "replay_ratio": 1,
    "hooks": [],
}
H1 = {"env.id": "gym/benchmarks.made_envs:Numbers-v0", "env.options": {}}
LIKE_SB3 = {"agent.n_step": 1, "agent.double": False}


@dataclass(frozen=True)
class Task:
    """A config with changes, and how others train for it."""

    config: str
    changes: dict[str, Any]
    peers: tuple[str, ...] = BOTH
    special: Callable[[Any], dict[str, Any]] = lambda config: {}
    precisions: tuple[str, ...] = ("fp32",)


DQN = {"dqn asterix": Task("dqn/asterix", {}, SB3, atari, ("fp32", "bf16"))}
SAC = {"sac simba": Task("sac/h1_walk", H1, SB3, simba, ("fp32", "bf16"))}
PPO = {
    "ppo cartpole": Task("ppo/cartpole", {}, SB3),
    "ppo hopper": Task("ppo/hopper", {}, SB3, normalised),
}
SMALL = {
    "sac pendulum": Task("sac/pendulum", {}),
    "sac hopper": Task("sac/hopper", {}),
    "dqn cartpole": Task("dqn/demo", CARTPOLE),
    "dqn minatar": Task("dqn/minatar_breakout", {}, ()),
    "sac pendulum, ratio 16": Task("sac/pendulum", {"replay_ratio": 16}),
    "dqn cartpole, ratio 16": Task("dqn/demo", CARTPOLE | {"replay_ratio": 16}),
    "dqn minatar, ratio 16": Task(
        "dqn/minatar_breakout", LIKE_SB3 | {"replay_ratio": 16}, SB3, minatar
    ),
}


def dqn(threads: int, rounds: int, device: str = "cpu") -> Iterator[Row]:
    return rows(DQN, threads, rounds, device)


def sac(threads: int, rounds: int, device: str = "cpu") -> Iterator[Row]:
    return rows(SAC, threads, rounds, device)


def ppo(threads: int, rounds: int, device: str = "cpu") -> Iterator[Row]:
    return rows(PPO, threads, rounds, device)


def small(threads: int, rounds: int, device: str = "cpu") -> Iterator[Row]:
    return rows(SMALL, threads, rounds, device)


def rows(tasks: dict[str, Task], threads: int, rounds: int, device: str) -> Iterator[Row]:
    """Yield env_steps per second of each side, and ours over the others'."""
    for name, task in tasks.items():
        with on_cores(threads):
            sides, n = sides_of(task, threads, device)
            seconds = paced(sides, rounds)
        median = medians(seconds)
        for side, value in median.items():
            yield row(f"{name}, {side}", n / value, "env_steps/s", seconds[side])
        for other in [side for side in sides if side in PEERS]:
            for side in [side for side in sides if side not in PEERS]:
                yield row(f"{name}, {side} over {other}", median[other] / median[side], "x")


def sides_of(task: Task, threads: int, device: str = "cpu") -> tuple[dict[str, Steps], int]:
    """Return the training of a task by each side, and how many env_steps a stride has."""
    keys = {"device": device, "threads": threads, "total": "400k env_steps"} | task.changes
    agents, config = {}, None
    for precision in task.precisions:
        own = {} if precision == "fp32" else {"agent.precision": precision}
        config = read_config(task.config, keys | own)
        for how in ("off", "compile" if device == "cpu" else "graph"):
            agents[f"ours {precision}, {how}"] = ready(config, how)[0]
    sides, agent = {}, next(iter(agents.values()))
    for other in task.peers:
        try:
            sides[other] = peer(PEERS[other], config, agent, **task.special(config))
        except ImportError as error:
            print(f"without {other}: {error}")
    return sides | {name: training(one) for name, one in agents.items()}, stride(agent.config)
