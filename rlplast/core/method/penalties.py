"""Penalties: the terms of a run that are added to losses."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlplast.core.clock import Clock, Time
from rlplast.core.device import refuse_capture
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.context import Context, Source, is_trainer
from rlplast.core.method.layer_names import check_layers, in_layers
from rlplast.core.method.listing import parse_row
from rlplast.core.method.method import Method, State, carry, implements, readable
from rlplast.core.method.readings import OwnSource, Probe
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network, by_name
from rlplast.core.rng import derive_seed

__all__ = ["Penalties", "Term"]


@dataclass
class Term:
    """A method's term in one network.

    Attributes:
        key: its place in the config's list, and the name of its network.
        select: returns the trainable Blocks that it reads.
        state: the method's own tensors; its plan, if it has one, changes them.
        window: due at the updates that have the term; None for all.
        started: of a hook's method, whether it has fired; its hook looks after its state.
        blocks: what `select` returned last.
    """

    key: str
    method: Method
    network: Network
    select: Callable[[], tuple[Block, ...]]
    state: State = field(default_factory=dict)
    window: Schedule | None = None
    started: Callable[[], bool] | None = None
    blocks: tuple[Block, ...] = ()
    version: int = -1

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Look anew at a network that has changed: what trains, and where state belongs."""
        if self.version != self.network.version:
            self.version, self.blocks = self.network.version, self.select()
            if self.blocks and self.started is None:
                anew = self.method.setup(self.network, self.blocks)
                carry(self.state, anew, self.network.module)

    def acts(self, clock: Clock | None) -> bool:
        """Whether the update that brings the run to `clock` gets something from it."""
        return self.has_started() and len(self.blocks) > 0 and self.is_open(clock)

    def has_started(self) -> bool:
        """Whether this is no term of a hook's method, or its hook has fired."""
        return self.started is None or self.started()

    def is_open(self, clock: Clock | None) -> bool:
        """Whether the update that brings the run to `clock` has the term."""
        if self.window is None:
            return True
        if clock is None:
            raise ConfigError(
                f"{self.key} ({self.method.name}) has from or until: give `add` the clock that "
                "counts the update, such as rlplast.Clock(updates=1) at the first"
            )
        return self.window.crossings(clock.advance(updates=-1), clock) > 0

    def has_begun(self, clock: Clock) -> bool:
        """Whether `clock` has reached the window's ``from``."""
        start = None if self.window is None else self.window.start
        return start is None or clock[start.unit] >= start.value


class Penalties:
    """All penalties of a run.

    Args:
        configs: the config's list of penalties.
        networks: the run's networks by name; or one network.
        source: where batches come from in a run, for terms that read them.
        probe: replaces `source` in a loop of your own; see `rlplast.core.method.hooks.Hooks`.
        total: the run's length; percentages are shares of it. Needed for ``from`` and ``until``.
        units: units that the run's clock counts. Times in another unit are refused.
        horizon: the clock at the run's end; 0 for counters that are not known in advance.
        seed: the run's seed, for the draws of terms and of the probe batch.

    Attributes:
        terms: all terms, in the config's order.
        clock: the clock of a loop of your own, set by `Hooks.step`. A trainer has its own.
        sum: of the terms since the last call of `metrics`, float64 on the networks' device; None
            without penalties.

    Raises:
        ConfigError: for unknown keys, methods, networks, layers or parameters; if there is nothing
            to penalise in a network that is named, or in any; for weights in low precision next to
            fp32 masters, in which the loss has no gradient; if ``from`` and ``until`` leave no
            update between them.
    """

    def __init__(
        self,
        configs: Iterable[Mapping[str, Any]],
        networks: Mapping[str, Network] | Network,
        source: Source | None = None,
        *,
        probe: Any = None,
        total: Time | str | None = None,
        units: Iterable[str] | None = None,
        horizon: Clock | None = None,
        seed: int = 0,
    ) -> None:
        networks = by_name(networks)
        self.source = source if probe is None else OwnSource(networks, probe, seed=seed)
        self.clock = self.last = Clock()  # `last` is that of the last update, if it was passed
        self.seed = seed
        self.terms = [term for network in networks.values() for term in _installed(network)]
        for i, config in enumerate(configs):
            terms = _parse(f"penalties[{i}]", config, networks, thaws=not is_trainer(self.source))
            window = _window(f"penalties[{i}]", config, total, units, horizon)
            for term in terms:
                term.window = window
            self.terms += terms
        for term in self.terms:
            if term.method.reads and self.source is None:
                raise ConfigError(
                    f"{term.key} ({term.method.name}) reads {', '.join(term.method.reads)}: pass "
                    "probe= to rlplast.Penalties, a function (size, generator) that returns "
                    "inputs of the model"
                )
        used = [term.network.blocks[0].view.device for term in self.terms]
        self.sum = torch.zeros((), dtype=torch.float64, device=used[0]) if used else None

    def of(
        self, name: str, loss: Tensor | None = None, *, clock: Clock | None = None
    ) -> Tensor | None:
        """Return the sum of a network's terms, 0-d and differentiable; None if it has none.

        Args:
            name: the network.
            loss: of the update, for terms that follow its size.
            clock: counts the update: terms whose window it lies outside are absent.
        """
        self.last = self.last if clock is None else clock
        terms = [t for t in self.terms if t.network.name == name]
        if terms and not is_trainer(self.source) and not torch.compiler.is_compiling():
            terms[0].network.refresh()
            for term in terms:
                term.refresh()
        values = [t.method.term(self._context(t, loss), t.state) for t in terms if t.acts(clock)]
        return torch.stack(values).sum() if values else None

    def captured_key(self, clock: Clock) -> Hashable:
        """Return a key, equal for clocks (which count the update) with the same terms."""
        before = clock.advance(updates=-1)
        return tuple((t.method.captured_key(before),) if t.acts(clock) else () for t in self.terms)

    def include(self, term: Term) -> None:
        """Add the term of a hook's method; low precision next to fp32 masters is refused."""
        _check_gradients(term.key, term.network, term.blocks)
        self.terms.append(term)
        if self.sum is None:
            device = term.network.blocks[0].view.device
            self.sum = torch.zeros((), dtype=torch.float64, device=device)

    def _now(self) -> Clock:
        return getattr(self.source, "clock", self.clock)

    def _context(self, term: Term, loss: Tensor | None) -> Context:
        network, method = term.network, term.method
        clock = self._now()
        readings = None
        label = f"{term.key} ({method.name})"
        if method.reads and self.source is not None:
            refuse_capture(f"{label} reads batches of its own")
            number = derive_seed(0, "penalty", method.name, network.name, clock.updates)
            readings = Probe(self.source, network, method.probe, number, label)
        return Context(
            network,
            term.blocks,
            readable(clock, method, label),
            seed=derive_seed(self.seed, "penalty", method.name, network.name),
            reads=method.reads,
            readings=readings,
            loss=None if loss is None else loss.detach(),
        )

    def add(
        self, name: str, loss: Tensor, whole: Tensor | None = None, *, clock: Clock | None = None
    ) -> Tensor:
        """Return a network's loss plus its terms, and count the terms for `metrics`.

        Call it outside autocast, which would compute the terms in low precision.

        Args:
            name: the network.
            loss: its loss.
            whole: the loss of the whole update, if `loss` is that of a part.
            clock: as in `of`.
        """
        term = self.of(name, loss if whole is None else whole, clock=clock)
        if term is None or self.sum is None:
            return loss
        self.sum = self.sum.to(term.device)
        self.sum += term.detach()
        return loss + term

    def metrics(self, updates: int) -> dict[str, float]:
        """Return ``train/penalty``, the mean of all terms per update, once one of them counts."""
        clocks = self._now(), self.last
        begun = (t for t in self.terms if t.has_started() and any(map(t.has_begun, clocks)))
        if self.sum is None or updates == 0 or not any(begun):
            return {}
        mean = float(self.sum / updates)
        self.sum.zero_()
        return {"train/penalty": mean}

    def state_dict(self) -> dict[str, Any]:
        """Return the sum not yet read by `metrics`, and the methods' own tensors."""
        if self.sum is None or not any(t.has_started() for t in self.terms):
            return {}
        states = {t.key: t.state for t in self.terms if t.state and t.started is None}
        return {"sum": self.sum} | states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the saved run may have had no penalties."""
        if self.sum is not None:
            self.sum.zero_()
            if "sum" in state:
                self.sum.copy_(state["sum"])
        for term in self.terms:
            for name, tensor in state.get(term.key, {}).items():
                term.state[name].copy_(tensor)


def _installed(network: Network) -> list[Term]:
    """Return the terms of methods whose modules the network has."""
    terms = [
        Term(f"installed[{i}]/{network.name}", method, network, _select(network, method, None))
        for i, method in enumerate(network.installed)
        if implements(method, "term")
    ]
    return [term for term in terms if term.blocks]


def _parse(label: str, config: Any, networks: Mapping[str, Network], thaws: bool) -> list[Term]:
    """Return the terms of a row; where layers may thaw later, those that wait for it too."""
    row = parse_row(label, config, "penalties", networks)
    chosen: dict[str, tuple[Block, ...]] = {}
    able: dict[str, tuple[Block, ...]] = {}
    for name in row.networks:
        every = networks[name].select(lambda b: b.role != "buffer" and row.method.covers(b))
        able[name] = tuple(b for b in every if b.trainable or thaws)
        chosen[name] = tuple(b for b in able[name] if in_layers(b, row.layers))
    check_layers(row.label, row.layers or (), able, "that it penalises")
    for name, blocks in chosen.items():
        if not blocks and (row.named or not any(chosen.values())):
            raise NothingToEdit(f"{row.label} finds nothing to penalise in network {name!r}")
        _check_gradients(row.label, networks[name], blocks)
    selects = {n: _select(networks[n], row.method, row.layers) for n in chosen if chosen[n]}
    return [Term(f"{label}/{n}", row.method, networks[n], s) for n, s in selects.items()]


def _check_gradients(label: str, network: Network, blocks: Sequence[Block]) -> None:
    for block in blocks:
        if block.copies:
            raise ConfigError(
                f"{label}: {network.qualified(block)} is kept in {block.copies[0].dtype} beside an "
                "fp32 master, which gets no gradient from the loss: train it in float32 (autocast "
                "may still compute in low precision), or leave it out by `networks`, `layers` or "
                "`scope`"
            )


def _window(
    label: str,
    config: Mapping[str, Any],
    total: Time | str | None,
    units: Iterable[str] | None,
    horizon: Clock | None,
) -> Schedule | None:
    """Return the schedule of a row's ``from`` and ``until``; None if it says neither."""
    bounds = {key: config[key] for key in ("from", "until") if config.get(key) is not None}
    if not bounds:
        return None
    if total is None:
        raise ConfigError(f"{label}: from and until need the run's length: Penalties(..., total=)")
    label = f"{label} ({config['method']})"
    every = {"every": "1 updates"}
    window = Schedule.parse(every | bounds, Time.parse(total, "total"), label, horizon)
    window.check_units(window.units() if units is None else units, label)
    until = window.until
    if until is not None and until.value == 0 and until.unit not in ("epochs", "phase"):
        raise ConfigError(f"{label}.until = {until} is before the first update: allowed is more")
    return window


def _select(
    network: Network, method: Method, globs: Sequence[str] | None
) -> Callable[[], tuple[Block, ...]]:
    """Return a function that finds what a method's term reads, of what trains by then."""
    return lambda: tuple(b for b in network.trainable() if method.covers(b) and in_layers(b, globs))
