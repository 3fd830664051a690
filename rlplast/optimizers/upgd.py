"""Utility-based perturbed gradient descent: useful weights move and are perturbed less."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplast.core.network.optim_state import DRAWN, always, share, shared
from rlplast.core.rng import derive_seed
from rlplast.optimizers.factories import Groups, Momentum, optimizer

__all__ = ["UPGD"]


class UPGD(Optimizer):
    """First-order global UPGD, without the factor 2 that some versions give the learning rate.

    A weight θ with gradient g has the utility u ← βu + (1 − β)(−g·θ), û = u/(1 − β^t), and η is
    the largest û of all weights. Then θ ← (1 − lr·λ)θ − lr·(g + ξ)(1 − σ(û/η)), ξ ~ N(0, s²). Where
    η ≤ 0 every weight moves at ½ (ours). Weights without a gradient stay, and η leaves them out.
    β is `beta`, s `sigma`, λ `weight_decay`; noise is of `seed` and how many updates there were.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        beta: float = 0.999,
        sigma: float = 0.001,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "beta": beta, "sigma": sigma, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.seed = seed
        share(self, drawn=torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update once; `closure`, if given, computes gradients anew and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        groups = [([p for p in g["params"] if p.grad is not None], g) for g in self.param_groups]
        groups = [(params, group) for params, group in groups if params]
        utilities = [self._utilities(params, group["beta"]) for params, group in groups]
        drawn = shared(self)[DRAWN]
        drawn += 1
        if not groups:
            return loss
        largest = torch.stack([u.max() for of_group in utilities for u in of_group]).max()
        generator = torch.Generator(largest.device)
        generator.manual_seed(derive_seed(self.seed, "noise", int(drawn)))
        for (params, group), of_group in zip(groups, utilities, strict=True):
            for p, u in zip(params, of_group, strict=True):
                gate = 1 - torch.where(largest > 0, u / largest, 0.0).sigmoid_()
                noise = torch.randn(p.shape, dtype=p.dtype, device=p.device, generator=generator)
                move = noise.mul_(group["sigma"]).add_(p.grad).mul_(gate)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(move, alpha=group["lr"])
        return loss

    def _utilities(self, params: list[Tensor], beta: float) -> tuple[Tensor, ...]:
        """Count an update of parameters and return their û."""
        for p in params:
            if not self.state[p]:
                self.state[p] = {"step": torch.zeros(()), "avg_utility": torch.zeros_like(p)}
        averages = [self.state[p]["avg_utility"] for p in params]
        torch._foreach_mul_(averages, beta)
        gradients = [p.grad for p in params if p.grad is not None]
        torch._foreach_addcmul_(averages, gradients, params, value=beta - 1)
        for p in params:
            self.state[p]["step"] += 1
        corrections = [1 - beta ** float(self.state[p]["step"]) for p in params]
        return torch._foreach_div(averages, corrections)


@optimizer(
    "upgd",
    source="Elsayed & Mahmood 2024, Algorithm 1, eq. 3; upgd, first_order.py",
    state={UPGD: {"step": always, "avg_utility": always}},
)
def upgd(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    beta: Momentum = 0.999,
    sigma: NonNegativeFloat = 0.001,
) -> Optimizer:
    """UPGD: useless weights move at half the rate and get noise; useful ones less of both."""
    return UPGD(groups, lr, beta, sigma)
