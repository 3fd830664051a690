"""What each firing of a run cost: the drop of its score, the time to recover, the area lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rlplast.report.drops import Drop, drop_and_recovery
from rlplast.report.run_data import RunData, between_tasks, curve, first_after
from rlplast.training.best import higher_is_better

__all__ = ["Firing", "firings"]


@dataclass(frozen=True)
class Firing:
    """What one firing cost a run.

    Attributes:
        methods: the methods that fired.
        at: when, in the run's unit.
        drop: what it did to the score, up to the next firing.
    """

    methods: tuple[str, ...]
    at: int
    drop: Drop


def firings(run: RunData) -> list[Firing]:
    """Return what each scheduled firing cost, where there is a score on either side of it.

    All firings between two scores count as one, at the moment of the first. A firing between
    scores of two tasks is left out.
    """
    xs, ys = curve(run, run.score)
    fired: dict[int, list[Mapping[str, Any]]] = {}  # by the index of the first score after it
    for row in run.receipts:
        if row.get("norm_after") is not None:
            fired.setdefault(first_after(run, row["clock"]), []).append(row)
    found = []
    for after, until in pairwise([*sorted(fired), len(xs)]):
        at = int(fired[after][0]["clock"][run.unit])
        drop = drop_and_recovery(xs[:until], ys[:until], at, after, higher_is_better(run.score))
        if drop is not None and not between_tasks(run, after):
            methods = dict.fromkeys(str(row["method"]) for row in fired[after])
            found.append(Firing(tuple(methods), at, drop))
    return found
