"""What is in toy_package is a package for tests to install, not tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from rlplast import plugins
from rlplast.core import registry
from rlplast.envs import registry as envs_registry
from rlplast.training import kinds

collect_ignore = ["toy_package"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages can be installed into, forgotten after the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    registry.rows()  # so that what is copied has all that is built in
    table = {family: dict(rows) for family, rows in registry._TABLE.items()}
    monkeypatch.setattr(registry, "_TABLE", table)
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    for name in ("_FAMILY_OF", "_FROM"):
        monkeypatch.setattr(envs_registry, name, dict(getattr(envs_registry, name)))
    monkeypatch.setattr(plugins, "_loaded", set())
    monkeypatch.syspath_prepend(folder)
    registered, modules = dict(gymnasium.registry), set(sys.modules)
    forget()
    yield folder
    forget()
    for name in gymnasium.registry.keys() - registered.keys():
        del gymnasium.registry[name]
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def forget() -> None:
    plugins._entry_points.cache_clear()
    registry._load.cache_clear()
