"""How fast a run is: `timed_here`, from some of its steps, of which nothing is kept."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlplast.agents.agent_config import AgentConfig
from rlplast.core.errors import ConfigError
from rlplast.core.network.optim_state import allocate
from rlplast.run.timing import built, ready, timed, updates
from rlplast.training.network_tensors import INITIAL, network_tensors

__all__ = ["timed_here"]

EACH = 0.25  # seconds for each number
LONG = 3.0  # seconds of an update that is not waited for


def timed_here(config: Any) -> dict[str, float]:
    """Return what parts of a run take here: its updates eager, with penalties and hooks inside.

    Returns:
        ``env_steps``, ``updates``: seconds of one; ``checkpoint``: bytes of one without replay and
        ``initial`` weights, which a run has once; ``row``: bytes of a transition. Those of
        environments for agents alone, ``row`` for those with a replay.

    Raises:
        ConfigError: if the run cannot be built, for want of data, say.
    """
    agent = isinstance(config, AgentConfig)
    trainable = ready(config, "off")[0] if agent else _without_start(config)
    try:
        rates = _of_agent(trainable) if agent else _of_others(trainable)
        count = {"initial": 0, "checkpoint": 0}
        for network in trainable.networks.values():
            allocate(network)  # a long update was not made
            for name, tensor in network_tensors(network).items():
                count["initial" if name.endswith(INITIAL) else "checkpoint"] += tensor.nbytes
        return rates | count
    finally:
        trainable.close()


def _without_start(config: Any) -> Any:
    """Return what a config trains, for which nothing is downloaded."""
    keys: dict[str, Any] = {"accelerate": "off"} if hasattr(config, "accelerate") else {}
    if config.kind == "supervised":
        keys["model.pretrained"] = False
        path = config.data.huggingface.path
        if config.data.name == "huggingface" and not Path(str(path)).is_dir():
            raise ConfigError(f"data.huggingface.path = {path!r} is no folder: nothing is fetched")
    return built(dataclasses.asdict(config.to_resume()), keys)[0]


def _of_agent(agent: Any) -> dict[str, float]:
    update, config = updates(agent), agent.config
    replay = getattr(agent.experience, "replay", None)
    row = {} if replay is None else {"row": replay.nbytes / config.agent.buffer_size}
    return {
        "env_steps": _mean(agent._environment_step) / config.env.num_envs,
        "updates": _mean(lambda: update(1)),
        **row,
    }


def _of_others(trainable: Any) -> dict[str, float]:
    """Return the seconds of an update; of a long one by those of a part of its batch."""
    config, end = trainable.config, trainable.config.total_time()
    batch = getattr(config, "batch_size", 0)
    most, each = getattr(config, "micro_batch", None) or batch, 0.0
    name, count, spent = next(iter(trainable.networks)), 1, 0.0

    def learn(samples: Any) -> None:
        trainable.loss(name, samples).backward()

    if batch:
        learn(trainable.sample(1, 0))  # it allocates
    while count <= most and spent < 4 * EACH:  # the more at once, the less for each
        spent = timed(learn, trainable.sample(count, 0))
        count, each = 4 * count, spent / count
    if each * batch > LONG:
        return {"updates": each * batch}
    return {"updates": _mean(trainable.step, lambda: trainable.clock[end.unit] < end.value)}


def _mean(step: Callable[[], object], more: Callable[[], bool] = lambda: True) -> float:
    """Return the seconds of a step, the first of several left out: it allocates."""

    def finished() -> None:
        step()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    times, until = [timed(finished)], time.perf_counter() + EACH
    while time.perf_counter() < until and more():
        times.append(timed(finished))
    return statistics.mean(times[1:] or times)
