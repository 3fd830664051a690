"""Studies whose cells are processes of their own: signals, and workers that die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.studies import ARMS, TINY, results
from tests.runs import status
from tests.study.commands import alive, until
from tests.study.inline import attempts, run_study, write_study

pytestmark = pytest.mark.slow


def start(config: Path, out: Path, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rlplast.cli.main", "study", str(config), "--out", str(out)]
        + [str(word) for word in words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def training(out: Path, lines: int = 2) -> bool:
    """Whether some cell has written so many lines of metrics."""
    found = out.glob("cells/**/metrics.jsonl")
    return any(path.read_text().count("\n") >= lines for path in found)


def cells_alive(out: Path) -> list[int]:
    """Return the process ids of a study's cells: what they print goes to its logs."""
    return [pid for pid, log in printing(out).items() if log != "workers.log"]


def printing(out: Path) -> dict[int, str]:
    """Return the processes that print into a study's logs, with the name of the log."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            log = Path(os.readlink(path / "fd" / "1"))
        except OSError:
            continue
        if log.parent == out.resolve() / "logs" and alive(int(path.name)):
            found[int(path.name)] = log.name
    return found


LONG: dict[str, Any] = TINY | {"total": "1200 env_steps", "replay_ratio": 1}
FEW = {"none": {}, "fire": ARMS["fire"]}
proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study that nobody stopped."""
    folder = tmp_path_factory.mktemp("through")
    assert run_study(write_study(folder, LONG, FEW), folder / "study")[0].code == 0
    return folder / "study"


@proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_study_that_is_stopped_by_a_signal_goes_on(
    number: signal.Signals, through: Path, tmp_path: Path
):
    config, out = write_study(tmp_path, LONG, FEW), tmp_path / "study"
    process = start(config, out, "--jobs", 2)
    until(lambda: training(out), 120)
    trained = [path.parent for path in out.glob("cells/**/metrics.jsonl")]  # others only begin
    assert cells_alive(out)
    if number == signal.SIGHUP:  # as a terminal that closes: to all processes it started, twice
        os.killpg(process.pid, number)
    for cell in cells_alive(out) if number == signal.SIGTERM else ():  # as Slurm to all of a job
        os.kill(cell, number)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    if number == signal.SIGKILL:
        until(lambda: not cells_alive(out), 20)  # they save, and do not outlive it by long
    else:
        assert process.returncode == 130, output
        assert f"stopped: the same command goes on with {out}" in output
        assert cells_alive(out) == []
    assert set(map(status, trained)) <= {"interrupted", "done"}

    assert run_study(config, out)[0].code == 0
    logs = "".join(path.read_text() for path in (out / "logs").iterdir())
    assert "resuming" in logs and "ended at once" not in logs
    assert results(out) == results(through)


@proc
def test_restarted_study_waits_for_a_cell_that_still_runs(through: Path, tmp_path: Path):
    config, out = write_study(tmp_path, LONG, {"none": {}}), tmp_path / "study"
    process = start(config, out)
    until(lambda: training(out), 120)
    (cell,) = cells_alive(out)
    os.kill(cell, signal.SIGSTOP)  # it cannot act on the end of its study
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    process = start(config, out)
    until(lambda: "workers.log" in printing(out).values(), 120)
    time.sleep(5)  # more than it takes to start
    assert process.poll() is None and cells_alive(out) == [cell]
    os.kill(cell, signal.SIGCONT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    name = "seed-3/none"
    assert results(out)[name] == results(through)[name]


@proc
def test_workers_of_another_terminal_help_and_one_that_leaves_saves_its_cell(
    through: Path, tmp_path: Path
):
    config, out = write_study(tmp_path, LONG, FEW), tmp_path / "study"
    study = start(config, out, "--jobs", 1)
    until(lambda: training(out), 120)
    study.kill()
    study.communicate()
    until(lambda: not printing(out))
    words = [sys.executable, "-m", "rlplast", "work", str(out)]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    until(lambda: cells_alive(out), 120)
    first.terminate()
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 130 and "takes seed-3/" in said and cells_alive(out) == []
    done = subprocess.run([*words, "--jobs", "2"], check=True, capture_output=True, text=True)
    assert done.stdout.count("done: ") >= 2
    assert results(out) == results(through)
    again = start(config, out)
    assert "is done" in again.communicate(timeout=120)[0] and again.returncode == 0


@proc
def test_worker_that_is_interrupted_after_it_was_asked_ends_at_once_with_its_cell(
    through: Path, tmp_path: Path
):
    config, out = write_study(tmp_path, LONG, {"none": {}}), tmp_path / "study"
    process = start(config, out)
    until(lambda: training(out), 120)
    (cell,) = cells_alive(out)
    stat = Path(f"/proc/{cell}/stat").read_text()
    worker = int(stat.rpartition(")")[2].split()[1])
    os.kill(cell, signal.SIGSTOP)  # it cannot save
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        assert alive(cell) and alive(worker)
        os.kill(worker, number)
        time.sleep(0.5)
    until(lambda: not alive(cell) and not alive(worker), 20)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=120)
    assert run_study(config, out)[0].code == 0
    assert results(out)["seed-3/none"] == results(through)["seed-3/none"]


def test_cell_whose_process_dies_is_started_again(tmp_path: Path):
    (tmp_path / "dies_once.py").write_text(
        "import os, pathlib\n"
        "mark = pathlib.Path('mark')\n"
        "if os.getsid(0) == os.getpid() and not mark.exists():\n"
        "    mark.touch()\n"
        "    os._exit(9)\n"
    )
    config, out = write_study(tmp_path, TINY, {"none": {}}), tmp_path / "study"
    words = ["--import", "dies_once", "study", str(config), "--out", str(out)]
    words = [sys.executable, "-m", "rlplast.cli.main", *words]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "next:" in done.stdout, done
    first, second = attempts(out, "seed-3/none")
    assert (first["end"], first["exit"], second["end"]) == ("failed", 9, "done")
