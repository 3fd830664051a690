"""One firing: check, write, treat optimizer state and followers, report."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlplast.core.clock import Clock
from rlplast.core.errors import check_choice
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit, check, masks, tensor_of, unmasked, write
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import moments, zero, zero_all

__all__ = ["FOLLOWER_POLICIES", "OPTIMIZER_POLICIES", "Planned", "carry_out", "check_policy"]

OPTIMIZER_POLICIES = ("keep", "touched", "parameter", "network")
FOLLOWER_POLICIES = ("copy", "same_edit", "leave")
_PIECE = 1 << 16  # entries that a CPU widens at a time: new memory costs more than the sum


def check_policy(optimizer: str, followers: str, key: str = "hook") -> None:
    """Refuse unknown policies of a firing."""
    check_choice(f"{key}.optimizer", optimizer, OPTIMIZER_POLICIES)
    check_choice(f"{key}.followers", followers, FOLLOWER_POLICIES)


def _squares(tensor: Tensor, origin: Tensor | None = None) -> Tensor:
    """Return Σ (x − origin)² in float64, where no weight is too large or small to be squared."""
    size = max(1, min(tensor.numel(), _PIECE) if tensor.is_cpu else tensor.numel())
    pieces = tensor.reshape(-1).split(size)
    origins = [None] * len(pieces) if origin is None else origin.reshape(-1).split(size)
    memory = tensor.new_empty(size, dtype=torch.float64)
    norms = []
    for piece, start in zip(pieces, origins, strict=True):
        wide = memory[: len(piece)].copy_(piece)
        norms.append(torch.linalg.vector_norm(wide if start is None else wide.sub_(start.double())))
    return torch.stack(norms).square().sum()


@dataclass(frozen=True)
class Planned:
    """What a firing is to do to one network.

    Attributes:
        followers: the plans of followers that get one of their own.
        counters: the method's own counters, read and zeroed once the plan is written.
        within: the Blocks of the layers to which a firing keeps; None for all of the network.
    """

    network: Network
    edits: Sequence[Edit]
    followers: Sequence[tuple[Network, Sequence[Edit]]] = ()
    seconds: float = 0.0
    counters: Mapping[str, Tensor] = field(default_factory=dict)
    within: Sequence[Block] | None = None

    def edited(self) -> list[Block]:
        """Return the Blocks that the plan edits."""
        return [edit.target for edit in self.edits if isinstance(edit.target, Block)]

    def reached(self) -> list[Block]:
        """Return the Blocks that policies apply to: those of the layers, and edited ones."""
        within = self.network.blocks if self.within is None else self.within
        return [*within, *self.edited()]


def _zero_moments(p: Planned, policy: str) -> None:
    network, edits = p.network, p.edits
    if policy == "network" and (p.within is None or set(p.within).issuperset(network.trainable())):
        zero_all(network)
    elif policy in ("network", "parameter"):
        blocks = p.reached() if policy == "network" else p.edited()
        zero(network, {id(block.param): block.param for block in blocks}.values())
    elif policy == "touched":
        for edit in edits:
            if not isinstance(edit.target, Block):
                continue
            for moment in moments(network, edit.target.param, whole=False).values():
                view = edit.target.like(moment)
                if isinstance(edit, Assign):
                    zeros = view.new_zeros(()).expand(edit.value.shape)
                    write([dataclasses.replace(edit, target=view, value=zeros)])
                else:
                    view.zero_()


def _read(numbers: Sequence[Tensor]) -> Iterator[float]:
    """Read 0-d tensors, all of them at once."""
    if not numbers:
        return iter(())
    device = numbers[0].device
    return iter(torch.stack([t.double().to(device) for t in numbers]).tolist())


@torch.no_grad()
def carry_out(
    planned: Sequence[Planned],
    *,
    method: str,
    clock: Clock | None = None,
    due_count: int = 1,
    optimizer: str = "network",
    followers: str = "copy",
) -> list[Receipt]:
    """Check plans, write them, treat optimizer state and followers, and report.

    All plans are checked before the first network is written. The device is waited for twice: for
    the check, and for the numbers of the receipts.

    Args:
        planned: what to do to each network.
        method: registry name.
        clock: the run's clock.
        due_count: how many due points this firing stands for.
        optimizer: ``keep``; ``touched`` zeroes the moments of the entries written; ``parameter``
            zeroes all state of each tensor written; ``network`` all state of the network, or of
            `Planned.within`.
        followers: ``copy`` makes each follower equal to the network, or to `Planned.within` of it,
            buffers included but those of a lifecycle; ``same_edit`` writes the plans made for them;
            ``leave``.

    Raises:
        BadWeights: if a value is not finite; nothing is written then.
        ConfigError: if a plan does not fit its network, or a policy is unknown.
        UnsupportedOptimizer: if state is to be zeroed that has no rule; before writing.
    """
    check_policy(optimizer, followers)
    check([pair for p in planned for pair in ((p.network, p.edits), *p.followers)])
    if optimizer != "keep":  # a state without a rule must stop us before the first write
        for network in (p.network for p in planned):
            for block in network.trainable():
                moments(network, block.param)
    begun = [(time.perf_counter(), _write(p, optimizer, followers)) for p in planned]
    numbers = _read([tensor for _, lists in begun for tensors in lists for tensor in tensors])
    receipts = []
    for one, (started, lists) in zip(planned, begun, strict=True):
        entries, sfe, moved, dfi_before, dfi_after, before, after, counts = (
            [next(numbers) for _ in tensors] for tensors in lists
        )
        moved, whole = sum(moved), sum(before)
        receipts.append(
            Receipt(
                method=method,
                network=one.network.name,
                clock=clock or Clock(),
                crossings=due_count,
                entries_touched=unmasked(one.edits) + round(sum(entries)),
                sfe=sum(sfe, 0.0),
                sfe_normalized=(moved / whole if whole else math.inf) if moved else 0.0,
                dfi_before=sum(dfi_before) if dfi_before else None,
                dfi_after=sum(dfi_after) if dfi_after else None,
                norm_before=math.sqrt(whole),
                norm_after=math.sqrt(sum(after)),
                optimizer_policy=optimizer,
                followers=dict.fromkeys(one.network.followers, followers),
                seconds=one.seconds + time.perf_counter() - started,
                units=dict(zip(one.counters, map(round, counts), strict=True)) or None,
            )
        )
    return receipts


def _write(p: Planned, optimizer: str, followers: str) -> list[list[Tensor]]:
    """Write one network's plan; return the numbers of its receipt, 0-d."""
    blocks = {id(block): block for block in p.edited()}
    before = {key: b.view.clone() for key, b in blocks.items()}
    entries = [mask.sum() for mask in masks(p.edits)]
    distances = [(e, e.dfi) for e in p.edits if isinstance(e, Assign) and e.dfi is not None]
    dfi_before = [
        dfi(tensor_of(e)) if e.dfi_before is None else e.dfi_before for e, dfi in distances
    ]
    norm_before = [_squares(b.view) for b in p.network.trainable()]
    write(p.edits)
    _zero_moments(p, optimizer)
    if followers == "copy":
        reached = set(p.reached())
        pairs = [(mine, theirs) for mine, theirs in p.network.followed() if mine in reached]
        write([Assign(theirs, mine.view) for mine, theirs in pairs])
    for _, plan in p.followers:
        write(plan)
    differences = {key: _squares(b.view, before[key]) for key, b in blocks.items()}
    counts = [counter.clone() for counter in p.counters.values()]
    if p.counters:
        torch._foreach_zero_(list(p.counters.values()))
    return [
        entries,
        list(differences.values()),
        [differences[key] for key, b in blocks.items() if b.trainable],
        dfi_before,
        [dfi(tensor_of(e)) for e, dfi in distances],
        norm_before,
        [_squares(b.view) for b in p.network.trainable()],
        counts,
    ]
