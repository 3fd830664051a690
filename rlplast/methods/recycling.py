"""Edits of single units: rows, columns, and what the optimizer remembers of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.method.method import Assign, Block, Context, Edit, Network, State
from rlplast.core.network.blocks import VARIANCES
from rlplast.core.network.network import starts_of
from rlplast.core.network.units import Part, UnitGroup
from rlplast.methods.draws import symmetric

__all__ = [
    "biases_of",
    "by_rows",
    "clear_moments",
    "gain",
    "hashed_rows",
    "largest",
    "largest_size",
    "mean_over_samples",
    "mean_size",
    "recycle",
    "replacement_cost",
    "start_anew",
    "unit_state",
    "write_rows",
]

Draw = Callable[[UnitGroup, Part, Tensor], Tensor]


def unit_state(network: Network, blocks: Sequence[Block], **dtypes: torch.dtype) -> State:
    """Return the state of a method that resets the units in scope.

    Args:
        network: the network.
        blocks: what is in scope.
        **dtypes: name → the type of a tensor ``name/<group>``: zeros, one per unit. In ``drawn``
            `recycle` counts how often each unit was drawn.

    Returns:
        Those tensors, and a counter of resets per group, ``count/<group>``, which receipts read.
    """
    groups, device = network.units_in(blocks), blocks[0].view.device
    state = {f"count/{g.name}": torch.zeros((), dtype=torch.int64, device=device) for g in groups}
    for name, dtype in dtypes.items():
        for group in groups:
            state[f"{name}/{group.name}"] = torch.zeros(group.size, dtype=dtype, device=device)
    return state


def mean_over_samples(activations: Tensor) -> Tensor:
    """Return the mean per unit over samples and space of (samples, units, …), float32 at least."""
    wide = torch.promote_types(activations.dtype, torch.float32)
    return activations.mean(_but(activations, 1), dtype=wide)


def mean_size(tensor: Tensor, dim: int = 1) -> Tensor:
    """Return the mean absolute value per index of a dimension, float32 at least."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    # Of columns the first dimension alone, in pieces that stay in a CPU's cache: a weight of
    # several megabytes takes a third less time.
    pieces = tensor.split(64) if dim > 0 and by_rows(tensor) else (tensor,)
    totals = [p.abs().sum(0, dtype=wide) if dim > 0 else p.abs() for p in pieces]
    total, dim = (sum(totals[1:], totals[0]), dim - 1) if dim > 0 else (totals[0], dim)
    total = total.sum(_but(total, dim), dtype=wide) if total.ndim > 1 else total
    return total * (len(total) / tensor.numel())


def largest_size(tensor: Tensor) -> Tensor:
    """Return the largest absolute value per unit of (samples, units, …)."""
    low, high = tensor.amin(_but(tensor, 1)), tensor.amax(_but(tensor, 1))
    return torch.maximum(high, -low)


def largest(scores: Tensor, count: int) -> Tensor:
    """Return where the `count` largest scores are, in their shape; of equal ones the first."""
    order = scores.flatten().sort(descending=True, stable=True).indices
    mask = torch.zeros_like(order, dtype=torch.bool)
    return mask.index_fill(0, order[:count], True).view(scores.shape)


def replacement_cost(
    context: Context, group: UnitGroup, reference: Tensor | None = None
) -> Tensor | None:
    """Return how much the loss changes, to first order, if a constant takes a unit's place: GXD.

    It is |Σ g·(h − r)| over the batch, where h is what the next layers read of the unit, g the
    loss's gradient there and r the constant, computed from gradients of weights as
    |Σ_k W_k·(∂L/∂W_k − r·∂L/∂b_k)|. It is also the cost of the edit: outgoing weights 0, and W·r
    into the next biases. Source: Elisii et al. 2026 (arXiv:2605.06834).

    Args:
        context: the firing's; its method reads ``gradients``. A follower's units cost what those
            of its owner do.
        group: the units.
        reference: r per unit; None for 0. Layers without a bias have 0.

    Returns:
        A value per unit, float32 at least; None if the loss reaches no outgoing weight.
    """
    owner = context.owner or context.network
    blocks, biases = {b.name: b for b in owner.blocks}, biases_of(owner)
    costs: list[Tensor] = []
    for part in group.outgoing:
        gradient = context.gradients.get(part.block.name)
        if gradient is None:  # of a frozen copy, or the loss does not depend on it
            continue
        view, bias = blocks[part.block.name].view, biases.get(part.block.layer)
        wide = torch.promote_types(view.dtype, torch.float32)
        slope = gradient.to(wide)
        shift = None if bias is None else context.gradients.get(bias.name)
        if reference is not None and shift is not None:
            rows = shift.to(wide).view(-1, *(1,) * (view.ndim - 1))
            slope = slope - part.spread(reference.to(wide)) * rows
        per_index = (view.to(wide) * slope).sum(_but(view, part.dim))
        costs.append(per_index.view(-1, part.repeat).sum(1))
    return torch.stack(costs).sum(0).abs() if costs else None


def biases_of(network: Network) -> dict[str, Block]:
    """Return the bias of each layer that has one."""
    return {b.layer: b for b in network.blocks if "bias" in (b.role, b.spec.tensor)}


def _but(tensor: Tensor, dim: int) -> list[int]:
    return [d for d in range(tensor.ndim) if d != dim]


def by_rows(mask: Tensor) -> bool:
    """Return whether to look up which rows change, rather than to pass over all of them.

    On a CPU that waits for nothing, and few rows change; a device would have to be waited for.
    """
    return mask.device.type == "cpu" and not torch.compiler.is_compiling()


def _idle(mask: Tensor) -> bool:
    """Return whether nothing is to be done, where that can be asked without waiting."""
    return by_rows(mask) and not bool(mask.any())


def write_rows(
    target: Any,
    mask: Tensor,
    value_at: Callable[[Any], Tensor],
    dim: int = 0,
    but: Tensor | None = None,
) -> list[Assign]:
    """Return the edits that write `value_at(index)` to the rows of `target` where `mask` holds.

    Args:
        target: a Block, or a tensor.
        mask: a boolean per row.
        value_at: index → the values there; called with rows, or with a slice of everything.
        dim: 0, or 1 for columns in place of rows.
        but: for columns: rows that are left out, a boolean each.
    """
    view = target if isinstance(target, Tensor) else target.view
    kept = None if but is None or _idle(but) else ~but.view(-1, *(1,) * (view.ndim - 1))
    if by_rows(mask):
        rows = mask.nonzero().squeeze(1)
        if not len(rows):
            return []
        value = value_at(rows)
        kept = None if kept is None else kept.expand_as(value)
        return [Assign(target, value, kept, rows=rows, dim=dim)]
    whole = mask.view(*(1,) * dim, -1, *(1,) * (view.ndim - dim - 1))
    whole = whole if kept is None else whole & kept
    return [Assign(target, value_at(slice(None)), whole.expand_as(view))]


def clear_moments(context: Context, part: Part, mask: Tensor) -> list[Assign]:
    """Return edits that zero what the optimizer remembers of some units' entries of a Block.

    Args:
        context: the firing's; its method reads ``moments``.
        part: the entries.
        mask: a boolean per unit.
    """
    edits: list[Assign] = []
    if _idle(mask):
        return edits
    spread = part.along(mask)
    for moment in context.moments(part.block).values():
        view = moment.transpose(0, part.dim)
        zero = view.new_zeros(())
        edits += write_rows(view, spread, lambda i, v=view, z=zero: z.expand(v[i].shape))
    return edits


def recycle(
    context: Context,
    state: State,
    masks: Mapping[str, Tensor],
    draw: Draw,
    *,
    outgoing_first: bool = False,
    moments: bool = False,
) -> list[Edit]:
    """Return the edits that give some units a new start; no entry is written twice.

    Incoming weights are drawn anew, biases are 0, norm entries 1 and 0, outgoing weights 0, and
    slopes of a nonlinearity what they began with.

    Args:
        context: the firing's.
        state: the method's, of `unit_state`: they are counted there.
        masks: which units: a boolean per unit, by name of the group, of all in scope.
        draw: (group, part, mask) → new values of an incoming weight, whole; they matter where
            the mask holds.
        outgoing_first: whether a weight between two such units is drawn (else it is 0).
        moments: whether the optimizer forgets what it knows of the entries, ``step`` kept.
    """
    busy = [(g, masks[g.name]) for g in context.units if not _idle(masks[g.name])]
    rows = {p.block.name: p.along(m) for g, m in busy for p in g.rows}
    columns = {p.block.name: p.along(m) for g, m in busy for p in g.outgoing}
    edits: list[Edit] = []
    for group, mask in busy:
        count, drawn = state[f"count/{group.name}"], state.get(f"drawn/{group.name}")
        edits.append(Assign(count, count + mask.sum()))
        edits += [] if drawn is None else [Assign(drawn, drawn + mask)]
        for part in group.rows:
            block, between = part.block, None if outgoing_first else columns.get(part.block.name)
            new = draw(group, part, mask) if block.role == "weight" else _as_new(part)
            new = new.to(block.view).expand_as(block.view)
            if between is not None:
                new = new.masked_fill(between.view(1, -1, *(1,) * (new.ndim - 2)), 0)
            edits += write_rows(block, rows[block.name], new.__getitem__)
        for part in group.outgoing:
            block, but = part.block, rows.get(part.block.name)
            zeros = block.view.new_zeros(()).expand_as(block.view)
            mask_of = columns[block.name]
            edits += write_rows(block, mask_of, lambda i, z=zeros: z[:, i], part.dim, but)
        for part in group.parts if moments else ():
            edits += clear_moments(context, part, mask) if part.block.trainable else []
    return edits


def start_anew(
    context: Context,
    state: State,
    masks: Mapping[str, Tensor],
    init: str = "own",
    overlap: str = "zero",
) -> list[Edit]:
    """Return the edits that give some units a new start, drawn from the firing's stream.

    Args:
        context: the firing's.
        state: the method's, of `unit_state`.
        masks: which units: a boolean per unit, by name of the group, of all in scope.
        init: initializer of the new weights: own, kaiming or lecun.
        overlap: of a weight between two such units: zero or redraw.
    """
    # Every layer is drawn, so that what one draws does not depend on which units are chosen.
    generator = context.stream()
    drawn = {g.name: _drawn(context.network, g, init, generator) for g in context.units}
    draw: Draw = lambda group, part, mask: drawn[group.name]  # noqa: E731
    return recycle(context, state, masks, draw, outgoing_first=overlap == "redraw")


def _drawn(network: Network, group: UnitGroup, init: str, generator: torch.Generator) -> Tensor:
    block = group.weight.block
    if init == "own":
        return network.drawn(block, generator)
    factor = gain(group.nonlinearity) if init == "kaiming" else 1.0
    bound = factor * math.sqrt(3 / block.spec.fan_in)
    value = torch.empty(block.view.shape).uniform_(-bound, bound, generator=generator)
    return value.to(block.view.device)


def _as_new(part: Part) -> Tensor:
    """Return what biases, entries of norm layers and slopes begin with."""
    block = part.block
    start = block.spec.start if block.role == "scale" else float(block.spec.tensor in VARIANCES)
    return block.view.new_full((), starts_of(block).get(block.spec.tensor, start))


def gain(nonlinearity: str) -> float:
    """Return torch's gain of a nonlinearity; that of ReLU for those it does not know."""
    known = ("linear", "sigmoid", "tanh", "relu", "selu", "leaky_relu")
    return nn.init.calculate_gain(nonlinearity if nonlinearity in known else "relu")


def hashed_rows(
    context: Context, state: State, bound: Callable[[UnitGroup], float], first: int = 0
) -> Draw:
    """Return what `recycle` draws inside updates: U(−bound, bound), a hash of what is drawn.

    That is the hook's seed in this network, the layer, the unit, and how often it was drawn before.

    Args:
        context: the firing's.
        state: the method's, of `unit_state` with ``drawn``.
        bound: group → half the width.
        first: number of the first layer, for methods that draw other things by lower ones.
    """
    tags = {group.name: first + i for i, group in enumerate(context.units)}

    def draw(group: UnitGroup, part: Part, mask: Tensor) -> Tensor:
        number = state[f"drawn/{group.name}"]
        return uniform_rows(part, mask, bound(group), context.seed, tags[group.name], number)

    return draw


def uniform_rows(
    part: Part, mask: Tensor, bound: float, seed: int, tag: int, number: Tensor
) -> Tensor:
    """Return a weight with rows drawn where a mask holds; elsewhere they do not matter."""
    weight = part.block.view
    index: Any = mask.nonzero().squeeze(1) if by_rows(mask) else slice(None)
    units = torch.arange(len(mask), device=mask.device)[index].unsqueeze(1)
    entries = torch.arange(math.prod(weight.shape[1:]), device=mask.device)
    wide = torch.promote_types(weight.dtype, torch.float32)
    key = torch.full_like(units, seed)
    drawn = symmetric(wide, key, tag, units, number[index].unsqueeze(1), entries) * bound
    drawn = drawn.view(-1, *weight.shape[1:])
    if isinstance(index, slice):
        return drawn.to(weight.dtype)
    return weight.index_copy(0, index, drawn.to(weight.dtype))
