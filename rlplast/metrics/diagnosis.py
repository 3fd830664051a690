"""Whether a network has lost plasticity, in words."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from rlplast.core.mean_interval import student
from rlplast.core.method.readings import Source
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import swapped
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from rlplast.core.validation import check_value
from rlplast.metrics.features import by_member, dormant_ratio, known_activations, last_features
from rlplast.metrics.new_targets import Start, fit_errors
from rlplast.metrics.ranks import effective_rank

__all__ = ["Fit", "NetworkDiagnosis", "Sign", "diagnose_network"]

Verdict = Literal["lost", "slower or lost", "slower", "kept", "unclear", "new"]
VARIANCE = 0.5  # of the targets: what predicting their mean leaves as error
MARGIN = 0.1  # in shares of the targets' variance: a smaller difference counts as none
LOST = 0.75  # of what a fresh network fits: with so much less, plasticity counts as lost
FITTED = 0.2  # share that a fresh network must fit, or the test says nothing


@dataclass(frozen=True)
class Fit:
    """How much of new random targets a network fits.

    Attributes:
        updates: of each fit.
        now: share of the targets' variance that is fitted from the current weights, in [0, 1].
        initial: from θ0; None if that is not known.
        fresh: from new draws of the initializer.
        behind: how much less than from fresh weights: the mean over targets and the ends of its
            95% interval.
    """

    updates: int
    now: float
    initial: float | None
    fresh: float
    behind: tuple[float, float, float]


@dataclass(frozen=True)
class Sign:
    """Something that often comes with a loss of plasticity, and proves nothing by itself.

    Attributes:
        name: of the metric.
        now: its value.
        initial: at θ0; None if that is not known.
        fresh: at one new draw of all weights; None where there is none.
        alarming: whether it has moved far in the direction of a loss, from θ0 or else the draw.
        means: what it says, and what it does not.
    """

    name: str
    now: float
    initial: float | None
    fresh: float | None
    alarming: bool
    means: str


@dataclass(frozen=True)
class NetworkDiagnosis:
    """What `diagnose_network` found.

    Attributes:
        network: its name.
        verdict: ``lost``; ``slower``, which most trained networks are, and not lost; ``slower or
            lost``, if the interval leaves both; ``kept``; ``unclear``, if the fits do not tell;
            ``new``, if it has not trained.
        reason: why, in a sentence or two.
        fit: how it fits new targets; None if it has not trained.
        signs: what else was compared.
    """

    network: str
    verdict: Verdict
    reason: str
    fit: Fit | None
    signs: tuple[Sign, ...]


def diagnose_network(
    source: Source,
    network: Network,
    batch: Any,
    *,
    updates: int = 2000,
    targets: int = 3,
    lr: float | None = None,
    seed: int = 0,
    initial: bool = True,
) -> NetworkDiagnosis:
    """Say whether a network still learns as well as a fresh one does, on inputs that it sees.

    Three copies learn each of some new random targets: one from the current weights, one from θ0
    and one from fresh weights, each with a new optimizer of the network's own kind
    (`rlplast.metrics.trainability`). A share of 1 is a perfect fit, 0 that of a constant. By
    the interval of how far it is behind fresh weights,

    - it has lost plasticity if that is surely more than three quarters of what those fit,
    - it is slower if that is surely more than 0.1, slower or lost if it may be more than three
      quarters, and
    - it has kept plasticity if that is surely less than 0.1.

    These bounds are our own choice. Nothing of the network changes.

    Args:
        source: what computes outputs and activations: a trainer, or an `OwnSource`.
        network: the network, with its optimizer and θ0.
        batch: inputs, as `source.sample` returns them.
        updates: of each fit, at least 1.
        targets: number of targets, at least 2.
        lr: learning rate; default: the current one of each parameter group.
        seed: seed of the targets and of fresh weights.
        initial: whether the network's θ0 is where its training began.

    Raises:
        ConfigError: if a number is out of range, or the network has no optimizer.
    """
    check_value("diagnose: updates", updates, PositiveInt, 2000)
    check_value("diagnose: targets", targets, Annotated[int, Field(ge=2)], 3)
    signs = _signs(source, network, batch, seed, initial)
    if initial and all(torch.equal(b.view, network.initial[b.name]) for b in network.trainable()):
        reason = "It has its initial weights: it has not trained, and nothing can be lost."
        return NetworkDiagnosis(network.name, "new", reason, None, signs)
    fresh = functools.cache(lambda number: _fresh(network, seed, number))
    starts: list[Start] = [
        lambda block, number: block.view,
        lambda block, number: fresh(number)(block),
        *([lambda block, number: network.initial[block.name]] if initial else []),
    ]
    outputs = functools.partial(source.outputs, network.name, batch)
    fitted = fit_errors(network, outputs, starts, targets, updates, lr, seed)
    # A fit that diverged, whose error may be NaN, has fitted nothing.
    errors = [[e if e < VARIANCE else VARIANCE for e in per_target] for per_target in fitted]
    now, new, *old = (1 - sum(per_target) / targets / VARIANCE for per_target in errors)
    behind = student([(a - b) / VARIANCE for a, b, *_ in zip(*errors, strict=True)])
    fit = Fit(updates, now, old[0] if old else None, new, behind)
    return NetworkDiagnosis(network.name, *_judged(fit), fit, signs)


def _judged(fit: Fit) -> tuple[Verdict, str]:
    lost, low, high = fit.behind
    begun = "" if fit.initial is None else f"from its initial weights {fit.initial:.0%}, "
    text = (
        f"After {fit.updates:,} updates it has fitted {fit.now:.0%} of new random targets on its "
        f"own inputs; {begun}a fresh network {fit.fresh:.0%} "
        f"(difference {_points(lost)} points, 95% interval {_points(high)} to {_points(low)})."
    )
    if fit.fresh < FITTED:
        more = "A fresh network fits too little for a comparison: try more updates, or another lr."
        return "unclear", f"{text} {more}"
    if low > LOST * fit.fresh:
        return "lost", text
    if low > MARGIN:
        return ("slower" if high < LOST * fit.fresh else "slower or lost"), text
    if high < MARGIN:
        return "kept", text
    return "unclear", f"{text} That may be a loss or none: try more targets."


def _points(behind: float) -> str:
    return f"{round(-100 * behind):+d}"


def _fresh(network: Network, seed: int, number: int) -> Callable[[Block], Tensor]:
    """Return what draws fresh weights, a Block at a time, in one order."""
    generator = torch_stream(seed, "diagnosis", number)
    drawn = {block.name: network.fresh(block, generator) for block in network.blocks}
    return lambda block: drawn[block.name]


def _signs(
    source: Source, network: Network, batch: Any, seed: int, initial: bool
) -> tuple[Sign, ...]:
    values = []
    for value in (lambda b: b.view, lambda b: network.initial[b.name], _fresh(network, seed, 0)):
        with swapped({block: value(block).clone() for block in network.blocks}):
            values.append(_measured(source, network, batch))
    signs = []
    for name, (alarms, means) in _SIGNS.items():
        now, at_start, drawn = (measured.get(name) for measured in values)
        if now is not None and at_start is not None and drawn is not None:
            alarming = alarms(now, at_start if initial else drawn)
            signs.append(Sign(name, now, at_start if initial else None, drawn, alarming, means))
    return tuple(signs)


_SIGNS: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    "dormant_ratio": (
        lambda now, initial: now > initial + 0.2,
        "share of units that hardly respond; they get little gradient. A network can learn with "
        "many of them, and fail with none",
    ),
    "effective_rank": (
        lambda now, initial: now < initial / 2,
        "directions that the last hidden features use. It also falls where a task needs few",
    ),
    "weight_norm": (
        lambda now, initial: now > 3 * initial,
        "size of all weights: with larger ones a step changes less in proportion",
    ),
}


@torch.no_grad()
def _measured(source: Source, network: Network, batch: Any) -> dict[str, float]:
    squares = [block.view.double().square().sum() for block in network.trainable()]
    measured = {"weight_norm": float(torch.stack(squares).sum().sqrt())}
    if activations := known_activations(source, network.name, batch):
        members = by_member(activations).values()
        ranks = [float(effective_rank(last_features(layers))) for layers in members]
        measured["dormant_ratio"] = float(dormant_ratio(activations))
        measured["effective_rank"] = sum(ranks) / len(ranks)
    return measured
