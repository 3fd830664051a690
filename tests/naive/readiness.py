"""Slow twin of optimization readiness: the definitions, batch by batch and entry by entry."""

from collections.abc import Sequence


def strength(loss: float, gradient: Sequence[float]) -> float:
    """‖g‖² / L."""
    return sum(g * g for g in gradient) / loss


def reliability(gradient: Sequence[float], batches: Sequence[Sequence[float]]) -> float:
    """‖g‖² / (‖g‖² + V), V the mean of ‖ĝ − g‖² over batches whose mean gradient is g."""
    square = sum(g * g for g in gradient)
    apart = 0.0
    for batch in batches:
        apart += sum((b - g) ** 2 for b, g in zip(batch, gradient, strict=True)) / len(batches)
    return square / (square + apart)
