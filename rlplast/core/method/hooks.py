"""Hooks: all hooks of a run; fires those that are due and returns receipts."""

import numbers
import warnings
import weakref
from collections.abc import Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from rlplast.core.clock import UNITS, Clock, Time
from rlplast.core.errors import ConfigError, RlplastError, did_you_mean, shortened
from rlplast.core.method.condition import Measured
from rlplast.core.method.context import Activations
from rlplast.core.method.install import installed_rules
from rlplast.core.method.listing import Span, parse_row
from rlplast.core.method.method import implements
from rlplast.core.method.penalties import Penalties
from rlplast.core.method.readings import OwnSource, Source
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.rule import Rule
from rlplast.core.method.schedule import Schedule, hook_identity, next_due, unique
from rlplast.core.method.training import warn_of_others
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import swapped
from rlplast.core.network.network import Network, by_name
from rlplast.core.network.optim_state import averages, without_rule
from rlplast.core.registry import measurer
from rlplast.core.rng import preserve_global_rng

__all__ = ["Hooks"]


class Hooks:
    """All hooks of a run.

    Args:
        configs: list of hooks, each a mapping with the keys of a config's ``hooks``.
        networks: the networks by name, or one network.
        total: the run's length, such as ``"200k env_steps"``. Percentages are shares of it.
        seed: the run's seed. Each firing has its own random stream.
        units: units that the run's clock counts. A schedule in another unit is refused.
        horizon: the clock at the run's end; 0 for counters that are not known in advance.
        measured: what the run measures. Conditions on anything else are refused. None if it is not
            known, as in a loop of your own.
        probe: a batch, or a function (size, generator) → batch: the input of the model. Scheduled
            methods that read activations or gradients need it. A mapping by network if they differ.
        loss: a function batch → loss, for methods that read gradients. A mapping by network if they
            differ.
        source: where probe batches come from in a run, instead of `probe` and `loss`.
        penalties: what `penalty` returns: a list of mappings with the keys of a config's
            ``penalties``; or a `Penalties`. Those with a plan fire at every update. They also get
            the terms of hooks that have one.
        metrics: what `measure` returns: a list of names of metrics.
        batch_size: samples of the probe batch that metrics read.

    Raises:
        ConfigError: for unknown keys, methods, networks or parameters, and for schedules that could
            never fire.
    """

    def __init__(
        self,
        configs: Iterable[Mapping[str, Any]],
        networks: Mapping[str, Network] | Network,
        total: Time | str,
        seed: int = 0,
        units: Iterable[str] | None = None,
        horizon: Clock | None = None,
        measured: Measured | None = None,
        *,
        probe: Any = None,
        loss: Any = None,
        source: Source | None = None,
        penalties: Penalties | Iterable[Mapping[str, Any]] | None = None,
        metrics: Iterable[str] | None = None,
        batch_size: int = 256,
    ) -> None:
        networks = by_name(networks)
        self.seed = seed
        self.total = Time.parse(total, "total")
        if self.total.unit == "%":
            raise ConfigError(f"total = {self.total}: allowed is a number with a unit")
        if isinstance(configs, str | Mapping) or not isinstance(configs, Iterable):
            raise ConfigError(f"hooks = {configs!r}: allowed is a list of mappings")
        self.horizon = horizon or Clock(**{self.total.unit: int(self.total.value)})
        self._loaded_ends: dict[str, int] = {}
        self.ends = [(unit, end) for unit, end in asdict(self.horizon).items() if end > 0]
        self.clock: Clock | None = None
        self.counted: set[str] = set()  # units that `step` was called with
        self.watches = True  # whether `step` warns of optimizers that are not the networks'
        made = None
        if source is None and probe is not None:
            source = made = OwnSource(networks, probe, loss, seed)
        self.networks, self.source = networks, source
        if penalties is not None and not isinstance(penalties, Penalties):
            settings = {"total": self.total, "units": units, "horizon": self.horizon, "seed": seed}
            penalties = Penalties(penalties, networks, source, **settings)
        self.penalties = penalties
        listed = [] if penalties is None else penalties.rules
        rules = installed_rules(networks.values(), listed)
        rules += [rule for rule in listed if rule.method.key == "penalties"]
        self.hooks = [rule for rule in rules if implements(rule.method, "plan")]
        span = Span(self.total, units, self.horizon, measured)
        for i, config in enumerate(configs):
            row = parse_row(f"hooks[{i}]", config, "hooks", networks, span)
            key = unique(hook_identity(config, row.schedule), [h.key for h in self.hooks])
            hook = Rule(row, [networks[name] for name in row.networks], source, key)
            self.hooks.append(hook)
            if implements(row.method, "term") and penalties is None:
                raise ConfigError(
                    f"{hook.label} adds a term to the loss: pass penalties=[] to rlplast.Hooks, "
                    "and add its `penalty()` to each loss"
                )
            if penalties is not None:
                penalties.include(hook)
        for hook in self.hooks if made else ():
            if made and not hook.schedule.every_update:
                for network in hook.networks:
                    made.check(hook.method.reads, network.name, hook.label)
        self._measure = None if metrics is None else measurer()(metrics, batch_size, self.hooks)
        if self._measure is not None and (made or source is None):
            self.source = made or OwnSource(networks, None, loss, seed)
            self._measure.check(self.source)
        self.conditional = [h for h in self.hooks if h.schedule.when is not None]
        plain = [h for h in self.hooks if h.schedule.when is None]
        self.scheduled = [h for h in plain if not h.schedule.every_update]
        self.every_update = [h for h in self.hooks if h.schedule.every_update]
        inside = [h for h in self.hooks if h.schedule.every_update or h.follows]
        # Penalties come last: they remember the weights at the end of an update.
        self.inside = sorted(inside, key=lambda h: h.method.key == "penalties")
        _check_evaluation(self.hooks)
        _warn_of_unknown_state(self.hooks)

    def refresh(self, names: Iterable[str] | None = None) -> None:
        """Look at the networks anew, where their layers, memory or what trains has changed.

        All that reads or edits weights outside our own trainers' updates does it by itself.

        Args:
            names: of the networks; default: all.
        """
        for name in self.networks if names is None else names:
            self.networks[name].refresh()
        for hook in self.hooks:
            hook.refresh()

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules by which hooks fire between updates."""
        return [hook.schedule for hook in self.scheduled]

    def fire(self, previous: Clock | None, clock: Clock) -> list[Receipt]:
        """Fire the hooks due after `previous` and at or before `clock`, in list order.

        Nothing fires at the end of a run: a reset there could only spoil the final weights.
        """
        receipts: list[Receipt] = []
        if not self.scheduled:
            return receipts
        before, now = previous and self._before_end(previous), self._before_end(clock)
        for hook in self.scheduled:
            crossings = hook.schedule.crossings(before, now)
            if crossings:
                receipts += hook.fire(clock, crossings, self.seed)
        return receipts

    def observe(self, values: Mapping[str, float], clock: Clock | None = None) -> list[Receipt]:
        """Take measured values, and fire the hooks whose condition holds, in list order.

        Each value is read once. A condition whose value is not given does not fire. Nothing fires
        at the end of a run.

        Args:
            values: numbers by key of metrics.jsonl, such as ``train/loss``. A condition on a
                plasticity metric reads ``metric/<name>/<network>``. All processes that train one
                network must pass equal values.
            clock: when they were measured; default: the clock of the last `step`.

        Raises:
            ConfigError: if the values are anything else.
        """
        if not isinstance(values, Mapping) or not all(map(_is_number, values.values())):
            raise ConfigError(
                f"observe({shortened(values)}): allowed is a mapping of names to numbers, such as "
                "{'train/loss': 0.1}"
            )
        clock = clock or self.clock or Clock()
        if self.at_end(clock):
            return []
        self.refresh()
        return [r for hook in self.conditional for r in hook.observe(values, clock, self.seed)]

    def penalty(self, network: str | None = None, loss: Tensor | None = None) -> Tensor:
        """Return what penalties add to the loss of the next update: 0-d and differentiable.

        Zero without penalties, and outside their ``from`` and ``until``. Call it once per update,
        outside autocast, which would compute it in low precision.

        Args:
            network: the network whose terms are returned; default: those of all networks.
            loss: the loss of the update, for terms that follow its size.

        Raises:
            ConfigError: for an unknown network.
        """
        if network is not None and network not in self.networks:
            raise ConfigError(f"penalty({network!r}): {did_you_mean(network, self.networks)}")
        names = list(self.networks) if network is None else [network]
        clock = (self.clock or Clock()).advance(updates=1)
        sums = [self.penalties.of(n, loss, clock=clock) for n in names] if self.penalties else []
        terms = [term for term in sums if term is not None]
        device = self.networks[names[0]].blocks[0].param.device
        return torch.stack(terms).sum() if terms else torch.zeros((), device=device)

    def measure(self) -> dict[str, float]:
        """Return ``metric/<name>/<network>[/<tensor>]`` values of now; `observe` takes them.

        They are read from weights and from a batch of the probe, drawn in a stream of its own. The
        training stays as it is. A network without hidden units has no metrics of features.

        Raises:
            ConfigError: without `metrics`.
        """
        if self._measure is None or self.source is None:
            raise ConfigError(
                "measure() has nothing to measure: pass metrics= to rlplast.Hooks, a list of names "
                "of `rlplast list metrics`"
            )
        self.refresh()
        with preserve_global_rng():
            return self._measure(self.source, sum(asdict(self.clock or Clock()).values()))

    def reads(self) -> list[str]:
        """Return the keys that conditions read, in the order of their names."""
        pairs = [(h.schedule.when, n.name) for h in self.conditional for n in h.networks]
        return sorted({condition.key(name) for condition, name in pairs if condition is not None})

    def check_found(self, values: Mapping[str, float]) -> None:
        """Check that the values of one measurement include those that conditions read."""
        for hook in self.conditional:
            if hook.schedule.when is not None:
                names = [n.name for n in hook.networks]
                hook.schedule.when.check_found(values, names, f"{hook.label}.when")

    def fire_what_fell_on_end(self, clock: Clock) -> list[Receipt]:
        """Fire what was due at the end of the shorter run whose state was loaded.

        It fired nothing at its end. Nothing is due if this run ends there too.
        """
        passed = {u: end - 1 for u, end in self._loaded_ends.items() if clock[u] >= end}
        self._loaded_ends, fired = {}, replace(clock, **passed)
        same = self._before_end(clock) == self._before_end(fired)
        return [] if same else self.fire(fired, clock)

    def at_end(self, clock: Clock) -> bool:
        """Whether a clock is at the end of the run, or past it."""
        return self._before_end(clock) != clock

    def _before_end(self, clock: Clock) -> Clock:
        passed = {unit: end - 1 for unit, end in self.ends if clock[unit] >= end}
        return replace(clock, **passed) if passed else clock

    def recorded(self) -> frozenset[str]:
        """Return the networks whose activations are read at every update."""
        hooks = [h for h in self.every_update if "activations" in h.method.reads]
        return frozenset(n.name for h in hooks for n in h.networks)

    def gradients_read(self) -> bool:
        """Whether gradients are read at every update, where the optimizer found them."""
        return any("gradients" in h.method.reads for h in self.every_update)

    def after_update(
        self, clock: Clock, activations: Mapping[str, Activations] | None = None
    ) -> None:
        """Fire the every-update hooks: layers first, hooks in list order, penalties last.

        Args:
            clock: the clock, which counts the update.
            activations: of the update's own forward pass, by network.
        """
        for hook in self.inside:
            hook.tick(clock, self.seed, activations)

    def inside_key(self, clock: Clock) -> Hashable:
        """Return a key that is equal for clocks at which `after_update` does the same."""
        return tuple(hook.inside_key(clock) for hook in self.inside)

    def evaluation(self) -> dict[Block, Tensor]:
        """Return the weights that evaluations use instead, from optimizers and methods."""
        self.refresh()
        weights: dict[Block, Tensor] = {}
        for network in self.networks.values():
            weights |= averages(network)
        for hook in self.hooks:
            for network in hook.networks:
                weights |= hook.method.evaluation(network, hook.states[network.name])
        return weights

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which the networks have the weights that evaluations use.

        When it ends, the training weights are put back, bit for bit.
        """
        return swapped(self.evaluation())

    def flush(self, clock: Clock | None = None) -> list[Receipt]:
        """Return the summary receipts of every-update hooks since the last flush.

        Args:
            clock: the clock of the receipts; default: the clock of the last `step`.
        """
        clock = clock or self.clock or Clock()
        self.refresh()
        return [r for hook in self.every_update for r in hook.flush(clock)]

    def step(self, *, activations: Mapping[str, Any] | None = None, **counts: int) -> list[Receipt]:
        """Tell the hooks the counters of your loop, and fire the hooks that are due.

        Args:
            activations: activations of this update's forward pass, from `rlplast.record`. Methods
                that read activations at every update need them. A mapping by network if there are
                several.
            **counts: the loop's counters by unit. They say how much is done: ``updates=1`` after
                the first optimizer step. A counter that you leave out keeps its value.

        Returns:
            The receipts of scheduled firings. For every-update hooks call `flush`.

        Raises:
            ConfigError: if a counter goes back, a unit that a schedule reads was never given, or a
                hook reads activations or gradients at every update and there are none.
        """
        if self.watches:
            self.watches = False
            weakref.finalize(self, warn_of_others(self.networks).remove)
        previous = self.clock
        before = asdict(previous) if previous else {}
        for unit, count in counts.items():
            if unit not in UNITS:
                raise ConfigError(f"step({unit}={count}): {did_you_mean(unit, UNITS)}")
            whole = isinstance(count, numbers.Integral) and not isinstance(count, bool)
            least = before.get(unit, 0)
            if not whole or count < least:
                raise ConfigError(
                    f"step({unit}={count!r}): allowed is a whole number from {least} on, since "
                    "counters only grow"
                )
        self.counted |= set(counts)
        needed = {unit for hook in self.hooks for unit in hook.schedule.units()}
        needed |= {"updates"} if self.inside else set()
        if lacking := sorted(needed - self.counted):
            call = ", ".join(f"{unit}={counts.get(unit, '…')}" for unit in (*counts, *lacking))
            raise ConfigError(
                f"step({', '.join(counts)}) lacks {', '.join(lacking)}, which a hook's schedule or "
                f"a layer's tick reads: pass it too, from the first call on, as in step({call})"
            )
        by_network = isinstance(activations, Mapping) and activations.keys() & self.networks.keys()
        if activations is not None and not by_network:
            activations = dict.fromkeys(self.networks, activations)
        clock = Clock(**{**before, **counts})
        done = before.get("updates", 0) if self.inside else clock.updates
        if done < clock.updates:
            self.refresh()
            self._check_gradients()
        self.go_to(clock)
        for update in range(done + 1, clock.updates + 1):
            self.after_update(replace(clock, updates=update), activations)
        return self.fire(previous, clock)

    def _check_gradients(self) -> None:
        """Refuse an update without any gradient, if one is read."""
        networks = self.networks.values() if self.gradients_read() else ()
        trained = [block for network in networks for block in network.trainable()]
        if trained and all(block.param.grad is None for block in trained):
            raise ConfigError(
                "a hook or layer reads gradients at every update and there are none: call "
                "hooks.step right after optimizer.step(), before zero_grad()"
            )

    def go_to(self, clock: Clock | None) -> None:
        """Set the clock of the last `step`; nothing fires."""
        self.clock = clock
        if self.penalties is not None:
            self.penalties.clock = clock or Clock()

    def next_due(self, clock: Clock) -> tuple[str, Time] | None:
        """Return the method and time of the scheduled hook that is due next."""
        schedules = [(hook.method.name, hook.schedule) for hook in self.scheduled]
        return next_due(schedules, clock, self.horizon)

    def state_dict(self) -> dict[str, Any]:
        """Return θ0, methods' state, the sums not yet flushed, and where `step` was."""
        self.refresh()
        state = {hook.key: hook.state_dict() for hook in self.hooks}
        clock = None if self.clock is None else asdict(self.clock)
        measured = {} if self._measure is None else {"measured": self._measure.state_dict()}
        initial = {name: dict(network.initial) for name, network in self.networks.items()}
        return state | {"clock": clock, "ends": dict(self.ends), "initial": initial} | measured

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy what `state_dict` returned into the tensors allocated at construction, and into θ0.

        A hook that the saved run did not have (the arm of a study) keeps what `setup` gave it.

        Raises:
            ConfigError: if it is no state of hooks.
            DamagedFile: if it is that of other ones.
        """
        try:
            self._load(state)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, RlplastError):
                raise
            raise ConfigError(
                f"load_state_dict({shortened(state)}): allowed is what state_dict() of Hooks "
                "returned"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self.go_to(None if state["clock"] is None else Clock.saved(state["clock"]))
        self.counted = {u for u, n in asdict(self.clock).items() if n} if self.clock else set()
        if self._measure is not None:
            self._measure.load_state_dict(state.get("measured", {}))
        self._loaded_ends = {unit: int(end) for unit, end in state["ends"].items()}
        for hook in self.hooks:
            if hook.key in state:
                hook.load_state_dict(state[hook.key])
        for name, network in self.networks.items() if "initial" in state else ():
            network.load_initial(state["initial"].get(name, {}))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _warn_of_unknown_state(hooks: Iterable[Rule]) -> None:
    """Say that an optimizer whose state a hook keeps may undo its edits, unless the state is known.

    It is said of each kind of optimizer once. Other policies refuse it.
    """
    labels: dict[str, str] = {}
    for hook in hooks:
        if hook.method.key == "hooks" and hook.optimizer == "keep":
            for optimizer in (o for network in hook.networks for o in without_rule(network)):
                labels.setdefault(type(optimizer).__name__, hook.label)
    for name, label in labels.items():
        warnings.warn(
            f"{label} leaves the state of {name} as it is, of which no rule is known: an optimizer "
            "that keeps weights there, as schedule-free ones and Lookahead do, undoes a part of "
            "what hooks write",
            stacklevel=3,
        )


def _check_evaluation(hooks: Iterable[Rule]) -> None:
    """Refuse two hooks that name the weights that evaluations of one network use."""
    labels: dict[str, str] = {}
    for hook in hooks:
        for network in hook.networks if implements(hook.method, "evaluation") else ():
            if network.name in labels:
                raise ConfigError(
                    f"{hook.label} and {labels[network.name]} both name the weights that "
                    f"evaluations of network {network.name!r} use: leave one of them out"
                )
            labels[network.name] = hook.label
