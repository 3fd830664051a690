"""The units of a network that computes different things in training and evaluation mode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlplast.core.network.units import ActivationPoint, UnitSpec

__all__ = ["Found", "joined"]


@dataclass(frozen=True)
class Found:
    """The units of a layer, with whole paths, and where their activations are read."""

    spec: UnitSpec
    nonlinearity: str
    point: ActivationPoint
    within: str | None = None  # path of the module whose trace found them; None if declared


def joined(
    training: Sequence[Found], evaluation: Sequence[Found], refused: dict[str, str]
) -> Iterator[Found]:
    """Yield the units that are found in both modes, with the readers of both.

    Activations are read in evaluation mode, and gradients come from training mode. So a layer that
    is called in one of them only, or whose activations differ, is written to `refused`.
    """
    others = {each.spec.layer: each for each in training}
    for each in evaluation:
        other = others.get(each.spec.layer)
        if other is not None and _activations(each) == _activations(other):
            readers = dict.fromkeys((*each.spec.downstream, *other.spec.downstream))
            between = dict.fromkeys((*each.point.between, *other.point.between))
            spec = replace(each.spec, downstream=tuple(readers))
            yield replace(each, spec=spec, point=replace(each.point, between=tuple(between)))
        else:
            refused.setdefault(each.spec.layer, _DIFFERS)
    for layer in others.keys() - {each.spec.layer for each in evaluation}:
        refused.setdefault(layer, _DIFFERS)


_DIFFERS = (
    "what comes of its outputs in training mode differs from what comes of them in evaluation mode"
)


def _activations(found: Found) -> tuple[object, ...]:
    """Return what has to be equal in both modes."""
    spec, point = found.spec, found.point
    units = spec.norms, spec.heads, spec.beside, spec.norms_last
    return *units, point.path, len(point.steps), found.nonlinearity, point.nonlinearity
