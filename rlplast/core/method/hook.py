"""Hook: one method with its schedule, networks, scope and policies, ready to fire."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rlplast.core.clock import Clock
from rlplast.core.device import refuse_capture
from rlplast.core.errors import BadWeights, ConfigError, NothingToEdit
from rlplast.core.method.context import Activations, Context, Source, is_trainer
from rlplast.core.method.deviation import deviation
from rlplast.core.method.firing import Planned, carry_out
from rlplast.core.method.method import Method, State, carry, implements, readable
from rlplast.core.method.readings import Inside, Probe
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.schedule import Schedule
from rlplast.core.method.scope import SCOPES, Scope
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit, Scale, check, masks, unmasked, write
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import moments
from rlplast.core.rng import derive_seed, torch_stream

__all__ = ["Hook", "refuse_low_precision"]

_COUNT = "count/"  # what the names of a method's own counters begin with


@dataclass
class Hook:
    """One entry of a run's hook list, ready to fire.

    Attributes:
        key: name of its random streams and of its entry in checkpoints.
        scope: which layers it edits. Policies keep to the layers that it names.
        skips: whether networks in which there is nothing to edit are left out.
        source: where a scheduled firing's probe comes from.
        states: the method's own tensors, by network; given where others share them.
        sums: [Σ sfe, Σ log factor, Σ entries, firings] of every-update firings since the last
            flush, by network; on the device, so that they count in a captured update too.
        fired: by network, how often it has fired between updates, and the clock of the last time.
        select: returns the Blocks that it edits, of a hook without a scope of its own.
        known: the networks in which it acts, or will once their layers train.
        resting: why it finds nothing to edit in other networks, whose layers are frozen as yet.
    """

    method: Method
    schedule: Schedule
    networks: tuple[Network, ...]
    key: str
    scope: Scope = SCOPES["all"]
    optimizer: str = "keep"
    followers: str = "leave"
    label: str = ""
    skips: bool = False
    source: Source | None = None
    states: dict[str, State] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    fired: dict[str, tuple[int, Clock]] = field(default_factory=dict)
    select: Callable[[], tuple[Block, ...]] | None = None
    known: tuple[Network, ...] = ()
    resting: dict[str, NothingToEdit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Allocate the method's state, before anything is compiled or captured."""
        self.label = self.label or self.key
        self._check_readings()
        self.edited: dict[str, tuple[Block, ...]] = {}
        self.restored: dict[str, tuple[Block, ...]] = {}
        self._versions: dict[str, int] = {}
        missing = {n.name: error for n in self.networks if (error := self._set_up(n)) is not None}
        self.known = tuple(n for n in self.networks if n.name not in missing or self.may_thaw(n))
        if len(self.known) < len(self.networks) and (not self.skips or not self.known):
            known = {n.name for n in self.known}  # the first other network is the most important
            raise next(error for name, error in missing.items() if name not in known)
        self._awake()

    def refresh(self) -> None:
        """Look anew at networks that have changed: what trains in them, and where state belongs."""
        changed = [n for n in self.known if self._versions[n.name] != n.version]
        for network in changed:
            self._set_up(network)
        if changed:
            self._awake()

    def _awake(self) -> None:
        names = {n.name for n in self.known}
        self.resting = {name: why for name, why in self.resting.items() if name in names}
        self.networks = tuple(n for n in self.known if n.name not in self.resting)

    def may_thaw(self, network: Network) -> bool:
        """Whether layers of a network may train later that are frozen now."""
        return not is_trainer(self.source) and len(self.scope.frozen(network)) > 0

    def _check_readings(self) -> None:
        reads, inside = self.method.reads, self.schedule.every_update
        adds = self.method.key == "hooks" and implements(self.method, "term")
        for why, refused in (
            # The term of a penalty reads batches, its plan does not.
            ("reads batches of data", "batches" in reads and self.method.key != "penalties"),
            ("adds a term to the updates between its firings", adds),
            ("follows every update by itself", self.follows),
        ):
            if inside and refused:
                raise ConfigError(
                    f"{self.label} {why}, and cannot fire at every update: allowed are schedules "
                    "such as at: 50%, every: 10000 updates, on: phase_start"
                )
        needed = [what for what in reads if what != "moments"]
        if self.method.measures_deviation and self.source is None:
            raise ConfigError(
                f"{self.label} measures how far outputs move: pass probe= to rlplast.Hooks, or "
                "inputs= to rlplast.apply: inputs of the model"
            )
        if needed and not inside and self.source is None:
            raise ConfigError(
                f"{self.label} reads {', '.join(needed)}: pass probe= to rlplast.Hooks, or inputs= "
                "to rlplast.apply: inputs of the model, or a function (size, generator) → inputs"
            )

    def _set_up(self, network: Network) -> NothingToEdit | None:
        """Find what is edited in a network, and the method's state for it; or why there is none."""
        self._versions[network.name] = network.version
        edited = self.scope.edited(network) if self.select is None else self.select()
        self.edited[network.name] = edited
        self.restored[network.name] = self.scope.restored(network)
        self.resting.pop(network.name, None)
        try:
            self._allocate(network)
        except NothingToEdit as error:
            layers = self.scope.layers
            what = "" if layers is None else f"{self.label}.layers = {list(layers)}: "
            self.resting[network.name] = reason = NothingToEdit(f"{what}{error}")
            return reason
        return None

    def _allocate(self, network: Network) -> None:
        blocks = self.edited[network.name]
        if self.method.key == "hooks" and not blocks and not self.restored[network.name]:
            keys = "scope selects" if self.scope.layers is None else "scope and layers select"
            raise NothingToEdit(
                f"{self.method.name} finds nothing to edit in network {network.name!r}: its "
                f"{keys} no trainable layer there"
            )
        self._check_layers(network)
        if "moments" in self.method.reads:  # an optimizer without a rule must not stop a run later
            for block in network.trainable():
                moments(network, block.param)
        if network.name not in self.states or network.version > 0:
            anew = self.method.setup(network, blocks)
            carry(self.states.setdefault(network.name, {}), anew, network.module)
        if self.schedule.every_update:
            device, sums = network.blocks[0].view.device, self.sums.get(network.name)
            anew = torch.zeros(4, dtype=torch.float64, device=device)
            self.sums[network.name] = anew if sums is None else sums.to(device)
            for block in blocks if self.method.key == "hooks" else ():
                refuse_low_precision(network, block)

    def _check_layers(self, network: Network) -> None:
        """Refuse layers that the method, or the optimizer policy, cannot keep to."""
        if self.scope.layers is None:
            return
        left = self.scope.left(network)
        self.method.check_layers(network, self.edited[network.name], left)
        if self.optimizer in ("keep", "touched") or not network.optimizers:
            return
        parts = {id(block.param): block for block in left}
        for block in network.select(self.scope.reaches):
            if id(block.param) in parts:
                other = network.qualified(parts[id(block.param)])
                raise ConfigError(
                    f"{self.label}.layers names {network.qualified(block)} and leaves {other}, "
                    f"a part of the same tensor: optimizer {self.optimizer!r} would reset the "
                    "step of both; allowed are 'touched' and 'keep', or layers that name both, "
                    f"such as {block.path!r}"
                )

    @property
    def follows(self) -> bool:
        """Whether the method's state follows every update, besides its schedule."""
        return implements(self.method, "follow")

    def fires_inside(self, clock: Clock) -> bool:
        """Whether this fires inside the update that brings the run to `clock`."""
        return self.schedule.crossings(clock.advance(updates=-1), clock) > 0

    def follow(self, clock: Clock, seed: int) -> None:
        """Let the method's state follow an update; no checks, no host synchronisation."""
        for network in self.networks:
            context = self._context(network, clock, seed, 1, inside=True)
            write(self.method.follow(context, self.states[network.name]))

    def counters(self, network: Network) -> dict[str, Tensor]:
        """Return the method's own counters in a network, by their names in receipts."""
        state = self.states[network.name]
        return {k.removeprefix(_COUNT): t for k, t in state.items() if k.startswith(_COUNT)}

    def plan(self, owner: Network, target: Network, context: Context) -> list[Edit]:
        """Return the plan for `target`, which is `owner` or one of its followers."""
        restored = self.restored[owner.name]
        if target is not owner:
            restored = _namesakes(target, restored)
        edits = self.method.plan(context, self.states[owner.name])
        return edits + [Assign(b, owner.initial[b.name]) for b in restored]

    def observe(self, values: Mapping[str, float], clock: Clock, seed: int) -> list[Receipt]:
        """Fire on the networks where a value just measured fulfils the condition."""
        condition = self.schedule.when
        if condition is None or not self.schedule.is_open(clock):
            return []
        ready = [
            network
            for network in self.networks
            if condition.holds(values.get(condition.key(network.name)))
            and condition.rested(self._fired(network)[1], clock)
        ]
        return self.fire(clock, 1, seed, ready)

    def has_been_due(self, clock: Clock) -> bool:
        """Whether this has fired, or, if it acts at every update, acted by `clock`."""
        start, inside = self.schedule.start, self.schedule.every_update
        reached = start is None or clock[start.unit] >= start.value
        return bool(self.fired) or (inside and reached and self.schedule.count(clock) > 0)

    def _fired(self, network: Network) -> tuple[int, Clock | None]:
        return self.fired.get(network.name, (0, None))

    @torch.no_grad()
    def fire(
        self, clock: Clock, due_count: int, seed: int, networks: Iterable[Network] | None = None
    ) -> list[Receipt]:
        """Plan and apply one firing on each network; see `rlplast.core.method.firing.carry_out`."""
        for network in self.known:
            network.refresh()
        self.refresh()
        if self.resting and (not self.skips or not self.networks):
            raise next(iter(self.resting.values()))
        chosen = tuple(self.networks if networks is None else networks)
        planned = [self._planned(n, clock, due_count, seed) for n in chosen]
        moved = [self._deviation(p.network, p.edits, clock) for p in planned]
        receipts = carry_out(
            planned,
            method=self.method.name,
            clock=clock,
            due_count=due_count,
            optimizer=self.optimizer,
            followers=self.followers,
        )
        self.fired |= {n.name: (self._fired(n)[0] + 1, clock) for n in chosen}
        about = {"layers": self.scope.layers, "hook": self.key}
        return [replace(r, deviation=d, **about) for r, d in zip(receipts, moved, strict=True)]

    def _deviation(self, network: Network, edits: Sequence[Edit], clock: Clock) -> float | None:
        if not self.method.measures_deviation or self.source is None:
            return None
        check([(network, edits)])
        number = derive_seed(clock.updates, "deviation", self.key, network.name)
        return deviation(network, edits, self.source, self.method.probe, number)

    def _number(self, network: Network, clock: Clock) -> int:
        """Return the number of a firing, from 1, which names its streams."""
        conditional = self.schedule.when is not None
        return self._fired(network)[0] + 1 if conditional else self.schedule.count(clock)

    def _context(
        self, network: Network, clock: Clock, seed: int, due_count: int, inside: bool
    ) -> Context:
        names = ("hook", self.key, network.name)

        def stream() -> torch.Generator:
            refuse_capture(f"{self.label} draws from a generator of the host")
            return torch_stream(seed, *names, self._number(network, clock))

        return Context(
            network,
            self.edited[network.name],
            readable(clock, self.method, self.label),
            due_count,
            derive_seed(seed, *names),
            stream,
            inside,
            self.method.reads,
        )

    def _planned(self, network: Network, clock: Clock, due_count: int, seed: int) -> Planned:
        """Return a network's plan, those for its followers, and the seconds they took."""
        started = time.perf_counter()
        context = self._context(network, clock, seed, due_count, inside=False)
        if self.source is not None:
            number = derive_seed(context.seed, self._number(network, clock))
            readings = Probe(self.source, network, self.method.probe, number, self.label)
            context = replace(context, readings=readings)
        edits = self.plan(network, network, context)
        plans: list[tuple[Network, list[Edit]]] = []
        for follower in network.followers.values() if self.followers == "same_edit" else ():
            blocks = _namesakes(follower, context.blocks)
            theirs = replace(context, network=follower, blocks=blocks, owner=network)
            # The method's own state is the network's: its edits are written once, above.
            plan = self.plan(network, follower, theirs)
            plans.append((follower, [e for e in plan if isinstance(e.target, Block)]))
        seconds = time.perf_counter() - started
        within = None if self.scope.layers is None else network.select(self.scope.reaches)
        return Planned(network, edits, plans, seconds, self.counters(network), within)

    def after_update(
        self, clock: Clock, seed: int, activations: Mapping[str, Activations] | None = None
    ) -> None:
        """Fire inside an update: no checks, no host synchronisation, sums on the device.

        Activations are those of the update's own forward pass, by network. An empty mapping says
        that a network made no update this time: its hooks rest.
        """
        reads = self.method.reads
        for network in self.networks:
            context = self._context(network, clock, seed, 1, inside=True)
            if reads:
                values = None if activations is None else activations.get(network.name)
                if "activations" in reads and values is not None:
                    if isinstance(values, Mapping) and not values:
                        continue
                    self._check_activations(context, values)
                context = replace(context, readings=Inside(network, values, self.label))
            edits = self.plan(network, network, context)
            _accumulate(self.sums[network.name], edits)
            write(edits)
            if self.method.key == "layers":
                _refresh_copies(network)

    def _check_activations(self, context: Context, activations: Activations) -> None:
        where = f"{self.label}: activations= of network {context.network.name!r}"
        if not isinstance(activations, Mapping):
            raise ConfigError(
                f"{where} are a {type(activations).__name__}: allowed is a mapping of tensors by "
                "group of rlplast.units, as rlplast.record gives it"
            )
        missing = [g.name for g in context.units if g.name not in activations]
        if missing:
            raise ConfigError(
                f"{where} lack {', '.join(missing)}: give one per group of rlplast.units, as "
                "rlplast.record does"
            )
        for group in context.units:
            value = activations[group.name]
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            if isinstance(shape, str) or len(shape) < 2 or shape[1] != group.size:
                raise ConfigError(
                    f"{where} have {shape} for {group.name}: allowed is a tensor (samples, "
                    f"{group.size}, …)"
                )

    def flush(self, clock: Clock) -> list[Receipt]:
        """Return one receipt per network for the updates since the last flush."""
        receipts = []
        for network in self.networks:
            sums, counters = self.sums[network.name], self.counters(network)
            read = [*sums.unbind(), *(t.to(sums) for t in counters.values())]
            sfe, log_factor, entries, count, *units = torch.stack(read).tolist()
            if count == 0:
                continue
            if not math.isfinite(sfe):
                raise BadWeights(
                    f"{self.label}: weights of network {network.name!r} are too large to go on: "
                    "what it would write is not finite; lower the learning rate, or start again "
                    "from an earlier checkpoint"
                )
            torch._foreach_zero_([sums, *counters.values()])
            if self.method.key != "hooks" and entries == 0:
                continue  # what only keeps its own books, as a layer's tick does
            firings = round(count)
            moved = None
            if self.method.measures_deviation:  # of one more update's plan, which is not written
                context = self._context(network, clock, 0, 1, inside=False)
                with torch.no_grad():
                    moved = self._deviation(network, self.plan(network, network, context), clock)
            receipts.append(
                Receipt(
                    method=self.method.name,
                    network=network.name,
                    clock=clock,
                    crossings=firings,
                    entries_touched=round(entries / count),
                    sfe=sfe,
                    optimizer_policy=self.optimizer,
                    followers=dict.fromkeys(network.followers, self.followers),
                    firings=firings,
                    log_factor=log_factor,
                    units=dict(zip(counters, map(round, units), strict=True)) or None,
                    deviation=moved,
                    layers=self.scope.layers,
                    hook=self.key,
                )
            )
        return receipts


@torch.no_grad()
def _refresh_copies(network: Network) -> None:
    """Bring low-precision copies up to date where a layer wrote to their fp32 masters."""
    for block in network.blocks:
        if block.memory is not None:
            for low in block.copies:
                low.copy_(block.view)


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
            change = (edit.value.double() - edit.now().double()).square()
            sums[0] += (change if edit.mask is None else change.where(edit.mask, 0)).sum()
    for mask in masks(edits):
        sums[2] += mask.sum()
    # One addition for all: each tensor operation costs as much as a small layer.
    sums[2] += unmasked(edits)
    sums[3] += 1


def refuse_low_precision(network: Network, block: Block) -> None:
    """Refuse a weight in low precision without a master, where small changes round to nothing."""
    if block.view.dtype in (torch.bfloat16, torch.float16):
        raise BadWeights(
            f"{network.qualified(block)} is {block.view.dtype} without an fp32 master: a change "
            "made every update would round to nothing; pass masters= to its Network"
        )
