"""Activation and gradient metrics against closed forms and slow NumPy twins."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.metrics.features import (
    active_fraction,
    dormant_ratio,
    effective_lr,
    feature_covariance_distance,
    feature_norm,
    gradient_norm,
    last_features,
    saturation,
    saturation_percentile,
)
from tests.methods.nets import normal

TAP_METRICS = (dormant_ratio, active_fraction, saturation, saturation_percentile, feature_norm)


def relu_taps(seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A conv layer and two linear ones; some units are weak, one is dead."""
    taps = {
        "conv": normal(8, 6, 3, 4, seed=seed, dtype=dtype),
        "fc1": normal(8, 10, seed=seed + 1, dtype=dtype),
        "fc2": normal(8, 5, seed=seed + 2, dtype=dtype),
    }
    taps["conv"][:, 1] *= 1e-3
    taps["fc1"][:, :4] *= 0.02
    taps["fc2"][:, 0] = -1.0
    return {name: tap.relu() for name, tap in taps.items()}


def dormant_by_loop(taps: dict[str, Tensor], threshold: float) -> dict[str, tuple[int, int]]:
    found = {}
    for name, tap in taps.items():
        units = range(tap.shape[1])
        activity = [np.abs(tap.double().numpy()[:, i]).mean() for i in units]
        mean = sum(activity) / len(activity)
        found[name] = (sum(mean == 0 or a / mean <= threshold for a in activity), len(activity))
    return found


def test_dormant_ratio_equals_the_definition_looped_over_units() -> None:
    taps = relu_taps()
    for threshold in (0.0, 0.025, 0.1, 0.9, 2.0):
        counts = dormant_by_loop(taps, threshold)
        dead = sum(d for d, _ in counts.values())
        assert dead > 0
        assert dormant_ratio(taps, threshold=threshold).item() == pytest.approx(dead / 21)
    edges: list[tuple[list[list[float]], float, float]] = [
        ([[0.25, 1.75]], 0.25, 0.5),  # which are the scores
        ([[0.25, 1.75]], 0.2499, 0),
        ([[0.0] * 5] * 3, 0.0, 1),
        ([[-1.0, 1.0], [1.0, -1.0]], 0.025, 0),
    ]
    for tap, threshold, expected in edges:
        assert dormant_ratio({"a": torch.tensor(tap)}, threshold=threshold).item() == expected


def test_active_fraction_and_saturation_count_entries_over_all_layers() -> None:
    taps = {"a": torch.tensor([[1.0, 0.0], [2.0, 0.0]]), "b": torch.zeros(2, 3, 2, 1)}
    assert active_fraction(taps).item() == 2 / 16
    expected = sum((tap.numpy() > 0).sum() for tap in relu_taps().values()) / (576 + 80 + 40)
    assert active_fraction(relu_taps()).item() == pytest.approx(expected, rel=1e-15)
    taps = {
        "a": torch.tensor([[-1.0, 0.5, 0.995, 0.985]]),
        "b": torch.tensor([[0.99], [0.0]], dtype=torch.float64),
    }
    assert saturation(taps).item() == pytest.approx(2 / 6)
    assert saturation(taps, bound=0.4).item() == pytest.approx(5 / 6)


def test_feature_norm_and_ranks_are_of_the_rows_of_the_last_tap() -> None:
    taps = {"a": 100 * torch.ones(2, 2), "b": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}
    assert feature_norm(taps).item() == 3.0
    conv = {"a": normal(4, 3, 2, 2)}
    expected = np.linalg.norm(conv["a"].numpy().reshape(4, 12), axis=1).mean()
    assert feature_norm(conv).item() == pytest.approx(expected, rel=1e-14)
    assert last_features(conv).shape == (4, 12)
    assert torch.equal(last_features(taps), taps["b"])


def test_saturation_percentile_equals_numpy() -> None:
    taps = {"a": normal(7, 5).tanh(), "b": normal(7, 3, 2, 2, seed=1).tanh()}
    entries = np.concatenate([np.abs(tap.numpy()).ravel() for tap in taps.values()])
    for quantile in (0.0, 0.5, 0.98, 1.0):
        found = saturation_percentile(taps, quantile=quantile).item()
        assert found == pytest.approx(np.quantile(entries, quantile), rel=1e-14)
    assert saturation_percentile(taps).item() == pytest.approx(np.quantile(entries, 0.98))


def test_covariance_distance_equals_numpy() -> None:
    a, b = normal(6, 4), normal(6, 9, seed=1)
    c = [h @ h.T / (h**2).sum() for h in (a.numpy(), b.numpy())]
    expected = np.sqrt(((c[0] - c[1]) ** 2).sum())
    assert feature_covariance_distance(a, b).item() == pytest.approx(expected, rel=1e-13)
    assert math.isnan(feature_covariance_distance(torch.zeros(3, 2), torch.ones(3, 2)).item())
    with pytest.raises(ConfigError, match=r"\[3, 2\].*\[4, 2\]"):
        feature_covariance_distance(torch.ones(3, 2), torch.ones(4, 2))


def test_gradient_norm_and_effective_lr_equal_one_long_vector() -> None:
    gradients = [normal(3, 4, seed=1), normal(5, seed=2), normal(seed=3)]
    parameters = [normal(3, 4, seed=4), normal(5, seed=5), normal(seed=6)]
    g, p = (
        np.linalg.norm(np.concatenate([t.numpy().ravel() for t in side]))
        for side in (gradients, parameters)
    )
    assert gradient_norm(gradients).item() == pytest.approx(g, rel=1e-14)
    assert effective_lr(gradients, parameters).item() == pytest.approx(g / p, rel=1e-14)
    meta = [torch.empty(3, 2, device="meta"), torch.empty(2, device="meta")]
    for value in (gradient_norm(meta), effective_lr(meta, meta)):
        assert value.device.type == "meta"
    with pytest.raises(ConfigError, match="gradients"):
        gradient_norm([])
    with pytest.raises(ConfigError, match="parameters"):
        effective_lr([torch.ones(1)], [])


def test_what_holds_for_all_metrics_of_taps() -> None:
    taps = relu_taps()
    # A meta tensor has no values: `.item()` or an `if` on one would raise.
    meta = {name: tap.to("meta") for name, tap in taps.items()}
    half = {name: 1000 * tap.to(torch.float16) for name, tap in taps.items()}
    diverged = {**taps, "fc2": taps["fc2"].clone()}
    diverged["fc2"][0, 0] = math.nan
    for metric in TAP_METRICS:
        value = metric(taps)
        assert value.shape == () and value.dtype == torch.float64
        assert metric(meta).device.type == "meta"
        expected = metric({name: tap.double() for name, tap in half.items()}).item()
        assert metric(half).item() == pytest.approx(expected, rel=1e-5), metric
        assert math.isnan(metric(diverged).item()), metric
    for metric in TAP_METRICS:
        with pytest.raises(ConfigError, match="activations"):
            metric({})
        with pytest.raises(ConfigError, match=r"'fc' of shape \[3\]"):
            metric({"fc": torch.ones(3)})
