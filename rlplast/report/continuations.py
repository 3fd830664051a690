"""Continuations of one branch: one run made of them, and how many recover.

- `joined`: the mean of a seed's continuations, as one run.
- `recoveries`: which continuations of each task and arm recover, by seed.
- `share_recovered`: their share, with its interval.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from rlplast.core.mean_interval import FEWEST, LEVEL, wilson
from rlplast.report.run_data import RunData, curve, measure
from rlplast.report.statistics import Estimate
from rlplast.training.best import higher_is_better

__all__ = ["Recoveries", "joined", "recoveries", "share_recovered"]

Line = dict[str, Any]


def joined(runs: Sequence[RunData]) -> RunData:
    """Return one run whose metrics are the means of those of a seed's continuations.

    It has the lines that all of them have at one x. A number that is missing, null or not finite in
    one of them is null. All but the metrics is the first one's.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    numbered = [_numbered(run) for run in runs]
    common = [place for place in numbered[0] if all(place in lines for lines in numbered)]
    lines = [_mean([own[place] for own in numbered], first.unit) for place in common]
    return replace(first, metrics=lines)


def _numbered(run: RunData) -> dict[tuple[Any, ...], Line]:
    """Return a run's lines by x, by whether they are evaluations, and by their number there."""
    found: dict[tuple[Any, ...], Line] = {}
    before: Counter[tuple[Any, ...]] = Counter()
    for line in run.metrics:
        place = line.get(run.unit), any(name.startswith("eval/") for name in line)
        found[*place, before[place]] = line
        before[place] += 1
    return found


def _mean(lines: Sequence[Line], unit: str) -> Line:
    means: Line = {}
    for name in lines[0]:
        values = [line.get(name) for line in lines]
        numbers = [own for own in values if own is not None and math.isfinite(own)]
        if name == unit:
            means[name] = values[0]
        elif len(numbers) < len(values):
            means[name] = None
        else:
            mean = float(np.mean(numbers))
            means[name] = int(mean) if isinstance(values[0], int) else mean
    return means


@dataclass(frozen=True)
class Recoveries:
    """Which continuations of an arm recovered.

    Attributes:
        seeds: seed → for each continuation whether it recovered.
        levels: seed → the score from which, or up to which, one counts.
    """

    task: str
    arm: str
    seeds: dict[int, list[bool]]
    levels: dict[int, float]


def recoveries(runs: Sequence[RunData], level: float | None = None) -> list[Recoveries]:
    """Return which continuations recovered, by task and arm, in the order of the runs.

    A continuation recovers if its final score is at least as good as `level`. A run that has no
    score at its end does not.

    Args:
        runs: continuations.
        level: a score; None for the best one of the prefix, without which a seed is left out.
    """
    found: dict[tuple[str, str], Recoveries] = {}
    for run in runs:
        own = _best_of_prefix(run) if level is None else level
        if own is None:
            continue
        sign = 1 if higher_is_better(run.score) else -1
        of_arm = found.setdefault((run.task, run.arm), Recoveries(run.task, run.arm, {}, {}))
        of_arm.levels[run.seed] = own
        final = measure(run, None).final
        of_arm.seeds.setdefault(run.seed, []).append(bool(sign * final >= sign * own))
    return list(found.values())


def _best_of_prefix(run: RunData) -> float | None:
    """Return the best score before the branch; None without any."""
    xs, ys = curve(run, run.score)
    before = ys[xs < (run.branch or {}).get(run.unit, 0)]
    if not len(before):
        return None
    return float(before.max() if higher_is_better(run.score) else before.min())


def share_recovered(seeds: Sequence[Sequence[bool]]) -> Estimate:
    """Estimate the share of runs that recover.

    The interval is Wilson's. Continuations of one seed are alike, so they count as fewer runs than
    there are: as many as the variance of the seeds' shares allows, and with Student's t. Where
    all recover, or none does, each seed counts as one run. With fewer than 5 seeds the interval is
    that of these branches: each continuation counts.

    Args:
        seeds: for each seed, whether its continuations recovered.
    """
    count = sum(map(len, seeds))
    share = sum(map(sum, seeds)) / count
    if len(seeds) < FEWEST:
        return Estimate(share, *wilson(share, count), count)
    error = np.var([np.mean(own) for own in seeds], ddof=1) / len(seeds)
    alike = share * (1 - share) / error if error > 0 else math.inf
    size = float(min(count, alike) if 0 < share < 1 else len(seeds))
    quantile = scipy.stats.t.ppf(0.5 + LEVEL / 2, len(seeds) - 1)
    return Estimate(share, *wilson(share, size, quantile), count)
