"""Tests that send signals pass too where these were ignored at the start, as under nohup."""

import signal
import subprocess
import sys
from pathlib import Path

SENDING = "tests/training/test_signals.py"


def ignored() -> None:
    for own in (signal.SIGINT, signal.SIGHUP):
        signal.signal(own, signal.SIG_IGN)


def test_tests_pass_where_signals_are_ignored() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", SENDING]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        preexec_fn=ignored,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
