"""What several tests of runs share."""

import shutil
from pathlib import Path

import pytest

from rlplast.run import api
from tests.runs import TINY, Killed, at_step, kill


@pytest.fixture(scope="session")
def once_killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Killed):
        api.train(TINY, folder, observer=at_step(24, kill))
    return folder


@pytest.fixture
def killed(once_killed: Path, tmp_path: Path) -> Path:
    """A run that was killed after a third; its last line of metrics is of 32 env_steps."""
    return Path(shutil.copytree(once_killed, tmp_path / "run"))
