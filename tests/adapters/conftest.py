"""Fixtures of the adapters' tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def sb3_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Stable-Baselines3 makes its folder of logs, instead of one in /tmp per run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield
