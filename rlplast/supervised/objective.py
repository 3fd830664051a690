"""What a model is trained on and judged by: classes, or numbers."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from rlplast.methods.label_smoothing import label_smoothing
from rlplast.metrics.calibration import accuracy, ece

__all__ = ["REGRESSION", "Objective", "classification"]


class Objective(NamedTuple):
    """A loss with the scores that belong to it; all take outputs (n, outputs) and targets."""

    loss: Callable[[Tensor, Tensor], Tensor]  # a mean over the batch
    scores: Callable[[Tensor, Tensor], dict[str, float]]  # of an evaluation, by name
    right: Callable[[Tensor, Tensor], Tensor] | None = None  # how many; None without classes


def classification(smoothing: float) -> Objective:
    """Return cross-entropy, trained with smoothed labels; accuracy, loss and ECE are reported."""
    loss = partial(label_smoothing, label_smoothing=smoothing)
    return Objective(loss, _of_classes, lambda logits, labels: (logits.argmax(1) == labels).sum())


def _of_classes(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "accuracy": float(accuracy(logits, labels)),
        "loss": float(F.cross_entropy(logits, labels)),
        "ece": float(ece(logits, labels)),
    }


# The squared error is a mean over outputs too.
REGRESSION = Objective(F.mse_loss, lambda outputs, y: {"loss": float(F.mse_loss(outputs, y))})
