"""Where two configs differ.

- `FREE`: keys that do not change what is trained.
- `is_free`: whether a key is one of them.
- `leaves`: dotted keys and their values.
- `differing`: keys that differ, with both values.
"""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["ABSENT", "FREE", "differing", "is_free", "leaves"]

ABSENT = "absent"

# Dotted keys that runs of one arm may differ in: what measures and saves a run, or where and how
# fast it runs, does not change what is trained.
FREE = (
    "seed",
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


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as text) of a config."""
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    if isinstance(inner, Mapping) and inner:
        for key, own in inner.items():
            yield from leaves(own, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(value)


def is_free(key: str) -> bool:
    """Whether a dotted key is one of `FREE`, or lies in one."""
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the dotted keys that two configs differ in, sorted, with the values of both.

    Examples:
        >>> differing({"seed": 1, "agent": {"lr": 0.1}}, {"seed": 1, "agent": {"lr": 0.2}})
        {'agent.lr': ('0.1', '0.2')}
    """
    left, right = dict(leaves(one)), dict(leaves(other))
    both = {key: (left.get(key, ABSENT), right.get(key, ABSENT)) for key in sorted(left | right)}
    return {key: values for key, values in both.items() if values[0] != values[1]}
