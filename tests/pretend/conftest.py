"""Tests that need the pretended device are for a process of their own: see plugin.py."""

from pathlib import Path

import pytest

from tests.gpt.runs import write_corpora


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    alone = config.pluginmanager.has_plugin("tests.pretend.plugin")
    return None if alone else True


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))
