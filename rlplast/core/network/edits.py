"""Edits, and the one function that writes them.

Outside training, `write` alone writes weights (`swapped` for a while); `optim_state` resets the
state of optimizers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network

__all__ = [
    "Assign",
    "Edit",
    "Scale",
    "check",
    "masks",
    "put_back",
    "swapped",
    "tensor_of",
    "unmasked",
    "write",
]


@dataclass(frozen=True, eq=False)
class Assign:
    """Write `value` where `mask` holds, or to some rows or columns, or everywhere.

    Attributes:
        target: a Block, or a state tensor of a method.
        value: tensor of the target's shape; with `rows`, of those rows alone.
        mask: boolean tensor of the value's shape; None for all entries.
        dfi: distance from orthogonality of one weight; set by methods that orthogonalise, for
            receipts.
        dfi_before: the same of the weight before, 0-d, where planning computed it anyway.
        rows: which indices of `dim`, each once, are written; int64, shape (rows,).
        dim: the dimension of `rows`: 0 for rows, 1 for columns.
    """

    target: Block | Tensor
    value: Tensor
    mask: Tensor | None = None
    dfi: Callable[[Tensor], Tensor] | None = None
    dfi_before: Tensor | None = None
    rows: Tensor | None = None
    dim: int = 0

    def now(self) -> Tensor:
        """Return what the target holds where `value` goes."""
        view = tensor_of(self)
        return view if self.rows is None else view.index_select(self.dim, self.rows)


@dataclass(frozen=True, eq=False)
class Scale:
    """Multiply by one factor.

    Attributes:
        target: a Block, or a state tensor of a method.
        factor: 0-d tensor.
        norm: Frobenius norm of the target before, if the plan knows it.
    """

    target: Block | Tensor
    factor: Tensor
    norm: Tensor | None = None


Edit = Assign | Scale


def tensor_of(edit: Edit) -> Tensor:
    """Return the tensor that an edit writes to."""
    return edit.target.view if isinstance(edit.target, Block) else edit.target


def masks(edits: Sequence[Edit]) -> list[Tensor]:
    """Return the masks of edits of Blocks."""
    assigns = [e for e in edits if isinstance(e, Assign) and isinstance(e.target, Block)]
    return [e.mask for e in assigns if e.mask is not None]


def unmasked(edits: Sequence[Edit]) -> int:
    """Return how many entries of Blocks are written by edits without a mask."""
    return sum(
        e.value.numel() if isinstance(e, Assign) else e.target.view.numel()
        for e in edits
        if isinstance(e.target, Block) and not (isinstance(e, Assign) and e.mask is not None)
    )


def _label(network: Network, edit: Edit) -> str:
    if isinstance(edit.target, Block):
        return network.qualified(edit.target)
    return f"a state tensor of {network.name}"


def check(plans: Sequence[tuple[Network, Sequence[Edit]]]) -> None:
    """Check whole plans before the first write; one host synchronisation for all of them.

    Raises:
        ConfigError: if an edit does not fit its target, or a target is written twice.
        BadWeights: if a value is not finite or would not be, naming the tensors.
    """
    checked: list[tuple[str, Tensor | None]] = []  # what a flag is about: values, or rows
    flags: list[Tensor] = []
    for network, edits in plans:
        _check_form(network, edits)
        for edit in edits:
            label = _label(network, edit)
            checked.append((label, None))
            flags.append(_stays_finite(edit))
            if isinstance(edit, Assign) and edit.rows is not None:
                last = tensor_of(edit).shape[edit.dim] - 1
                checked.append((f"allowed is each of 0 to {last} once, of {label}", edit.rows))
                rows = edit.rows.sort().values
                flags.append(((rows >= 0) & (rows <= last)).all() & (rows.diff() > 0).all())
    if not flags:
        return
    good = torch.stack([flag.to(flags[0].device, non_blocking=True) for flag in flags]).tolist()
    bad = [which for which, fine in zip(checked, good, strict=True) if not fine]
    for allowed, rows in bad:
        if rows is not None:
            raise ConfigError(f"plan has rows {rows.tolist()}: {allowed}")
    if bad:
        names = ", ".join(label for label, _ in bad)
        raise BadWeights(f"plan has non-finite values for {names}; nothing was written")


def _check_form(network: Network, edits: Sequence[Edit]) -> None:
    """Check everything about a plan that needs no value of a tensor."""
    known = {id(b) for b in network.blocks}
    seen: set[int] = set()
    for edit in edits:
        if isinstance(edit.target, Block) and id(edit.target) not in known:
            raise ConfigError(f"{edit.target.name} is no Block of network {network.name!r}")
        label, shape = _label(network, edit), tensor_of(edit).shape
        if isinstance(edit, Assign):
            value, expected, mask, rows, dim = edit.value, shape, edit.mask, edit.rows, edit.dim
        else:
            value, expected, mask, rows, dim = edit.factor, torch.Size([]), None, None, 0
        if rows is not None:
            if rows.dtype != torch.int64 or rows.ndim != 1 or not 0 <= dim < len(shape):
                raise ConfigError(
                    f"plan for {label}: rows are one-dimensional int64 indices of a dimension of a "
                    f"tensor; dim = {dim}"
                )
            expected = torch.Size([*shape[:dim], len(rows), *shape[dim + 1 :]])
        if value.shape != expected or (mask is not None and mask.shape != expected):
            raise ConfigError(
                f"plan for {label}: value {tuple(value.shape)}, mask "
                f"{None if mask is None else tuple(mask.shape)}; needed is {tuple(expected)}"
            )
        if mask is None and rows is None and isinstance(edit, Assign):
            if id(edit.target) in seen:
                raise ConfigError(f"plan writes {label} twice")
            seen.add(id(edit.target))


def _stays_finite(edit: Edit) -> Tensor:
    """Return whether what an edit writes is finite in the target's type; 0-d."""
    target = tensor_of(edit)
    if isinstance(edit, Scale):
        wide = torch.promote_types(target.dtype, edit.factor.dtype)  # as it is written
        factor = edit.factor.to(target.device, wide)
        largest = target.abs().amax() if target.numel() else target.new_zeros(())
        return (largest.to(wide) * factor).to(target.dtype).isfinite() & factor.isfinite()
    value = edit.value
    if edit.mask is not None:
        value = torch.where(edit.mask, value, torch.zeros_like(value))
    value = value.to(target.dtype)
    if value.is_floating_point() and value.numel():  # one pass, a tenth of the time
        value = torch.stack(value.aminmax())
    return value.isfinite().all()


@torch.no_grad()
def write(edits: Sequence[Edit]) -> None:
    """Write edits in place, grouped, without host synchronisation.

    The memory of a layer whose units sleep follows its weights.
    """
    blocks = [(edit, edit.target) for edit in edits if isinstance(edit.target, Block)]
    memories = [replace(edit, target=b.memory) for edit, b in blocks if b.memory is not None]
    edits = [*edits, *memories]
    scales = [e for e in edits if isinstance(e, Scale)]
    assigns = [e for e in edits if isinstance(e, Assign)]
    if scales:
        views = [tensor_of(e) for e in scales]
        low = any(v.dtype in (torch.bfloat16, torch.float16) for v in views)
        if not low and len({(v.dtype, v.device) for v in views}) == 1:
            torch._foreach_mul_(views, [e.factor.to(views[0]) for e in scales])
        else:
            for view, edit in zip(views, scales, strict=True):
                wide = torch.promote_types(view.dtype, torch.float32)  # bf16: round once
                view.copy_(view.to(wide) * edit.factor.to(view.device, wide))
    for edit in assigns:
        view = tensor_of(edit)
        value = edit.value.to(view)
        value = value if edit.mask is None else torch.where(edit.mask, value, edit.now())
        if edit.rows is None:
            view.copy_(value)
        else:
            view.index_copy_(edit.dim, edit.rows, value)


@contextmanager
def put_back(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Give tensors their values back, in place and bit for bit, after a ``with`` block."""
    kept = [(tensor, tensor.clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)


@contextmanager
def swapped(values: Mapping[Block, Tensor]) -> Iterator[None]:
    """Put other values into Blocks for a while, in place, and then their own, bit for bit."""
    with put_back(block.view for block in values):
        with torch.no_grad():
            for block, value in values.items():
                block.view.copy_(value)
        yield
