"""Jobs of this machine: exit codes, logs, signals, and a study that dies."""

import os
import random
import signal
import subprocess
import sys

import pytest

from rlplast.core.errors import ConfigError
from rlplast.study import child
from rlplast.study.executors import Job, LocalBackend, cpus, make_executor, places
from tests.study.commands import alive, job, outcomes, saver, starts, until

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's prctl")


@pytest.fixture
def local():
    executor = make_executor("local", 3, 1, {"grace": 10})
    yield executor
    executor.close()


def test_every_job_comes_back_with_its_exit_code(local, tmp_path):
    draw = random.Random(1)
    codes = {f"cell{i}": draw.choice([0, 1, 2, 77, 255]) for i in range(12)}
    waiting, found = list(codes), {}
    while len(found) < len(codes):
        while waiting and len(codes) - len(waiting) - len(found) < local.slots:
            name = waiting.pop()
            local.submit(job(tmp_path, name, f"raise SystemExit({codes[name]})"))
        for outcome in local.wait(10):
            assert outcome.job.name not in found
            found[outcome.job.name] = outcome.exit
    assert found == codes


def test_log_holds_output_and_errors_of_all_attempts(local, tmp_path):
    again = job(tmp_path, "cell", "import sys; print('out'); print('err', end='', file=sys.stderr)")
    for _ in range(2):
        local.submit(again)
        outcomes(local, 1)
    lines = again.log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("===") and len(line) < 5] == [
        "out",
        "err",
        "out",
        "err",
    ]
    assert [line.split(",")[0] for line in lines if line.startswith("===")] == [
        "=== attempt 1",
        "=== attempt 2",
    ]


def test_job_gets_its_number_of_threads(local, tmp_path):
    code = (
        "import os; print('threads', os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'])"
    )
    local.submit(job(tmp_path, "cell", code, threads=3))
    outcomes(local, 1)
    assert "threads 3 3\n" in (tmp_path / "cell.log").read_text()


def test_signal_that_killed_a_job_is_named(local, tmp_path):
    local.submit(job(tmp_path, "killed", "import os; os.kill(os.getpid(), 9)"))
    local.submit(job(tmp_path, "crashed", "import os; os.kill(os.getpid(), 11)"))
    found = outcomes(local, 2)
    assert (found["killed"].exit, found["killed"].reason) == (137, "killed by SIGKILL")
    assert (found["crashed"].exit, found["crashed"].reason) == (139, "killed by SIGSEGV")


def test_job_that_cannot_be_started_has_ended(local, tmp_path):
    local.submit(Job("cell", (str(tmp_path / "no program"),), tmp_path / "cell.log"))
    (outcome,) = local.wait(10)
    assert outcome.exit == 127
    assert "no program" in outcome.reason


def test_wait_returns_at_the_first_end_or_after_the_time(local, tmp_path):
    assert local.wait(0) == []
    local.submit(saver(tmp_path, "long", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "long"))
    assert local.wait(0.1) == []
    local.submit(job(tmp_path, "short", ""))
    assert [outcome.job.name for outcome in local.wait(500)] == ["short"]


def test_stop_lets_jobs_save(local, tmp_path):
    for name in ("one", "two"):
        local.submit(saver(tmp_path, name, "time.sleep(600)"))
    until(lambda: starts(tmp_path, "one") and starts(tmp_path, "two"))
    found = local.stop()
    assert {(outcome.job.name, outcome.exit) for outcome in found} == {("one", 130), ("two", 130)}
    assert (tmp_path / "one.trace.saved").exists()
    assert local.stop() == []
    assert local.wait(0) == []


def test_stop_kills_a_job_that_does_not_end_and_what_it_started(tmp_path):
    executor = make_executor("local", 1, 1, {"grace": 0.2})
    code = (
        "import signal, subprocess, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'other')!r}).write_text(f'{{other.pid}}\\n')\n"
        "time.sleep(600)"
    )
    executor.submit(job(tmp_path, "cell", code))
    until(lambda: (tmp_path / "other").exists() and (tmp_path / "other").read_text().endswith("\n"))
    (outcome,) = executor.stop()
    assert (outcome.exit, outcome.reason) == (137, "killed by SIGKILL")
    until(lambda: not alive(int((tmp_path / "other").read_text())))


def test_interrupted_stop_goes_on_and_asks_once(tmp_path):
    class Interrupted(LocalBackend):
        asked = 0
        looks = 0

        def ask(self, handle):
            self.asked += 1
            super().ask(handle)

        def ended(self, handle):
            self.looks += 1
            if self.looks == 2:
                raise KeyboardInterrupt
            return super().ended(handle)

    executor = make_executor("local", 2, 1, {"grace": 10})
    executor._backend = backend = Interrupted()
    for name in ("one", "two"):
        executor.submit(saver(tmp_path, name, "time.sleep(600)"))
    until(lambda: starts(tmp_path, "one") and starts(tmp_path, "two"))
    with pytest.raises(KeyboardInterrupt):
        executor.stop()
    found = executor.stop()
    assert sorted(outcome.exit for outcome in found) == [130, 130]
    assert backend.asked == 2


@linux
def test_jobs_end_when_their_study_is_killed(tmp_path):
    study = (
        "import sys, time\nfrom pathlib import Path\n"
        "from rlplast.study.executors import make_executor\n"
        "from tests.study.commands import saver\n"
        "executor = make_executor('local', 2, 1, {})\n"
        "for name in ('one', 'two'):\n"
        f"    executor.submit(saver(Path({str(tmp_path)!r}), name, 'time.sleep(600)'))\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", study])
    try:
        until(lambda: starts(tmp_path, "one") and starts(tmp_path, "two"))
    finally:
        process.kill()
        process.wait()
    pids = starts(tmp_path, "one") + starts(tmp_path, "two")
    until(lambda: not any(alive(pid) for pid in pids))
    assert (tmp_path / "one.trace.saved").exists()
    assert (tmp_path / "two.trace.saved").exists()


@linux
def test_job_whose_parent_was_gone_before_it_looked_ends(tmp_path):
    code = "print('still here')"
    running = subprocess.run(
        job(tmp_path, "cell", code).command,
        env={**os.environ, child.PARENT: "1" if os.getppid() != 1 else "2"},
        stdout=subprocess.PIPE,
    )
    assert running.returncode == -signal.SIGTERM
    assert running.stdout == b""


def test_command_started_by_hand_runs_on(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != child.PARENT}
    command = job(tmp_path, "cell", "raise SystemExit(5)").command
    assert subprocess.run(command, env=environment).returncode == 5


def test_slurms_warning_signal_passes_a_job_by(local, tmp_path):
    local.submit(saver(tmp_path, "cell", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "cell"))
    os.kill(starts(tmp_path, "cell")[0], signal.SIGUSR2)
    assert local.wait(0.3) == []
    assert [outcome.exit for outcome in local.stop()] == [130]
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_jobs_spread_over_the_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    executor = make_executor("local", 4, 1, {"gpus": 0.5, "devices": 2})
    code = (
        "import os; print('gpu', os.environ['CUDA_VISIBLE_DEVICES']); import time; time.sleep(600)"
    )
    for batch in "ab":  # the second one finds all free again
        for i in range(4):
            executor.submit(job(tmp_path, f"{batch}{i}", code))
        logs = [tmp_path / f"{batch}{i}.log" for i in range(4)]
        until(lambda logs=logs: all("\ngpu" in log.read_text() for log in logs))
        seen = [line for log in logs for line in log.read_text().splitlines() if line[:3] == "gpu"]
        assert sorted(seen) == ["gpu 4", "gpu 4", "gpu 7", "gpu 7"]
        executor.stop()
    executor.close()


def test_job_of_two_devices_gets_both(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    executor = make_executor("local", 1, 1, {"gpus": 2, "devices": 2})
    executor.submit(job(tmp_path, "both", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"))
    until(lambda: "\n4,7" in (tmp_path / "both.log").read_text())
    executor.close()


def test_slots_are_what_the_machine_has_room_for():
    assert make_executor("local", None, 1, {}).slots == cpus()
    assert make_executor("local", None, 10_000, {}).slots == 1
    assert make_executor("local", 7, 1, {}).slots == 7
    assert make_executor("local", None, 1, {"gpus": 1, "devices": 1}).slots == 1
    assert [places(2, 0.5), places(1, 0.4), places(3, 2), places(0, 0.5)] == [4, 2, 1, 0]


@pytest.mark.parametrize(
    ("kind", "jobs", "threads", "options", "says"),
    [
        ("locl", 1, 1, {}, "did you mean 'local'?"),
        ("local", 0, 1, {}, "jobs is 0"),
        ("local", 1, 1.5, {}, "threads is 1.5"),
        ("local", 1, 1, {"device": 1}, "did you mean 'devices'?"),
        ("local", 1, 1, {"gpus": -1}, "gpus is -1"),
        ("local", 1, 1, {"gpus": 1}, "devices is 0"),
        ("local", 1, 1, {"grace": "long"}, "grace is 'long'"),
        ("ray", 1, 1, {"adress": "auto"}, "did you mean 'address'?"),
        ("ray", 1, 1, {"retries_on_node_death": 0.5}, "allowed is a whole number"),
        ("slurm", 1, 1, {"partition": "gpu"}, "allowed: cluster, grace, requeues, slurm"),
    ],
)
def test_what_is_not_allowed_is_refused(kind, jobs, threads, options, says):
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        make_executor(kind, jobs, threads, options)


@pytest.mark.parametrize(
    ("kind", "library", "options"),
    [("ray", "ray", {}), ("slurm", "submitit", {"slurm": {"time": 1}})],
)
def test_missing_library_is_named_with_its_extra(kind, library, options, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf'pip install "rlplast\[{kind}\]"'):
        make_executor(kind, 1, 1, options)
