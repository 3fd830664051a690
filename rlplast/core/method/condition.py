"""Conditions: hooks that fire when a measured value is above or below a threshold.

What one decides follows from the value, the clock, and the clock of its last firing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import Field

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError, did_you_mean, shortened
from rlplast.core.registry import rows
from rlplast.core.validation import Section, validated

__all__ = ["Condition", "Measured"]

FAMILIES = ("metric", "eval", "train")


@dataclass(frozen=True)
class Measured:
    """What a run measures; `metrics` is None if it measures no plasticity metrics at all."""

    metrics: tuple[str, ...] | None
    evaluate: bool


@dataclass
class _When(Section):
    """A condition as a config has it."""

    metric: str
    above: float | None = None
    below: float | None = None
    cooldown: Annotated[str, Field(examples=["5 updates"])] | None = None


@dataclass(frozen=True)
class Condition:
    """A threshold on a measured value.

    Attributes:
        metric: the name of a plasticity metric, such as ``dormant_ratio``, read for each network on
            its own; or a key of metrics.jsonl, such as ``train/return``, read for all.
        threshold: what the value is compared with, strictly.
        above: whether the value has to be above the threshold, else below.
        cooldown: how long it rests after a firing; None for not at all.
    """

    metric: str
    threshold: float
    above: bool
    cooldown: Time | None = None

    @classmethod
    def parse(cls, config: Any, total: Time, key: str = "when") -> "Condition":
        """Read a config's `when`, a percentage of `cooldown` resolved against the run's length.

        Raises:
            ConfigError: for an unknown key or metric, a threshold that is missing, double or not
                finite, or a cooldown that is no time.

        Examples:
            >>> c = Condition.parse({"metric": "train/loss", "above": 2}, Time(100, "updates"))
            >>> c.holds(2.5), c.holds(2.0), c.holds(float("nan"))
            (True, False, False)
        """
        when = validated(_When, config, key)
        _check_metric(when.metric, key)
        if (when.above is None) == (when.below is None):
            raise ConfigError(
                f"{key}.above = {when.above}, below = {when.below}: exactly one threshold is needed"
            )
        threshold = when.below if when.above is None else when.above
        cooldown = None
        if when.cooldown is not None:
            cooldown = Time.parse(when.cooldown, f"{key}.cooldown").resolve(total)
        return cls(when.metric, cast(float, threshold), when.above is not None, cooldown)

    @property
    def bare(self) -> bool:
        """Whether each network's own value is read, rather than one value for all."""
        return "/" not in self.metric

    def key(self, network: str) -> str:
        """Return the key of metrics.jsonl that is read for a network."""
        return f"metric/{self.metric}/{network}" if self.bare else self.metric

    def __str__(self) -> str:
        """Return the condition as YAML: the name of a hook's random streams has it."""
        side = "above" if self.above else "below"
        rest = "" if self.cooldown is None else f", cooldown: {self.cooldown}"
        return f"{{metric: {self.metric}, {side}: {self.threshold!r}{rest}}}"

    def holds(self, value: float | None) -> bool:
        """Whether a value is beyond the threshold; None and NaN never are."""
        if value is None:
            return False
        return value > self.threshold if self.above else value < self.threshold

    def rested(self, last: Clock | None, clock: Clock) -> bool:
        """Whether the cooldown since the last firing is over; None for no firing yet."""
        if last is None or self.cooldown is None:
            return True
        return clock[self.cooldown.unit] - last[self.cooldown.unit] >= self.cooldown.value

    def check_found(self, values: Mapping[str, Any], networks: Iterable[str], key: str) -> None:
        """Refuse a value that is not among those measured at one moment, if others like it are."""
        if self.metric.startswith("train/"):  # such as a return, before an episode has ended
            return
        evaluated = self.metric.startswith("eval/")
        like = "eval/" if evaluated else "/".join(self.key("").split("/")[:3])
        wanted = [self.key(n) for n in networks] if self.bare else [self.metric]
        absent = [k for k in wanted if k not in values]
        alike = [v for k in absent for v in values if v.startswith(f"{k}/")]  # of its parts
        if 0 < len(absent) == len(wanted):
            alike += [v for v in values if v.startswith(like)]
        if alike:
            near = did_you_mean(absent[0], alike)
            raise ConfigError(f"{key}.metric = {self.metric!r} is never measured: {near}")

    def check(self, measured: Measured, networks: Iterable[str], key: str = "when") -> None:
        """Refuse a value that a run does not measure, saying what to add to the config."""
        family, _, rest = ("metric", "/", self.metric) if self.bare else self.metric.partition("/")
        where = f"{key}.metric = {self.metric!r}"
        if family not in FAMILIES:
            allowed = [f"{name}/{rest}" for name in FAMILIES]
            raise ConfigError(
                f"{where} is measured in no run: {did_you_mean(self.metric, allowed)}"
            )
        if family == "eval" and not measured.evaluate:
            raise ConfigError(
                f"{where} is never measured: give evaluate.every a period, such as 5%"
            )
        if family != "metric":
            return
        name, *others = rest.split("/")
        if measured.metrics is None:
            raise ConfigError(f"{where} is never measured: give metrics.every a period, such as 5%")
        if name not in measured.metrics:
            raise ConfigError(
                f"{where} is never measured: add {name!r} to metrics.names, which are "
                f"{', '.join(measured.metrics)}"
            )
        if not self.bare and (not others or others[0] not in list(networks)):
            allowed = [f"metric/{name}/{network}" for network in networks]
            raise ConfigError(f"{where} is never measured: {did_you_mean(self.metric, allowed)}")


def _check_metric(metric: str, key: str) -> None:
    names = [info.name for info in rows("metrics")]
    if "/" not in metric and metric not in names:
        raise ConfigError(
            f"{key}.metric = {shortened(metric, 40)} is no plasticity metric: "
            f"{did_you_mean(metric, names)} "
            "(`rlplast list metrics`), or a key of metrics.jsonl, which has a '/'"
        )
    if metric.startswith("time/"):
        raise ConfigError(
            f"{key}.metric = {metric!r} differs each time a run is repeated: allowed are values "
            f"that follow from the config, under {'/, '.join(FAMILIES)}/"
        )
