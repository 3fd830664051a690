"""Accuracy, expected calibration error and mean accuracy under corruption."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.metrics.calibration import accuracy, ece, mca
from rlplast.metrics.probe import check_names


def drawn(n: int, classes: int, seed: int, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=generator)


def ece_by_loop(logits: Tensor, labels: Tensor, bins: int) -> float:
    """Guo et al. 2017, eq. 3, as printed: B_m holds confidences in ((m − 1)/M, m/M]."""
    samples = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        exps = [math.exp(v - max(row)) for v in row]
        confidence = max(exps) / sum(exps)
        samples.append((confidence, row.index(max(row)) == label))
    total = 0.0
    for m in range(1, bins + 1):
        inside = [s for s in samples if (m - 1) / bins < s[0] <= m / bins]
        if inside:
            acc = sum(right for _, right in inside) / len(inside)
            conf = sum(confidence for confidence, _ in inside) / len(inside)
            total += len(inside) / len(samples) * abs(acc - conf)
    return total


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 200),
    classes=st.integers(2, 12),
    bins=st.integers(1, 20),
)
@settings(max_examples=30)
def test_ece_agrees_with_the_printed_formula(seed: int, n: int, classes: int, bins: int) -> None:
    logits, labels = drawn(n, classes, seed)
    ours = ece(logits, labels, bins=bins)
    assert ours.dtype == torch.float64 and ours.shape == ()
    assert float(ours) == pytest.approx(ece_by_loop(logits, labels, bins), abs=1e-12)


def test_bins_are_fifteen_and_logits_are_softmaxed_and_probabilities_are_not() -> None:
    found = {bins: float(ece(*drawn(500, 4, seed=0), bins=bins)) for bins in (14, 15, 16)}
    assert float(ece(*drawn(500, 4, seed=0))) == found[15] not in (found[14], found[16])
    logits, labels = drawn(64, 5, seed=1)
    of_logits = ece(logits, labels)
    torch.testing.assert_close(ece(logits.softmax(1), labels, probabilities=True), of_logits)
    assert float(ece(logits.softmax(1), labels)) != pytest.approx(float(of_logits), abs=1e-3)


def test_accuracy_is_the_share_of_right_predictions_and_no_number_of_what_is_none() -> None:
    scores = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 4.0]])
    assert float(accuracy(scores, torch.tensor([0, 1, 0]))) == pytest.approx(2 / 3)
    for bad in (math.nan, math.inf, -math.inf):
        logits, labels = drawn(8, 3, seed=2)
        logits[3, 1] = bad
        assert math.isnan(float(ece(logits, labels)))
        assert math.isnan(float(ece(logits, labels, probabilities=True)))
        assert math.isnan(float(accuracy(logits, labels))) is math.isnan(bad)


def test_bins_of_a_hand_example_and_of_certain_predictions() -> None:
    # (0.4, 0.6] holds 0.6 (right), (0.6, 0.8] holds 0.7 (wrong) and 0.8 (right), (0.8, 1]
    # holds 1.0 (right).
    first = torch.tensor([0.6, 0.7, 0.8, 1.0], dtype=torch.float64)
    scores = torch.stack([first, 1 - first], 1)
    expected = (abs(1 - 0.6) + abs((0 + 1) - (0.7 + 0.8)) + 0) / 4
    found = float(ece(scores, torch.tensor([0, 1, 0, 0]), bins=5, probabilities=True))
    assert found == pytest.approx(expected, abs=1e-12)
    # Confidence 1 is in the last bin; 0 cannot be a largest probability, but is no crash.
    scores = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert float(ece(scores, torch.tensor([0, 1]), probabilities=True)) == 0.0


def test_other_shapes_labels_and_bins_are_refused() -> None:
    for metric in (accuracy, ece):
        for shapes in (((4,), (4,)), ((4, 3), (3,)), ((0, 3), (0,))):
            scores, labels = torch.zeros(shapes[0]), torch.zeros(shapes[1], dtype=torch.long)
            with pytest.raises(ConfigError, match=r"\[n, classes\]"):
                metric(scores, labels)
        for label in (-1, 3):
            logits, labels = drawn(8, 3, seed=2)
            labels[5] = label
            with pytest.raises(ConfigError, match="0 to 2"):
                metric(logits, labels)
    for bins in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="bins"):
            ece(*drawn(8, 3, seed=2), bins=bins)
    for name in ("ece", "mca"):  # of predictions: a probe has none
        with pytest.raises(ConfigError, match=f"'{name}'"):
            check_names(["weight_norm", name])


def test_mca_counts_every_corruption_and_severity_the_same() -> None:
    table = {("fog", s): 0.1 * s for s in range(1, 6)} | {("snow", s): 0.9 for s in range(1, 6)}
    assert mca(table) == pytest.approx((0.3 + 0.9) / 2)
    with pytest.raises(ConfigError, match="no corruptions"):
        mca({})
