"""One tick of a lifecycle layer, as a plan: Algorithm 1, A to D, without branches on values."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Assign, Context, Edit
from rlplast.core.network.units import Part
from rlplast.methods.draws import symmetric
from rlplast.methods.lifecycle_modules import LifecycleUnits, Rule, draw_durations
from rlplast.methods.recycling import clear_moments, write_rows

__all__ = ["InstalledLayer", "Units", "advance", "tick"]

_ROW = 2  # what a draw is for, the first key of its hash; 0 and 1 are for durations

Index = Tensor | slice


@dataclass(frozen=True, eq=False)
class Units:
    """The counters of a layer's units; see `LifecycleUnits` for each."""

    active: Tensor
    scale: Tensor
    life: Tensor
    recovery: Tensor
    life_max: Tensor
    recovery_max: Tensor
    revivals: Tensor


_NAMES = tuple(Units.__dataclass_fields__)


def advance(units: Units, rule: Rule, seed: Tensor) -> tuple[Units, Tensor, Tensor]:
    """Return the counters one tick later, and which units fell asleep and which woke up."""
    scale, awake = units.scale, units.active == 1
    if rule.warmup:  # (A) min(1, ·) leaves those at full strength where they are
        scale = (scale + 1 / rule.warmup).clamp(max=1)
    life = units.life - units.active  # (B)
    recovery = units.recovery + units.active - 1
    died = awake & (life <= 0)  # (C)
    recovery = torch.where(died, units.recovery_max, recovery)
    scale = torch.where(died, 1.0, scale)
    awake = awake & ~died
    revived = ~awake & (recovery <= 0)  # (D)
    revivals = units.revivals + revived
    life_max, recovery_max = units.life_max, units.recovery_max
    if rule.redraw:
        drawn = draw_durations(rule, seed, revivals)
        life_max = torch.where(revived, drawn[0], life_max)
        recovery_max = torch.where(revived, drawn[1], recovery_max)
    after = Units(
        active=(awake | revived).to(torch.int64),
        scale=torch.where(revived, 1 / rule.warmup, scale) if rule.warmup else scale,
        life=torch.where(revived, life_max, life),
        recovery=recovery,
        life_max=life_max,
        recovery_max=recovery_max,
        revivals=revivals,
    )
    return after, died, revived


@dataclass(frozen=True, eq=False)
class InstalledLayer:
    """A layer in its network."""

    layer: LifecycleUnits
    followers: tuple[nn.Module, ...]  # the modules at its place in the network's followers
    # Member of a stacked layer (0 for others), and the entries that belong to its units: rows of
    # the layer, columns of what reads it.
    parts: tuple[tuple[int, Part], ...]


def tick(place: InstalledLayer, context: Context) -> list[Edit]:
    """Return the plan of one tick of one layer."""
    layer, rule = place.layer, place.layer.lifecycle
    before = Units(**{name: getattr(layer, name) for name in _NAMES})
    after, died, revived = advance(before, rule, layer.seed)
    edits: list[Edit] = [
        Assign(getattr(layer, name), getattr(after, name))
        for name in _NAMES
        if getattr(after, name) is not getattr(before, name)
    ]
    asleep = before.active == 0
    for parameter, memory in layer.memories.items():
        weight = layer.rows(layer.get_parameter(parameter))
        remembered = layer.rows(layer.get_buffer(memory))
        masks = died, asleep, revived
        falling, sleeping, waking = (layer.spread(mask, parameter) for mask in masks)
        edits += write_rows(remembered, falling, weight.__getitem__)
        if rule.memory != "restore":
            draw = partial(_drawn, layer, parameter, before.revivals)
            drawn = write_rows(remembered, waking, draw)
            edits += drawn + [replace(edit, target=weight) for edit in drawn]
            sleeping = sleeping & ~waking
        edits += write_rows(weight, sleeping, remembered.__getitem__)
    for follower in place.followers:
        for name in layer.followed_buffers:
            edits.append(Assign(follower.get_buffer(name), getattr(after, name)))
    if rule.clear_moments:
        if not context.network.optimizers:
            raise ConfigError(
                "lifecycle.clear_moments needs the optimizer: make a rlplast.Network of the model "
                "and its optimizer, and pass it to rlplast.tick or rlplast.Hooks"
            )
        rows = revived.view(-1, revived.shape[-1])
        for member, part in place.parts:
            edits += clear_moments(context, part, rows[member])
    return edits


def _drawn(layer: LifecycleUnits, name: str, revivals: Tensor, index: Index) -> Tensor:
    """Return new rows: U(±√(6/fan_in)) for He, U(±√(6/(fan_in + fan_out))) for Xavier; biases 0."""
    weight = layer.rows(layer.get_buffer(layer.memories[name]))
    shape = weight[index].shape
    if weight.ndim == 1:
        return weight.new_zeros(shape)
    fan_in, fan_out = layer.fans(name)
    fans = fan_in if layer.lifecycle.memory == "he" else fan_in + fan_out
    revivals = layer.spread(revivals, name)
    seeds = layer.seed.flatten().repeat_interleave(len(revivals) // layer.seed.numel())
    places = torch.arange(len(revivals) // layer.seed.numel(), device=revivals.device)
    places = places.repeat(layer.seed.numel())
    seed, revival, place = (key[index].unsqueeze(1) for key in (seeds, revivals, places))
    entries = torch.arange(weight[0].numel(), device=weight.device)
    tag = _ROW + list(layer.memories).index(name)
    drawn = symmetric(weight.dtype, seed, tag, revival, place, entries)
    return drawn.view(shape) * (6 / fans) ** 0.5
