"""How long updates of a config take on this machine."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from rlplast.core.method.hooks import Hooks
from rlplast.run.build import build
from rlplast.run.config_file import read_config

__all__ = ["Steps", "built", "paced", "ready", "timed", "updates", "variables"]

TURN = 0.3  # seconds of a side in each round
FILL = 500  # random env_steps before the first update
REPLAY = 20_000  # transitions that replays have room for

Steps = Callable[[int], object]  # takes so many steps


@contextmanager
def variables(**own: str) -> Iterator[None]:
    """Set environment variables in a block, and put all back as they were: compilers set some."""
    before = dict(os.environ)
    os.environ.update(own)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def timed(call: Callable[..., object], *args: Any) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    call(*args)
    return time.perf_counter() - started


def paced(
    sides: Mapping[str, Steps], rounds: int, longest: float = math.inf
) -> dict[str, list[float]]:
    """Return seconds per step of each side; sides take turns of `TURN` seconds.

    There are fewer rounds, at least one, if all would take more than `longest` seconds.
    """
    counts, least = {}, 0.0
    for name, run in sides.items():
        run(count := 1)
        while (seconds := timed(run, count)) < TURN / 4:
            count *= 2
        counts[name] = max(1, round(count * TURN / seconds))
        least += counts[name] * seconds / count
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(max(1, int(min(rounds, longest / max(least, TURN))))):
        for name, run in sides.items():
            times[name].append(timed(run, counts[name]) / counts[name])
    return times


def built(config: Any, *overrides: Mapping[str, Any]) -> tuple[Any, Hooks]:
    """Return the trainable of a config and its hooks, which act inside its updates."""
    trainable, hooks = build(read_config(config, *overrides))
    trainable.attach(hooks)
    return trainable, hooks


def ready(config: Any, accelerate: str) -> tuple[Any, Hooks]:
    """Return the trainable of a config, ready for updates, and its hooks.

    An agent is past its random steps, which are few, or its first rollout, with a small replay. A
    DQN explores as at the end of its decay, and tasks do not change.
    """
    if not hasattr(config, "agent"):
        own = {"accelerate": accelerate} if hasattr(config, "accelerate") else {}
        return built(dataclasses.asdict(config), own)
    keys: dict[str, Any] = {"agent.accelerate": accelerate}
    if hasattr(config, "replay_ratio"):
        agent, n = config.agent, config.env.num_envs
        keys |= {
            "agent.initial_steps": min(agent.initial_steps, max(FILL, n * (agent.n_step + 1))),
            "agent.initial_updates": 0,
            "agent.buffer_size": min(agent.buffer_size, REPLAY + n * (agent.n_step + 10)),
        }
        if isinstance(config.replay_ratio, list):
            keys["replay_ratio"] = config.update_plan().ratios[-1][1]
        if config.kind == "dqn":
            keys["agent.epsilon_decay"] = 0.0
    if config.whole_time() is not None:
        keys |= {"total": "auto", "env.steps_per_task": 10**7 * config.env.num_envs}
    trainable, hooks = built(dataclasses.asdict(config), keys)
    try:
        while not trainable.owes():
            trainable.step()
    except BaseException:
        trainable.close()
        raise
    return trainable, hooks


def updates(trainable: Any) -> Steps:
    """Return what makes so many updates of what is just `ready`, in blocks as a run makes them."""
    start, agent = trainable.clock, hasattr(trainable, "experience")
    block = trainable.owed() if agent else 1

    def run(count: int) -> None:
        for left in range(count, 0, -block):
            if agent:
                trainable.update(min(block, left))
            else:
                trainable.clock = start  # so that no phase ends
                trainable.step()
        if trainable.device.type == "cuda":
            torch.cuda.synchronize(trainable.device)

    return run
