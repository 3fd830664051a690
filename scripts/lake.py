"""What a study of the switching frozen lake found: a table and a picture.

    python scripts/lake.py docs/images/frozen_lake.png runs/frozen_lake [FOLDER ...]

The folders are those of `rlplast study study/replay_ratio/frozen_lake`; or of its sibling
`frozen_lake_remedies`, whose picture is the score of each arm. Of each task and arm the table has
the mean over seeds and two standard errors of

- all: the share of all crossings that reach the goal;
- after: the same of the crossings after the change;
- noticed: the crossing by which half of ten crossings in a row reach the goal on the changed lake;
  the median, and of how many seeds it is.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.report import frame
from rlplast.report.arms import COLOURS

SWITCH = 200  # crossings
Found = dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]]


def read(folders: list[Path]) -> Found:
    """Return, per task and arm, each seed's crossings and the share that reached the goal."""
    results, found = frame.read(folders), {}
    for run, about in results.runs[results.runs.arm != frame.PREFIX].iterrows():
        rows = results.named("train/return", run)
        own = rows.episodes.to_numpy(), rows.value.to_numpy()
        found.setdefault((about.task, about.arm), []).append(own)
    return found


def mean(values: list[float]) -> str:
    """Return a mean and two standard errors."""
    error = 2 * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):.2f} ± {error:.2f}"


def table(found: Found) -> None:
    """Print a row per task and arm."""
    print("| task | arm | seeds | all | after | noticed |\n|---|---|---|---|---|---|")
    for (task, arm), runs in found.items():
        late = [ys[xs > SWITCH] for xs, ys in runs]
        noticed = [xs[(xs > SWITCH) & (ys >= 0.5)] for xs, ys in runs]
        first = [float(xs[0]) if len(xs) else np.inf for xs in noticed]
        seen, middle = sum(np.isfinite(first)), float(np.median(first))
        when = f"{middle:.0f}" if np.isfinite(middle) else "never"
        own = (mean([ys.mean() for _, ys in runs]), mean([ys.mean() for ys in late]))
        print(f"| {task} | {arm} | {len(runs)} | {own[0]} | {own[1]} | {when} ({seen}) |")


def draw(found: Found, path: str) -> None:
    """Draw a panel per task: the mean over seeds, and two standard errors."""
    import altair as alt

    points: list[dict[str, Any]] = []
    for (task, arm), runs in found.items():
        ys = np.stack([ys for _, ys in runs])
        error = 2 * ys.std(0, ddof=1) / np.sqrt(len(ys))
        for x, y, e in zip(runs[0][0].tolist(), ys.mean(0), error, strict=True):
            bounds = {"low": max(0, y - e), "high": min(1, y + e)}
            name = task.replace("ratio-", "updates per env_step: ")
            points.append({"task": name, "arm": arm, "x": x, "y": float(y)} | bounds)
    arms = list(dict.fromkeys(arm for _, arm in found))
    colours = ["#777777" if arm == "none" else None for arm in arms]
    rest = iter(COLOURS)
    scale = alt.Scale(domain=arms, range=[c or next(rest) for c in colours])
    legend = alt.Legend(symbolOpacity=1, orient="bottom", columns=6)
    base = alt.Chart(alt.Data(values=points)).encode(
        alt.X("x:Q", title="crossings"),
        alt.Color("arm:N", scale=scale, title=None, sort=arms, legend=legend),
    )
    band = base.mark_area(opacity=0.15).encode(alt.Y("low:Q"), alt.Y2("high:Q"))
    line = base.mark_line().encode(alt.Y("y:Q", title="share that reaches the goal"))
    panel = alt.layer(band, line).properties(width=300, height=220)
    tasks = list(dict.fromkeys(point["task"] for point in points))
    grid = panel.facet(alt.Facet("task:N", title=None, sort=tasks), columns=3)
    grid.save(path, scale_factor=2)


def rank(found: Found, path: str) -> None:
    """Draw the share after the change, by arm: seeds as dots, mean and two standard errors."""
    import altair as alt

    points, means = [], []
    for (_, arm), runs in found.items():
        own = [float(ys[xs > SWITCH].mean()) for xs, ys in runs]
        error = 2 * np.std(own, ddof=1) / np.sqrt(len(own))
        points += [{"arm": arm, "x": x} for x in own]
        middle = float(np.mean(own))
        bounds = {"low": max(0, middle - error), "high": min(1, middle + error)}
        means.append({"arm": arm, "x": middle} | bounds)
    arms = [row["arm"] for row in sorted(means, key=lambda row: -row["x"])]
    y = alt.Y("arm:N", sort=arms, title=None)
    x = alt.X("x:Q", title="share of the 800 crossings after the change that reach the goal")
    grey = alt.condition("datum.arm == 'none'", alt.value("#777777"), alt.value(COLOURS[0]))
    seeds = alt.Chart(alt.Data(values=points)).mark_circle(opacity=0.4).encode(x, y, color=grey)
    base = alt.Chart(alt.Data(values=means)).encode(y, color=grey)
    bars = base.mark_rule(strokeWidth=3).encode(alt.X("low:Q"), alt.X2("high:Q"))
    middles = base.mark_tick(thickness=3, height=14).encode(x)
    chart = alt.layer(seeds, bars, middles).properties(width=460, height=280)
    chart.save(path, scale_factor=2)


if __name__ == "__main__":
    curves = read([Path(folder) for folder in sys.argv[2:]])
    table(curves)
    one = len({task for task, _ in curves}) == 1
    (rank if one else draw)(curves, sys.argv[1])
