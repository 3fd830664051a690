"""Slow twin of self-normalized resets (Farias & Jozefiak 2024, `snr.py`).

A unit ages by the batch size while it stays silent and is reset when its age reaches its own
threshold, which follows a percentile of its own gaps between firings. Ages, thresholds and
histograms are Python integers. Without tasks, thresholds are refreshed every `refresh` updates.
"""

from collections.abc import Callable

from torch import Tensor

from .units import Layer, activations_of, outgoing, redraw_incoming, width

Draw = Callable[[int, int, int], Tensor]  # (layer, unit, its resets so far) -> new w[i]


class Snr:
    """State and steps of self-normalized resets for a list of hidden layers.

    `step` takes the activations of the training forward and follows the optimizer step.
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
        eps: float | None = None,
    ) -> None:
        self.layers, self.draw, self.empty = layers, draw, empty
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

    def step(self, activations: list[Tensor]) -> list[list[int]]:
        """One update; returns the reset units of each layer."""
        self.observe(activations)
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
        """The writes of step 4: all incoming, then all outgoing."""
        for number, layer in enumerate(self.layers):
            for i in reset[number]:
                redraw_incoming(layer, i, self.draw(number, i, self.resets[number][i]))
                self.resets[number][i] += 1
        for number, layer in enumerate(self.layers):
            for i in reset[number]:
                outgoing(layer, i).zero_()

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
