"""PSGD Kron: gradients whitened by a Kronecker product of triangular matrices."""

import math
import random
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplast.core.network.optim_state import DRAWN, Whole, always, share, shared
from rlplast.core.optional import import_optional
from rlplast.core.rng import derive_seed, preserve_global_rng
from rlplast.optimizers.factories import Groups, Momentum, optimizer

__all__ = ["Kron"]

_LEARNS = "preconditioner_update_probability"  # the package's name of `_probability`


def _package() -> ModuleType:
    with warnings.catch_warnings():  # of torch's own compiler, which the package imports
        warnings.simplefilter("ignore")
        return import_optional("kron_torch.kron", "kron")


def _probability(updates: Tensor) -> Tensor:
    """Return how often the preconditioners learn: 1 for 500 updates, then falling to 0.03."""
    return torch.exp(-0.001 * (updates - 500)).clamp(0.03, 1.0)


def _matrix(shape: torch.Size) -> list[int]:
    """Return the shape in which the package sees a tensor: the more square of two matrices."""
    if len(shape) <= 2:
        return list(shape) or [1]
    rows, columns = math.prod(shape[:-1]), math.prod(shape[1:])
    wide, tall = [shape[0], columns], [rows, shape[-1]]
    return tall if tall[1] - tall[0] <= wide[1] - wide[0] else wide


def _factors(param: Tensor) -> tuple[list[Tensor], Any]:
    """Return new preconditioners of a parameter, identities, and how they are multiplied."""
    seen = param.new_empty(_matrix(param.shape))
    factors, products = _package()._init_Q_exprs(seen, 1.0, 8192, 2, None, dtype=torch.float32)
    return factors, products


def _new_q(param: Tensor, group: Mapping[str, Any]) -> Tensor:
    return torch.cat([factor.flatten() for factor in _factors(param)[0]])


def _new_step(param: Tensor, group: Mapping[str, Any]) -> Tensor:
    return torch.zeros((), dtype=torch.float64)


class Kron(Optimizer):
    """Kron of kron-torch with its defaults: its update of each parameter, and our state.

    The momentum m is preconditioned: P = QᵀQ with Q = Q₁ ⊗ Q₂, one triangular factor per dimension
    (diagonal for vectors and for more than 8192 entries); tensors of more than two dimensions are
    seen as the more square matrix. The move Pm is scaled down to a root mean square of at most
    1.1; decay is decoupled, and only of tensors of two dimensions or more. The factors lie one
    after the other in one tensor, ``Q``. Draws are of `seed` and how many updates there were.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-4,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "b1": momentum, "weight_decay": weight_decay})
        self.seed = seed
        self._kron = _package().Kron(self.param_groups)
        for group in self.param_groups:  # a function, of which no state is saved: `step` knows it
            del group[_LEARNS]
        self._products: dict[Tensor, Any] = {}
        counts = {name: torch.zeros((), dtype=torch.int32) for name in ("updates", "unlearned")}
        share(self, drawn=torch.zeros((), dtype=torch.int64), **counts)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update once; `closure`, if given, computes gradients anew and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        common, kron = shared(self), self._kron
        common[DRAWN] += 1
        seed = derive_seed(self.seed, "kron", int(common[DRAWN]))
        kron._prob_step, kron._update_counter = common["updates"], common["unlearned"]
        kron.rng, kron.param_groups = random.Random(seed), []
        kron.state.clear()
        for group in self.param_groups:
            seen = [self._seen(p, p.grad, group) for p in group["params"] if p.grad is not None]
            kron.param_groups.append(group | {"params": seen, _LEARNS: _probability})
        with preserve_global_rng(), torch.compiler.set_stance("force_eager"):
            torch.manual_seed(seed)
            kron.step()
        common["unlearned"].copy_(kron._update_counter)  # the package makes a new one at 0
        return loss

    def _seen(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> Tensor:
        """Return a parameter as the package can take it, its gradient and state beside it."""
        seen = p if p.ndim else p.view(1)  # which fails on tensors without a dimension
        seen.grad = grad.contiguous().view(seen.shape)
        state = self.state[p]
        if not state:
            state["step"], state["Q"] = _new_step(p, group), _new_q(p, group)
            state["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.contiguous_format)
        state["momentum_buffer"] = state["momentum_buffer"].contiguous()  # if it was allocated
        if p not in self._products:
            factors, products = _factors(p)
            self._products[p] = [factor.shape for factor in factors], products
        shapes, products = self._products[p]
        parts = state["Q"].split([shape.numel() for shape in shapes])
        self._kron.state[seen] = {
            "step": state["step"],
            "merged_shape": _matrix(p.shape),
            "momentum_buffer": state["momentum_buffer"].view(_matrix(p.shape)),
            "Q": [part.view(shape) for part, shape in zip(parts, shapes, strict=True)],
            "exprs": products,
        }
        return seen


@optimizer(
    "kron",
    source="Li 2018, Preconditioned stochastic gradient descent; kron-torch, kron.py",
    state={Kron: {"step": Whole(_new_step), "momentum_buffer": always, "Q": Whole(_new_q)}},
)
def kron(module: nn.Module, groups: Groups, lr: float, *, momentum: Momentum = 0.9) -> Optimizer:
    """PSGD Kron: momentum whitened by learned Kronecker factors (extra kron)."""
    return Kron(groups, lr, momentum)
