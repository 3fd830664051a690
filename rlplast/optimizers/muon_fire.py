"""Muon as FIRE's official code has it: for convolutions and tokens too, at a rate of its own."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import always
from rlplast.core.network.order import last_layers
from rlplast.core.validation import Betas, Names
from rlplast.optimizers.factories import Groups, Momentum, NewtonSteps, optimizer, split

__all__ = ["FireMuon"]

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the quintic, Jordan et al. 2024


class FireMuon(Optimizer):
    """Move tensors along their orthogonalised momentum.

    With gradient g: m ← μm + (1 − μ)g, d = μm + (1 − μ)g, O = d orthogonalised in bfloat16, and
    θ ← (1 − ηλ)θ − η·√max(1, a/b)·O with η = `ratio`·lr, μ the `momentum` and λ the
    `weight_decay`. a and b are the tensor's last two dimensions. A kernel of four dimensions is
    orthogonalised as (C_out, C_in·kh·kw), but its a and b are kh and kw. Other tensors are batches
    of matrices over their last two dimensions. Weights without a gradient stay.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        ratio: float = 10.0,
        momentum: float = 0.95,
        ns_steps: int = 5,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "ratio": ratio, "momentum": momentum, "ns_steps": ns_steps}
        super().__init__(params, defaults | {"weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update once; `closure`, if given, computes gradients anew and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            rate, beta = group["ratio"] * group["lr"], group["momentum"]
            for p in (p for p in group["params"] if p.grad is not None):
                if not self.state[p]:
                    self.state[p] = {"momentum_buffer": torch.zeros_like(p)}
                mean = self.state[p]["momentum_buffer"].lerp_(p.grad, 1 - beta)
                ahead = p.grad.lerp(mean, beta)
                move = orthogonalised(ahead.flatten(1) if p.ndim == 4 else ahead, group["ns_steps"])
                move *= max(1, p.shape[-2] / p.shape[-1]) ** 0.5
                p.mul_(1 - rate * group["weight_decay"])
                p.add_(move.reshape(p.shape), alpha=-rate)
        return loss


def orthogonalised(matrices: Tensor, steps: int) -> Tensor:
    """Return U Vᵀ of matrices (…, n, m) as nearly as Muon's iteration comes to it, in bfloat16."""
    x = matrices.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + (_C * gram) @ gram) @ x
    return x if wide else x.mT


@optimizer(
    "muon_fire",
    source="Han et al. 2026, FIRE; its code, vision/train.py and interventions/muon.py",
    state={FireMuon: {"momentum_buffer": always}},
)
def muon_fire(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    head: Names | None = None,
    ratio: PositiveFloat = 10.0,
    momentum: Momentum = 0.95,
    ns_steps: NewtonSteps = 5,
    betas: Betas = (0.9, 0.95),
    eps: PositiveFloat = 1e-10,
) -> list[Optimizer]:
    """Muon as in FIRE's code, at `ratio` times the rate; AdamW on the head, biases and norms."""
    head_parameters = _of_head(Network("model", module), head)
    matrices = split(groups, lambda p: p.ndim >= 2 and p not in head_parameters)
    rest = split(groups, lambda p: p.ndim < 2 or p in head_parameters)
    made: list[Optimizer] = []
    if matrices:
        made.append(FireMuon(matrices, lr, ratio, momentum, ns_steps))
    if rest:
        made.append(AdamW(rest, lr=lr, betas=betas, eps=eps, fused=True))
    return made


def _of_head(network: Network, head: Sequence[str] | None) -> set[Tensor]:
    """Return the parameters of the head."""
    layers = dict.fromkeys(block.path for block in network.blocks)
    chosen = set(last_layers(network)) if head is None else set()
    for glob in head or ():
        matches = {layer for layer in layers if fnmatchcase(layer, glob)}
        if not matches:
            raise ConfigError(
                f"muon_fire.head: {glob!r} matches no layer: {did_you_mean(glob, layers)}"
            )
        chosen |= matches
    return {block.param for block in network.blocks if block.path in chosen}
