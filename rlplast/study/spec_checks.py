"""What a study's arms, grids and samples may say; every check names the key and what is allowed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from rlplast.core.errors import ConfigError, check_known, shortened
from rlplast.core.validation import Section, validated

__all__ = ["Arm", "Published", "Sample", "check_arm", "check_size", "check_values"]

_WIDEST, _WIDEST_INTEGER = 1e300, 10**18  # ends of a range: drawing from it does not overflow
_MOST = 100_000  # seeds, or arms that one grid or sample stands for


@dataclass(frozen=True)
class Sample(Section):
    """An arm's key ``sample``."""

    count: PositiveInt
    keys: Annotated[dict[str, Any], Field(min_length=1)]
    seed: int = 0


@dataclass(frozen=True)
class Arm(Section):
    """What an arm may say; see `rlplast.study.spec.StudyConfig`."""

    hooks: list[dict[str, Any]] | str | None = None
    penalties: list[dict[str, Any]] | str | None = None
    layers: list[dict[str, Any]] | str | None = None
    overrides: dict[str, Any] | None = None
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] | None = None
    sample: Sample | None = None
    tasks: dict[str, dict[str, Any] | None] | None = None


@dataclass(frozen=True)
class Range(Section):
    """Numbers that a sample draws from."""

    low: int | float
    high: int | float
    log: bool = False
    integer: bool = False


@dataclass(frozen=True)
class Published(Section):
    """A study's key ``published``.

    Attributes:
        file: a CSV, or the name of a shipped one.
        arms: a mapping of an arm's name → the values of its rows by column.
    """

    file: str
    arms: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


def check_arm(name: str, arm: Arm, tasks: Sequence[str]) -> None:
    """Check an arm of a study with these tasks."""
    where = f"arms.{name}"
    if not re.search(r"[A-Za-z0-9]", name):
        raise ConfigError(f"arm {name!r}: allowed is a name with a letter or a digit")
    if arm.grid and arm.sample:
        raise ConfigError(f"{where} has grid and sample: allowed is one of them")
    check_values(arm.overrides or {}, f"{where}.overrides")
    check_values(arm.grid or {}, f"{where}.grid")
    if arm.sample:
        _check_sample(f"{where}.sample", arm.sample)
    check_known(f"{where}.tasks", arm.tasks or {}, tasks)
    for task, values in (arm.tasks or {}).items():
        check_values(values or {}, f"{where}.tasks.{task}")


def _check_sample(where: str, sample: Sample) -> None:
    check_values(sample.keys, f"{where}.keys")
    for key, choice in sample.keys.items():
        if isinstance(choice, dict):
            _check_range(f"{where}.keys.{key}", validated(Range, choice, f"{where}.keys.{key}"))
        elif not isinstance(choice, list) or not choice:
            raise ConfigError(
                f"{where}.keys.{key} = {choice!r}: allowed is a list, or a mapping with low and "
                "high"
            )


def _check_range(where: str, choice: Range) -> None:
    low, high = choice.low, choice.high
    kind, most = ("whole numbers", _WIDEST_INTEGER) if choice.integer else ("numbers", _WIDEST)
    fractional = choice.integer and not (isinstance(low, int) and isinstance(high, int))
    if fractional or not -most < low < high < most:
        raise ConfigError(
            f"{where}: low = {low!r}, high = {high!r}: allowed are {kind}, low < high, both within "
            f"{most:g} of 0"
        )
    if choice.log and (choice.integer or low <= 0):
        raise ConfigError(f"{where}.log: allowed for numbers above 0 without integer")


def check_size(key: str, count: int) -> None:
    """Refuse what nobody could run, before it is written out."""
    if count > _MOST:
        raise ConfigError(f"{key}: {shortened(count)} of them: allowed are at most {_MOST}")


def check_values(values: Mapping[str, Any], where: str) -> None:
    """Refuse the seed among values by dotted key."""
    if "seed" in values:
        raise ConfigError(f"{where}.seed: seeds of a study are listed under its key seeds")
