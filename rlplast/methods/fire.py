"""FIRE: Sec. 4, Algorithm 1 and Appendix A.2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from rlplast.core.device import refuse_capture
from rlplast.core.errors import BadWeights, ConfigError, NothingToEdit
from rlplast.core.fast.symmetric import HALVED, symmetric_product
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, method
from rlplast.core.method.once import plain
from rlplast.core.network.packing import UNKNOWN
from rlplast.metrics.weights import dfi_scaled, fire_scale, gram_gap, matrix_slices

__all__ = ["Fire", "fire", "orthogonalise"]

_Matrix = list[Block]  # one matrix: one Block, or the heads of a query, key or value
GRAM_ASPECT = 2  # from this ratio of the sides on, the small Gram matrix may take the work
EIGEN_COST = 20  # columns in which the eigenvalues of a Gram matrix cost as much as one iteration


def orthogonalise(slices: Tensor, iterations: int = 10, polynomial: str = "cubic") -> Tensor:
    """Move matrices towards their nearest orthogonal ones by Newton–Schulz.

    From X0 = W/‖W‖ each singular value σ goes to 1.5σ − 0.5σ³ (``cubic``, Algorithm 1) or
    2σ − 1.5σ³ + 0.5σ⁵ (``quintic``, Appendix A.2) per iteration; ``exact`` sets all to 1.
    Up to 20 iterations, X is within 1e-5 of float64 in spectral norm (measured: 3.4e-6). In longer
    runs rounding grows in the null directions of low-rank matrices, in float64 too.

    Args:
        slices: finite, non-zero matrices, shape (batch, d_out, d_in) or (d_out, d_in).
        iterations: number of Newton–Schulz steps; unused by ``exact``.
        polynomial: ``cubic``, ``quintic`` or ``exact``.

    Returns:
        A new tensor of the same shape in at least float32.
    """
    return _orthogonalised(slices, iterations, polynomial)[0]


def _orthogonalised(slices: Tensor, iterations: int, polynomial: str) -> tuple[Tensor, Tensor]:
    """Return the matrices of `orthogonalise`, and the Gram matrices WᵀW or WWᵀ it began with."""
    with torch.autocast("cpu", enabled=False):
        if slices.ndim == 2 or min(slices.shape[-2:]) < HALVED:
            return _in_one_go(slices, iterations, polynomial)
        pairs = [_in_one_go(one, iterations, polynomial) for one in slices]  # bits of each alone
        x, grams = zip(*pairs, strict=True)
        return torch.stack(x), torch.stack(grams)


def _in_one_go(slices: Tensor, iterations: int, polynomial: str) -> tuple[Tensor, Tensor]:
    """Return the same for one matrix, or for a stack of small ones."""
    longer, shorter = max(slices.shape[-2:]), min(slices.shape[-2:])
    # How many iterations, the last, may run in float32: in short runs all of them.
    short, late = (5, 4) if polynomial == "quintic" else (10, 7)
    steps = min(iterations, short if iterations <= short else late) if slices.is_cpu else 0
    far = longer >= GRAM_ASPECT * shorter and iterations * longer >= EIGEN_COST * shorter
    double = slices.dtype == torch.float64 or steps < iterations or polynomial == "exact" or far
    # A power of two changes no digit and keeps squares of extreme weights in range.
    exponent = _largest(slices).double().log2().floor()
    if double:
        x = slices.double() * torch.exp2(-exponent)
    else:
        x = slices.float() * torch.exp2(-exponent.clamp(-126, 126)).float()
    high = slices.shape[-2] > slices.shape[-1]
    x = x.mT if high else x  # at least as wide as high: a product with contiguous rows is faster
    gram = symmetric_product(x, x.mT)
    squared_norm = gram.diagonal(dim1=-2, dim2=-1).double().sum(-1)[..., None, None]
    before = gram * torch.exp2(2 * exponent).to(gram.dtype)
    if polynomial == "exact":
        u, _, vh = torch.linalg.svd(x, full_matrices=False)
        x = u @ vh
    elif far:
        x = _on_gram_side(x, gram, iterations, polynomial)
    else:
        x, gram = x / squared_norm.sqrt().to(x.dtype), gram / squared_norm.to(x.dtype)
        for i in range(iterations):
            if i == iterations - steps and slices.dtype != torch.float64:
                x, gram = x.float(), gram.float()
            x = _step(x, gram if i == 0 else symmetric_product(x, x.mT), polynomial)
    x = x if slices.dtype == torch.float64 else x.float()
    return x.mT if high else x, before


def _largest(slices: Tensor) -> Tensor:
    return slices.abs().amax((-2, -1), keepdim=True)


def _step(x: Tensor, gram: Tensor, polynomial: str) -> Tensor:
    if polynomial == "cubic":
        return (gram @ x).lerp_(x, 1.5)  # 1.5x − 0.5·gram·x
    inner = symmetric_product(gram, gram).mul_(0.5).sub_(gram, alpha=1.5)
    return (inner @ x).add_(x, alpha=2.0)


def _on_gram_side(x: Tensor, gram: Tensor, iterations: int, polynomial: str) -> Tensor:
    """Return P·X with P the product of all steps, a function of the Gram matrix XXᵀ alone."""
    norm = gram.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).sqrt()  # ‖X‖: X stays unscaled
    eigenvalues, vectors = torch.linalg.eigh(gram)
    # σ² of X/‖X‖; rounding makes null directions slightly negative.
    squared = eigenvalues.clamp(min=0) / norm.square()
    gain = 1 / norm.expand_as(squared)
    for _ in range(iterations):
        factor = 1.5 - 0.5 * squared
        if polynomial == "quintic":
            factor = 2.0 - 1.5 * squared + 0.5 * squared.square()
        gain = gain * factor
        squared = squared * factor.square()
    return ((vectors * gain.unsqueeze(-2)) @ vectors.mT) @ x


def _weight(slices: Tensor, shape: torch.Size, groups: int) -> Tensor:
    """Undo `matrix_slices`."""
    if len(shape) == 2:
        return slices.squeeze(0)
    return slices.unflatten(0, (groups, -1)).permute(0, 2, 3, 1).reshape(shape)


@method("fire", source="FIRE Sec. 4, Algorithm 1; Appendix A.2 (quintic)")
@dataclass(frozen=True)
class Fire(Method):
    """Replace each weight matrix by the nearest orthogonal one, scaled by √(d_out/d_in).

    Linear weights as one matrix, convs slice by slice with √(C_out/C_in)/(kh·kw), grouped convs
    per group; of a packed projection query, key and value are a matrix each. Heads are edited,
    tied tensors only with `include_tied`, and then once. The receipt says how close to orthogonal
    the result is (`dfi_after`).

    Attributes:
        iterations: Newton–Schulz steps (paper: 5 for GPT; official code elsewhere: 10).
        polynomial: ``cubic`` (Algorithm 1), ``quintic`` (Appendix A.2), ``exact`` (SVD).
        include_tied: whether tied tensors (a head tied to an embedding) are edited.
    """

    iterations: Annotated[int, Field(ge=1, le=1000)] = 10
    polynomial: Literal["cubic", "quintic", "exact"] = "cubic"
    include_tied: bool = False

    def setup(self, network: Network, blocks: Sequence[Block]) -> dict[str, Tensor]:
        """Keep no state; refuse a scope without a weight to orthogonalise."""
        for block in blocks:
            if block.spec.part == UNKNOWN:
                raise ConfigError(
                    f"fire: {network.qualified(block)} is packed, of several matrices, lies "
                    "transposed, or is none, and which is not known for a "
                    f"{type(block.module).__name__} of this name and size: give its module a "
                    "block_specs(), or leave it out of the scope"
                )
        if blocks and not any(self._edits(block) for block in blocks):
            raise NothingToEdit(
                f"fire finds no linear or conv weight in its scope of network {network.name!r} "
                "(tied ones count with include_tied)"
            )
        return {}

    def plan(self, context: Context, state: dict[str, Tensor]) -> list[Edit]:
        """Plan the projection of every weight in scope, layers of one shape together."""
        batches: dict[tuple[Any, ...], list[tuple[_Matrix, Tensor]]] = {}
        for matrix in _matrices([b for b in context.blocks if self._edits(b)]):
            slices = matrix_slices(_whole(matrix), matrix[0].groups)
            _refuse_bad(context.network.qualified(matrix[0]), slices)
            key = (slices.shape[1:], slices.dtype, slices.device)
            batches.setdefault(key, []).append((matrix, slices))
        edits: list[Edit] = []
        for batch in batches.values():
            stacked = torch.cat([slices for _, slices in batch])
            projected, grams = _orthogonalised(stacked, self.iterations, self.polynomial)
            sizes = [slices.shape[0] for _, slices in batch]
            parts = projected.split(sizes), grams.split(sizes)
            for (matrix, _), part, gram in zip(batch, *parts, strict=True):
                edits += _edits_of(matrix, part, gram)
        return edits

    def _edits(self, block: Block) -> bool:
        matrix = block.role == "weight" and block.kind in ("linear", "conv")
        tied_head = block.role == "embedding" and block.aliases and self.include_tied
        return bool((matrix and not block.aliases) or (matrix and self.include_tied) or tied_head)


def _matrices(blocks: Sequence[Block]) -> list[_Matrix]:
    """Return which Blocks are one matrix: the heads of a part that is stored head by head."""
    matrices: dict[tuple[str, str, int | None], _Matrix] = {}
    for block in blocks:
        part = block.spec.part.partition(".")[0]
        key = block.path, part or block.spec.tensor, block.spec.member
        matrices.setdefault(key, []).append(block)
    return list(matrices.values())


def _whole(matrix: _Matrix) -> Tensor:
    return matrix[0].view if len(matrix) == 1 else torch.cat([b.view for b in matrix])


def _edits_of(matrix: _Matrix, part: Tensor, gram: Tensor) -> list[Edit]:
    groups, shape = matrix[0].groups, _whole(matrix).shape
    scale = fire_scale(shape, groups)
    value, before = _weight(part, shape, groups) * scale, gram_gap(gram, scale)
    if len(matrix) == 1:
        return [Assign(matrix[0], value, dfi=lambda w: dfi_scaled(w, groups), dfi_before=before)]
    first, *others = zip(matrix, value.split([len(b.view) for b in matrix]), strict=True)
    # One distance for all heads, of what is in the weights when it is asked for.
    edit = Assign(*first, dfi=lambda w: dfi_scaled(_whole(matrix), groups), dfi_before=before)
    return [edit, *(Assign(block, rows) for block, rows in others)]


def _refuse_bad(name: str, slices: Tensor) -> None:
    refuse_capture("fire reads norms on the host")
    for index, largest in enumerate(_largest(slices).flatten().tolist()):
        if not 0 < largest < math.inf:  # not a number if any entry is none
            raise BadWeights(
                f"fire: {name} is {'not finite' if largest else 'zero'} (slice {index} of "
                f"{len(slices)}): a matrix has no nearest orthogonal one then; reset this layer "
                "(full_reset, head_reset) or leave it out of the scope"
            )


fire = plain(Fire)
"""Orthogonalise the weights of a model once, in place."""
