"""What all benchmarks share: what is timed, what figures depend on, and lines of the report.

What `rlplast bench` times too is in `rlplast.run.timing`.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from rlplast.core.device import choose_device
from rlplast.run import timing
from rlplast.run.info import processor, versions
from rlplast.run.timing import Steps

Times = dict[str, list[float]]

# Agents whose updates methods are measured in: config, network, overrides.
AGENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Nature CNN": ("dqn/asterix", "q", {"agent__buffer_size": 20_000, "agent__initial_steps": 400}),
    "SimBa critic": (
        "sac/pendulum",
        "critic",
        {
            "agent__network": "simba",
            "agent__critic_width": 512,
            "agent__actor_width": 128,
            "agent__actor_blocks": 1,
            "agent__initial_steps": 300,
        },
    ),
}


class Row(NamedTuple):
    """A line of the report."""

    name: str
    value: float
    unit: str
    spread: str = ""


def row(name: str, value: float, unit: str, times: list[float] | None = None) -> Row:
    """Return a line; its spread is that of the seconds of each turn."""
    spread = "" if times is None else f"{min(times):.4g} to {max(times):.4g} s"
    return Row(name, value, unit, spread)


def alternate(
    sides: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Return seconds per call of each side, called in turn `rounds` times after a warm-up."""
    seconds: Times = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name, call in sides.items():
            started = clock()
            call()
            if number >= warm_up:
                seconds[name].append(clock() - started)
    return seconds


def medians(seconds: Times) -> dict[str, float]:
    """Return the median of each side."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def built(config: Any, **keys: Any) -> tuple[Any, Any]:
    """Return the trainable of a config on the CPU, and its hooks, which act inside its updates."""
    dotted = {key.replace("__", "."): value for key, value in keys.items()}
    return timing.built(config, {"device": "cpu"} | dotted)


def stride(config: Any) -> int:
    """Return the env_steps that are timed as one: of all environments, of PPO a whole rollout."""
    return config.transitions if config.kind == "ppo" else config.env.num_envs


def training(agent: Any) -> Steps:
    """Return what takes so many strides, and the updates owed for them."""

    def run(count: int) -> None:
        goal = agent.clock.env_steps + count * stride(agent.config)
        while agent.clock.env_steps < goal or agent.owes():
            agent.update(agent.owed()) if agent.owed() > 1 else agent.step()
        if agent.device.type == "cuda":
            torch.cuda.synchronize(agent.device)

    return run


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Let this process use so many cores: JAX has as many threads as it is allowed cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield  # there is no such call, as on macOS
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return what figures depend on: processor, cores, threads, device, versions."""
    chosen = choose_device(device)
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else "cpu",
        **versions(),
    }
