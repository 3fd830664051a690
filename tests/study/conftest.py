"""Executors for tests, and a stand-in for Slurm."""

import pytest

from rlplast.study import slurm_executor
from rlplast.study.executors import make_executor
from tests.study import fake_slurm
from tests.study.commands import run_program


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    return fake_slurm.install(tmp_path / "slurm-home", monkeypatch.setenv)


@pytest.fixture
def make(slurm, monkeypatch):
    """Make executors, which are closed at the end, while there is still a Slurm."""
    for name in ("_FRESH", "_SOON"):  # the stand-in may be asked often
        monkeypatch.setattr(slurm_executor, name, 0.1)
    made = []

    def make(kind, jobs=None, threads=1, processes=1, **options):
        made.append(make_executor(kind, jobs, threads, options, run_program, processes))
        made[-1]._backend.pause = 0.05
        return made[-1]

    yield make
    for executor in made:
        executor.close()
