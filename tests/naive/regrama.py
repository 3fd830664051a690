"""Slow twin of ReGraMa's score (arXiv:2505.24061, equation 2, with the gradients of its code).

g_i is the mean |∂L/∂w| over the weights into unit i, G_i = g_i / mean_k g_k. Units with G_i at or
below the threshold are inactive; of these at most a share of the layer, the lowest first.
"""

from torch import Tensor


def scores(gradient: Tensor) -> list[float]:
    """G_i of each row; 0 everywhere in a layer without gradient."""
    means = [float(row.abs().mean()) for row in gradient.detach().double()]
    layer_mean = sum(means) / len(means)
    return [mean / layer_mean if layer_mean > 0 else 0.0 for mean in means]


def inactive(gradient: Tensor, threshold: float, at_most: int | None = None) -> list[bool]:
    """The rows at or below the threshold, the lowest `at_most` of them."""
    found = scores(gradient)
    lowest = sorted(range(len(found)), key=lambda i: (found[i], i))
    lowest = [i for i in lowest if found[i] <= threshold][:at_most]
    return [i in lowest for i in range(len(found))]
