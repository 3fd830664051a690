"""Label smoothing, a key of classifiers: Szegedy et al. 2016 (arXiv:1512.00567), section 7."""

import torch.nn.functional as F
from torch import Tensor

from rlplast.core.registry import register
from rlplast.core.validation import Fraction

__all__ = ["label_smoothing"]


@register("regularisers", "label_smoothing", source="Szegedy et al. 2016, section 7")
def label_smoothing(logits: Tensor, labels: Tensor, *, label_smoothing: Fraction = 0.0) -> Tensor:
    """Train a classifier on labels smoothed by ε: (1 − ε)·CE + ε · mean over classes of −log p.

    Args:
        logits: (samples, classes).
        labels: (samples,), whole numbers.
        label_smoothing: ε, the mass that is spread evenly over all classes.
    """
    return F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
