"""How good a classifier's predictions are, and how well it knows."""

import math
from collections.abc import Hashable, Mapping

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.registry import register
from rlplast.core.validation import check_value

__all__ = ["accuracy", "ece", "mca"]


def _check(scores: Tensor, labels: Tensor) -> None:
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not len(labels):
        raise ConfigError(
            f"scores of shape {list(scores.shape)} and labels of shape {list(labels.shape)}: "
            "allowed are [n, classes] and [n], n at least 1"
        )
    least, most = (int(v) for v in labels.aminmax())
    if least < 0 or most >= scores.shape[1]:
        raise ConfigError(
            f"labels are {least} to {most}: allowed is 0 to {scores.shape[1] - 1}, for there are "
            f"scores of {scores.shape[1]} classes"
        )


def accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the share of samples whose label has the largest score; NaN if a score is NaN.

    `scores` are logits or probabilities, ``[n, classes]``, `labels` whole numbers, ``[n]``.
    """
    _check(scores, labels)
    right = (scores.argmax(1) == labels).double().mean()
    return torch.where(scores.isnan().any(), math.nan, right)


@register(
    "metrics", "ece", source="Guo et al. 2017, 'On Calibration of Modern Neural Networks', eq. 3"
)
def ece(
    scores: Tensor, labels: Tensor, *, bins: PositiveInt = 15, probabilities: bool = False
) -> Tensor:
    """Expected calibration error: gap between confidence and accuracy, averaged over bins.

    The confidence of a prediction is its largest probability. The bin ((m − 1)/bins, m/bins] is
    weighted by the share of predictions in it. The value is NaN if a score is not finite.

    Args:
        scores: logits, ``[n, classes]``.
        labels: classes as whole numbers, ``[n]``.
        bins: number of bins, all of one width.
        probabilities: whether `scores` are probabilities already.

    Examples:
        >>> import torch
        >>> sure = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
        >>> round(ece(sure, torch.tensor([0, 1]), probabilities=True).item(), 4)
        0.4
    """
    _check(scores, labels)
    check_value("ece: bins", bins, PositiveInt, 15)
    scores = scores.double()
    confidence, predicted = (scores if probabilities else scores.softmax(1)).max(1)
    index = (confidence * bins).ceil().nan_to_num().long().sub(1).clamp(0, bins - 1)
    surplus = (predicted == labels).double() - confidence
    # A product, since sums by index are not repeatable on a GPU.
    sums = F.one_hot(index, bins).double().mT @ surplus
    return torch.where(scores.isfinite().all(), sums.abs().sum() / len(labels), math.nan)


@register(
    "metrics", "mca", source="Hendrycks & Dietterich 2019, 'Benchmarking Neural Network Robustness'"
)
def mca(accuracies: Mapping[Hashable, float]) -> float:
    """Mean accuracy over all corruptions and severities, with equal weights."""
    if not accuracies:
        raise ConfigError("mca: there are no corruptions")
    return math.fsum(accuracies.values()) / len(accuracies)
