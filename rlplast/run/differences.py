"""Where two configs differ."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["ABSENT", "FREE", "differing", "is_free", "leaves", "texts"]

ABSENT = "absent"

# Dotted keys that runs of one arm may differ in: what measures and saves a run, or where and how
# fast it runs, does not change what is trained.
FREE = (
    "seed",
    "continuation",
    "threads",
    "device",
    "log",
    "evaluate",
    "metrics",
    "checkpoint",
    "percentages_of",
    "data.folder",
    "env.workers",
)


def leaves(value: Any, lists: bool = False, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of a config; with `lists` also the entries of lists, such as hooks.

    Examples:
        >>> dict(leaves({"agent": {"lr": 0.1, "widths": [8, 9]}, "data": {}}))
        {'agent.lr': 0.1, 'agent.widths': [8, 9], 'data': {}}
    """
    inner = dict(enumerate(value)) if lists and isinstance(value, list) else value
    if isinstance(inner, Mapping) and (inner or not path):
        for key, own in inner.items():
            yield from leaves(own, lists, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return every value of a config as text, by dotted key."""
    return {key: str(value) for key, value in leaves(config, lists=True)}


def is_free(key: str) -> bool:
    """Whether a dotted key is one of `FREE`, or lies in one."""
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the dotted keys that two configs differ in, sorted, with the values of both.

    Examples:
        >>> differing({"seed": 1, "agent": {"lr": 0.1}}, {"seed": 1, "agent": {"lr": 0.2}})
        {'agent.lr': ('0.1', '0.2')}
    """
    left, right = texts(one), texts(other)
    both = {key: (left.get(key, ABSENT), right.get(key, ABSENT)) for key in sorted(left | right)}
    return {key: values for key, values in both.items() if values[0] != values[1]}
