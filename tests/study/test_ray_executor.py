"""Jobs on a real Ray cluster of this machine, of which a node dies."""

import os

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason='needs pip install "rlplast[ray]"')

from ray.cluster_utils import Cluster  # noqa: E402

from rlplast.core.errors import ConfigError  # noqa: E402
from rlplast.study import ray_executor  # noqa: E402
from tests.study.commands import alive, begin, job, outcomes, saver, starts, until  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    """A head node with one CPU."""
    head = {"num_cpus": 1, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    yield started
    started.shutdown()


@pytest.mark.slow
def test_jobs_of_a_node_that_dies_run_again_on_another(cluster, make, tmp_path):
    node = cluster.add_node(num_cpus=1)
    executor = make("ray", address=cluster.address)
    assert executor.slots == 2
    names = ["one", "two"]
    for name in names:
        executor.submit(saver(tmp_path, name))
    executor.submit(job(tmp_path, "failing", "raise SystemExit(3)"))
    until(lambda: all(starts(tmp_path, name) for name in names))
    first = {name: starts(tmp_path, name)[0] for name in names}

    cluster.remove_node(node, allow_graceful=False)
    until(lambda: not all(alive(pid) for pid in first.values()))
    (again,) = (name for name, pid in first.items() if not alive(pid))  # the one writer to its cell
    (tmp_path / "go").touch()

    found = {name: outcome.exit for name, outcome in outcomes(executor, 3).items()}
    assert found == {"one": 0, "two": 0, "failing": 3}
    assert {name: len(starts(tmp_path, name)) for name in names} == {"one": 1, "two": 1, again: 2}
    assert "=== attempt 2" in (tmp_path / f"{again}.log").read_text()


@pytest.mark.slow
def test_job_whose_nodes_die_too_often_comes_back(cluster, make, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_executor, "_DEATHS", 0)
    node = cluster.add_node(num_cpus=2)  # the head is too small for the job
    executor = make("ray", threads=2, address=cluster.address)
    pid = begin(executor, tmp_path, "cell", threads=2)
    cluster.remove_node(node, allow_graceful=False)
    outcome = outcomes(executor, 1)["cell"]
    assert outcome.exit == 137
    assert "node" in outcome.reason
    until(lambda: not alive(pid))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "gpus", "says"),
    [(64, 0, "no node has room for a job of 64 threads"), (1, 1, "and 1 GPUs")],
)
def test_job_too_large_for_every_node_is_refused(threads, gpus, says, cluster, make):
    with pytest.raises(ConfigError, match=says):
        make("ray", threads=threads, gpus=gpus, address=cluster.address)


def test_address_where_nobody_answers_is_named(make):
    with pytest.raises(ConfigError, match=r"cannot connect to '127\.0\.0\.1:9'"):
        make("ray", address="127.0.0.1:9")
