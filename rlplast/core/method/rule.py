"""Rule: one row of a config's lists, ready to do what its method can."""

import math
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from rlplast.core.clock import Clock
from rlplast.core.device import refuse_capture
from rlplast.core.errors import BadWeights, ConfigError, DamagedFile, NothingToEdit
from rlplast.core.method.context import Activations, Context
from rlplast.core.method.deviation import deviation
from rlplast.core.method.firing import Planned, carry_out
from rlplast.core.method.inside import accumulate, check_activations, refuse_low_precision
from rlplast.core.method.listing import Row
from rlplast.core.method.method import State, carry, implements, readable
from rlplast.core.method.readings import Inside, Probe, Source, is_trainer
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.scope import Scope, narrowed
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit, check, write
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import moments
from rlplast.core.rng import derive_seed, torch_stream

__all__ = ["Rule"]

_COUNT = "count/"  # what the names of a method's own counters begin with


class Rule:
    """A row in its networks: it plans at its times or inside updates, and adds terms to losses.

    Args:
        row: what the config says.
        networks: those that the row is for.
        source: where a firing's probe, and what terms read, come from.
        key: name of its random streams and of its entry in checkpoints.

    Attributes:
        states: the method's own tensors, by network.
        sums: [Σ sfe, Σ log factor, Σ entries, firings] of every-update firings since the last
            flush, by network; on the device, so that they count in a captured update too.
        fired: by network, how often it has fired between updates, and the clock of the last time.
        known: the row's networks.
        networks: those in which it acts now.
        resting: why it finds nothing to edit in the others, such as layers that are frozen as yet.
        edited, restored, termed: by network, the Blocks that a plan may edit, those that a firing
            sets to θ0, and those that a term reads.
    """

    def __init__(
        self, row: Row, networks: Iterable[Network], source: Source | None = None, key: str = ""
    ) -> None:
        """Allocate the method's state, before anything is compiled or captured."""
        self.row, self.source, self.key = row, source, key or row.label
        self.method, self.schedule, self.label = row.method, row.schedule, row.label
        self.optimizer, self.followers = row.optimizer, row.followers
        self.known = tuple(networks)
        self.networks: tuple[Network, ...] = ()
        self.states: dict[str, State] = {}
        self.sums: dict[str, Tensor] = {}
        self.fired: dict[str, tuple[int, Clock]] = {}
        self.resting: dict[str, NothingToEdit] = {}
        self.edited: dict[str, tuple[Block, ...]] = {}
        self.restored: dict[str, tuple[Block, ...]] = {}
        self.termed: dict[str, tuple[Block, ...]] = {}
        self._versions: dict[str, int] = {}
        covers, whole = self.method.covers, row.scope
        if self.method.key == "penalties":
            whole = Scope(lambda block: block.role != "buffer" and covers(block))
        self.scope = narrowed(whole, row.layers, {n.name: n for n in self.known}, row.label)
        self._check_readings()
        self.refresh()
        missing = [n.name for n in self.known if n.name in self.resting and not self.may_thaw(n)]
        if missing and (row.named or len(missing) == len(self.known)):
            raise self.resting[missing[0]]  # the first network is the most important

    def refresh(self) -> None:
        """Look anew at networks that have changed: what trains in them, and where state belongs."""
        changed = [n for n in self.known if self._versions.get(n.name) != n.version]
        for network in changed:
            self._set_up(network)
        if changed:
            self.networks = tuple(n for n in self.known if n.name not in self.resting)

    def may_thaw(self, network: Network) -> bool:
        """Whether layers of a network may train later that are frozen now."""
        return not is_trainer(self.source) and len(self.scope.frozen(network)) > 0

    def _check_readings(self) -> None:
        method, inside = self.method, self.schedule.every_update
        adds = method.key == "hooks" and implements(method, "term")
        for why, refused in (
            # The term of a penalty reads batches, its plan does not.
            ("reads batches of data", "batches" in method.reads and method.key != "penalties"),
            ("adds a term to the updates between its firings", adds),
            ("follows every update by itself", self.follows),
        ):
            if inside and refused:
                raise ConfigError(
                    f"{self.label} {why}, and cannot fire at every update: allowed are schedules "
                    "such as at: 50%, every: 10000 updates, on: phase_start"
                )
        source, remedy = self.source, "pass probe= to rlplast.Hooks, or inputs= to rlplast.apply"
        needed = [what for what in method.reads if what != "moments"]
        if method.measures_deviation and source is None:
            raise ConfigError(
                f"{self.label} measures how far outputs move: {remedy}: inputs of the model"
            )
        if needed and source is None and not inside:
            raise ConfigError(
                f"{self.label} reads {', '.join(needed)}: {remedy}: inputs of the model, or a "
                "function (size, generator) → inputs"
            )

    def _set_up(self, network: Network) -> None:
        """Find what is edited in a network, and the method's state for it; or why there is none."""
        self._versions[network.name] = network.version
        edited = self.edited[network.name] = self.scope.edited(network)
        self.restored[network.name] = self.scope.restored(network)
        adds, covers = implements(self.method, "term"), self.method.covers
        self.termed[network.name] = tuple(b for b in edited if adds and b.trainable and covers(b))
        self.resting.pop(network.name, None)
        try:
            self._allocate(network)
        except NothingToEdit as error:
            layers = self.scope.layers
            what = "" if layers is None else f"{self.label}.layers = {list(layers)}: "
            self.resting[network.name] = NothingToEdit(f"{what}{error}")
            self.termed[network.name] = ()

    def _allocate(self, network: Network) -> None:
        blocks, key = self.edited[network.name], self.method.key
        if key != "layers" and not blocks:
            keys = "scope selects" if self.scope.layers is None else "scope and layers select"
            raise NothingToEdit(
                f"{self.label} finds nothing to edit in network {network.name!r}: its {keys} no "
                "trainable layer there: give a scope that does, such as all"
            )
        self._check_layers(network)
        if "moments" in self.method.reads:  # an optimizer without a rule must not stop a run later
            for block in network.trainable():
                moments(network, block.param)
        if network.name not in self.states or network.version > 0:
            anew = self.method.setup(network, blocks)
            for name, own in anew.items():
                if name.startswith(_COUNT) and (own.dtype, own.ndim) != (torch.int64, 0):
                    raise ConfigError(
                        f"{self.label}: its state {name!r} has {own.dtype} and shape "
                        f"{tuple(own.shape)}: allowed for a counter is int64 without dimensions, "
                        "such as torch.zeros((), dtype=torch.int64)"
                    )
            carry(self.states.setdefault(network.name, {}), anew, network.module)
        if self.schedule.every_update:
            device, sums = network.blocks[0].view.device, self.sums.get(network.name)
            anew = torch.zeros(4, dtype=torch.float64, device=device)
            self.sums[network.name] = anew if sums is None else sums.to(device)
            for block in blocks if key == "hooks" else ():
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

    def adds(self, network: Network, clock: Clock | None) -> bool:
        """Whether the update that brings the run to `clock` has the term in a network.

        A hook's is in all updates after its first firing there.
        """
        if not self.termed[network.name]:
            return False
        if self.method.key == "hooks" or self.row.window is None:
            return self.method.key != "hooks" or network.name in self.fired
        if clock is None:
            raise ConfigError(
                f"{self.label} has from or until: give `add` the clock that counts the update, "
                "such as rlplast.Clock(updates=1) at the first"
            )
        return self.row.window.is_due_inside(clock)

    def has_added(self, clocks: Iterable[Clock]) -> bool:
        """Whether one of the clocks has reached the first update with a term."""
        window = self.row.window
        if self.method.key == "hooks":
            return bool(self.fired)
        return window is None or any(map(window.has_begun, clocks))

    @property
    def follows(self) -> bool:
        """Whether the method's state follows every update, besides its schedule."""
        return implements(self.method, "follow")

    def inside_key(self, clock: Clock) -> Hashable:
        """Return a key that is equal for clocks at which `tick` does the same."""
        acts = self.follows or self.schedule.is_due_inside(clock)
        return (self.method.captured_key(clock),) if acts else ()

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
        schedule = self.schedule
        inside = schedule.every_update and schedule.has_begun(clock) and schedule.count(clock) > 0
        return bool(self.fired) or inside

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
        if self.resting and (self.row.named or not self.networks):
            raise next(iter(self.resting.values()))
        chosen = tuple(self.networks if networks is None else networks)
        held = {id(block.param) for network in self.known for block in network.blocks}
        planned = [self._planned(n, clock, due_count, seed, held) for n in chosen]
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
        self, network: Network, clock: Clock, seed: int, due_count: int = 1, inside: bool = True
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

    def _planned(
        self, network: Network, clock: Clock, due_count: int, seed: int, held: set[int]
    ) -> Planned:
        """Return a network's plan, those for its followers, and the seconds they took.

        Followers leave tensors that are `held`, by networks and followers before them.
        """
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
            # The method's own state is the network's, and so may be layers that both hold: their
            # edits are written once.
            plan = [(e, e.target) for e in self.plan(network, follower, theirs)]
            own = [e for e, b in plan if isinstance(b, Block) and id(b.param) not in held]
            plans.append((follower, own))
            held |= {id(block.param) for block in follower.blocks}
        seconds = time.perf_counter() - started
        within = None if self.scope.layers is None else network.select(self.scope.reaches)
        return Planned(network, edits, plans, seconds, self.counters(network), within)

    def tick(
        self, clock: Clock, seed: int, activations: Mapping[str, Activations] | None = None
    ) -> None:
        """Act inside an update: no checks, no host synchronisation, sums on the device.

        Activations are those of the update's own forward pass, by network. An empty mapping says
        that a network made no update this time: nothing is done in it.
        """
        if not (self.follows or self.schedule.is_due_inside(clock)):
            return
        method = self.method
        for network in self.networks:
            context, state = self._context(network, clock, seed), self.states[network.name]
            if self.follows:
                write(method.follow(context, state))
                continue
            if method.reads:
                values = None if activations is None else activations.get(network.name)
                if "activations" in method.reads and values is not None:
                    if isinstance(values, Mapping) and not values:
                        continue
                    check_activations(self.label, context, values)
                context = replace(context, readings=Inside(network, values, self.label))
            edits = self.plan(network, network, context)
            accumulate(self.sums[network.name], edits)
            write(edits)

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
                context = self._context(network, clock, 0, inside=False)
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

    def state_dict(self) -> dict[str, Any]:
        """Return the method's own tensors, the sums not yet flushed, and what has fired."""
        fired = {n: {"number": i, "clock": asdict(c)} for n, (i, c) in self.fired.items()}
        return {"states": self.states, "sums": self.sums} | ({"fired": fired} if fired else {})

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Copy what `state_dict` returned into this rule's tensors.

        Raises:
            DamagedFile: if it has other networks, names or shapes.
        """
        thaws = {network.name for network in self.known if self.may_thaw(network)}
        ours, theirs = _shapes(self.states), _shapes(saved["states"])
        known = {  # without what is of layers that are frozen here, and trained when it was saved
            name: {k: shape for k, shape in shapes.items() if name not in thaws or k in ours[name]}
            for name, shapes in theirs.items()
            if name in ours or name not in thaws
        }
        if ours != known:
            raise DamagedFile(
                f"the saved state of hook {self.key!r} has {theirs}, this one needs {ours}: it is "
                "of another hook list"
            )
        for name, tensors in saved["states"].items():
            state = self.states.setdefault(name, {})
            for key, tensor in tensors.items():
                if key in state:
                    state[key].copy_(tensor)
                else:
                    state[key] = tensor.clone()  # of a layer that is frozen here
        for name, sums in self.sums.items():
            sums.copy_(saved["sums"][name])
        self.fired = {
            name: (int(fired["number"]), Clock.saved(fired["clock"]))
            for name, fired in saved.get("fired", {}).items()
        }


def _shapes(states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, list[int]]]:
    return {n: {key: list(t.shape) for key, t in ts.items()} for n, ts in states.items()}


def _namesakes(network: Network, blocks: Iterable[Block]) -> tuple[Block, ...]:
    names = {b.name for b in blocks}
    return network.select(lambda b: b.name in names)
