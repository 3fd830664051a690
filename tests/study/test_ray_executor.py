"""Jobs on a real Ray cluster of this machine, of which a node dies."""

import os
import signal

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason='needs pip install "rlplast[ray]"')

from ray.cluster_utils import Cluster  # noqa: E402

from rlplast.core.errors import ConfigError  # noqa: E402
from rlplast.study.executors import Job, cpus, make_executor  # noqa: E402
from tests.study.commands import alive, job, outcomes, saver, starts, until  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    """A head node with one CPU."""
    started = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    yield started
    started.shutdown()


@pytest.fixture
def connect(cluster):
    """Make an executor on the cluster."""
    made = []

    def make(jobs=None, threads=1, **options):
        made.append(
            make_executor(
                "ray", jobs, threads, {"address": cluster.address, "grace": 20, **options}
            )
        )
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def steps(folder, name: str) -> str:
    """Code that counts to 3 in a file, from where it stands, once it may go on."""
    return (
        f"go, count = pathlib.Path({str(folder / 'go')!r}), pathlib.Path({str(folder / name)!r})\n"
        "while True:\n"
        "    done = len(count.read_text()) if count.exists() else 0\n"
        "    if done >= 3: break\n"
        "    while done and not go.exists(): time.sleep(0.02)\n"
        "    with open(count, 'a') as file: file.write('.')\n"
    )


def test_jobs_of_a_node_that_dies_run_again_on_another(cluster, connect, tmp_path):
    node = cluster.add_node(num_cpus=1)
    before = signal.getsignal(signal.SIGTERM)
    executor = connect()
    assert signal.getsignal(signal.SIGTERM) is before
    assert executor.slots == 2
    names = ["one", "two"]
    for name in names:
        executor.submit(saver(tmp_path, name, steps(tmp_path, name)))
    executor.submit(job(tmp_path, "failing", "raise SystemExit(3)"))
    until(lambda: all((tmp_path / name).exists() for name in names))
    first = {name: starts(tmp_path, name) for name in names}
    assert [len(pids) for pids in first.values()] == [1, 1]

    cluster.remove_node(node, allow_graceful=False)
    until(lambda: not all(alive(pid) for pids in first.values() for pid in pids))
    (tmp_path / "go").touch()

    found = outcomes(executor, 3)
    assert {name: outcome.exit for name, outcome in found.items()} == {
        "one": 0,
        "two": 0,
        "failing": 3,
    }
    assert sorted(len(starts(tmp_path, name)) for name in names) == [1, 2]
    (again,) = (name for name in names if len(starts(tmp_path, name)) == 2)
    assert not alive(first[again][0])  # one writer to a cell, also when a node dies
    assert "=== attempt 2" in (tmp_path / f"{again}.log").read_text()
    assert [(tmp_path / name).read_text() for name in names] == ["...", "..."]


@pytest.mark.slow
def test_job_whose_retries_are_used_up_comes_back_with_the_reason(cluster, connect, tmp_path):
    node = cluster.add_node(num_cpus=2)  # the head is too small for the job
    executor = connect(threads=2, retries_on_node_death=0)
    executor.submit(saver(tmp_path, "cell", "time.sleep(600)", threads=2))
    until(lambda: starts(tmp_path, "cell"))
    cluster.remove_node(node, allow_graceful=False)
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 137
    assert "died, without retries" in outcome.reason
    assert "node" in outcome.reason
    until(lambda: not alive(starts(tmp_path, "cell")[0]))


@pytest.mark.slow
def test_stop_lets_running_jobs_save_and_returns_waiting_ones(connect, tmp_path):
    executor = connect()
    executor.submit(saver(tmp_path, "running", "time.sleep(600)"))
    until(lambda: starts(tmp_path, "running"))
    executor.submit(saver(tmp_path, "waiting", "time.sleep(600)"))
    found = {outcome.job.name: outcome for outcome in executor.stop()}
    assert {name: outcome.exit for name, outcome in found.items()} == {
        "running": 130,
        "waiting": 130,
    }
    assert (tmp_path / "running.trace.saved").exists()
    assert found["waiting"].reason == "stopped before it began"
    assert not starts(tmp_path, "waiting")
    assert executor.stop() == []


@pytest.mark.slow
def test_signal_and_a_missing_program_are_named(connect, tmp_path):
    executor = connect()
    executor.submit(job(tmp_path, "killed", "import os; os.kill(os.getpid(), 9)"))
    executor.submit(Job("missing", (str(tmp_path / "no program"),), tmp_path / "missing.log"))
    found = outcomes(executor, 2)
    assert (found["killed"].exit, found["killed"].reason) == (137, "killed by SIGKILL")
    assert found["missing"].exit == 127
    assert "no program" in found["missing"].reason


@pytest.mark.slow
def test_job_too_large_for_every_node_is_refused(connect):
    with pytest.raises(ConfigError, match="no node has room for a job of 64 threads"):
        connect(threads=64)
    with pytest.raises(ConfigError, match="and 1 GPUs"):
        connect(gpus=1)


def test_address_where_nobody_answers_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"cannot connect to '127\.0\.0\.1:9'"):
        make_executor("ray", 1, 1, {"address": "127.0.0.1:9"})


@pytest.mark.slow
def test_without_an_address_ray_is_started_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    executor = make_executor("ray", None, 1, {})
    assert executor.slots == cpus()
    executor.submit(
        job(tmp_path, "cell", "import os; print('threads', os.environ['OMP_NUM_THREADS'])")
    )
    assert outcomes(executor, 1)["cell"].exit == 0
    assert "threads 1\n" in (tmp_path / "cell.log").read_text()
    executor.close()
    assert not ray.is_initialized()
