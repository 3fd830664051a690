"""Optimizers and learning rates of runs outside RL, from a config.

- `OptimizerConfig`: the section ``optimizer:`` of a config.
- `make_optimizer`: the torch optimizer it asks for.
- `lr_at`, `set_lr`: the learning rate as a pure function of the place in a phase.
- `clip`: bounds the gradient's norm.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.registry import check_range

__all__ = ["OptimizerConfig", "clip", "lr_at", "make_optimizer", "set_lr"]

RANGES = {
    "name": "adam | adamw | sgd | rmsprop",
    "lr": "(0, inf)",
    "weight_decay": "[0, inf)",
    "decay": "all | matrices",
    "eps": "(0, inf)",
    "momentum": "[0, 1)",
    "schedule": "constant | linear | cosine | step",
    "warmup": "[0, 1]",
    "lr_min": "[0, inf)",
    "gamma": "(0, 1]",
    "stepped": "update | epoch",
}


@dataclass
class OptimizerConfig:
    """The optimizer and its learning rate; warm-up and schedule start anew at every phase.

    Attributes:
        name: adam, adamw, sgd or rmsprop.
        lr: the largest learning rate, per update.
        weight_decay: decoupled for adamw, else added to the gradient.
        decay: all, or matrices for tensors of at least two dimensions only.
        betas: Adam's two.
        eps: Adam's and RMSprop's ε.
        momentum: of sgd and rmsprop.
        schedule: constant, linear, cosine or step: how it falls after the warm-up.
        warmup: share of each phase over which it rises linearly from 0.
        warmup_max: bound on the warm-up, in updates (epochs if `stepped` so); null for none.
        lr_min: where linear and cosine end.
        milestones: for step, the shares of a phase at which it is multiplied by `gamma`.
        gamma: see `milestones`.
        stepped: update or epoch: how often it changes.
        clip_norm: bound on the gradient's norm; null for none.
        renew: whether the optimizer's state is zeroed when a phase starts.
    """

    name: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    decay: str = "all"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    momentum: float = 0.0
    schedule: str = "constant"
    warmup: float = 0.0
    warmup_max: int | None = None
    lr_min: float = 0.0
    milestones: list[float] = field(default_factory=list)
    gamma: float = 0.1
    stepped: str = "update"
    clip_norm: float | None = None
    renew: bool = False

    def check(self) -> None:
        """Check values against their ranges and against each other.

        Raises:
            ConfigError: naming key, value and what is allowed.
        """
        for key, allowed in RANGES.items():
            value, default = getattr(self, key), getattr(OptimizerConfig, key)
            check_range(f"optimizer.{key}", value, default, allowed)
        if len(self.betas) != 2:
            raise ConfigError(f"optimizer.betas = {self.betas}: allowed are two numbers in [0, 1)")
        for beta in self.betas:
            check_range("optimizer.betas", beta, 0.9, "[0, 1)")
        for share in self.milestones:
            check_range("optimizer.milestones", share, 0.5, "(0, 1)")
        if self.schedule == "step" and not self.milestones:
            raise ConfigError("optimizer.schedule = 'step' needs optimizer.milestones, as [0.5]")
        if self.schedule != "step" and self.milestones:
            raise ConfigError(
                f"optimizer.milestones = {self.milestones} with schedule = {self.schedule!r}: "
                "they belong to schedule: step"
            )
        if self.warmup_max is not None:
            check_range("optimizer.warmup_max", self.warmup_max, 1, "[1, inf)")
        if self.clip_norm is not None:
            check_range("optimizer.clip_norm", self.clip_norm, 1.0, "(0, inf)")
        if self.lr_min > self.lr:
            raise ConfigError(
                f"optimizer.lr_min = {self.lr_min}: allowed is at most lr = {self.lr}"
            )
        if self.momentum and self.name not in ("sgd", "rmsprop"):
            raise ConfigError(
                f"optimizer.momentum = {self.momentum} with name = {self.name!r}: "
                "it belongs to sgd and rmsprop"
            )


def make_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a module's trainable parameters, tied ones once."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": parameters, "weight_decay": config.weight_decay}]
    if config.decay == "matrices":
        groups[0]["params"] = [p for p in parameters if p.ndim >= 2]
        rest = [p for p in parameters if p.ndim < 2]
        groups += [{"params": rest, "weight_decay": 0.0}] if rest else []
    adam: dict[str, Any] = {"betas": tuple(config.betas), "eps": config.eps, "fused": True}
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adam": lambda: torch.optim.Adam(groups, lr=config.lr, **adam),
        "adamw": lambda: torch.optim.AdamW(groups, lr=config.lr, **adam),
        "sgd": lambda: torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True),
        "rmsprop": lambda: torch.optim.RMSprop(
            groups, lr=config.lr, eps=config.eps, momentum=config.momentum
        ),
    }
    return makers[config.name]()


def lr_at(config: OptimizerConfig, done: int, length: int) -> float:
    """Return the learning rate of one update.

    Args:
        config: the schedule.
        done: updates (epochs, if `stepped` so) of this phase that are done.
        length: how many the phase has.

    Examples:
        >>> config = OptimizerConfig(lr=1.0, warmup=0.4)
        >>> [round(lr_at(config, i, 10), 2) for i in range(6)]
        [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    """
    warm = round(config.warmup * length)
    warm = warm if config.warmup_max is None else min(warm, config.warmup_max)
    if done < warm:
        return config.lr * (done + 1) / (warm + 1)
    share = (done - warm) / max(1, length - warm)
    fall = config.lr - config.lr_min
    if config.schedule == "linear":
        return config.lr - fall * share
    if config.schedule == "cosine":
        return config.lr_min + fall * 0.5 * (1 + math.cos(math.pi * share))
    passed = sum(done >= m * length for m in config.milestones)
    return config.lr * config.gamma**passed


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every parameter group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def clip(config: OptimizerConfig, parameters: Iterable[Tensor]) -> None:
    """Scale gradients down to a norm of at most `clip_norm`, if there is one."""
    if config.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm)
