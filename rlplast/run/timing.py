"""What is timed, and how: agents of this package, the same training by others, sides in turn.

`rlplast bench` and scripts/bench*.py share it.

- `alternate`, `paced`, `medians`: sides that are called in turn, and the seconds they take.
- `built`, `ready`, `updates`, `training`, `inside`: agents, and what is timed of them.
- `peers`: the same training by Stable-Baselines3 and SBX; `on_cores`: so that it is fair.
- `machine`: what figures depend on.
"""

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch

from rlplast.core.device import choose_device
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.own import is_factory
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from rlplast.run.info import versions

__all__ = [
    "Steps",
    "Times",
    "alternate",
    "built",
    "inside",
    "machine",
    "medians",
    "on_cores",
    "paced",
    "peers",
    "ready",
    "timed",
    "training",
    "updates",
]

TURN = 0.3  # seconds of a side in each round
LONGEST = 20.0  # seconds of all rounds, if a single step is longer than a turn
FILL = 500  # random env_steps before the first update
REPLAY = 20_000  # transitions that replays have room for
PEERS = {  # name → module, package
    "Stable-Baselines3": ("stable_baselines3", "stable-baselines3"),
    "SBX": ("sbx", "sbx-rl"),
}

_OTHER_UPDATES = {"activation": "relu", "output": "linear", "actor_every": 1, "critic_subset": None}

Times = dict[str, list[float]]
Steps = Callable[[int], object]  # takes so many steps


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


def paced(sides: Mapping[str, Steps], rounds: int) -> Times:
    """Return seconds per step of each side; sides take turns of `TURN` seconds.

    There are fewer rounds if single steps are so long that all would take more than `LONGEST`.
    """
    counts, least = {}, 0.0
    for name, run in sides.items():
        run(1)
        count, seconds = 1, timed(run, 1)
        while seconds < TURN / 4:
            count *= 2
            seconds = timed(run, count)
        counts[name] = max(1, round(count * TURN / seconds))
        least += counts[name] * seconds / count
    rounds = max(1, min(rounds, int(LONGEST / max(least, TURN))))
    times = alternate({name: partial(run, counts[name]) for name, run in sides.items()}, rounds)
    return {name: [t / counts[name] for t in ts] for name, ts in times.items()}


def timed(call: Callable[..., object], *args: Any) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    call(*args)
    return time.perf_counter() - started


def medians(seconds: Times) -> dict[str, float]:
    """Return the median of each side."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def built(config: Any, *overrides: Mapping[str, Any]) -> tuple[Any, Hooks]:
    """Return the trainable of a config and its hooks, which act inside its updates."""
    trainable, hooks = build(read_config(config, *overrides))
    _attach(trainable, hooks)
    return trainable, hooks


def _attach(trainable: Any, hooks: Hooks) -> None:
    trainable.after_update = hooks.after_update
    trainable.inside_key = hooks.inside_key
    trainable.recorded = hooks.recorded()
    trainable.gradients_read = hooks.gradients_read()


def ready(config: Any, accelerate: str) -> tuple[Any, Hooks]:
    """Return the agent of a config past its random steps, which are few, and its hooks.

    Its replay is small, a DQN explores as at the end of its decay, and tasks do not change.
    """
    agent, n = config.agent, config.env.num_envs
    keys: dict[str, Any] = {
        "agent.accelerate": accelerate,
        "agent.initial_steps": min(agent.initial_steps, max(FILL, n * (agent.n_step + 1))),
        "agent.initial_updates": 0,
        "agent.buffer_size": min(agent.buffer_size, REPLAY + n * (agent.n_step + 10)),
    }
    if isinstance(config.replay_ratio, list):
        keys["replay_ratio"] = config.update_plan().ratios[-1][1]
    if config.kind == "dqn":
        keys["agent.epsilon_decay"] = 0.0
    if config.whole_time() is not None:
        keys |= {"total": "auto", "env.steps_per_task": 10**7 * n}
    trainable, hooks = built(dataclasses.asdict(config), keys)
    try:
        while not trainable.owes():
            trainable.step()
    except BaseException:
        trainable.close()
        raise
    return trainable, hooks


def updates(agent: Any) -> Steps:
    """Return what makes so many updates of an agent, besides those that it owes."""

    def run(count: int) -> None:
        owed = agent.experience.credit
        for _ in range(count):
            agent.update()
        agent.experience.credit = owed
        if agent.device.type == "cuda":
            torch.cuda.synchronize(agent.device)

    return run


def training(agent: Any) -> Steps:
    """Return what takes so many steps of all environments, and the updates owed for them."""

    def run(count: int) -> None:
        goal = agent.clock.env_steps + count * agent.config.env.num_envs
        while agent.clock.env_steps < goal or agent.owes():
            agent.step()
        if agent.device.type == "cuda":
            torch.cuda.synchronize(agent.device)

    return run


def inside(agent: Any, hooks: Hooks) -> dict[str, Steps]:
    """Return updates without hooks and with them, of one agent."""
    none = Hooks([], agent.networks, hooks.total, units=agent.units, penalties=agent.penalties)

    def side(chosen: Hooks) -> Steps:
        def run(count: int) -> None:
            _attach(agent, chosen)
            updates(agent)(count)

        return run

    return {"without": side(none), "with": side(hooks)}


def peers(config: Any, agent: Any) -> tuple[dict[str, Steps], dict[str, str]]:
    """Return the training of a config by other libraries, past compilation, and why some have none.

    Environment, network sizes, batch size and replay ratio are the config's, the rest is theirs.
    """
    reason = _unlike(config, agent)
    if reason:
        return {}, dict.fromkeys(PEERS, reason)
    sides: dict[str, Steps] = {}
    reasons: dict[str, str] = {}
    for name, (module, package) in PEERS.items():
        try:
            sides[name] = _peer(module, config, agent)
        except ImportError:
            reasons[name] = f"not installed: pip install {package}"
        except Exception as error:  # another library may raise anything
            reasons[name] = shorten(f"does not run here: {type(error).__name__}: {error}", 160)
    return sides, reasons


def _unlike(config: Any, agent: Any) -> str:
    """Say why no other library has the like of a config; empty if they have."""
    env, spec = config.env, agent.spec
    if not env.id.startswith("gym/") or env.options or config.whole_time() is not None:
        return "not compared: it has no such environment; gym/ID without options can be"
    if len(spec.obs_shape) != 1 or spec.frame_stack > 1:
        return "not compared: its network for pictures is another one"
    if config.kind == "sac" and config.agent.network != "mlp":
        return f"not compared: it has no network {config.agent.network}; mlp can be"
    if is_factory(config.agent.network):
        return "not compared: its network is your own"
    for key, default in _OTHER_UPDATES.items():
        value = getattr(config.agent, key, default)
        if value != default:
            return f"not compared: its update has no agent.{key} = {value}; {default} can be"
    return ""


def _peer(module: str, config: Any, agent: Any) -> Steps:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import Logger

    own, n = config.agent, config.env.num_envs
    algorithm = getattr(import_module(module), config.kind.upper())
    per_step = Fraction(agent.config.replay_ratio * n).limit_denominator(10_000)
    options: dict[str, Any] = {
        "batch_size": own.batch_size,
        "buffer_size": min(own.buffer_size, REPLAY),
        "learning_starts": agent.config.agent.initial_steps,
        "train_freq": per_step.denominator,  # in steps of all environments
        "gradient_steps": per_step.numerator,
        "seed": config.seed,
    }
    if config.kind == "dqn":
        from rlplast.agents.networks import architecture_of

        net: Any = list(architecture_of(own, agent.spec.obs_shape).hidden)
        options |= {
            "target_update_interval": own.target_every,
            "exploration_initial_eps": own.epsilon_end,
            "exploration_final_eps": own.epsilon_end,
        }
    else:
        sizes = {"pi": (own.actor_width, own.actor_blocks)}
        sizes["qf"] = (own.critic_width, own.critic_blocks)
        net = {name: own.hidden or [width] * n for name, (width, n) in sizes.items()}
    if module == "stable_baselines3":
        options["device"] = str(agent.device)
    env = make_vec_env(config.env.id.removeprefix("gym/"), n)
    model = algorithm("MlpPolicy", env, policy_kwargs={"net_arch": net}, **options)
    model.set_logger(Logger(None, []))  # its own one leaves a folder
    model.learn(options["learning_starts"] + 4 * n * per_step.denominator)
    goal = model.num_timesteps

    def run(count: int) -> None:
        nonlocal goal
        goal += count * n
        if model.num_timesteps < goal:  # it goes in strides of train_freq
            model.learn(goal - model.num_timesteps, reset_num_timesteps=False)

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
    cpu, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        models = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = f"{models[0].split(':')[1].strip()} x {len(models)}" if models else cpu
    chosen = choose_device(device)
    cuda = chosen.type == "cuda"
    installed = versions()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu,
        "cores": cores,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(chosen) if cuda else "cpu",
        "python": installed["python"],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "rlplast": installed.get("rlplast", "unknown"),
    }
