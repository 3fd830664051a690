"""A run's optimizer and learning rate, from the section ``optimizer:`` of its config.

- `OptimizerConfig`: the section.
- `Updater`: the optimizers it asks for, of one module.
- `lr_at`: the learning rate as a pure function of the place in a phase.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from rlplast.core.captured import refuse_capture
from rlplast.core.errors import ConfigError
from rlplast.core.registry import check_fields, check_range, checked, get, param, rows
from rlplast.core.rng import derive_seed

__all__ = ["OptimizerConfig", "Updater", "lr_at"]

_CAPTURED = (Adam, AdamW, SGD, RMSprop)  # with a learning rate on the device
_CONSTANTS = ("betas", "eps", "weight_decay")  # of a parameter group, for `adam_step`


@dataclass
class OptimizerConfig:
    """The optimizer and its learning rate; warm-up and schedule start anew at every phase.

    Attributes:
        name: adam, adamw, sgd, upgd or another of ``rlplast list optimizers``.
        lr: largest learning rate per update.
        weight_decay: strength of weight decay. adam, sgd and rmsprop add it to the gradient; others
            decouple it.
        decay: which tensors decay: all, or matrices (two dimensions or more).
        betas: two numbers, for adam, adamw, muon, muon_fire, schedule_free and trac; null for the
            optimizer's own default, see `rlplast list optimizers`.
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
    lr: float = param(1e-3, "(0, inf)")
    weight_decay: float = param(0.0, "[0, inf)")
    decay: str = param("all", "all | matrices")
    betas: list[float] | None = None
    eps: float | None = param(None, "(0, inf)")
    momentum: float | None = param(None, "[0, 1)")
    params: dict[str, Any] = field(default_factory=dict)
    schedule: str = param("constant", "constant | linear | cosine | step")
    warmup: float = param(0.0, "[0, 1]")
    warmup_end: str = param("after", "after | inside")
    warmup_max: int | None = param(None, "[1, inf)")
    lr_min: float = param(0.0, "[0, inf)")
    milestones: list[float] = field(default_factory=list)
    gamma: float = param(0.1, "(0, 1]")
    stepped: str = param("update", "update | epoch")
    clip_norm: float | None = param(None, "(0, inf)")
    renew: bool = False
    first_phase: str | None = None

    def check(self) -> None:
        """Check values against their ranges and against each other.

        Raises:
            ConfigError: naming key, value and what is allowed.
        """
        known = get("optimizers", self.name).params
        own = {name: p["default"] for name, p in known.items()} | self.own_params()
        if own.get("nesterov") and own.get("momentum") == 0:
            raise ConfigError(
                f"optimizer.params.nesterov = {own['nesterov']}: it needs a momentum above 0, such "
                "as optimizer.momentum = 0.9"
            )
        check_fields(self, "optimizer.")
        if self.first_phase is not None:
            get("optimizers", self.first_phase)
        if self.betas is not None and len(self.betas) != 2:
            raise ConfigError(f"optimizer.betas = {self.betas}: allowed are two numbers in [0, 1)")
        for beta in self.betas or ():
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
        """Refuse an optimizer of the first phase.

        Args:
            why: why the run has none.

        Raises:
            ConfigError: if there is one.
        """
        if self.first_phase is not None:
            raise ConfigError(
                f"optimizer.first_phase = {self.first_phase!r}: {why}; allowed is null"
            )

    @property
    def compiles(self) -> bool:
        """Whether its step compiles with the rest of an update: of adam and adamw it does."""
        return self.name in ("adam", "adamw")

    def own_params(self) -> dict[str, Any]:
        """Return the optimizer's own parameters, checked; keys it does not have are left out.

        Raises:
            ConfigError: if the optimizer or one of `params` is unknown, out of range, or a key of
                the section too.
        """
        known = get("optimizers", self.name).params
        betas = None if self.betas is None else tuple(self.betas)
        shared = {"betas": betas, "eps": self.eps, "momentum": self.momentum}
        said = {k: v for k, v in shared.items() if k in known and v is not None}
        for key in said.keys() & self.params.keys():
            raise ConfigError(
                f"optimizer.{key} = {said[key]} and optimizer.params.{key} = {self.params[key]!r}: "
                "they are one parameter, give it once"
            )
        return said | checked("optimizers", self.name, self.params)


class Updater:
    """The optimizers of a module, and what an update does with them.

    Args:
        config: what they are.
        module: its trainable parameters are updated, tied ones once.
        seed: of the noise of optimizers that draw some.

    Attributes:
        optimizers: one, or several that share the parameters; others from `begin` on.
    """

    def __init__(self, config: OptimizerConfig, module: nn.Module, seed: int = 0) -> None:
        self.config = config
        self._module, self._seed = module, seed
        self._parameters = parameters = [p for p in module.parameters() if p.requires_grad]
        # For compiled and captured updates: a number would stay as it was then.
        self._lr = torch.zeros((), device=parameters[0].device if parameters else None)
        self._first = False
        self._make()
        if config.first_phase is not None:  # what is wrong with `name` is said before it begins
            self._first = True
            self._make()

    def begin(self, phase: int) -> bool:
        """Have the optimizers of a phase, from 0; say whether they are new ones."""
        if self._first == (phase == 0 and self.config.first_phase is not None):
            return False
        self._first = not self._first
        self._make()
        return True

    def _make(self) -> None:
        self._set: float | None = None  # the learning rate of all groups, once it is set
        config, parameters = self.config, self._parameters
        groups: list[dict[str, Any]] = [{"params": parameters, "weight_decay": config.weight_decay}]
        if config.decay == "matrices":
            groups[0]["params"] = [p for p in parameters if p.ndim >= 2]
            rest = [p for p in parameters if p.ndim < 2]
            groups += [{"params": rest, "weight_decay": 0.0}] if rest else []
        name = config.first_phase if self._first and config.first_phase else config.name
        self._name = name
        params = {} if self._first else config.own_params()
        made = get("optimizers", name).target(self._module, groups, config.lr, **params)
        self.optimizers: list[torch.optim.Optimizer] = made if isinstance(made, list) else [made]
        for number, optimizer in enumerate(self.optimizers):
            if hasattr(optimizer, "seed"):
                vars(optimizer)["seed"] = derive_seed(self._seed, "optimizer", number)
        if self.captures and self._lr.is_cuda:
            for group in (g for optimizer in self.optimizers for g in optimizer.param_groups):
                group["lr"] = self._lr  # captured or not, so that both have the same bits
        self._groups: list[tuple[torch.optim.Optimizer, list[Tensor], dict[str, Any]]] = [
            (optimizer, list(group["params"]), {key: group.get(key) for key in _CONSTANTS})
            for optimizer in self.optimizers
            for group in optimizer.param_groups
        ]

    @property
    def captures(self) -> bool:
        """Whether its step can be part of a CUDA graph."""
        return all(type(o) in _CAPTURED for o in self.optimizers)

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def set_lr(self, done: int, length: int) -> None:
        """Set the learning rate `lr_at` a place, in place where it is a tensor."""
        lr = lr_at(self.config, done, length)
        if lr == self._set:
            return
        self._set = lr
        self._lr.fill_(lr)
        for group in (g for optimizer in self.optimizers for g in optimizer.param_groups):
            if not isinstance(group["lr"], Tensor):
                group["lr"] = lr
            elif group["lr"] is not self._lr:
                group["lr"].fill_(lr)

    def minimise(self, loss: Tensor) -> None:
        """Update once along the gradient of a loss."""
        if torch.compiler.is_compiling():
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            self._compiled_step(gradients)
        else:
            self.zero_grad()
            loss.backward()
            self.step()

    @torch.no_grad()
    def _compiled_step(self, gradients: Sequence[Tensor | None]) -> None:
        found = zip(self._parameters, gradients, strict=True)
        of = self._clipped({p: gradient for p, gradient in found if gradient is not None})
        decoupled = self.config.name == "adamw"
        rows = [(p, o.state[p], c) for o, own, c in self._groups for p in own if p in of]
        corrections = adam_corrections([(state["step"], c["betas"]) for _, state, c in rows])
        for (p, state, constants), of_row in zip(rows, corrections, strict=True):
            adam_step(p, of[p], state, constants, of_row, self._lr, decoupled)

    def _clipped(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        if self.config.clip_norm is None:
            return gradients
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients.values()]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        factor = (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        return {p: gradient * factor for p, gradient in gradients.items()}

    def step(self) -> None:
        """Update once along the gradients there are."""
        if not self.captures:
            refuse_capture(f"optimizer {self._name} steps on the host")
        self.clip()
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def clip(self) -> None:
        """Scale gradients down to a norm of at most `clip_norm`, if there is one."""
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.config.clip_norm)


def adam_corrections(rows: Sequence[tuple[Tensor, Sequence[float]]]) -> Tensor:
    """Count an update in steps, and return what the biases of Adam's two means are divided by.

    They are stacked, because compiled code then computes them once; left to `adam_step`, it would
    compute them for every 16 weights, in three quarters of its time.

    Args:
        rows: of each parameter, its number of steps, 0-d, which grows by one, and its betas.

    Returns:
        1 − βᵗ of both betas, (parameters, 2).
    """
    found = []
    for step, betas in rows:
        step.add_(1)
        # 1 − βᵗ; subtracting in float32 would leave four digits of it at β = 0.999.
        found += [-torch.expm1(step * math.log(max(beta, 1e-45))) for beta in betas]
    return torch.stack(found).view(-1, 2)


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    constants: Mapping[str, Any],
    corrections: Tensor,
    lr_per_update: Tensor,
    decoupled: bool,
) -> None:
    """Take a step of Adam or AdamW in place, as torch's fused kernels do.

    Source: Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019, Algorithm 2.

    Args:
        parameter: what is updated.
        gradient: of its shape.
        state: torch's own: exp_avg and exp_avg_sq.
        constants: betas, eps, weight_decay.
        corrections: its row of `adam_corrections`, (2,).
        lr_per_update: the learning rate, 0-d.
        decoupled: whether the weight decays beside the gradient (AdamW), not in it (Adam).
    """
    (beta1, beta2), decay = constants["betas"], constants["weight_decay"]
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    if decay and decoupled:
        parameter.mul_(1 - lr_per_update * decay)
    elif decay:
        gradient = gradient + decay * parameter
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    first, second = corrections.unbind()
    size = square.sqrt() / second.sqrt() + constants["eps"]
    parameter.sub_(lr_per_update / first * mean / size)


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
