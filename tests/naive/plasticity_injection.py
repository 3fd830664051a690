"""Slow twin of plasticity injection (Nikishin et al. 2023).

y = f_old(x) + (f_new(x) - f_new0(x)), where f_new starts as a fresh head and f_new0 is its
frozen copy. The old head is frozen too; the new head trains, and so does the encoder, to which
all three heads pass gradients. a + (b - b) is a to the bit, (a + b) - b is not.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

Head = list[tuple[Tensor, Tensor]]  # (weight, bias) of linear layers with ReLU between


@dataclass
class Injected:
    """A head after the injection."""

    old: Head
    new: Head
    new0: Head


def forward_head(head: Head, x: Tensor) -> Tensor:
    """Values of a plain head on (B, d_in), one unit at a time."""
    for number, (w, b) in enumerate(head):
        if number > 0:
            x = torch.where(x > 0, x, torch.zeros_like(x))
        x = torch.stack([(x * w[i]).sum(1) + b[i] for i in range(len(w))], dim=1)
    return x


def forward(injected: Injected, x: Tensor) -> Tensor:
    """Values after the injection."""
    return forward_head(injected.old, x) + (
        forward_head(injected.new, x) - forward_head(injected.new0, x)
    )


def copied(head: Head) -> Head:
    """A copy without history."""
    return [(w.detach().clone(), b.detach().clone()) for w, b in head]


def inject(head: Head, fresh: Head) -> Injected:
    """The injection; `fresh` is a new draw (or, as FIRE ran it, the head at initialisation)."""
    return Injected(copied(head), copied(fresh), copied(fresh))


def trained(injected: Injected) -> list[Tensor]:
    """What the optimizer moves, besides the encoder."""
    return [tensor for layer in injected.new for tensor in layer]


def frozen(injected: Injected) -> list[Tensor]:
    """What never moves."""
    return [tensor for head in (injected.old, injected.new0) for layer in head for tensor in layer]


def backward_head(head: Head, x: Tensor, upstream: Tensor) -> tuple[Head, Tensor]:
    """Gradients of sum(upstream * head(x)) with respect to the head and to x, by hand."""
    inputs = []
    for number, (w, b) in enumerate(head):
        if number > 0:
            x = torch.where(x > 0, x, torch.zeros_like(x))
        inputs.append(x)
        x = forward_head([(w, b)], x)
    gradients = []
    for number in range(len(head) - 1, -1, -1):
        w, b = head[number]
        w_gradient, b_gradient = torch.zeros_like(w), torch.zeros_like(b)
        below = torch.zeros_like(inputs[number])
        for sample in range(len(upstream)):
            for i in range(len(w)):
                w_gradient[i] += upstream[sample, i] * inputs[number][sample]
                b_gradient[i] += upstream[sample, i]
                below[sample] += upstream[sample, i] * w[i]
        gradients.insert(0, (w_gradient, b_gradient))
        if number > 0:
            below = torch.where(inputs[number] > 0, below, torch.zeros_like(below))
        upstream = below
    return gradients, upstream


def backward(injected: Injected, x: Tensor, upstream: Tensor) -> tuple[Head, Tensor]:
    """Gradients of sum(upstream * y) with respect to the new head and to x.

    The frozen heads keep no gradient of their own but count for x.
    """
    _, from_old = backward_head(injected.old, x, upstream)
    new_gradients, from_new = backward_head(injected.new, x, upstream)
    _, from_new0 = backward_head(injected.new0, x, upstream)
    return new_gradients, from_old + (from_new - from_new0)


def sgd_step(injected: Injected, x: Tensor, upstream: Tensor, lr: float) -> Injected:
    """One step of plain SGD: only the new head moves."""
    gradients, _ = backward(injected, x, upstream)
    moved = [
        (w - lr * w_gradient, b - lr * b_gradient)
        for (w, b), (w_gradient, b_gradient) in zip(injected.new, gradients, strict=True)
    ]
    return Injected(injected.old, moved, injected.new0)
