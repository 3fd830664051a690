"""Optimizers as their papers write them: weight by weight, in plain Python numbers."""

import math
from collections.abc import Sequence

from scipy.special import erfi

__all__ = ["NaiveAdamRel", "NaiveTrac", "NaiveUPGD"]


class NaiveUPGD:
    """Elsayed & Mahmood 2024, Algorithm 1, of a list of weights that share one maximum."""

    def __init__(self, beta: float, lr: float, weight_decay: float) -> None:
        self.beta, self.lr, self.weight_decay = beta, lr, weight_decay
        self.utility: list[float] = []
        self.updates = 0

    def step(
        self, weights: Sequence[float], gradients: Sequence[float], noise: Sequence[float]
    ) -> list[float]:
        """Return the weights after an update; `noise` is ξ."""
        self.utility = self.utility or [0.0] * len(weights)
        self.updates += 1
        hats = []
        for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            self.utility[i] = self.beta * self.utility[i] + (1 - self.beta) * (-g * w)
            hats.append(self.utility[i] / (1 - self.beta**self.updates))
        eta = max(hats)
        moved = []
        for w, g, xi, hat in zip(weights, gradients, noise, hats, strict=True):
            scaled = 1 / (1 + math.exp(-hat / eta)) if eta > 0 else 0.5
            kept = (1 - self.lr * self.weight_decay) * w
            moved.append(kept - self.lr * (g + xi) * (1 - scaled))
        return moved


class NaiveAdamRel:
    """Adam of one weight whose t starts anew: Kingma & Ba 2015, Ellis et al. 2024."""

    def __init__(self, lr: float, weight_decay: float = 0.0) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self.m = self.v = 0.0
        self.t = 0

    def restart(self) -> None:
        self.t = 0

    def step(self, weight: float, gradient: float) -> float:
        """Return the weight after an update; it decays beside the gradient."""
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return (1 - self.lr * self.weight_decay) * weight - self.lr * m / (math.sqrt(v) + 1e-8)


class NaiveTrac:
    """Muppidi et al. 2024, Algorithms 1 and 2 as in their code, around given moves."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.reference = list(weights)
        self.betas = [0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999]
        self.v, self.sigma, self.s = [0.0] * 6, [1e-8] * 6, [0.0] * 6

    def step(
        self, weights: Sequence[float], gradients: Sequence[float], moves: Sequence[float]
    ) -> list[float]:
        """Return the weights after an update; `moves` are what the base optimizer would do."""
        total = sum(self.s) + 1e-8
        delta = [(w - r) / total for w, r in zip(weights, self.reference, strict=True)]
        h = sum(d * g for d, g in zip(delta, gradients, strict=True))
        for j, beta in enumerate(self.betas):
            self.v[j] = beta**2 * self.v[j] + h**2
            self.sigma[j] = beta * self.sigma[j] - h
            argument = self.sigma[j] / (math.sqrt(2) * math.sqrt(self.v[j]) + 1e-8)
            self.s[j] = 1e-8 / erfi(1 / math.sqrt(2)) * erfi(argument)
        scale = max(sum(self.s), 0.0)
        return [r + scale * (d + u) for r, d, u in zip(self.reference, delta, moves, strict=True)]
