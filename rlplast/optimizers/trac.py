"""TRAC: tunes how far from where it began a base optimizer may take the weights."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplast.core.errors import ConfigError
from rlplast.core.network.optim_state import always, share, shared
from rlplast.core.registry import get
from rlplast.core.validation import Betas
from rlplast.optimizers.factories import Groups, Momentum, optimizer

__all__ = ["Trac", "erfi"]

BETAS = tuple(1 - 10.0**-i for i in range(1, 7))  # .9 to .999999
START = 1e-8  # s_prev, and σ before the first update
EPS = 1e-8
NEAR = 10.0  # up to which `erfi` is a sum without cancellation
Base = Literal["adam", "adamw", "sgd", "rmsprop"]


def erfi(x: Tensor) -> Tensor:
    """Return 2/√π ∫ exp(t²) dt from 0 to x, in the precision of x; infinite where SciPy's is.

    Up to |x| = 10 it is Rybicki's sum 4/π Σ exp(−(nh)²) sinh(2xnh)/n over odd n > 0, here with
    h = ¼; from there on the asymptotic series exp(x²)/(√π x) Σ (2k − 1)!!/(2x²)ᵏ.
    """
    exact = x.double()
    size = exact.abs()
    n = torch.arange(1, 65, 2, dtype=exact.dtype, device=x.device)
    inner = exact.clamp(-NEAR, NEAR).unsqueeze(-1)
    terms = torch.exp(-((n / 4) ** 2)) * torch.sinh(inner * n / 2) / n
    near = 4 / math.pi * terms.sum(-1)
    outer = size.clamp(NEAR, 27)  # exp(27²) is infinite, and 27 is not
    series = torch.ones_like(outer)
    for k in range(12, 0, -1):
        series = 1 + (2 * k - 1) / (2 * outer**2) * series
    far = torch.exp(outer**2) * (series / (math.sqrt(math.pi) * outer))
    return torch.where(size <= NEAR, near, torch.copysign(far, exact)).to(x.dtype)


UNIT = START / float(erfi(torch.tensor(0.5, dtype=torch.float64).sqrt()))


class Trac(Optimizer):
    """The move u of `base`, whose parameters and state it takes over, as six tuners scale it.

    With d = θ − θref, g the gradient and S = Σs of the update before (0 at first),
    h = Σ⟨d, g⟩/(S + ε) over all parameters. For each β then v ← β²v + h², σ ← βσ − h from 1e-8 on,
    and s = 1e-8·erfi(σ/(√2·√v + ε))/erfi(1/√2). Last, θ ← θref + max(Σs, 0)·(d/(S + ε) + u).

    Once Σs is negative, no later gradient moves the weights from the reference, in the authors'
    code too. The state is the distance d (ours): an edit of a weight moves the reference too.
    """

    def __init__(self, base: Optimizer) -> None:
        super().__init__(base.param_groups, base.defaults)
        self.base, self.param_groups, self.state = base, base.param_groups, base.state
        device = self.param_groups[0]["params"][0].device
        self._betas = torch.tensor(BETAS, dtype=torch.float64, device=device)
        tuners = {name: torch.zeros_like(self._betas) for name in ("v", "sigma", "s")}
        share(self, updates=torch.zeros((), dtype=torch.int64, device=device), **tuners)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update once; `closure`, if given, computes gradients anew and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        self.base.param_groups, self.base.state = self.param_groups, self.state  # if loaded
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        distances = [self._distance(p) for p in params]
        before = [p.clone() for p in params]
        last = shared(self)["s"].sum() + EPS
        h = torch.zeros_like(last)
        for p, distance in zip(params, distances, strict=True):
            h += (distance * p.grad).sum(dtype=torch.float64) / last
        self.base.step()
        scale = self._tune(h).clamp(min=0)
        for p, old, distance in zip(params, before, distances, strict=True):
            new = (distance / last + (p - old)) * scale
            p.copy_(old + (new - distance))
            distance.copy_(new)
            self.state[p]["distance"] = distance  # after the base's own, which it makes if empty
        return loss

    def _distance(self, p: Tensor) -> Tensor:
        distance = self.state[p].get("distance")
        return torch.zeros_like(p) if distance is None else distance

    def _tune(self, h: Tensor) -> Tensor:
        """Return the new Σs."""
        v, sigma, s, updates = (shared(self)[name] for name in ("v", "sigma", "s", "updates"))
        v.mul_(self._betas**2).add_(h**2)
        sigma.copy_(torch.where(updates > 0, sigma, START)).mul_(self._betas).sub_(h)
        s.copy_(UNIT * erfi(sigma / (math.sqrt(2) * v.sqrt() + EPS)))
        updates += 1
        return s.sum()


@optimizer(
    "trac",
    source="Muppidi, Zhang & Yang 2024, Fast TRAC, Algorithms 1 and 2; TRAC, trac.py",
    state={Trac: {"distance": always}},
)
def trac(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    base: Base = "adam",
    betas: Betas | None = None,
    eps: PositiveFloat | None = None,
    momentum: Momentum | None = None,
) -> Optimizer:
    """TRAC: tunes how far a base optimizer moves the weights from their start."""
    info, options = get("optimizers", base), {"betas": betas, "eps": eps, "momentum": momentum}
    if momentum and "momentum" not in info.params:
        raise ConfigError(f"optimizer.momentum = {momentum}: trac's base {base} has none")
    given = {k: v for k, v in options.items() if v is not None and k in info.params}
    return Trac(info.target(module, groups, lr, **given))
