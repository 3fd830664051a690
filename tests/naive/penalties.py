"""Slow twins of the penalties: loops over the matrices and rows of a module, one by one.

Written from the published formulas alone. Which tensor is which is read off the module types,
not off Blocks; gradients are autograd's.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "l2_init_twin",
    "l2_twin",
    "parseval_twin",
    "persistent_twin",
    "spectral_twin",
    "wasserstein_twin",
]


def l2_twin(module: nn.Module, start: nn.Module, coef: float) -> Tensor:
    """λ/2 Σ θ² over every parameter; `parameters` yields a tied one once."""
    return sum((coef / 2 * (p * p).sum() for p in module.parameters()), torch.zeros(()))


def l2_init_twin(module: nn.Module, start: nn.Module, coef: float) -> Tensor:
    """λ/2 Σ (θ − θ0)², θ0 in a module of the same kind."""
    pairs = zip(module.parameters(), start.parameters(), strict=True)
    return sum((coef / 2 * ((p - q.detach()) ** 2).sum() for p, q in pairs), torch.zeros(()))


def parseval_twin(module: nn.Module, start: nn.Module, coef: float, scale: float) -> Tensor:
    """λ Σ_W Σ_ij (w_i · w_j − s δ_ij)² over pairs of rows."""
    total = torch.zeros(())
    for matrix in matrices(module):
        for i, row in enumerate(matrix):
            wanted = [0.0] * i + [scale] + [0.0] * (len(matrix) - i - 1)
            total = total + coef * ((matrix @ row - row.new_tensor(wanted)) ** 2).sum()
    return total


def wasserstein_twin(module: nn.Module, start: nn.Module, coef: float) -> Tensor:
    """λ Σ_l 1/n Σ_i (θ_(i) − θ0_(i))², the i-th smallest entry beside the i-th smallest."""
    total = torch.zeros(())
    for (_, now), (_, then) in zip(pieces(module), pieces(start), strict=True):
        entries, wanted = now.flatten(), now.new_tensor(sorted(then.flatten().tolist()))
        smallest_first = np.argsort(entries.detach().numpy(), kind="stable")
        total = total + coef * (entries[smallest_first] - wanted).square().mean()
    return total


def persistent_twin(
    module: nn.Module,
    start: nn.Module,
    coef: float,
    past: Sequence[nn.Module] = (),
    norm_power: int = 1,
) -> Tensor:
    """λ Σ_k Σ_l |⟨Θ_k^l, θ^l⟩| / ‖Θ_k^l‖^p, the past solutions modules of the same kind."""
    mine = weight_and_bias(module)
    total = sum((0 * p.sum() for pair in mine for p in pair if p is not None), torch.zeros(()))
    for solution in past:
        for (weight, bias), (old, old_bias) in zip(mine, weight_and_bias(solution), strict=True):
            inner, square = (weight * old).sum(), float(old.detach().square().sum())
            if bias is not None and old_bias is not None:
                inner = inner + (bias * old_bias).sum()
                square += float(old_bias.detach().square().sum())
            total = total + coef * inner.abs() / square ** (norm_power / 2)
    return total


def weight_and_bias(module: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
    """Return weight and bias of every linear and conv layer that is tied to no embedding."""
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    found: list[tuple[Tensor, Tensor | None]] = []
    for layer in module.modules():
        weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
        if isinstance(layer, nn.MultiheadAttention):
            packed = zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
            found += list(packed)
        elif weight is None or id(weight) in embeddings or weight.ndim < 2:
            continue
        elif isinstance(layer, nn.Embedding):
            continue
        elif getattr(layer, "packed", False):
            found += list(zip(weight.chunk(3), bias.chunk(3), strict=True))  # type: ignore[union-attr]
        elif type(layer).__name__.startswith("Stacked"):
            found += list(zip(weight, bias, strict=True))  # type: ignore[arg-type]
        else:
            found.append((weight, bias))
    return found


def spectral_twin(module: nn.Module, start: nn.Module, coef: float, power: int) -> Tensor:
    """λ Σ (σ^k − 1)² + ‖b‖^(2k); (γ^k − 1)² + β^(2k), before the first update.

    σ = uᵀWv, with u the start's own left singular vector and v the unit vector along Wᵀu.
    """
    total = torch.zeros(())
    for (role, now), (_, then) in zip(pieces(module), pieces(start), strict=True):
        if role == "weight":
            matrix, first = now.reshape(len(now), -1), then.detach().reshape(len(then), -1)
            u = np.linalg.svd(first.numpy())[0][:, 0]
            v = matrix.detach().numpy().T @ u
            sigma = torch.tensor(u) @ matrix @ torch.tensor(v / np.linalg.norm(v))
            total = total + coef * (sigma**power - 1) ** 2
        elif role == "bias":
            total = total + coef * (now * now).sum() ** power
        elif role in ("scale", "shift"):
            for entry in now.flatten():
                total = total + coef * (entry**power - float(role == "scale")) ** 2
    return total


def pieces(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (role, tensor) of every parameter; packed and stacked ones part by part."""
    seen: set[int] = set()
    for layer in module.modules():
        kind = type(layer).__name__
        for name, param in layer._parameters.items():
            if param is None or id(param) in seen:
                continue
            seen.add(id(param))
            role = "weight" if "weight" in name else "bias"
            role = {"weight": "scale", "bias": "shift"}[role] if "Norm" in kind else role
            role = "embedding" if isinstance(layer, nn.Embedding) else role
            parts = [param]
            if name.startswith("in_proj") or getattr(layer, "packed", False):
                parts = list(param.chunk(3))
            elif kind.startswith("Stacked"):
                parts = list(param)
            elif getattr(layer, "stored_transposed", False) and param.ndim == 2:
                parts = [param.T]
            yield from ((role, part) for part in parts)


def matrices(module: nn.Module) -> list[Tensor]:
    """The weight matrices of linear and conv layers that are tied to no embedding."""
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    found: list[Tensor] = []
    for layer in module.modules():
        weight = layer._parameters.get("weight")
        if isinstance(layer, nn.MultiheadAttention):
            found += list(layer.in_proj_weight.chunk(3))
        elif weight is None or id(weight) in embeddings:
            continue
        elif isinstance(layer, nn.Conv2d):
            per_group = weight.shape[0] // layer.groups
            found += [part.flatten(1) for part in weight.split(per_group)]
        elif getattr(layer, "packed", False):
            found += list(weight.chunk(3))
        elif getattr(layer, "stored_transposed", False):
            found.append(weight.T)
        elif weight.ndim == 3:  # a stack
            found += list(weight)
        elif isinstance(layer, nn.Linear):
            found.append(weight)
    return found
