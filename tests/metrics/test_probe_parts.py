"""Metrics of several values, as a run logs them: number by number, and of each layer."""

from pathlib import Path
from typing import Any

import pytest

from rlplast.metrics.curvature import IN_A_RUN
from rlplast.metrics.density import activation_histogram, hessian_density
from rlplast.metrics.features import saturation_percentile
from rlplast.metrics.probe import measure_run
from rlplast.metrics.sketch import weight_sketch
from tests.metrics.test_probe import config, trained

NAMES = ["weight_sketch", "activation_histogram", "hessian_density", "saturation_percentile"]


def test_a_run_logs_every_number_of_a_sketch_a_density_and_each_layer(tmp_path: Path) -> None:
    trainable: Any = trained(config("supervised", {}, metrics={"every": None}), tmp_path / "run")
    found = measure_run(trainable, NAMES, 8, 0)
    network, batch = trainable.networks["model"], trainable.sample(8, 0)
    weights = [p.detach() for p in network.module.parameters()]
    sketch = weight_sketch(weights, [network.initial[b.name] for b in network.trainable()])
    assert sketch.abs().sum() > 0
    expected = {f"metric/weight_sketch/model/{i}": float(v) for i, v in enumerate(sketch)}
    taps = trainable.activations("model", batch)
    loss, own = trainable.loss("model", batch), list(network.module.parameters())
    densities = {
        "activation_histogram": activation_histogram(taps),
        "hessian_density": hessian_density(loss, own, **IN_A_RUN),
    }
    for name, density in densities.items():
        expected |= {f"metric/{name}/model/{k}": float(v) for k, v in density.logged().items()}
    key = "metric/saturation_percentile/model"
    expected |= {key: float(saturation_percentile(taps))}
    expected |= {f"{key}/{n}": float(saturation_percentile({n: t})) for n, t in taps.items()}
    assert len(taps) == 2
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
