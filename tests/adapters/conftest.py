"""Fixtures of the adapters' tests."""

import pytest

from rlplast.core import registry
from tests.adapters.toys import register


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys among the registered methods, for one test."""
    registry.rows("methods")  # loads what is built in
    copied = {family: dict(entries) for family, entries in registry._TABLE.items()}
    monkeypatch.setattr(registry, "_TABLE", copied)
    register()
