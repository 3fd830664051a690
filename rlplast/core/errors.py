"""Errors that name the thing, its value, what is allowed and the remedy."""

import difflib
import re
from collections.abc import Iterable

__all__ = [
    "BadWeights",
    "ConfigError",
    "DamagedFile",
    "Diverged",
    "Interrupted",
    "NothingToEdit",
    "RlplastError",
    "UnsupportedOptimizer",
    "check_choice",
    "check_known",
    "did_you_mean",
    "shortened",
]


class RlplastError(Exception):
    """Base of every error this library raises on purpose; its message is one line, cut if long."""

    exit_code = 1

    def __str__(self) -> str:
        text = super().__str__().replace("\n", "\\n")
        text = _ENDLESS.sub(_cut, _VALUE.sub(_cut, text))
        return text if len(text) <= 1000 else f"{text[:500]}…{text[-499:]}"


# A list or mapping in "key = value: what is allowed".
_VALUE = re.compile(r"(?<= = )[\[{](?:(?![\]}…]: [a-z]).){118,}[\]}]", re.DOTALL)
_ENDLESS = re.compile(r"\S{200,}")  # a word that nobody wrote


def _cut(match: "re.Match[str]") -> str:
    return f"{match[0][:60]}…{match[0][-40:]}"


class ConfigError(RlplastError, ValueError):
    """Raised when an option, key or value is not allowed."""

    exit_code = 2


class NothingToEdit(ConfigError):
    """Raised when a method finds nothing to edit in a network."""


class DamagedFile(RlplastError):
    """Raised when a file on disk is incomplete, altered or of another layout."""


class UnsupportedOptimizer(RlplastError, TypeError):
    """Raised when an optimizer's state has no reset rule here."""


class BadWeights(RlplastError, ValueError):
    """Raised when a method meets a weight it cannot work on; nothing is written."""


class Diverged(RlplastError):
    """Raised when a loss, a weight or an action is not finite; the last checkpoint is kept."""


class Interrupted(RlplastError):
    """Raised when a signal ended a run, after its checkpoint was saved or as a second one."""

    exit_code = 130


def shortened(value: object, most: int = 60) -> str:
    """Return how messages show a value: its beginning if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of thousands of digits
        text = "a number of thousands of digits"
    except RecursionError:
        text = "something nested very deeply"
    return text if len(text) <= most else f"{text[: most - 1]}…"


_NAMES = 8  # shown in a message


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error message: the nearest allowed name, or all of them.

    Examples:
        >>> did_you_mean("iteratons", ["iterations", "scope"])
        "did you mean 'iterations'?"
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not near:  # a wrong case or a missing prefix is still recognised
        near = [n for n in names if name.lower() in n.lower() and len(name) > 3][:1]
    if near:
        return f"did you mean '{near[0]}'?"
    count = _NAMES if len(" ".join(names[:_NAMES])) <= 100 else _NAMES // 2
    count += len(names) == count + 1  # the name takes no more room than "and 1 more"
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"allowed: {', '.join(names[:count]) or 'nothing'}{more}"


def check_choice(key: str, value: object, allowed: Iterable[str]) -> None:
    """Raise a ConfigError for a value that is not one of some names, with the nearest one."""
    names = list(allowed)
    if not isinstance(value, str) or value not in names:
        raise ConfigError(f"{key} = {shortened(value)}: {did_you_mean(str(value), names)}")


def check_known(where: str, keys: Iterable[object], allowed: Iterable[str]) -> None:
    """Raise a ConfigError for a key that is not one of `allowed`, with the nearest one."""
    names = list(allowed)
    for key in keys:
        if key not in names:
            near = did_you_mean(str(key), names)
            raise ConfigError(f"{where} has an unknown key {shortened(key)}: {near}")
