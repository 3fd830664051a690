"""The optimizers of a module, and what an update does with them: clip, step, set the rate."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from rlplast.core.device import refuse_capture
from rlplast.core.fast.adam import adam_corrections, adam_step
from rlplast.core.registry import get
from rlplast.core.rng import derive_seed
from rlplast.optimizers.config import OptimizerConfig, lr_at

__all__ = ["Updater", "minimise_together"]

_CAPTURED = (Adam, AdamW, SGD, RMSprop)  # with a learning rate on the device
_CONSTANTS = ("betas", "eps", "weight_decay")  # of a parameter group, for `adam_step`


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
        if config.first_phase is not None:  # what is wrong with `name` is an error before it begins
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
        pairs = zip(self._parameters, gradients, strict=True)
        of: dict[Tensor, Tensor] = {p: gradient for p, gradient in pairs if gradient is not None}
        if self.config.clip_norm is not None:
            factor = _factor(of.values(), self.config.clip_norm)
            of = {p: gradient * factor for p, gradient in of.items()}
        decoupled = self.config.name == "adamw"
        rows = [(p, o.state[p], c) for o, params, c in self._groups for p in params if p in of]
        corrections = adam_corrections([(state["step"], c["betas"]) for _, state, c in rows])
        for (p, state, constants), of_row in zip(rows, corrections, strict=True):
            adam_step(p, of[p], state, constants, of_row, self._lr, decoupled)

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


def minimise_together(
    updaters: Sequence[Updater], losses: Sequence[Tensor], clip_norm: float | None
) -> None:
    """Update several modules once, each along the gradient of its own loss.

    Args:
        updaters: of modules that share no parameter.
        losses: one for each.
        clip_norm: largest norm of all gradients together; None for no bound. Each module's own
            bound comes after it.
    """
    parameters = [p for updater in updaters for p in updater._parameters]
    if torch.compiler.is_compiling():
        loss = torch.stack(tuple(losses)).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        if clip_norm is not None:
            factor = _factor([g for g in gradients if g is not None], clip_norm)
            gradients = tuple(None if g is None else g * factor for g in gradients)
        for updater in updaters:
            count = len(updater._parameters)
            updater._compiled_step(gradients[:count])
            gradients = gradients[count:]
        return
    for parameter in parameters:
        parameter.grad = None
    torch.autograd.backward(losses)
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    for updater in updaters:
        updater.step()


def _factor(gradients: Iterable[Tensor], most: float) -> Tensor:
    """Return what scales gradients down to a norm of at most `most`, as torch does it."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    return (most / (norm + 1e-6)).clamp(max=1.0)
