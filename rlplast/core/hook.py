"""Hook: one intervention with its schedule, networks, scope and policies, ready to fire.

The hooks of a run together are `rlplast.core.hooks.Hooks`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlplast.core.blocks import Block
from rlplast.core.clock import Clock
from rlplast.core.edits import Assign, Edit, Receipt, Scale, apply, check, write
from rlplast.core.errors import BadWeights, NothingToEdit
from rlplast.core.intervention import Context, Intervention, State
from rlplast.core.network import Network
from rlplast.core.rng import torch_stream
from rlplast.core.schedule import Schedule
from rlplast.core.scope import Scope

__all__ = ["Hook"]


@dataclass
class Hook:
    """One entry of a run's hook list, ready to fire.

    Attributes:
        method: the method with its parameters.
        schedule: when it fires.
        networks: the networks it fires on.
        scope: which layers.
        optimizer: optimizer policy of each firing.
        followers: follower policy of each firing.
        key: name of its random streams and of its entry in checkpoints.
        skips: whether networks in which there is nothing to edit are left out.
        states: the method's own tensors, by network.
        sums: [Σ sfe, Σ log factor, Σ entries, firings] of every-update firings since the last
            flush, by network; on the device, so that they count in a captured update too.
        fired: of a hook with a condition, how often it has fired and the clock of the last time,
            by network.
    """

    method: Intervention
    schedule: Schedule
    networks: tuple[Network, ...]
    scope: Scope
    optimizer: str
    followers: str
    key: str
    skips: bool = False
    states: dict[str, State] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    fired: dict[str, tuple[int, Clock]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Allocate the method's state, before anything is compiled or captured.

        Raises:
            NothingToEdit: if there is nothing to edit in one of the networks; with `skips`, in
                any of them.
            BadWeights: if an every-update method meets low precision without a master.
        """
        self.edited = {n.name: self.scope.edited(n) for n in self.networks}
        self.restored = {n.name: self.scope.restored(n) for n in self.networks}
        kept, missing = [], None
        for network in self.networks:
            try:
                self._set_up(network)
                kept.append(network)
            except NothingToEdit as error:
                if not self.skips:
                    raise
                missing = error
        if missing is not None and not kept:
            raise missing
        self.networks = tuple(kept)

    def _set_up(self, network: Network) -> None:
        blocks = self.edited[network.name]
        if not blocks and not self.restored[network.name]:
            raise NothingToEdit(
                f"{self.method.name} finds nothing to edit in network {network.name!r}: its "
                "scope selects no trainable layer there"
            )
        self.states[network.name] = self.method.setup(network, blocks)
        if self.schedule.every_update:
            self.sums[network.name] = torch.zeros(
                4, dtype=torch.float64, device=network.blocks[0].view.device
            )
            for block in blocks:
                _refuse_low_precision(network, block)

    def plan(self, owner: Network, target: Network, context: Context) -> list[Edit]:
        """Return the plan for `target`, which is `owner` or one of its followers."""
        restored = self.restored[owner.name]
        if target is not owner:
            restored = _namesakes(target, restored)
        edits = self.method.plan(context, self.states[owner.name])
        return edits + [Assign(b, owner.initial[b.name]) for b in restored]

    def observe(self, values: Mapping[str, float], clock: Clock, seed: int) -> list[Receipt]:
        """Fire on the networks whose condition one of the values just measured fulfils."""
        condition = self.schedule.when
        if condition is None or not self.schedule.is_open(clock):
            return []
        ready = [
            network
            for network in self.networks
            if condition.holds(values.get(condition.key(network.name)))
            and condition.rested(self._fired(network)[1], clock)
        ]
        receipts = self.fire(clock, 1, seed, ready)
        self.fired |= {n.name: (self._fired(n)[0] + 1, clock) for n in ready}
        return receipts

    def _fired(self, network: Network) -> tuple[int, Clock | None]:
        return self.fired.get(network.name, (0, None))

    def fire(
        self, clock: Clock, crossings: int, seed: int, networks: Iterable[Network] | None = None
    ) -> list[Receipt]:
        """Plan and apply one firing on each network; see `rlplast.core.edits.apply`."""
        chosen = self.networks if networks is None else networks
        planned = [self._planned(n, clock, crossings, seed) for n in chosen]
        for network, edits, _, _ in planned:  # all plans hold before the first network is written
            check(network, edits)
        return [
            apply(
                network,
                edits,
                method=self.method.name,
                clock=clock,
                crossings=crossings,
                optimizer=self.optimizer,
                followers=self.followers,
                replan=replan,
                planning_seconds=seconds,
            )
            for network, edits, replan, seconds in planned
        ]

    def _stream(self, network: Network, clock: Clock, seed: int) -> Callable[[], torch.Generator]:
        conditional = self.schedule.when is not None
        number = self._fired(network)[0] + 1 if conditional else self.schedule.count(clock)
        return lambda: torch_stream(seed, "hook", self.key, network.name, number)

    def _planned(
        self, network: Network, clock: Clock, crossings: int, seed: int
    ) -> tuple[Network, list[Edit], Callable[[Network], list[Edit]], float]:
        """Return a network's plan, how to make one for its followers, and the seconds it took."""
        started = time.perf_counter()
        stream = self._stream(network, clock, seed)

        def replan(target: Network) -> list[Edit]:
            blocks = self.edited[network.name]
            blocks = blocks if target is network else _namesakes(target, blocks)
            return self.plan(network, target, Context(target, blocks, clock, crossings, stream))

        edits = replan(network)
        return network, edits, replan, time.perf_counter() - started

    def after_update(self, clock: Clock, seed: int) -> None:
        """Fire inside an update: no checks, no host synchronisation, sums on the device."""
        for network in self.networks:
            blocks, stream = self.edited[network.name], self._stream(network, clock, seed)
            edits = self.plan(network, network, Context(network, blocks, clock, 1, stream))
            _accumulate(self.sums[network.name], edits)
            write(edits)

    def flush(self, clock: Clock) -> list[Receipt]:
        """Return one receipt per network for the updates since the last flush."""
        receipts = []
        for network in self.networks:
            sums = self.sums[network.name]
            sfe, log_factor, entries, count = sums.tolist()
            if count == 0:
                continue
            sums.zero_()
            firings = round(count)
            receipts.append(
                Receipt(
                    method=self.method.name,
                    network=network.name,
                    clock=clock,
                    crossings=firings,
                    entries_touched=round(entries / count),
                    sfe=sfe,
                    dfi_before=None,
                    dfi_after=None,
                    norm_before=None,
                    norm_after=None,
                    optimizer_policy=self.optimizer,
                    followers=dict.fromkeys(network.followers, self.followers),
                    seconds=0.0,
                    firings=firings,
                    log_factor=log_factor,
                )
            )
        return receipts


def _namesakes(network: Network, blocks: Iterable[Block]) -> tuple[Block, ...]:
    names = {b.name for b in blocks}
    return network.select(lambda b: b.name in names)


@torch.no_grad()
def _accumulate(sums: Tensor, edits: Sequence[Edit]) -> None:
    scales = [e for e in edits if isinstance(e, Scale) and isinstance(e.target, Block)]
    if scales:
        factors = torch.stack([e.factor for e in scales]).double()
        norms = torch.stack(
            [
                e.norm if e.norm is not None else torch.linalg.vector_norm(e.target.view)
                for e in scales
            ]
        )
        sums[0] += ((factors - 1) * norms).square().sum()
        sums[1] += factors.log().sum()
    for edit in edits:
        if isinstance(edit, Assign) and isinstance(edit.target, Block):
            now = edit.target.view if edit.rows is None else edit.target.view[edit.rows]
            change = (edit.value.double() - now.double()).square()
            sums[0] += (change if edit.mask is None else change.where(edit.mask, 0)).sum()
    whole = 0  # one addition for all: each tensor operation costs as much as a small layer
    for edit in edits:
        if isinstance(edit.target, Block):
            mask = edit.mask if isinstance(edit, Assign) else None
            if isinstance(edit, Assign) and edit.rows is not None:
                whole += edit.value.numel()
            elif mask is None:
                whole += edit.target.view.numel()
            else:
                sums[2] += mask.sum()
    sums[2] += whole
    sums[3] += 1


def _refuse_low_precision(network: Network, block: Block) -> None:
    if block.view.dtype in (torch.bfloat16, torch.float16):
        raise BadWeights(
            f"{network.qualified(block)} is {block.view.dtype} without an fp32 master: a change "
            "made every update would round to nothing; pass masters= to its Network"
        )
