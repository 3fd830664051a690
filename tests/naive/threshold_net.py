"""The target of slowly changing regression, in plain Python, sum by sum."""

from collections.abc import Sequence


def threshold_output(
    incoming: Sequence[Sequence[int]], outgoing: Sequence[int], bits: Sequence[int]
) -> int:
    """Return what the network makes of one input; the last weight of each row is the bias's."""
    inputs = [*bits, 1]
    total = outgoing[-1]
    for weights, out in zip(incoming, outgoing[:-1], strict=True):
        negative = len([w for w in weights if w == -1])
        threshold = 0.7 * len(inputs) - negative
        if sum(w * x for w, x in zip(weights, inputs, strict=True)) > threshold:
            total += out
    return total
