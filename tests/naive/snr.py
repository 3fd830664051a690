"""Slow twin of self-normalized resets (Farias & Jozefiak 2024, `snr.py`).

A unit ages by the batch size while it stays silent and is reset when its age reaches its own
threshold, which follows a percentile of its own gaps between firings. Ages, thresholds and
histograms are Python integers. Without tasks, thresholds are refreshed every `refresh` updates.
"""

from collections.abc import Callable

from torch import Tensor

from .units import (
    Layer,
    activations_of,
    redraw_incoming,
    touched,
    touched_of,
    width,
    zero_outgoing,
)

__all__ = ["Snr", "touched", "touched_of"]

Draw = Callable[[int, int, int], Tensor]  # (layer, unit, its resets so far) -> new w[i]


class Snr:
    """State and steps of self-normalized resets for a list of hidden layers.

    `observe` takes the activations of the training forward, `step` follows the optimizer step.
    `hist[l][i]` maps an age up to tau_max to how often it was seen. `empty` is what a unit
    without a gap in 1..tau_max gets at a refresh: `keep` leaves its threshold alone, `official`
    takes q = 1 (the first index of a comparison with nan). `eps` None: a unit fires where it is
    positive; else where |h| > eps.
    """

    def __init__(
        self,
        layers: list[Layer],
        percentile: float,
        tau_init: int,
        tau_max: int,
        tau_min: int,
        refresh: int,
        expansion: float,
        draw: Draw,
        empty: str = "keep",
        overlap: str = "zero",
        eps: float | None = None,
    ) -> None:
        if empty not in ("keep", "official"):
            raise ValueError(f"empty {empty!r}")
        if overlap not in ("zero", "redraw"):
            raise ValueError(f"overlap {overlap!r}")
        self.layers, self.draw, self.empty, self.overlap = layers, draw, empty, overlap
        self.percentile, self.refresh, self.expansion = percentile, refresh, expansion
        self.tau_max, self.tau_min, self.eps = tau_max, tau_min, eps
        self.age = [[0] * width(layer) for layer in layers]
        self.tau = [[tau_init] * width(layer) for layer in layers]
        self.hist: list[list[dict[int, int]]] = [[{} for _ in range(width(x))] for x in layers]
        self.resets = [[0] * width(layer) for layer in layers]
        self.updates = 0

    def fires(self, entry: float) -> bool:
        """Whether one activation counts as firing."""
        return entry > 0 if self.eps is None else abs(entry) > self.eps

    def record(self, number: int, i: int) -> None:
        """Count the age of unit i and restart it; an age above tau_max is not counted."""
        age = self.age[number][i]
        if age <= self.tau_max:
            self.hist[number][i][age] = self.hist[number][i].get(age, 0) + 1
        self.age[number][i] = 0

    def observe(self, h_list: list[Tensor]) -> None:
        """Steps 1 and 2."""
        for number, h in enumerate(h_list):
            for i in range(width(self.layers[number])):
                if any(self.fires(entry) for entry in activations_of(h, i)):
                    self.record(number, i)
                else:
                    self.age[number][i] += h.shape[0]

    def step(self) -> list[list[int]]:
        """Steps 4 and 5; returns the reset units of each layer."""
        reset = []
        for number in range(len(self.layers)):
            ages, taus = self.age[number], self.tau[number]
            reset.append([i for i in range(len(ages)) if ages[i] >= taus[i]])
            for i in reset[number]:
                self.record(number, i)
        self.edit(reset)
        self.updates += 1
        if self.updates % self.refresh == 0:
            self.refresh_thresholds()
        return reset

    def edit(self, reset: list[list[int]]) -> None:
        """The writes of step 4; for `overlap` see the twin of ReDo."""
        for number, layer in enumerate(self.layers):
            for i in reset[number]:
                redraw_incoming(layer, i, self.draw(number, i, self.resets[number][i]))
                self.resets[number][i] += 1
            if self.overlap == "redraw":
                for i in reset[number]:
                    zero_outgoing(layer, i)
        if self.overlap == "zero":
            for number, layer in enumerate(self.layers):
                for i in reset[number]:
                    zero_outgoing(layer, i)

    def quantile(self, counts: dict[int, int]) -> int | None:
        """The first age in 1..tau_max whose share of smaller or equal gaps is large enough."""
        total = sum(count for age, count in counts.items() if age >= 1)
        if total == 0:
            return None
        seen = 0
        for age in range(1, self.tau_max + 1):
            seen += counts.get(age, 0)
            if seen / total >= self.percentile:
                return age
        raise ValueError(f"percentile {self.percentile} is above 1")

    def refresh_thresholds(self) -> None:
        """Step 5: new thresholds, and histograms start again."""
        for number in range(len(self.layers)):
            for i, tau in enumerate(self.tau[number]):
                q = self.quantile(self.hist[number][i])
                self.hist[number][i] = {}
                if q is None:
                    if self.empty == "keep":
                        continue
                    q = 1
                tau = q if q < tau else int(self.expansion * tau)
                self.tau[number][i] = min(max(tau, self.tau_min), self.tau_max)

    def masks(self, reset: list[list[int]]) -> list[list[bool]]:
        """The result of `step` as masks, for `touched`."""
        return [
            [i in units for i in range(width(layer))]
            for layer, units in zip(self.layers, reset, strict=True)
        ]
