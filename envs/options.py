"""Families of environments, and their options: defaults, ranges and the errors about them."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.envs.base import Env, EnvSpec, Simulator

__all__ = [
    "Family",
    "Option",
    "count",
    "factor",
    "probability",
    "resolve_options",
    "switch",
    "whole",
]


@dataclass(frozen=True)
class Option:
    """One option of an environment.

    Attributes:
        default: its value when none is given.
        range: what is allowed, in words.
        allowed: whether a value is.
    """

    default: Any
    range: str
    allowed: Callable[[Any], bool]


@dataclass(frozen=True)
class Family:
    """All environments of one kind.

    Attributes:
        ids: every id, available or not, with a line about it.
        source: the paper or package the environments come from.
        options: the options of an id.
        spec: the description of an id under resolved options.
        make: builds the simulator of an id under resolved options, drawing from the generator; or
            an `Env` of its own.
    """

    ids: Mapping[str, str]
    source: str
    options: Callable[[str], dict[str, Option]]
    spec: Callable[[str, dict[str, Any]], EnvSpec]
    make: Callable[[str, np.random.Generator, dict[str, Any]], Simulator | Env]


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def probability(default: float) -> Option:
    """Return an option in [0, 1)."""
    return Option(default, "[0, 1)", lambda value: _is(value, int | float) and 0 <= value < 1)


def factor() -> Option:
    """Return an option that multiplies a constant of the environment: 1 for what it has itself."""
    return Option(1.0, "(0, 1e6]", lambda value: _is(value, int | float) and 0 < value <= 1e6)


def count(default: int | None, none_means: str = "") -> Option:
    """Return an option that is an integer from 1, or None where that means something."""

    def allowed(value: Any) -> bool:
        return bool(none_means) if value is None else _is(value, int) and value >= 1

    null = f", null: {none_means}" if none_means else ""
    return Option(default, f"integer >= 1{null}", allowed)


def whole(default: int, low: int, high: int) -> Option:
    """Return an option that is an integer from `low` to `high`."""
    words = f"integer in [{low}, {high}]"
    return Option(default, words, lambda value: _is(value, int) and low <= value <= high)


def switch(default: bool) -> Option:
    """Return an option that is true or false."""
    return Option(default, "true or false", lambda value: isinstance(value, bool))


def resolve_options(
    env_id: str, given: Mapping[str, Any], options: Mapping[str, Option]
) -> dict[str, Any]:
    """Return every option's value: the default, or what was given.

    Raises:
        ValueError: for an unknown option (naming the nearest) or a value out of its range.
    """
    for name, value in given.items():
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(options)}"
            raise ValueError(f"option '{name}' of env '{env_id}' is unknown: {hint}")
        if not options[name].allowed(value):
            raise ValueError(
                f"option '{name}' of env '{env_id}' is {repr(value)[:80]}: allowed is "
                f"{options[name].range}"
            )
    return {name: given.get(name, option.default) for name, option in options.items()}
