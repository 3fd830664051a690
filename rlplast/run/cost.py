"""What a run will take, from its config: seconds, arithmetic, disk. Nothing is read or trained.

- `cost_of`: a config → `Cost`.

Networks are built without memory, and `rlplast.run.roofline` says what an update of them would
take on this machine. Steps of environments are counted at what they took when they were measured.
Left out: hooks, penalties, metrics, and the writing of checkpoints.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from rlplast.agents.networks import q_network
from rlplast.agents.sac_networks import actor_of, critic_of
from rlplast.agents.sequence import spec_of
from rlplast.gpt.model import GPT, cross_entropy
from rlplast.run.length import length, phases_of, updates_at
from rlplast.run.roofline import Machine, Traced
from rlplast.supervised.corrupted import CORRUPTIONS, SEVERITIES
from rlplast.supervised.models import build_model
from rlplast.supervised.sizes import sizes_of
from rlplast.training.config import RunConfig

__all__ = ["Cost", "cost_of"]

# Milliseconds of a simulator's frame, measured on one core of an AMD EPYC with random actions.
FRAME = {"atari": 0.065, "minatar": 0.015, "gym": 0.1, "dmc": 0.15, "humanoid_bench": 1.0}
_FRAME = 0.1  # of other families
_UPDATE, _STEP = 4e-4, 2e-4  # seconds of an update and of an env_step outside of tensors
EPISODES = {"minatar": 100}  # env_steps of an episode where no limit is shorter: guesses
EPISODE = 1000  # of other families
_MOMENTS = {"sgd": 1, "rmsprop": 1, "muon": 1, "kron": 3}  # tensors of a parameter's size; else 2
_CORRUPTED = 10_000 * SEVERITIES * len(CORRUPTIONS)  # images of CIFAR-10-C, and of CIFAR-100-C
_RECORD = 16  # bytes of a transition beside observation and action


@dataclass(frozen=True)
class Cost:
    """What a whole run takes.

    Attributes:
        updates: how many there are.
        env_steps: likewise; 0 where there is no environment.
        update: seconds of one.
        env_step: seconds of one, with acting.
        evaluations: how many there are.
        evaluation: seconds of one.
        flops: of one update.
        checkpoint: bytes of one, without the replay.
        checkpoints: how many are there at the end.
        initial: bytes of the initial weights, which a run has once.
        rows: transitions that the replay holds in the end.
        row: bytes of one.
    """

    updates: float
    env_steps: float
    update: float
    env_step: float
    evaluations: float
    evaluation: float
    flops: float
    checkpoint: float
    checkpoints: int
    initial: float
    rows: float
    row: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        steps = self.updates * self.update + self.env_steps * self.env_step
        return steps + self.evaluations * self.evaluation


@dataclass(frozen=True)
class _Passes:
    """What a network takes, on one batch.

    Attributes:
        forward: seconds of a forward pass.
        both: seconds of a forward and a backward pass.
        flops: of both.
        count: parameters.
        step: seconds of the optimizer: seven numbers are read or written per parameter.
    """

    forward: float
    both: float
    flops: float
    count: int
    step: float


def _passes(
    build: Callable[[], nn.Module],
    loss: Callable[[Callable[..., Any]], Tensor],
    machine: Machine,
) -> _Passes:
    """Trace a network that takes no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # slow to import

    with torch.device("meta"):  # timm reads numbers as it builds, and fake tensors have none
        module = build()
    own = [*module.named_parameters(), *module.named_buffers()]

    def model(*inputs: Tensor) -> Any:
        return functional_call(module, fake, inputs)

    with FakeTensorMode():
        fake = {
            n: torch.empty(t.shape, dtype=t.dtype).requires_grad_(t.requires_grad) for n, t in own
        }
        with torch.no_grad(), Traced(machine) as forward:
            loss(model)
        with Traced(machine) as both:
            loss(model).backward()
    count = sum(p.numel() for p in module.parameters())
    step = 7 * 4 * count / machine.bandwidth
    return _Passes(forward.seconds, both.seconds, both.flops, count, step)


def cost_of(config: Any, machine: Machine) -> Cost | None:
    """Return what a run takes on a machine; None of a kind that is not known here.

    Raises:
        ConfigError: if its network cannot be built.
    """
    parts = {"supervised": _classifier, "gpt": _gpt, "dqn": _dqn, "sac": _sac}.get(config.kind)
    return None if parts is None else parts(config, machine)


def _cost(
    config: RunConfig,
    update: float,
    evaluation: float,
    flops: float,
    count: int,
    *,
    followers: int = 0,
    env_step: float = 0.0,
    rows: float = 0.0,
    row: float = 0.0,
) -> Cost:
    """Put together what all kinds have; `count` parameters, `followers` of them twice."""
    ends, every = length(config), config.cadence()
    known: Any = config
    moments = _MOMENTS.get(known.optimizer.name, 2)
    updates = updates_at(config, config.total_time())
    return Cost(
        updates=updates,
        env_steps=ends.get("env_steps", 0.0),
        update=update + _UPDATE,
        env_step=env_step,
        evaluations=1 + _count(every.evaluate, config) if every.evaluate is not None else 0,
        evaluation=evaluation,
        flops=flops,
        checkpoint=4.0 * (count * (1 + moments) + followers),
        checkpoints=min(every.keep, 1 + _count(every.checkpoint, config))
        + _count(every.keep_every, config)
        + (every.best is not None),
        initial=4.0 * count,
        rows=rows,
        row=row,
    )


def _count(schedule: Any, config: RunConfig) -> int:
    """Return how often a schedule is due before the end."""
    if schedule is None or schedule.every is None:
        return 0
    end = length(config).get(schedule.every.unit, 0.0)
    return max(0, math.ceil(end / schedule.every.value) - 1)


def _classifier(config: Any, machine: Machine) -> Cost:
    sizes, _ = sizes_of(config.data)
    batch = min(config.batch_size, max(len(phase.train) for phase in phases_of(config)))

    def loss(module: Callable[..., Any]) -> Tensor:
        labels = torch.empty(batch, dtype=torch.int64)
        return F.cross_entropy(module(torch.empty(batch, *sizes.shape)), labels)

    def build() -> nn.Module:
        untrained = replace(config.model, pretrained=False)  # a plan fetches no weights
        return build_model(untrained, sizes.shape, sizes.classes)

    found = _passes(build, loss, machine)
    images = sizes.test + (_CORRUPTED if config.data.corrupted else 0)
    evaluation = found.forward * images / batch
    return _cost(config, found.both + found.step, evaluation, found.flops, found.count)


def _gpt(config: Any, machine: Machine) -> Cost:
    rows = config.micro_batch or config.batch_size

    def loss(module: Callable[..., Any]) -> Tensor:
        tokens = torch.empty(rows, config.model.context, dtype=torch.int64)
        return cross_entropy(module(tokens), tokens)

    found = _passes(lambda: GPT(config.model), loss, machine)
    parts = config.batch_size / rows
    batches = config.evaluate.batches * len(config.corpora)
    update = parts * found.both + found.step
    return _cost(config, update, batches * parts * found.forward, parts * found.flops, found.count)


def _dqn(config: Any, machine: Machine) -> Cost:
    spec, agent = _spec(config), config.agent
    stacked = spec.stacked_shape

    def passes(batch: int) -> _Passes:
        return _passes(
            lambda: q_network(agent, stacked, spec.num_actions or 1, spec.obs_scale),
            lambda module: module(torch.empty(batch, *stacked)).square().mean(),
            machine,
        )

    found, acting = passes(agent.batch_size), passes(config.env.num_envs)
    target = found.forward * (2 if agent.double else 1)
    update = found.both + target + found.step
    flops = found.flops * (1 + (2 if agent.double else 1) / 3)
    return _agent(config, spec, update, flops, found.count, found.count, acting.forward)


def _sac(config: Any, machine: Machine) -> Cost:
    spec, agent = _spec(config), config.agent
    shape, action_dim = spec.stacked_shape, spec.action_dim or 1

    def made() -> tuple[Any, Any]:
        critic = critic_of(agent, shape, action_dim)
        return critic, actor_of(agent, shape, action_dim, critic)

    def actor(batch: int) -> _Passes:
        encoder = getattr(made()[0], "encoder", None)
        read = shape if encoder is None else (encoder.features,)
        return _passes(
            lambda: made()[1],
            lambda module: torch.stack(module(torch.empty(batch, *read))).mean(),
            machine,
        )

    found, acting = actor(agent.batch_size), actor(config.env.num_envs)

    def values(module: Callable[..., Any]) -> Tensor:
        size = agent.batch_size
        return module(torch.empty(size, *shape), torch.empty(size, action_dim)).mean()

    critic = _passes(lambda: made()[0], values, machine)
    # The actor learns through the critics, the critics from actor and target; the target follows.
    update = found.both + found.forward + 2 * critic.both + critic.forward
    update += found.step + critic.step + critic.step / 2
    flops = found.flops * 4 / 3 + critic.flops * 7 / 3
    count = found.count + critic.count
    return _agent(config, spec, update, flops, count, critic.count, acting.forward)


def _spec(config: Any) -> Any:
    """Return the description of the environment; of a sequence that of its first task."""
    env_id, options = config.env.id, config.env.options
    for first in getattr(config.env, "sequence", [])[:1]:
        env_id = first if isinstance(first, str) else first["id"]
        options = options | ({} if isinstance(first, str) else first.get("options", {}))
    return spec_of(env_id, options)


def _agent(
    config: Any,
    spec: Any,
    update: float,
    flops: float,
    count: int,
    followers: int,
    acting: float,
) -> Cost:
    """Return the cost of an agent; `acting` is a forward pass on one observation of each env."""
    family = spec.id.partition("/")[0]
    frame = FRAME.get(family, _FRAME) / 1000
    step = spec.frames_per_step * frame + (acting + _STEP) / config.env.num_envs
    guess = EPISODES.get(family, EPISODE)
    limit = min(spec.max_episode_steps or guess, guess)
    steps = getattr(config.evaluate, "steps", None) or config.evaluate.episodes * limit
    observation = math.prod(spec.obs_shape) * np.dtype(spec.obs_dtype).itemsize
    row = observation + 4 * (spec.action_dim or 1) + _RECORD
    rows = min(config.agent.buffer_size, length(config)["env_steps"])
    return _cost(
        config,
        update,
        steps * step,
        flops,
        count,
        followers=followers,
        env_step=step,
        rows=rows,
        row=row,
    )
