"""`rlplast report --serve`: the page waits for the first run and is renewed as runs end."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError
from rlplast.report.serve import _state, serve
from tests.report.runs import write_study

SECONDS = 60.0


@contextmanager
def served(study: Path) -> Iterator[str]:
    """Run the command; gives the page's address, and ends it as Ctrl-C does."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from functools import partial; import rlplast.report.serve as s; "
        "s.serve = partial(s.serve, every=0.1); "
        "from rlplast.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "report", str(study), "--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield line.split()[1]
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        return answer.read().decode()


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_page_waits_for_the_first_run_and_is_written_again_when_one_ends(tmp_path: Path):
    absent = {("asterix", "none", 1): "running", ("asterix", "fire", 1): "running"}
    study = write_study(tmp_path, arms=("none", "fire"), seeds=(1,), statuses=absent)
    with served(study) as address:
        assert "no run is finished yet" in page(address)
        (run,) = study.glob("cells/asterix/seed-1/none-*/run.json")
        run.write_text(json.dumps(json.loads(run.read_text()) | {"status": "done"}))
        wait_for(lambda: "1 run is done" in page(address))
        assert page(address.removesuffix("report.html")) == page(address)
        with pytest.raises(urllib.error.HTTPError):
            page(f"{address}.missing")


def test_only_files_of_the_report_are_shown(tmp_path: Path):
    with served(write_study(tmp_path, arms=("none",), seeds=(1,))) as address:
        root = address.removesuffix("report.html")
        assert page(f"{root}?x") == page(address)
        for path in ("./", "%00", "../", "%2e%2e/"):
            with pytest.raises(urllib.error.HTTPError):
                page(root + path)


def test_a_folder_that_vanishes_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    study = write_study(tmp_path, arms=("none",), seeds=(1, 2))
    whole = _state([study])
    listed = os.scandir

    def vanishing(path: str) -> object:
        if "seed-2" in str(path):
            raise FileNotFoundError(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert 0 < len(_state([study])) < len(whole)


def test_a_port_that_cannot_be_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--port 99999 .*: allowed is a free one"):
        serve([tmp_path], pytest.fail, tmp_path / "out", 99999, print)


def test_a_taken_port_is_refused_before_anything_is_written(tmp_path: Path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port} \(.*\): allowed is a free one"):
            serve([tmp_path], pytest.fail, tmp_path / "out", port, print)
    assert not (tmp_path / "out").exists()
