"""Does a metric of early training say how well a network learns later?

    python scripts/early_metrics.py FOLDER… --network model --score eval/online_accuracy

For each metric that a study's runs measured: Spearman's rank correlation, over arms, of its value
early in the run with three outcomes: the next score, the change of the score until the end, and
`trainability` at the end (how much worse than from θ0 the network fits new targets). Values are
means over the seeds of an arm. In brackets are 95% bootstrap intervals over arms. p is by 10,000
permutations of arms, and by Holm's rule for all metrics of an outcome. `score` as a metric is the
score until then: what one sees without any metric.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from rlplast.report.estimators import holm
from rlplast.report.frame import Results, read

DRAWS = 10_000


def of_run(found: Results, run: int, network: str, score: str, early: float) -> dict[str, float]:
    """Return a run's early metrics, and what became of it."""
    rows = found.numbers[found.numbers.run == run]
    total, ends = rows.updates.max(), f"/{network}"
    measured = found.named(f"metric/trainability{ends}", run)
    first = measured[measured.updates >= early * total - 1].iloc[0]
    line = rows[rows.line == first.line].set_index("name").value
    metrics = {
        key.removeprefix("metric/").removesuffix(ends): value
        for key, value in line.items()
        if key.startswith("metric/") and key.endswith(ends)
    }
    scores = found.named(score, run)
    share = scores.updates / total
    until = scores.value[(early / 2 < share) & (share <= early)].mean()
    return metrics | {
        "score": until,
        "→ next score": scores.value[scores.updates > first.updates].iloc[0],
        "→ change of the score": scores.value[share > 0.9].mean() - until,
        "→ trainability at the end": measured.value.iloc[-1],
    }


def of_arms(folders: list[Path], without: list[str], *about: Any) -> dict[str, dict[str, float]]:
    """Return the means over seeds, by arm."""
    found = read(folders)
    runs = found.done[~found.done.arm.isin(without)]
    seeds = runs.arm.value_counts()
    print(f"{len(seeds)} arms, {len(runs)} runs, seeds an arm: {sorted(set(seeds))}")
    table = pd.DataFrame([of_run(found, run, *about) for run in runs.index])
    return table.groupby(runs.arm.to_numpy(), sort=False).mean().to_dict("index")


def rank_correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Spearman's ρ along the last axis; NaN where one of them is constant."""
    a, b = (stats.rankdata(v, axis=-1) for v in (x, y))
    a, b = (v - v.mean(-1, keepdims=True) for v in (a, b))
    with np.errstate(invalid="ignore"):
        return (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))


def tested(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    """Return ρ, its 95% interval by resampling pairs, and p by permuting one of them."""
    rng = np.random.default_rng(0)
    picks = rng.integers(len(x), size=(DRAWS, len(x)))
    low, high = np.nanpercentile(rank_correlation(x[picks], y[picks]), [2.5, 97.5])
    rho = float(rank_correlation(x, y))
    shuffled = rng.permuted(np.tile(y, (DRAWS, 1)), axis=1)
    beyond = np.abs(rank_correlation(np.tile(x, (DRAWS, 1)), shuffled)) >= abs(rho) - 1e-12
    return rho, float(low), float(high), float((beyond.sum() + 1) / (DRAWS + 1))


def draw(arms: dict[str, dict[str, float]], metrics: list[str], outcome: str, path: Path) -> None:
    """Draw the outcome over each metric, an arm a dot."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    columns = 4
    lines = -(-len(metrics) // columns)
    figure = Figure(figsize=(3 * columns, 2.6 * lines), layout="constrained")
    axes = np.atleast_2d(figure.subplots(lines, columns, sharey=True)).flatten()
    for place, metric in zip(axes, metrics, strict=False):
        for arm, row in arms.items():
            plain = arm == "none"
            style = {"color": "#b3001b", "s": 45} if plain else {"color": "#33658a", "s": 16}
            place.scatter(row[metric], row[outcome], zorder=2 + plain, **style)
        place.set_title(metric, fontsize=10)
        place.spines[["top", "right"]].set_visible(False)
        place.grid(alpha=0.25)
        values = [row[metric] for row in arms.values()]
        if 0 < 20 * min(values) < max(values):
            place.set_xscale("log")
            place.xaxis.set_minor_formatter(NullFormatter())
    for place in axes[len(metrics) :]:
        place.set_visible(False)
    figure.supylabel(outcome.removeprefix("→ "))
    figure.supxlabel("early in the run; red: none")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--network", required=True)
    parser.add_argument("--score", required=True)
    parser.add_argument("--early", type=float, default=0.2, help="share of the run")
    parser.add_argument("--without", nargs="+", default=[], metavar="ARM")
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    arms = of_arms(args.folders, args.without, args.network, args.score, args.early)
    keys = next(iter(arms.values()))
    metrics = [key for key in keys if not key.startswith("→")]
    for outcome in (key for key in keys if key.startswith("→")):
        # crelu and deep_fourier leave no hidden units, and so have no metrics of them.
        pairs = [
            np.array([(r[m], r[outcome]) for r in arms.values() if np.isfinite(r[m])]).T
            for m in metrics
        ]
        found = [tested(*pair) for pair in pairs]
        print(f"\n| at {args.early:.0%} of the run {outcome} | arms | ρ | p | p by Holm |")
        print("|---" * 5 + "|")
        table = zip(metrics, pairs, found, holm([row[3] for row in found]), strict=True)
        for metric, (x, _), (rho, low, high, p), by_holm in sorted(
            table, key=lambda row: -abs(row[2][0])
        ):
            words = f"{rho:.2f} [{low:.2f}, {high:.2f}] | {p:.4f} | {by_holm:.3f} |"
            print(f"| `{metric}` | {len(x)} | {words}")
        if args.picture is not None and outcome == "→ change of the score":
            draw(arms, metrics, outcome, args.picture)


if __name__ == "__main__":
    main()
