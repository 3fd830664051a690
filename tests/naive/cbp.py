"""Slow twin of continual backprop (Dohare et al. 2024, `lop/algos/gnt.py`).

Every update, after the optimizer step: `activations` come from the training forward, the
weights are those after the step. Utilities, mean activations, ages and the accumulator are
Python numbers.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .units import Layer, activations_of, outgoing, redraw_incoming, width

UTILITIES = (
    "contribution",
    "weight",
    "adaptation",
    "zero_contribution",
    "adaptable_contribution",
    "feature_by_input",
)

Draw = Callable[[int, int, int], Tensor]  # (layer, unit, its replacements so far) -> new w[i]


def bound(w: Tensor, init: str, gain: float = math.sqrt(2.0)) -> float:
    """Limit of the uniform redraw: `kaiming` gain * sqrt(3 / fan_in), else sqrt(1 / fan_in).

    A convolution always has the latter, with fan_in = C_in * kh * kw.
    """
    fan_in = math.prod(w.shape[1:])
    if init == "kaiming" and w.ndim == 2:
        return gain * math.sqrt(3.0 / fan_in)
    return math.sqrt(1.0 / fan_in)


def divide(a: float, b: float) -> float:
    """The quotient a / b with a zero divisor as in IEEE arithmetic, for a, b >= 0."""
    if b != 0:
        return a / b
    return math.inf if a > 0 else math.nan


def mean_size(weights: Tensor) -> float:
    """Mean |weight|."""
    return float(weights.detach().double().abs().mean())


class Cbp:
    """State and steps of continual backprop for a list of hidden layers in forward order.

    `accumulate` carries fractional replacements over; without it a fraction x < 1 becomes one
    replacement when `chance()`, uniform on [0, 1), is below x. State per layer: `util`,
    `mean_act`, `age` (per unit) and `acc`; `replaced` counts the replacements of each unit.
    """

    def __init__(
        self,
        layers: list[Layer],
        replacement_rate: float,
        maturity: int,
        decay: float,
        utility: str,
        accumulate: bool,
        bias_transfer: bool,
        draw: Draw,
        chance: Callable[[], float],
    ) -> None:
        self.layers, self.draw, self.chance = layers, draw, chance
        self.replacement_rate, self.maturity, self.decay = replacement_rate, maturity, decay
        self.utility, self.accumulate = utility, accumulate
        self.bias_transfer = bias_transfer
        self.util = [[0.0] * width(layer) for layer in layers]
        self.mean_act = [[0.0] * width(layer) for layer in layers]
        self.age = [[0] * width(layer) for layer in layers]
        self.acc = [0.0] * len(layers)
        self.replaced = [[0] * width(layer) for layer in layers]

    def instantaneous(self, layer: Layer, i: int, h: list[float], m_hat: float) -> float:
        """Step 3 for one unit with activations `h` and corrected mean activation `m_hat`."""
        o, n = mean_size(outgoing(layer, i)), mean_size(layer.w[i])
        size = sum(abs(entry) for entry in h) / len(h)
        spread = sum(abs(entry - m_hat) for entry in h) / len(h)
        if self.utility == "contribution":
            return o * size
        if self.utility == "weight":
            return o
        if self.utility == "adaptation":
            return divide(1.0, n)
        if self.utility == "zero_contribution":
            return o * spread
        if self.utility == "adaptable_contribution":
            return divide(o * spread, n)
        return divide(spread, n)

    def corrected(self, moving: float, age: int) -> float:
        """A moving average that started at 0, after `age` entries."""
        return moving / (1.0 - self.decay**age)

    def track(self, number: int, h: Tensor) -> tuple[list[float], list[float]]:
        """Steps 1 to 4 of one layer: its corrected utilities and mean activations."""
        layer, decay = self.layers[number], self.decay
        util, mean_act, age = self.util[number], self.mean_act[number], self.age[number]
        u_hats, m_hats = [], []
        for i in range(width(layer)):
            entries = activations_of(h, i)
            age[i] += 1  # 1
            mean_act[i] = decay * mean_act[i] + (1.0 - decay) * sum(entries) / len(entries)  # 2
            m_hats.append(self.corrected(mean_act[i], age[i]))
            now = self.instantaneous(layer, i, entries, m_hats[i])  # 3
            util[i] = decay * util[i] + (1.0 - decay) * now  # 4
            u_hats.append(self.corrected(util[i], age[i]))
        return u_hats, m_hats

    def count(self, number: int, eligible: int) -> int:
        """Step 6: how many of the `eligible` units to replace."""
        if self.accumulate:
            self.acc[number] += self.replacement_rate * eligible
            k = int(self.acc[number])
            self.acc[number] -= k
        else:
            share = self.replacement_rate * eligible
            if share < 1.0 and self.chance() < share:
                share = 1.0
            k = int(share)
        return min(k, eligible)

    def choose(self, number: int, u_hats: list[float]) -> list[int]:
        """Steps 5 to 7 of one layer: the units to replace, in the order of their numbers."""
        eligible = [i for i in range(len(u_hats)) if self.age[number][i] > self.maturity]
        if not eligible:
            return []
        k = self.count(number, len(eligible))
        if k and any(math.isnan(u_hats[i]) for i in eligible):
            raise ValueError(f"a utility of layer {number} is not a number")
        units = sorted(sorted(eligible, key=lambda i: (u_hats[i], i))[:k])
        for i in units:
            self.util[number][i] = 0.0
            self.mean_act[number][i] = 0.0
        return units

    @torch.no_grad()
    def transfer(self, layer: Layer, i: int, m_hat: float) -> None:
        """b_next += W_next[:, i] * m_hat, summed over the columns or the kernel of unit i."""
        if layer.b_next is None:
            raise ValueError("no bias to transfer to")
        layer.b_next += outgoing(layer, i).flatten(1).sum(1) * m_hat

    def step(self, activations: list[Tensor]) -> list[list[int]]:
        """One update; returns the replaced units of each layer."""
        chosen, means = [], []
        for number, h in enumerate(activations):
            u_hats, m_hats = self.track(number, h)
            chosen.append(self.choose(number, u_hats))
            means.append(m_hats)
        for number, layer in enumerate(self.layers):  # 8
            for i in chosen[number]:
                redraw_incoming(layer, i, self.draw(number, i, self.replaced[number][i]))
            for i in chosen[number]:
                if self.bias_transfer:
                    self.transfer(layer, i, means[number][i])
                outgoing(layer, i).zero_()
                self.age[number][i] = 0
                self.replaced[number][i] += 1
        return chosen
