"""Continuations of one branch: how many recover."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from rlplast.core.mean_interval import FEWEST, LEVEL, wilson
from rlplast.report.estimators import Estimate
from rlplast.report.frame import Results
from rlplast.training.best import higher_is_better

__all__ = ["recoveries", "share_recovered"]


def recoveries(results: Results) -> pd.DataFrame:
    """Return which continuations recovered, by task and arm.

    That is, whose final score is at least as good as the study says, or as the best score of their
    prefix, without which a seed is left out. Without a score at its end none does.

    Returns:
        Columns: ``task``, ``arm``, ``value``, ``low``, ``high``, ``count`` (continuations),
            ``recovered``, ``seeds``, ``least`` and ``most`` (scores from which one counts).
    """
    done = results.done[results.done.branch.notna()]
    several = done.study.map(results.runs.groupby("study").continuation.max() > 1).astype(bool)
    rows = []
    for (task, arm), own in done[several].groupby(["task", "arm"], sort=False):
        seeds: dict[int, list[bool]] = {}
        levels = []
        for run in own.itertuples():
            level, sign = run.recovered, 1 if higher_is_better(run.score) else -1
            if math.isnan(level):
                xs, ys = results.curve(run.Index, run.score)
                before = sign * ys[xs < run.branch]
                if not len(before):
                    continue
                level = sign * float(before.max())
            levels.append(level)
            seeds.setdefault(run.seed, []).append(bool(sign * run.final >= sign * level))
        if seeds:
            share = share_recovered(list(seeds.values()))
            recovered = sum(map(sum, seeds.values()))
            parts = (share.value, share.low, share.high, share.count, recovered, len(seeds))
            rows.append((task, arm, *parts, min(levels), max(levels)))
    columns = ["task", "arm", "value", "low", "high", "count", "recovered", "seeds"]
    return pd.DataFrame(rows, columns=[*columns, "least", "most"])


def share_recovered(seeds: Sequence[Sequence[bool]]) -> Estimate:
    """Estimate the share of runs that recover, from each seed's continuations.

    The interval is Wilson's. Continuations of one seed are alike, so they count as fewer runs: as
    many as the variance of the seeds' shares allows, and with Student's t. Where all recover, or
    none does, each seed counts as one run. With fewer than 5 seeds the interval is that of these
    branches: each continuation counts.
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
