"""Label smoothing: value and gradient by hand, which losses have it, and its row of the list."""

from typing import Any

import numpy as np
import pytest

from rlplast.run import api
from rlplast.run.build import build
from tests.supervised_runs import small_supervised


def by_hand(logits: np.ndarray, labels: np.ndarray, epsilon: float) -> float:
    losses = []
    for row, label in zip(logits, labels, strict=True):
        target = np.full(len(row), epsilon / len(row))
        target[label] += 1 - epsilon
        losses.append(-(target * (row - np.log(np.exp(row).sum()))).sum())
    return float(np.mean(losses))


def trainer(epsilon: float) -> Any:
    return build(api.read_config(small_supervised(label_smoothing=epsilon, penalties=[])))[0]


def test_training_is_smoothed_and_evaluation_is_not() -> None:
    made = trainer(0.3)
    batch = made.sample(50, 0)
    logits = made.predict(batch.x).double().numpy()
    smooth, plain = (by_hand(logits, batch.y.numpy(), e) for e in (0.3, 0.0))
    assert float(made.loss("model", batch).detach()) == pytest.approx(smooth, rel=1e-5)
    test = made.data.test[made.stream[0].test]
    expected = by_hand(made.predict(test.x).double().numpy(), test.y.numpy(), 0.0)
    assert made.evaluate(0, 0)["loss"] == pytest.approx(expected, rel=1e-5)
    assert abs(smooth - plain) > 1e-3
    losses = []
    for epsilon in (0.0, 0.3):  # of the first update's batch, before anything moved
        made = trainer(epsilon)
        made.step()
        losses.append(made.metrics()["train/loss"])
    assert losses[0] != losses[1]
