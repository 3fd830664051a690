"""Tests that need the pretended device are for a process of their own: see plugin.py."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    alone = config.pluginmanager.has_plugin("tests.pretend.plugin")
    return None if alone else True
