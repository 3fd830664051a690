"""Counters that only grow, and times with units."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from rlplast.core.errors import ConfigError, did_you_mean, shortened

__all__ = ["UNITS", "Clock", "Time"]

UNITS = ("updates", "env_steps", "frames", "episodes", "tokens", "epochs", "phase")
_MOST = 10**18  # counts of a time: they stay exact, and floats can be made of them
_MULTIPLIERS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
_NUMBER = re.compile(r"([0-9]+(?:_[0-9]+)*\.?[0-9]*(?:[eE][+-]?[0-9]{1,2})?)\s*([kMB]?)")


@dataclass(frozen=True)
class Clock:
    """Counters of one run; all start at 0 and never go back.

    Attributes:
        updates: optimizer updates done.
        env_steps: agent decisions = transitions stored, summed over environments.
        frames: simulator steps, summed over environments.
        episodes: episodes that ended, summed over environments.
        tokens: tokens a language model was trained on.
        epochs: passes over the data.
        phase: index of the current phase (task, data set) of the run.
    """

    updates: int = 0
    env_steps: int = 0
    frames: int = 0
    episodes: int = 0
    tokens: int = 0
    epochs: int = 0
    phase: int = 0

    @classmethod
    def saved(cls, counts: Mapping[str, int]) -> "Clock":
        """Return the clock of a checkpoint's counts by unit.

        Raises:
            ValueError: for a count that is no whole number from 0 on.
            TypeError: for an unknown unit.
        """
        for unit, count in counts.items():
            if type(count) is not int or count < 0:
                raise ValueError(f"the clock's {unit} = {count!r}: allowed are whole numbers >= 0")
        return cls(**counts)

    def advance(self, **counts: int) -> "Clock":
        """Return this clock with `counts` added, by unit."""
        return dataclasses.replace(
            self, **{unit: getattr(self, unit) + count for unit, count in counts.items()}
        )

    def __getitem__(self, unit: str) -> int:
        """Return the counter of `unit`."""
        return getattr(self, unit)


@dataclass(frozen=True)
class Time:
    """A point or a length in one unit; ``%`` is resolved against a run's total."""

    value: float
    unit: str

    @classmethod
    def parse(cls, text: "str | int | float | Time", key: str = "time") -> "Time":
        """Read ``250k env_steps``, ``1M updates``, ``phase 1`` or ``50%``.

        Args:
            text: the text of a config.
            key: its name in error messages.

        Raises:
            ConfigError: if the text is no number with one of the units.

        Examples:
            >>> Time.parse("250k env_steps")
            Time(value=250000, unit='env_steps')
        """
        if isinstance(text, Time):
            return text
        quoted = shortened(text)
        words = text.strip() if isinstance(text, str) else ""  # a bare number has no unit
        if words.startswith("phase "):
            words = f"{words[6:]} phase"
        match = _NUMBER.match(words)
        unit = words[match.end() :].strip() if match else ""
        if match is None or unit == "":
            raise ConfigError(
                f"{key} = {quoted}: allowed is a number with a unit, such as '50%' or "
                f"'250k env_steps' (units: %, {', '.join(UNITS)})"
            )
        if unit + "s" in UNITS:
            unit += "s"  # "1 update"
        if unit not in (*UNITS, "%"):
            near = did_you_mean(unit, (*UNITS, "%"))
            raise ConfigError(f"{key} = {quoted}: unit {shortened(unit)}: {near}")
        value = Decimal(match[1]) * _MULTIPLIERS[match[2]]  # exact: 1.001 * 1000 is no whole float
        if value > _MOST:
            raise ConfigError(f"{key} = {quoted}: allowed is at most {_MOST:.0e}".replace("+", ""))
        if unit == "%":
            return cls(float(value), unit)
        if value != int(value):
            raise ConfigError(f"{key} = {quoted}: allowed is a whole number of {unit}")
        return cls(int(value), unit)

    def resolve(self, total: "Time") -> "Time":
        """Return this time with a percentage turned into counts of `total`.

        Rounded to the nearest; more than 0% is at least one count, so short trial runs keep their
        periods.

        Raises:
            ConfigError: if `total` is itself a percentage.
        """
        if total.unit == "%":
            raise ConfigError(f"total = {total}: allowed is a number with a unit, not a percentage")
        if self.unit != "%":
            return self
        return Time(max(round(self.value * total.value / 100), self.value > 0), total.unit)

    def __str__(self) -> str:
        """Return the text that `parse` reads back."""
        if self.unit == "%":
            return f"{self.value!r}".removesuffix(".0") + "%"
        return f"{self.value} {self.unit}"
