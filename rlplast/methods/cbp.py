"""Continual backprop: Dohare et al. 2024 (Nature 632), details of loss-of-plasticity's `gnt.py`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.units import UnitGroup
from rlplast.core.validation import Fraction, Share
from rlplast.methods.draws import uniform
from rlplast.methods.recycling import (
    biases_of,
    gain,
    hashed_rows,
    mean_over_samples,
    mean_size,
    recycle,
    replacement_cost,
    unit_state,
)
from rlplast.metrics.units import unit_age

__all__ = ["Cbp"]

Utility = Literal[
    "contribution",
    "weight",
    "adaptation",
    "zero_contribution",
    "adaptable_contribution",
    "feature_by_input",
    "gxd",
    "random",
]
_CENTRED = ("zero_contribution", "adaptable_contribution", "feature_by_input")
_CHANCE, _UTILITY, _ROW = 0, 1, 2  # what a draw is for: the first key of its hash


@method("cbp", source="Dohare et al. 2024, Algorithm 1; loss-of-plasticity, lop/algos/gnt.py")
@dataclass(frozen=True)
class Cbp(Method):
    """Replace a small share of the least useful mature units at every update: continual backprop.

    A unit's utility is a decaying mean of |h|·mean|w_out| (`utility`). Of the units older than
    `maturity` updates, `replacement_rate` are replaced per update, fractions accumulate. Incoming
    weights are drawn anew, bias and outgoing weights become 0, norm entries 1 and 0, and the
    optimizer forgets these entries (``step``, which a tensor shares, is kept). List it with
    ``every: 1 updates``: with other schedules a firing counts as one update.

    Attributes:
        replacement_rate: share of the mature units of a layer replaced per update.
        maturity: updates before a unit can be replaced.
        decay: of the running means.
        utility: what a unit is worth; the paper's Algorithm 1 has contribution. ``gxd`` reads
            gradients: what the loss loses, to first order, with the unit (arXiv:2605.06834).
        accumulate: whether fractions of a unit add up; else they are chances, as in the code's
            class.
        init: how new weights are drawn: uniform as Kaiming's, or as torch does; convs always as
            torch does (code).
        bias_transfer: whether the mean activation of a replaced unit goes into the biases
            downstream (the paper's intent, which the code loses).
    """

    reads = ("activations", "moments")
    policies = ("keep", "leave")

    replacement_rate: Share = 1e-4
    maturity: Annotated[int, Field(ge=0, le=1_000_000_000)] = 10_000
    decay: Fraction = 0.99
    utility: Utility = "contribution"
    accumulate: bool = True
    init: Literal["kaiming", "default"] = "kaiming"
    bias_transfer: bool = False

    def __post_init__(self) -> None:
        if self.utility == "gxd":
            object.__setattr__(self, "reads", (*self.reads, "gradients"))

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return running means, ages and fractions of each layer."""
        state, device = unit_state(network, blocks, **_PER_UNIT), blocks[0].view.device
        state["updates"] = torch.zeros((), dtype=torch.int64, device=device)
        for group in network.units_in(blocks):
            # Not 0-d: a compiled update on a CPU loses what it writes to a float64 scalar.
            state[f"owed/{group.name}"] = torch.zeros(1, dtype=torch.float64, device=device)
        return state

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan the bookkeeping of this update, and a new start of the units chosen."""
        edits: list[Edit] = [Assign(state["updates"], state["updates"] + 1)]
        masks: dict[str, Tensor] = {}
        means: dict[str, Tensor] = {}
        for tag, group in enumerate(context.units):
            chosen, mean, books = self._choose(context, state, group, tag)
            masks[group.name], means[group.name] = chosen, mean
            edits += books
        draw = hashed_rows(context, state, self._bound, _ROW)
        # Layer by layer, as the code: a weight between two units that start anew is drawn.
        edits += recycle(context, state, masks, draw, outgoing_first=True, moments=True)
        return edits + (_transfer(context, masks, means) if self.bias_transfer else [])

    def metrics(self, state: State) -> Mapping[str, Tensor]:
        """Return the metric `unit_age`."""
        ages = {k: age for k, age in state.items() if k.startswith("age/")}
        return unit_age(ages, self.maturity)

    def _choose(
        self, context: Context, state: State, group: UnitGroup, tag: int
    ) -> tuple[Tensor, Tensor, list[Edit]]:
        """Return which units of a layer start anew, their mean activations, and the books."""
        h = context.activations[group.name]
        util, mean_act, age = (state[f"{n}/{group.name}"] for n in ("util", "mean_act", "age"))
        age_now = age + 1
        corrected = 1 - self.decay**age_now
        mean_now = mean_act
        if self.bias_transfer or self.utility in _CENTRED:
            mean_now = torch.lerp(mean_over_samples(h).to(mean_act), mean_act, self.decay)
        mean = mean_now / corrected
        worth = self._worth(context, state, group, h, mean, tag)
        util_now = torch.lerp(worth.to(util), util, self.decay)
        score = worth if self.utility == "random" else util_now / corrected
        eligible = age_now > self.maturity
        owed, number = self._number(context, state, group, eligible, tag)
        order = torch.where(eligible, score, math.inf).argsort(stable=True)
        chosen = eligible & (order.argsort() < number)
        edits: list[Edit] = [
            Assign(util, util_now.where(~chosen, 0)),
            Assign(mean_act, mean_now.where(~chosen, 0)),
            Assign(age, age_now.where(~chosen, 0)),
            Assign(state[f"owed/{group.name}"], owed),
        ]
        return chosen, mean, edits

    def _number(
        self, context: Context, state: State, group: UnitGroup, eligible: Tensor, tag: int
    ) -> tuple[Tensor, Tensor]:
        """Return the fraction still owed and how many units start anew."""
        count, owed = eligible.sum(), state[f"owed/{group.name}"]
        due = self.replacement_rate * count.to(owed)
        if self.accumulate:
            owed = owed + due
            return owed - owed.floor(), owed.floor().clamp(max=count.to(owed))
        chance = uniform(_seed(context, count), _CHANCE, tag, state["updates"])
        return owed, torch.where(due < 1, (chance < due).to(due), due.floor())

    def _worth(
        self, context: Context, state: State, group: UnitGroup, h: Tensor, mean: Tensor, tag: int
    ) -> Tensor:
        """Return the utility of this update per unit."""
        name = self.utility
        if name == "random":
            units = torch.arange(group.size, device=h.device)
            drawn = uniform(_seed(context, units), _UTILITY, tag, state["updates"], units)
            return drawn.to(mean)
        if name == "gxd":
            cost = replacement_cost(context, group, mean if self.bias_transfer else None)
            return torch.zeros_like(mean) if cost is None else cost
        # Each factor is a pass over a layer's weights or activations: only what counts is made.
        worth = torch.ones_like(mean)
        if name not in ("weight", "adaptation"):
            size = h - mean.view(1, -1, *(1,) * (h.ndim - 2)) if name in _CENTRED else h
            never_negative = size is h and group.nonlinearity == "relu"
            worth = mean_over_samples(size if never_negative else size.abs())
        if name in ("contribution", "weight", "zero_contribution", "adaptable_contribution"):
            worth = worth * _outgoing_size(group)
        if name in ("adaptation", "adaptable_contribution", "feature_by_input"):
            worth = worth / mean_size(group.weight.block.view, 0)
        return worth

    def _bound(self, group: UnitGroup) -> float:
        """Return how wide new weights of a layer are drawn."""
        spec = group.weight.block.spec
        kaiming = self.init == "kaiming" and spec.kind == "linear"
        scale = 1.0 if group.nonlinearity == "selu" else gain(group.nonlinearity)  # gnt.py
        return (scale * math.sqrt(3) if kaiming else 1.0) / math.sqrt(spec.fan_in)


_PER_UNIT = {
    "util": torch.float32,
    "mean_act": torch.float32,
    "age": torch.int64,
    "drawn": torch.int64,
}


def _seed(context: Context, like: Tensor) -> Tensor:
    return torch.full_like(like, context.seed, dtype=torch.int64)


def _outgoing_size(group: UnitGroup) -> Tensor:
    """Return the mean |weight| that leaves each unit."""
    live = [p for p in group.outgoing if p.block.role != "buffer"]  # not those of frozen copies
    views = [p.block.view.unflatten(1, (-1, p.repeat)) for p in live]
    if len(views) == 1:
        return mean_size(views[0])
    entries = sum(view.numel() for view in views)
    return torch.stack([mean_size(view) * (view.numel() / entries) for view in views]).sum(0)


def _transfer(context: Context, masks: dict[str, Tensor], means: dict[str, Tensor]) -> list[Edit]:
    """Return edits that add what replaced units gave on average to the biases downstream."""
    biases = biases_of(context.network)
    groups = context.units
    anew = {g.incoming[1].block.name: masks[g.name] for g in groups if len(g.incoming) > 1}
    edits: list[Edit] = []
    for group in groups:
        mask = masks[group.name]
        for part in group.outgoing:
            bias = biases.get(part.block.layer)
            if bias is None:
                continue
            given = part.spread(means[group.name].where(mask, 0)).to(part.block.view)
            added = (part.block.view * given).flatten(1).sum(1)
            stays = (
                ~anew[bias.name] if bias.name in anew else torch.ones_like(added, dtype=torch.bool)
            )
            edits.append(Assign(bias, bias.view + added, stays & mask.any()))
    return edits
