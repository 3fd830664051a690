"""Metrics of runs, measured on the device: second gradients among them."""

from pathlib import Path

import pytest

from rlplast.metrics.probe import OF_CHAINS, OF_CURVATURE
from tests.metrics.test_probe import config, few_steps, measurable, trained
from tests.runs import lines

__all__ = ["few_steps"]  # a fixture

# Of lifecycle layers, of inputs that are numbers, of cbp, of chains, of two measurements.
ELSEWHERE = {"awake_fraction", "lipschitz_estimate", "unit_age", *OF_CHAINS}
ELSEWHERE |= {"churn", "churn_argmax", "churn_size"}


@pytest.mark.parametrize("of", ["dqn", "sac mlp", "supervised batchnorm", "gpt"])
@pytest.mark.usefixtures("few_steps")
def test_every_metric_of_a_run_is_measured(
    of: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    metrics = {"every": "90%", "names": list(measurable()), "batch_size": 4}
    quiet = {"evaluate": {"every": None}, "device": "cuda"}
    trained(config(of, corpora, metrics=metrics, **quiet), tmp_path)
    keys = {key for row in lines(tmp_path, "metrics") for key in row}
    found = {key.split("/")[1] for key in keys if key.startswith("metric/")}
    assert set(measurable()) - found <= ELSEWHERE
    assert set(OF_CURVATURE) <= found
