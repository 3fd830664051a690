"""One thread, no display, derandomised property tests, no GPU tests without a GPU; fixtures.

A test that hangs fails after a time; see also pyproject.toml.
"""

import functools
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Read when the libraries load, and inherited by the commands that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"

import hypothesis
import pytest
import torch

from rlplast.core import registry
from rlplast.run import api
from tests.runs import MANY, TINY, final

torch.set_num_threads(1)
os.fsync = lambda fd: None  # waiting for the disk would take most of the time

# nohup, and shells without job control, start what they run with signals ignored, and every child
# inherits that. Tests send them. A handler ends at an exec, so children get the system's default,
# and this process still outlives the terminal of a nohup.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # thousands of tests and five frameworks live on: no collection looks at them


SLOW_TIMEOUT = 1800  # seconds; some slow tests start several runs, each in a process of its own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def sb3_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Stable-Baselines3 makes its folder of logs, instead of one in /tmp per run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield


@pytest.fixture(scope="session")
def through(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run nobody interrupted, with every checkpoint kept; tests only read or copy it."""
    folder = tmp_path_factory.mktemp("resume") / "through"
    api.train(TINY | MANY, folder)
    return folder


@pytest.fixture(scope="session")
def expected(through: Path) -> dict[str, Any]:
    return final(through)


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the finished small run of a kind (tests.every_kind); tests only read it."""
    from tests.every_kind import small_run
    from tests.gpt.runs import write_corpora

    folder = tmp_path_factory.mktemp("kinds")
    corpora = write_corpora(folder)
    return functools.cache(lambda kind: api.train(small_run(kind, corpora), folder / kind).path)


@pytest.fixture
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the test registers."""
    registry.rows()  # what is built in registers once, when the table is first read
    table = {family: dict(entries) for family, entries in registry._TABLE.items()}
    monkeypatch.setattr(registry, "_TABLE", table)
