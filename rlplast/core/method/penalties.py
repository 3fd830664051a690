"""Penalties: the terms of a run that are added to losses."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlplast.core.clock import Clock, Time
from rlplast.core.device import refuse_capture
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Context
from rlplast.core.method.install import installed_rules
from rlplast.core.method.listing import Span, parse_row
from rlplast.core.method.method import implements, readable
from rlplast.core.method.readings import OwnSource, Probe, Source, is_trainer
from rlplast.core.method.rule import Rule
from rlplast.core.network.network import Network, by_name
from rlplast.core.rng import derive_seed

__all__ = ["Penalties"]


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
        rules: of the list, and of the layers that the networks have.
        terms: the rules that add to losses: layers, the list in its order, then hooks.
        clock: the clock of a loop of your own, set by `Hooks.step`. A trainer has its own.
        sum: of the terms since the last call of `metrics`, float64 on the networks' device; None
            without penalties.

    Raises:
        ConfigError: for unknown keys, methods, networks, layers or parameters; if there is nothing
            to penalise in a network that is named, or in any; if ``from`` and ``until`` leave no
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
        self.sum: Tensor | None = None
        self.terms: list[Rule] = []
        self.rules = installed_rules(networks.values())
        span = Span(None if total is None else Time.parse(total, "total"), units, horizon)
        for i, config in enumerate(configs):
            row = parse_row(f"penalties[{i}]", config, "penalties", networks, span)
            chosen = [networks[name] for name in row.networks]
            key = f"penalties[{i}] {row.method.name}"
            self.rules.append(Rule(row, chosen, self.source, key))
        for rule in self.rules:
            if rule.method.key != "layers" or any(rule.termed.values()):
                self.include(rule)

    def include(self, rule: Rule) -> None:
        """Take a rule's term, if it has one."""
        if not implements(rule.method, "term"):
            return
        if rule.method.reads and rule.source is None and self.source is None:
            raise ConfigError(
                f"{rule.label} reads {', '.join(rule.method.reads)}: pass probe= to "
                "rlplast.Penalties, a function (size, generator) that returns inputs of the model"
            )
        self.terms.append(rule)
        if self.sum is None:
            device = rule.known[0].blocks[0].view.device
            self.sum = torch.zeros((), dtype=torch.float64, device=device)

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
        terms = [(rule, n) for rule in self.terms for n in rule.known if n.name == name]
        if terms and not is_trainer(self.source) and not torch.compiler.is_compiling():
            terms[0][1].refresh()
            for rule, _ in terms:
                rule.refresh()
        values = [
            rule.method.term(self._context(rule, network, loss), rule.states[name])
            for rule, network in terms
            if rule.adds(network, clock)
        ]
        return torch.stack(values).sum() if values else None

    def captured_key(self, clock: Clock) -> Hashable:
        """Return a key, equal for clocks (which count the update) with the same terms."""
        before = clock.advance(updates=-1)
        return tuple(
            (rule.method.captured_key(before),) if rule.adds(network, clock) else ()
            for rule in self.terms
            for network in rule.known
        )

    def _now(self) -> Clock:
        return getattr(self.source, "clock", self.clock)

    def _context(self, rule: Rule, network: Network, loss: Tensor | None) -> Context:
        method, clock, readings = rule.method, self._now(), None
        source = self.source if rule.source is None else rule.source
        if method.reads and source is not None:
            refuse_capture(f"{rule.label} reads batches of its own")
            number = derive_seed(0, "penalty", method.name, network.name, clock.updates)
            readings = Probe(source, network, method.probe, number, rule.label)
        return Context(
            network,
            rule.termed[network.name],
            readable(clock, method, rule.label),
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
        if self.sum is None or not updates or not any(t.has_added(clocks) for t in self.terms):
            return {}
        mean = float(self.sum / updates)
        self.sum.zero_()
        return {"train/penalty": mean}

    def state_dict(self) -> dict[str, Any]:
        """Return the sum not yet read by `metrics`, and the methods' own tensors."""
        rules = [rule for rule in self.terms if rule.method.key != "hooks"]
        if self.sum is None or not (rules or any(rule.fired for rule in self.terms)):
            return {}
        return {"sum": self.sum} | {rule.key: rule.states for rule in rules}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the saved run may have had no penalties."""
        if self.sum is not None:
            self.sum.zero_()
            if "sum" in state:
                self.sum.copy_(state["sum"])
        for rule in self.terms:
            for name, tensors in state.get(rule.key, {}).items():
                for key, tensor in tensors.items():
                    rule.states[name][key].copy_(tensor)
