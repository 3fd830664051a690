"""Jobs through submitit: on its local executor, and on a Slurm that a script plays."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

submitit = pytest.importorskip("submitit", reason='needs pip install "rlplast[slurm]"')

from rlplast.core.errors import ConfigError  # noqa: E402
from rlplast.study.executors import Job, make_executor  # noqa: E402
from tests.study.commands import alive, job, outcomes, saver, starts, until  # noqa: E402

# Counts to 3 in a file, from where it stands, once it may go on.
STEPS = (
    "go, count = pathlib.Path({go!r}), pathlib.Path({count!r})\n"
    "while True:\n"
    "    done = len(count.read_text()) if count.exists() else 0\n"
    "    if done >= 3: break\n"
    "    while done and not go.exists(): time.sleep(0.02)\n"
    "    with open(count, 'a') as file: file.write('.')\n"
)


def steps(folder: Path) -> str:
    return STEPS.format(go=str(folder / "go"), count=str(folder / "count"))


@pytest.fixture
def make():
    """Make executors, by default on submitit's local one; `time` in minutes."""
    made = []

    def make(cluster="local", time=5, grace=10, requeues=3, **parameters):
        options = {"cluster": cluster, "grace": grace, "requeues": requeues}
        options["slurm"] = {"time": time, **parameters}
        made.append(make_executor("slurm", 4, 1, options))
        made[-1]._backend.pause = 0.1
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def test_every_job_comes_back_with_its_exit_code(make, tmp_path):
    executor = make()
    executor.submit(job(tmp_path, "done", "print('fine')"))
    executor.submit(job(tmp_path, "failed", "raise SystemExit(3)"))
    executor.submit(job(tmp_path, "killed", "import os; os.kill(os.getpid(), 9)"))
    executor.submit(Job("missing", (str(tmp_path / "no program"),), tmp_path / "missing.log"))
    found = outcomes(executor, 4)
    assert {name: outcome.exit for name, outcome in found.items()} == {
        "done": 0,
        "failed": 3,
        "killed": 137,
        "missing": 127,
    }
    assert found["killed"].reason == "killed by SIGKILL"
    assert "no program" in found["missing"].reason
    assert "=== attempt 1" in (tmp_path / "done.log").read_text()
    assert "\nfine\n" in (tmp_path / "done.log").read_text()


@pytest.mark.slow
def test_job_whose_watcher_is_killed_comes_back_and_its_command_ends(make, tmp_path):
    executor = make()
    executor.submit(saver(tmp_path, "cell", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "cell"))
    (pid,) = starts(tmp_path, "cell")
    os.kill(int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]), 9)
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 137
    assert "ended without a word" in outcome.reason
    until(lambda: not alive(pid))


def test_job_that_nears_its_time_limit_saves_and_is_queued_again(make, tmp_path):
    executor = make(time=0.05, signal_delay_s=1)  # 3 s, a warning after 2
    executor.submit(saver(tmp_path, "cell", steps(tmp_path)))
    until(lambda: len(starts(tmp_path, "cell")) == 2)
    assert (tmp_path / "cell.trace.saved").exists()
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert (tmp_path / "count").read_text() == "..."
    assert "=== attempt 2" in (tmp_path / "cell.log").read_text()


@pytest.mark.slow
def test_job_whose_time_limit_comes_too_often_says_so(make, tmp_path):
    executor = make(time=0.05, signal_delay_s=1, requeues=1)
    executor.submit(saver(tmp_path, "cell", "time.sleep(600)"))
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 124
    assert "raise slurm.time or requeues" in outcome.reason
    assert len(starts(tmp_path, "cell")) == 2


@pytest.mark.slow
def test_stop_lets_jobs_save(make, tmp_path):
    executor = make()
    executor.submit(saver(tmp_path, "cell", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "cell"))
    (outcome,) = executor.stop()
    assert (outcome.exit, outcome.reason) == (130, "")
    assert (tmp_path / "cell.trace.saved").exists()
    assert executor.stop() == []


# Plays the five commands of Slurm that submitit calls, on files in $FAKE_SLURM.
SLURM = r"""#!{python} -S
import json, os, pathlib, signal, subprocess, sys
home, me = pathlib.Path(os.environ["FAKE_SLURM"]), pathlib.Path(sys.argv[0]).name
given = sys.argv[1:]
path = lambda number: home / f"{{number}}.json"
read = lambda number: json.loads(path(number).read_text())
def write(number, **changes):
    now = {{**(read(number) if path(number).exists() else {{}}), **changes}}
    part = home / f"{{number}}.{{os.getpid()}}"
    part.write_text(json.dumps(now))
    part.replace(path(number))
def run(number):
    # Stands for the daemon: runs the script in the background, then writes its state.
    if os.fork():
        return
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    script = subprocess.Popen(["bash", read(number)["script"]], start_new_session=True,
                              env={{**os.environ, "SLURM_JOB_ID": number}})
    write(number, pid=script.pid, State="RUNNING")
    code = script.wait()
    if read(number)["State"] == "RUNNING" and read(number)["pid"] == script.pid:
        write(number, State="FAILED" if code else "COMPLETED")
    os._exit(0)
if me == "sbatch":
    number = str(1 + len(list(home.glob("*.json"))))
    write(number, State="PENDING", script=os.path.realpath(given[0]), text=open(given[0]).read())
    if not (home / "full").exists():
        run(number)
    print(f"Submitted batch job {{number}}")
elif me == "srun":
    command = given[next(i for i, word in enumerate(given) if "python" in word):]
    os.execvp(command[0], command)
elif me == "sacct":
    print("JobID|State|NodeList")
    for number in given:
        if path(number).exists():
            print(f"{{number}}|{{read(number)['State']}}|here")
elif me == "scontrol":
    write(given[1], State="REQUEUED")
    run(given[1])
elif me == "scancel":
    number, *more = given
    if more:  # --signal NAME
        os.killpg(read(number)["pid"], getattr(signal, "SIG" + more[1].removeprefix("SIG")))
    elif read(number)["State"] in ("PENDING", "RUNNING"):
        write(number, State="CANCELLED by 0")
        if "pid" in read(number):
            os.killpg(read(number)["pid"], signal.SIGKILL)
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put the script in front of PATH under the names of Slurm's commands; its folder."""
    home = tmp_path / "slurm-home"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "slurm"
    script.write_text(SLURM.format(python=sys.executable))
    script.chmod(0o755)
    for name in ("sbatch", "srun", "sacct", "scontrol", "scancel"):
        (home / "bin" / name).symlink_to(script)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(home))
    submitit.SlurmJob.watcher.clear()
    return home


def state(home: Path, number: int) -> dict:
    return json.loads((home / f"{number}.json").read_text())


def test_slurm_gets_the_parameters_and_returns_the_exit_code(make, slurm, tmp_path):
    executor = make(cluster="slurm", time=240, partition="short", gpus=1, mem="8G", grace=60)
    executor.submit(job(tmp_path, "cell", "raise SystemExit(4)"))
    assert outcomes(executor, 1)["cell"].exit == 4
    lines = [line for line in state(slurm, 1)["text"].splitlines() if line.startswith("#SBATCH")]
    for expected in (
        "--partition=short",
        "--time=240",
        "--gpus-per-node=1",
        "--cpus-per-task=1",
        "--mem=8G",
        "--signal=USR2@90",
        "--job-name=cell",
    ):
        assert f"#SBATCH {expected}" in lines


@pytest.mark.slow
def test_job_that_slurm_warns_saves_and_is_queued_again(make, slurm, tmp_path):
    executor = make(cluster="slurm")
    executor.submit(saver(tmp_path, "cell", steps(tmp_path)))
    until(lambda: (tmp_path / "count").exists())
    # Both reach all processes of a job in Slurm.
    pid = starts(tmp_path, "cell")[0]
    os.kill(pid, signal.SIGUSR2)
    watcher = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(watcher, signal.SIGUSR2)
    until(lambda: len(starts(tmp_path, "cell")) == 2)
    assert (tmp_path / "cell.trace.saved").exists()
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert (tmp_path / "count").read_text() == "..."
    assert not (slurm / "2.json").exists()  # Slurm's own queue, not a new job


@pytest.mark.slow
def test_job_that_slurm_takes_away_is_submitted_again(make, slurm, tmp_path):
    executor = make(cluster="slurm")
    executor.submit(saver(tmp_path, "cell", steps(tmp_path)))
    until(lambda: (tmp_path / "count").exists())
    now = state(slurm, 1)
    (slurm / "1.json").write_text(json.dumps({**now, "State": "PREEMPTED"}))
    os.killpg(now["pid"], signal.SIGKILL)
    assert executor.wait(5) == []
    until(lambda: executor.wait(0.1) or (slurm / "2.json").exists())
    (tmp_path / "go").touch()
    assert outcomes(executor, 1)["cell"].exit == 0
    assert (tmp_path / "count").read_text() == "..."


@pytest.mark.slow
def test_job_that_slurm_takes_away_and_then_refuses_comes_back(make, slurm, tmp_path):
    executor = make(cluster="slurm")
    executor.submit(saver(tmp_path, "cell", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "cell"))
    now = state(slurm, 1)
    refuse(slurm)
    (slurm / "1.json").write_text(json.dumps({**now, "State": "NODE_FAIL"}))
    os.killpg(now["pid"], signal.SIGKILL)
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 127
    assert "NODE_FAIL" in outcome.reason
    assert "no such partition" in outcome.reason


@pytest.mark.slow
def test_job_that_somebody_cancels_is_not_submitted_again(make, slurm, tmp_path):
    executor = make(cluster="slurm")
    executor._backend._patience = 0.5
    executor.submit(saver(tmp_path, "cell", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "cell"))
    now = state(slurm, 1)
    (slurm / "1.json").write_text(json.dumps({**now, "State": "CANCELLED by 7"}))
    os.killpg(now["pid"], signal.SIGKILL)
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 137
    assert "CANCELLED by 7" in outcome.reason
    assert not (slurm / "2.json").exists()


@pytest.mark.slow
def test_restarted_study_finds_its_jobs_in_the_queue(make, slurm, tmp_path):
    cell = saver(tmp_path, "cell", steps(tmp_path))
    make(cluster="slurm").submit(cell)
    until(lambda: (tmp_path / "count").exists())
    again = make(cluster="slurm")  # as after kill -9: nobody asked the first one to stop
    again.submit(cell)
    (tmp_path / "go").touch()
    assert outcomes(again, 1)["cell"].exit == 0
    assert len(starts(tmp_path, "cell")) == 1
    assert not (slurm / "2.json").exists()


@pytest.mark.slow
def test_stop_saves_what_runs_and_cancels_what_waits(make, slurm, tmp_path):
    executor = make(cluster="slurm")
    executor.submit(saver(tmp_path, "running", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "running"))
    (slurm / "full").touch()
    executor.submit(saver(tmp_path, "waiting", "time.sleep(600)"))
    found = {outcome.job.name: outcome for outcome in executor.stop()}
    assert {name: outcome.exit for name, outcome in found.items()} == {
        "running": 130,
        "waiting": 130,
    }
    assert (tmp_path / "running.trace.saved").exists()
    assert found["waiting"].reason == "stopped before it began"
    assert state(slurm, 2)["State"].startswith("CANCELLED")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slurm": {}}, "slurm.time is missing"),
        ({"slurm": {"time": 7.5}}, "time is 7.5: allowed is a whole number"),
        ({"slurm": {"time": 5, "partitoin": "x"}}, "did you mean 'partition'"),
        ({"slurm": "fast"}, "not a mapping"),
        ({"cluster": "slum", "slurm": {"time": 5}}, "did you mean 'slurm'"),
        ({"requeues": -1, "slurm": {"time": 5}}, "requeues is -1"),
    ],
)
def test_what_is_not_allowed_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        make_executor("slurm", 1, 1, options)


def test_machine_without_slurm_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no srun on this machine"):
        make_executor("slurm", 1, 1, {"slurm": {"time": 5}})


def refuse(home: Path) -> None:
    """Have Slurm refuse what comes from now on."""
    command = home / "bin" / "refuse"
    command.write_text("#!/bin/sh\necho 'no such partition' >&2\nexit 1\n")
    command.chmod(0o755)
    command.replace(home / "bin" / "sbatch")


def test_job_that_slurm_refuses_comes_back_with_its_words(make, slurm, tmp_path):
    refuse(slurm)
    executor = make(cluster="slurm", partition="nowhere")
    executor.submit(job(tmp_path, "cell", ""))
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 127
    assert "no such partition" in outcome.reason
