"""Workers on a real Ray cluster of this machine, of which a node dies."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason='needs pip install "rlplast[ray]"')

from ray.cluster_utils import Cluster  # noqa: E402

import rlplast  # noqa: E402
from rlplast.core.errors import ConfigError  # noqa: E402
from rlplast.study.executors import make_executor  # noqa: E402
from tests.cli.studies import ARMS, TINY, results  # noqa: E402
from tests.study.inline import run_study, write_study  # noqa: E402

LONG: dict[str, Any] = TINY | {"total": "1200 env_steps", "replay_ratio": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head node with one CPU."""
    head = {"num_cpus": 1, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    yield started
    started.shutdown()


@pytest.mark.slow
def test_study_whose_node_dies_equals_the_one_here(cluster: Any, tmp_path: Path) -> None:
    here = write_study(tmp_path, LONG, ARMS)
    assert run_study(here, tmp_path / "here")[0].code == 0
    node = cluster.add_node(num_cpus=1)
    executor = {"kind": "ray", "address": cluster.address}
    config = write_study(tmp_path, LONG, ARMS, executor=executor)
    out, killed = tmp_path / "study", []

    def kill(progress: Any) -> None:
        lines = [path.read_text().count("\n") for path in out.glob("cells/**/metrics.jsonl")]
        if not killed and len(progress.running) == 2 and max(lines, default=0) > 2:
            killed.append(len(progress.done))
            cluster.remove_node(node, allow_graceful=False)

    found = rlplast.study(config, out, observer=kill)
    assert killed and found.failures == []
    assert results(out) == results(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "gpus", "says"),
    [(2, 0, "no node has room for a cell of 2 threads"), (1, 1, "1 GPUs: lower threads, gpus")],
)
def test_cell_too_large_for_every_node_is_refused(
    threads: int, gpus: float, says: str, cluster: Any
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_executor("ray", None, threads, {"address": cluster.address, "gpus": gpus})


def test_node_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: Any, **keys: Any) -> None:
        raise Exception("timed out during startup")  # as ray.init does

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(ConfigError, match=r"cannot connect to 'local' \('timed out during startup"):
        make_executor("ray", None, 1, {})


def test_address_where_nobody_answers_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot connect to '127\.0\.0\.1:9'"):
        make_executor("ray", None, 1, {"address": "127.0.0.1:9"})
