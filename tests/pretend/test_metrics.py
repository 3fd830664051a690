"""Metrics of runs, measured on the device."""

from pathlib import Path
from typing import Any

import pytest

from rlplast.run import api
from tests.metrics.test_probe import SMALL, config, few_steps, measurable
from tests.runs import lines

__all__ = ["few_steps"]  # a fixture

pytestmark = pytest.mark.usefixtures("no_disk_sync", "few_steps")


def measured(config: dict[str, Any], folder: Path) -> set[str]:
    api.train(config, folder)
    return {key for row in lines(folder, "metrics") for key in row if key.startswith("metric/")}


@pytest.mark.parametrize("of", SMALL)
def test_every_metric_of_a_run_is_measured_as_on_the_cpu(
    of: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    metrics = {"every": "50%", "names": list(measurable()), "batch_size": 8}
    run = config(of, corpora, metrics=metrics, evaluate={"every": None})
    expected = measured(run, tmp_path / "cpu")
    assert any("hessian" in key for key in expected)
    assert measured(run | {"device": "cuda"}, tmp_path / "cuda") == expected
