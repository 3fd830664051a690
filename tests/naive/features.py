"""Slow twins of terms on features: one direction, one point at a time."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tests.naive.lifecycle import word


def direction(seed: int, place: int, head: int, width: int) -> list[float]:
    """Return a direction of U(−1/√d, 1/√d), from the hash of its entries' places."""
    words = [word(0, seed, place, head, j) for j in range(width)]
    return [((w % 2**64 >> 40) * 2.0**-23 - 1) / width**0.5 for w in words]


def infer(now: Tensor, then: Tensor, coef: float, beta: float, heads: int, seed: int) -> Tensor:
    """coef · Σᵢ meanₓ (⟨wᵢ, φ(x)⟩ − β⟨wᵢ, φ₀(x)⟩)² of features (samples, width)."""
    total = torch.zeros((), dtype=now.dtype)
    for i in range(heads):
        w = torch.tensor(direction(seed, 0, i, now.shape[1]), dtype=now.dtype)
        total = total + ((now - beta * then) @ w).square().mean()
    return coef * total


def isotropic(features: Tensor, coef: float, slices: int, seed: int, update: int) -> Tensor:
    """coef · mean |φ(t) − exp(−t²/2)|² of features (samples, width)."""
    total = torch.zeros((), dtype=features.dtype)
    for i in range(slices):
        drawn = [normal(word(0, seed, update, 0, i, j)) for j in range(features.shape[1])]
        a = torch.tensor(drawn, dtype=features.dtype)
        along = features @ (a / a.norm())
        for k in range(8):
            t = -5 + 10 * k / 7
            real = torch.cos(t * along).mean() - math.exp(-(t**2) / 2)
            imaginary = torch.sin(t * along).mean()
            total = total + (real**2 + imaginary**2) / (8 * slices)
    return coef * total


def normal(key: int) -> float:
    """Box & Muller 1958, from two words that a word seeds."""
    u, v = ((word(key, number) >> 11) * 2.0**-53 for number in range(2))
    return math.sqrt(-2 * math.log1p(-u)) * math.cos(2 * math.pi * v)


def last_features(module: nn.Module, x: Tensor) -> Tensor:
    """What a plain network's last linear layer reads: found by its inputs to that layer."""
    layers = [m for m in module.modules() if hasattr(m, "weight") and not _between(m)]
    seen: list[Tensor] = []
    handle = layers[-1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    module.eval()(x)
    module.train()
    handle.remove()
    return seen[0]


def _between(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ or isinstance(module, nn.Embedding)


def lost_rank(features: Tensor) -> float:
    """m − exp(−Σ p log p) of the singular values' shares p, in float64."""
    sizes = np.linalg.svd(features.detach().double().flatten(1).numpy(), compute_uv=False)
    shares = [s / sizes.sum() for s in sizes if s > 0]
    return len(sizes) - math.exp(-sum(p * math.log(p + 1e-8) for p in shares))


def read_by(module: nn.Module, paths: Sequence[str], x: Tensor) -> list[Tensor]:
    """What layers of a plain network read, in evaluation mode."""
    return _seen(module, paths, x, outputs=False)


def given_by(module: nn.Module, paths: Sequence[str], x: Tensor) -> list[Tensor]:
    """What layers of a plain network give, in evaluation mode."""
    return _seen(module, paths, x, outputs=True)


def _seen(module: nn.Module, paths: Sequence[str], x: Tensor, outputs: bool) -> list[Tensor]:
    seen: list[Tensor] = []
    handles = [
        module.get_submodule(path).register_forward_hook(
            lambda _, args, out: seen.append(out if outputs else args[0])
        )
        for path in paths
    ]
    module.eval()(x)
    module.train()
    for handle in handles:
        handle.remove()
    return seen
