"""Marks of parameters."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest

from rlplast.core.registry import rows

__all__ = ["optimizers", "slow", "slow_but"]


def slow(*values: Any) -> Any:
    """A parameter set of `make test-slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(fast: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """All values, of which those in `fast` alone are tried in `make test`."""
    fast = list(fast)
    return [value if value in fast else slow(value) for value in values]


def optimizers(fast: Iterable[str] | None = None) -> list[Any]:
    """The names of all optimizers, of which those in `fast` alone are tried in `make test`.

    One whose package is not installed is skipped.
    """
    names = [row.name for row in rows("optimizers")]
    found = []
    for name in names:
        marks = [] if fast is None or name in fast else [pytest.mark.slow]
        if name == "kron" and find_spec("kron_torch") is None:
            marks.append(pytest.mark.skip(reason="needs kron-torch"))
        found.append(pytest.param(name, marks=marks))
    return found
