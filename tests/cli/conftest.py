"""What the tests of the command line share: no pictures, one finished run and one study."""

import shutil
from pathlib import Path

import pytest

from tests.cli.runs import trained
from tests.cli.studies import ALL, ARMS, TINY
from tests.study.inline import run_study, write_study


@pytest.fixture
def pictures() -> None:
    """The picture at a run's end is drawn, which takes as long as a small run."""


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("rlplast.cli.finish.plot_run", lambda run: run)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `tests.cli.runs.SMALL`; tests only read it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlplast.cli.finish.plot_run", lambda run: run)
        return trained(tmp_path_factory.mktemp("small"), "--log.to", "[tensorboard]")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    outcome, started = run_study(write_study(folder, TINY, ARMS), folder / "study")
    assert outcome.code == 0, outcome
    assert sorted(started) == sorted(ALL)
    return folder / "study"


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished study; its file is beside it."""
    write_study(tmp_path, TINY, ARMS)
    return Path(shutil.copytree(finished, tmp_path / "study"))
