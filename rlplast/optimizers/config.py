"""The section ``optimizer:`` of a run's config, and the learning rate."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from rlplast.core.errors import ConfigError
from rlplast.core.registry import checked, get, rows
from rlplast.core.validation import Betas, Fraction, Section, Share, check_section

__all__ = ["OptimizerConfig", "lr_at"]


@dataclass
class OptimizerConfig(Section):
    """The optimizer and its learning rate; warm-up and schedule start anew at every phase.

    Attributes:
        name: adam, adamw, sgd, upgd or another of ``rlplast list optimizers``.
        lr: largest learning rate per update.
        weight_decay: strength of weight decay. adam, sgd and rmsprop add it to the gradient; others
            decouple it.
        decay: which tensors decay: all, or matrices (two dimensions or more).
        betas: two numbers, for adam, adam_o, adamw, muon, muon_fire, schedule_free and trac; null
            for the optimizer's own default, see `rlplast list optimizers`.
        eps: ε, for the optimizers with `betas` and rmsprop; null for the optimizer's own default.
        momentum: for kron, muon, muon_fire, rmsprop, sgd and trac; null for the optimizer's own
            default.
        params: other parameters of the optimizer.
        schedule: how the learning rate falls after the warm-up: constant, linear, cosine or step.
        warmup: share of each phase in which the learning rate rises linearly from 0.
        warmup_end: when a warm-up of W updates reaches `lr`. inside: at its last update, with
            lr·i/W at update i. after: at the update after it, with lr·i/(W + 1).
        warmup_max: most updates of the warm-up (epochs with ``stepped: epoch``); null for no bound.
        lr_min: final learning rate of linear and cosine.
        milestones: for step: shares of a phase at which the learning rate is multiplied by `gamma`.
        gamma: for step: the factor at each of the `milestones`.
        stepped: how often the learning rate changes: update or epoch.
        clip_norm: largest norm of a network's gradient; null for no bound.
        renew: whether the optimizer's state is reset when a phase starts.
        first_phase: another optimizer for the first phase of several, with its own defaults and
            the same learning rate; null for none. The second phase begins with a new one of `name`.
    """

    name: str = "adam"
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.0
    decay: Literal["all", "matrices"] = "all"
    betas: Betas | None = None
    eps: PositiveFloat | None = None
    momentum: Fraction | None = None
    params: dict[str, Any] = field(default_factory=dict)
    schedule: Literal["constant", "linear", "cosine", "step"] = "constant"
    warmup: Share = 0.0
    warmup_end: Literal["after", "inside"] = "after"
    warmup_max: PositiveInt | None = None
    lr_min: NonNegativeFloat = 0.0
    milestones: list[Annotated[float, Field(gt=0, lt=1)]] = field(default_factory=list)
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    stepped: Literal["update", "epoch"] = "update"
    clip_norm: PositiveFloat | None = None
    renew: bool = False
    first_phase: str | None = None

    def check(self) -> None:
        """Check values against their ranges and against each other."""
        known = get("optimizers", self.name, "optimizer.name").params
        values = {name: p["default"] for name, p in known.items()} | self.own_params()
        if values.get("nesterov") and values.get("momentum") == 0:
            raise ConfigError(
                f"optimizer.params.nesterov = {values['nesterov']}: it needs a momentum above 0, "
                "such as optimizer.momentum = 0.9"
            )
        check_section(self, "optimizer")
        if self.first_phase is not None:
            get("optimizers", self.first_phase, "optimizer.first_phase")
        if self.schedule == "step" and not self.milestones:
            raise ConfigError("optimizer.schedule = 'step' needs optimizer.milestones, as [0.5]")
        if self.schedule != "step" and self.milestones:
            raise ConfigError(
                f"optimizer.milestones = {self.milestones} with schedule = {self.schedule!r}: "
                "they belong to schedule: step"
            )
        if self.lr_min > self.lr:
            raise ConfigError(
                f"optimizer.lr_min = {self.lr_min}: allowed is at most lr = {self.lr}"
            )
        if self.momentum and "momentum" not in known:
            having = ", ".join(i.name for i in rows("optimizers") if "momentum" in i.params)
            raise ConfigError(
                f"optimizer.momentum = {self.momentum} with name = {self.name!r}: "
                f"it belongs to {having}"
            )

    def refuse_first_phase(self, why: str) -> None:
        """Raise a `ConfigError` that says why, if there is an optimizer of the first phase."""
        if self.first_phase is not None:
            raise ConfigError(
                f"optimizer.first_phase = {self.first_phase!r}: {why}; allowed is null"
            )

    @property
    def compiles(self) -> bool:
        """Whether its step compiles with the rest of an update: of adam and adamw it does."""
        return self.name in ("adam", "adamw")

    @property
    def captures(self) -> bool:
        """Whether its step can be part of a CUDA graph: of PyTorch's optimizers it can."""
        return self.name in ("adam", "adamw", "rmsprop", "sgd")

    def own_params(self) -> dict[str, Any]:
        """Return the optimizer's own parameters, checked; keys it does not have are left out."""
        known = get("optimizers", self.name).params
        shared = {"betas": self.betas, "eps": self.eps, "momentum": self.momentum}
        given = {k: v for k, v in shared.items() if k in known and v is not None}
        for key in given.keys() & self.params.keys():
            raise ConfigError(
                f"optimizer.{key} = {given[key]} and optimizer.params.{key} = "
                f"{self.params[key]!r}: they are one parameter, give it once"
            )
        return given | checked("optimizers", self.name, self.params)


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
        return config.lr * (done + 1) / (warm + int(config.warmup_end == "after"))
    share = min(1.0, (done - warm) / max(1, length - warm))  # an extended run goes on
    fall = config.lr - config.lr_min
    if config.schedule == "linear":
        return config.lr - fall * share
    if config.schedule == "cosine":
        return config.lr_min + fall * 0.5 * (1 + math.cos(math.pi * share))
    passed = sum(done >= m * length for m in config.milestones)
    return config.lr * config.gamma**passed
