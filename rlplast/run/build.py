"""From a config to what trains, with its hooks: everything is checked on the way."""

from typing import Any

import numpy as np
import torch

from rlplast.core.device import choose_device, set_up
from rlplast.core.errors import ConfigError, shortened
from rlplast.core.method.condition import Measured
from rlplast.core.method.hooks import Hooks
from rlplast.metrics.probe import check_names
from rlplast.training import distributed
from rlplast.training.config import RunConfig
from rlplast.training.kinds import get_kind
from rlplast.training.trainable import Trainable

__all__ = ["build", "build_trainable"]


def build(config: RunConfig) -> tuple[Trainable, Hooks]:
    """Return the Trainable of a config and its hooks, everything checked."""
    check_names(config.metrics.names)
    trainable = build_trainable(config)
    names = tuple(config.metrics.names) if config.metrics.every is not None else None
    try:
        hooks = Hooks(
            config.hooks,
            trainable.networks,
            config.reference_time(),
            config.stream_seed,
            config.schedule_units,
            trainable.horizon(),  # exact, once the data are known
            Measured(names, config.evaluate.every is not None),
            source=trainable,
            penalties=trainable.penalties,
        )
        check_hooks_of_processes(hooks, distributed.world())
    except ConfigError:
        trainable.close()
        raise
    return trainable, hooks


def check_processes(config: RunConfig, count: int) -> None:
    """Refuse a run that so many processes cannot train together, by ConfigError."""
    make = get_kind(config.kind).trainable_class()
    if count > 1 and not getattr(make, "several_processes", False):
        raise ConfigError(
            f"kind = {config.kind!r} with {count} processes: it trains in one, so without torchrun "
            "and without a study's `processes`; kind: gpt trains in several"
        )
    config.check_processes(count)


def check_hooks_of_processes(hooks: Hooks, count: int) -> None:
    """Refuse hooks that read what only one of so many processes sees, by ConfigError."""
    if count > 1 and hooks.recorded():
        raise ConfigError(
            f"hooks read activations at every update, of which each of {count} processes sees its "
            "own: train in one process, or give the method a schedule such as every: 1000 updates, "
            "which reads a probe that is the same in all of them"
        )


def build_trainable(config: RunConfig) -> Trainable:
    """Return the Trainable of a config, without its hooks."""
    make = get_kind(config.kind).trainable_class()
    check_processes(config, distributed.world())
    torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    set_up(device, config.matmul, config.deterministic)
    _check_env(config)
    try:
        made = make(config, device)
    except MemoryError as error:
        raise ConfigError(
            f"{error}: lower what the config keeps in memory, such as agent.buffer_size"
        ) from error
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise ConfigError(f"out of memory ({error}): lower batch sizes or the replay") from error
    if getattr(getattr(made, "streams", None), "continuation", 1) != config.continuation:
        made.close()
        raise ConfigError(
            f"continuation = {config.continuation}: a run of kind {config.kind!r} draws as its "
            "seed says; its attribute `streams` is to be Streams(config.seed, config.continuation)"
        )
    return made


def _check_env(config: Any) -> None:
    """Check the environment of a config, or those of its sequence."""
    if not hasattr(config, "env"):
        return
    own = [(config.env.id, config.env.options)]
    tasks = config.sequence().envs if hasattr(config, "sequence") else own
    for i, task in enumerate(tasks):
        if task not in tasks[:i]:
            _check_one(*task)


def _check_one(env_id: str, options: dict[str, Any]) -> None:
    """Turn what is wrong with an environment's id or options into a ConfigError."""
    from rlplast import envs

    try:
        env = envs.make(env_id, np.random.default_rng(0), **options)
        env.close()
    except (ValueError, ImportError) as error:
        own = isinstance(error, envs.UnknownEnv) and env_id.startswith("gym/")
        remedy = " (`rlplast --import MODULE …`)" if own else ""
        raise ConfigError(f"env: {error}{remedy}") from error
    except KeyboardInterrupt:
        raise  # a person's
    except BaseException as error:  # a user's environment may raise anything
        cause = shortened(" ".join(f"{type(error).__name__}: {error}".split()), 200)
        raise ConfigError(f"env '{env_id}' could not be made: {cause}; mend it") from error
