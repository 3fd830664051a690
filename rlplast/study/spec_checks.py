"""What a study's arms, grids and samples may say; every check names the key and what is allowed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlplast.core.errors import ConfigError, check_known, shortened

__all__ = ["LISTS", "check_arm", "check_size", "check_tasks", "check_values", "whole"]

LISTS = ("hooks", "penalties", "layers")
ARM_KEYS = (*LISTS, "overrides", "grid", "sample", "tasks")
SAMPLE_KEYS = ("count", "seed", "keys")
RANGE_KEYS = ("low", "high", "log", "integer")
_WIDEST, _WIDEST_INTEGER = 1e300, 10**18  # ends of a range: drawing from it does not overflow
_MOST = 100_000  # seeds, or arms that one grid or sample stands for


def check_arm(name: str, arm: Any, search: bool = False) -> None:
    """Check an arm; the sample of one that may be searched needs no count.

    Raises:
        ConfigError: naming key and value.
    """
    if not re.search(r"[A-Za-z0-9]", name):
        raise ConfigError(f"arm {name!r}: allowed is a name with a letter or a digit")
    if arm is None:
        return
    if not isinstance(arm, Mapping):
        raise ConfigError(f"arms.{name} = {arm!r}: allowed is a mapping of {', '.join(ARM_KEYS)}")
    check_known(f"arms.{name}", arm, ARM_KEYS)
    for key in ("overrides", "grid", "sample"):
        value = arm.get(key)
        if value is not None and not (isinstance(value, Mapping) and value):
            raise ConfigError(f"arms.{name}.{key} = {value!r}: allowed is a mapping by dotted key")
    if arm.get("grid") and arm.get("sample"):
        raise ConfigError(f"arms.{name} has grid and sample: allowed is one of them")
    check_values(arm.get("overrides") or {}, f"arms.{name}.overrides")
    check_values(arm.get("grid") or {}, f"arms.{name}.grid")
    for key, choices in (arm.get("grid") or {}).items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"arms.{name}.grid.{key} = {choices!r}: allowed is a list of values")
    if arm.get("sample"):
        sample = arm["sample"]
        if search:  # which has a number of trials
            sample = {"count": 1} | sample
        _check_sample(f"arms.{name}.sample", sample)


def check_tasks(where: str, given: Any, tasks: Sequence[str]) -> None:
    """Check what an arm has in single tasks.

    Raises:
        ConfigError: naming key and value.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} = {given!r}: allowed is a mapping by names of tasks")
    check_known(where, map(str, given), tasks)
    for task, values in given.items():
        if not isinstance(values, Mapping | None):
            raise ConfigError(f"{where}.{task} = {values!r}: allowed is a mapping, or null")
        check_values(values or {}, f"{where}.{task}")


def _check_sample(where: str, sample: Mapping[str, Any]) -> None:
    check_known(where, sample, SAMPLE_KEYS)
    count, seed, keys = sample.get("count"), sample.get("seed", 0), sample.get("keys")
    if not whole(count) or count < 1:  # type: ignore[operator]
        raise ConfigError(f"{where}.count = {count!r}: allowed is a whole number from 1 on")
    if not whole(seed):
        raise ConfigError(f"{where}.seed = {seed!r}: allowed is a whole number")
    if not isinstance(keys, Mapping) or not keys:
        raise ConfigError(
            f"{where}.keys = {keys!r}: allowed is a mapping of dotted keys to choices"
        )
    check_values(keys, f"{where}.keys")
    for key, choice in keys.items():
        _check_choice(f"{where}.keys.{key}", choice)


def _check_choice(where: str, choice: Any) -> None:
    if isinstance(choice, list) and choice:
        return
    if not isinstance(choice, Mapping):
        raise ConfigError(
            f"{where} = {choice!r}: allowed is a list, or a mapping with low and high"
        )
    check_known(where, choice, RANGE_KEYS)
    for key in ("log", "integer"):
        if not isinstance(choice.get(key, False), bool):
            raise ConfigError(f"{where}.{key} = {choice[key]!r}: allowed is true or false")
    low, high = choice.get("low"), choice.get("high")
    integer = choice.get("integer", False)
    right = whole if integer else _number
    if not (right(low) and right(high) and low < high):  # type: ignore[operator]
        kind, most = ("whole numbers", _WIDEST_INTEGER) if integer else ("numbers", _WIDEST)
        raise ConfigError(
            f"{where}: low = {low!r}, high = {high!r}: allowed are {kind}, low < high, both within "
            f"{most:g} of 0"
        )
    if choice.get("log", False) and (integer or low <= 0):  # type: ignore[operator]
        raise ConfigError(f"{where}.log: allowed for numbers above 0 without integer")


def check_size(key: str, count: int) -> None:
    """Refuse what nobody could run, before it is written out.

    Raises:
        ConfigError: naming the key and the limit.
    """
    if count > _MOST:
        raise ConfigError(f"{key}: {shortened(count)} of them: allowed are at most {_MOST}")


def check_values(values: Mapping[Any, Any], where: str) -> None:
    """Refuse a key that is no text, and the seed."""
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(f"{where} has a key {key!r}: allowed is text, such as optimizer.lr")
    if "seed" in values:
        raise ConfigError(f"{where}.seed: seeds of a study are listed under its key seeds")


def whole(value: Any) -> bool:
    """Whether a value is a whole number that drawing from a range takes."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _WIDEST_INTEGER


def _number(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and abs(value) < _WIDEST
