"""Fixtures of the adapters' tests."""

from collections.abc import Iterator

import pytest

from rlplast.core import registry
from tests.adapters.toys import register


@pytest.fixture(scope="session", autouse=True)
def sb3_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Stable-Baselines3 makes its folder of logs, instead of one in /tmp per run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys among the registered methods, for one test."""
    registry.rows("methods")  # loads what is built in
    copied = {family: dict(entries) for family, entries in registry._TABLE.items()}
    monkeypatch.setattr(registry, "_TABLE", copied)
    register()
