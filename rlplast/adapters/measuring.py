"""Metrics inside somebody else's trainer: when, which, and where their values go."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import Field

from rlplast.adapters.state import cut_lines
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.method.condition import Measured
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.network import Network
from rlplast.core.rng import preserve_global_rng
from rlplast.core.validation import Names, Section, validated
from rlplast.metrics.probe import OF_BATCH, OF_LOSS, OF_OUTPUTS, RunMetrics, check_names
from rlplast.training.config import MetricsConfig
from rlplast.training.intervals import is_due
from rlplast.training.run_folder import clock_fields

__all__ = ["Measuring", "MetricsRow", "check_conditions", "refuse_conditions"]


@dataclass
class MetricsRow(Section):
    """What is measured, as the section ``metrics`` of a run's config says it."""

    every: str
    names: Names | None = None  # for those of `MetricsConfig` that can be read
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    networks: Names | None = None  # for all

    @classmethod
    def parse(cls, row: Any) -> "MetricsRow":
        """Read what the user passes as ``metrics=``; ConfigError if it is none."""
        checked = validated(cls, row, "metrics")
        check_names(checked.names or ())
        return checked


class Measuring:
    """The metrics of one run inside a trainer, as lines, which are also appended to a file."""

    def __init__(self, row: MetricsRow, path: Path | None) -> None:
        self.row, self.path = row, path
        self.lines: list[dict[str, float]] = []  # counters, then values by ``metric/…`` key
        self.names: tuple[str, ...] = ()
        self._schedule: Schedule | None = None
        self._last: Clock | None = None
        self._read: RunMetrics | None = None
        self._of: Any = None

    def begin(
        self, hooks: Hooks, units: Sequence[str], known: bool, loss: bool, state: Mapping[str, Any]
    ) -> None:
        """Check what is asked against what there is, and go on from a saved state.

        `known` says whether there is a batch to read, `loss` whether there is a loss.

        Raises:
            ConfigError: naming the metric or the network, and what is allowed.
        """
        chosen = self._chosen(hooks.networks)
        self._schedule = Schedule.parse(
            {"every": self.row.every}, hooks.total, "metrics", hooks.horizon
        )
        self._schedule.check_units(units, "metrics")
        able = [n for n in MetricsConfig().names if not _lacking(n, chosen, hooks, known, loss)]
        self.names = tuple(able) if self.row.names is None else self.row.names
        for name in self.names:
            lacking = _lacking(name, chosen, hooks, known, loss)
            if lacking is not None:
                raise ConfigError(f"HookCallback: metrics.names: {name!r} {lacking}")
        source: Any = hooks.source
        self._of = SimpleNamespace(
            networks=chosen,
            sample=source.sample if known else lambda size, number: None,
            activations=source.activations,
            outputs=source.outputs,
            loss=source.loss,
        )
        self._read = RunMetrics(self.names, self.row.batch_size, hooks.hooks)
        self._read.load_state_dict(state)
        if self.path is not None:
            cut_lines(self.path, state.get("length"), "metrics")

    def _chosen(self, networks: Mapping[str, Network]) -> dict[str, Network]:
        names = list(networks) if self.row.networks is None else self.row.networks
        for name in names:
            if name not in networks:
                raise ConfigError(f"metrics.networks: {name!r}: {did_you_mean(name, networks)}")
        return {name: networks[name] for name in names}

    @property
    def reads(self) -> bool:
        """Whether a metric reads a batch."""
        return any(name in OF_BATCH for name in self.names)

    def due(self, previous: Clock, clock: Clock) -> bool:
        """Whether it is time, after `previous` and up to `clock`."""
        return is_due(self._schedule, previous, clock)

    def measure(self, clock: Clock, units: tuple[str, ...]) -> dict[str, float]:
        """Return the values of now, and keep them as a line; nothing twice at one clock."""
        if self._read is None or clock == self._last:
            return {}
        self._last = clock
        with preserve_global_rng():
            values = self._read(self._of, sum(dataclasses.asdict(clock).values()))
        line = {**clock_fields(clock, units), **values}
        self.lines.append(line)
        if self.path is not None:
            finite = {k: v if math.isfinite(v) else None for k, v in line.items()}
            with self.path.open("a") as file:
                file.write(json.dumps(finite, allow_nan=False) + "\n")
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the weights that metrics of churn compare with, and the file's length."""
        path = self.path
        length = None if path is None else path.stat().st_size if path.exists() else 0
        return (self._read.state_dict() if self._read else {}) | {"length": length}


def _lacking(
    name: str, networks: Mapping[str, Network], hooks: Hooks, known: bool, loss: bool
) -> str | None:
    if name in OF_BATCH and not known:
        return "reads a batch, of which this trainer gives none: pass probe="
    if name in OF_LOSS and not loss:
        return "reads gradients: pass probe= and loss=, a function of a batch of the probe"
    having = getattr(hooks.source, "with_outputs", networks)  # of a user's probe all
    without = [n for n in networks if n not in having]
    if name in OF_OUTPUTS and without:
        return (
            f"reads outputs, of which network {without[0]!r} has none that are known: leave it out "
            "by metrics.networks (of PPO and A2C name actor, critic or both)"
        )
    return None


def check_conditions(hooks: Hooks, measuring: Measuring | None) -> None:
    """Raise ConfigError unless the plasticity metrics that hooks wait for are measured."""
    measured = Measured(None if measuring is None else measuring.names, evaluate=True)
    networks = hooks.networks if measuring is None else measuring._chosen(hooks.networks)
    for hook in hooks.conditional:
        when = hook.schedule.when
        # Other keys are those of the trainer's log, which are not known in advance.
        if when is not None and (when.bare or when.metric.startswith("metric/")):
            when.check(measured, networks, f"{hook.label}.when")


def refuse_conditions(hooks: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for hooks that wait for a value, in a trainer that reports none."""
    for i, hook in enumerate(hooks):
        if hook.get("when") is not None:
            raise ConfigError(
                f"hooks[{i}] ({hook.get('method')}).when = {hook['when']!r}: a callback does "
                "not get what its trainer measures; allowed are at, every, on (or a loop of your "
                "own, which passes values to rlplast.Hooks.observe)"
            )
