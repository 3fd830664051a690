"""The program with streams that are closed, a terminal that closes, and little address space."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import RlplastError
from rlplast.run import api
from tests.cli.commands import command
from tests.cli.runs import small_config, trained
from tests.runs import final, status
from tests.study.commands import until

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
SHORT: dict[str, Any] = {"total": "80 env_steps", "evaluate": {"every": None}}
WORKERS = {"id": "gym/CartPole-v1", "num_envs": 2, "workers": 1}
PROGRAM = "import sys; from rlplast.__main__ import main; sys.exit(main())"
FIRST = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "  # of the terminal


def test_streams_that_are_closed_become_null(tmp_path: Path):
    code = (
        "import atexit, os, sys; from rlplast.__main__ import main; "
        "names = lambda: [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]; "
        f"atexit.register(lambda: open({str(tmp_path / 'out')!r}, 'w').write(str(names()))); "
        "main()"
    )
    words = ["bash", "-c", 'exec "$0" -c "$1" list kinds <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "out").read_text().strip() == f"{['/dev/null'] * 3}"


def test_a_picture_that_is_not_drawn_does_not_change_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(run: Path) -> Path:
        raise RlplastError("picture x is not drawn: y")

    monkeypatch.setattr("rlplast.cli.finish.plot_run", fail)
    run = tmp_path / "run"
    done = command("train", small_config(tmp_path, **SHORT), "--out", run)
    assert done.code == 0 and status(run) == "done"
    assert done.err.splitlines()[-1] == "rlplast: picture x is not drawn: y"
    assert done.out.splitlines()[-1] == f"run: {run}"


@pytest.mark.slow
def test_a_terminal_that_closes_leaves_a_checkpoint(tmp_path: Path):
    long = {"total": "3000 env_steps", "env": WORKERS, "log": {"every": "1%"}}
    changes = long | {"evaluate": {"every": None}, "metrics": {"every": None}}
    through, run = trained(tmp_path, **changes), tmp_path / "closed"
    ours, theirs = pty.openpty()
    words = [sys.executable, "-W", "error", "-c", FIRST + PROGRAM]  # nor does it warn
    words += ["train", tmp_path / "small.yaml", "--out", run]
    with subprocess.Popen(
        [*map(str, words)],
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm"},
        start_new_session=True,
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
    ) as process:
        os.close(theirs)
        try:
            metrics = run / "metrics.jsonl"
            until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, SECONDS)
            os.close(ours)  # the system sends SIGHUP, to workers too; nothing can be said any more
            assert process.wait(SECONDS) == 130
        finally:
            process.kill()
    assert status(run) == "interrupted"
    api.resume(run)
    assert final(run) == final(through)
