"""Persistent Neurons: tables and figures of runs whose phases train on the same data again.

    python scripts/persistent_figures.py runs/persistent_digits figures [--epochs 15 30]

The folder is that of a study of study/persistent, or any with runs on the stream `repeated`, whose
phases are iterations. An iteration counts with its best epoch. The champion is the best one by
validation but iteration 0. Printed are a table of each run and one of mean ± standard deviation
over seeds; champions.csv has both. Pictures, as .png and .svg, of what the runs have measured:

- iterations: validation, test and training by iteration (Figures 7, 9 to 11, 13);
- trajectories: paths of the weights on a plane, from `weight_sketch` (Figure 6);
- hessian_density: at the best epoch of iteration 0 and of the champion (Figure 12);
- saturation_percentile: of each layer by epoch (Figure 14);
- activation_histogram: at the best epoch, and at those of `--epochs` (Figure 15).
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from rlplast.report.arms import looks, unused
from rlplast.report.drawing import draw
from rlplast.report.frame import Results, read
from rlplast.report.numbers import number
from rlplast.report.vega import INK
from rlplast.report.view import slug_of
from rlplast.training.best import higher_is_better

MEASURES = ["validation", "test", "training"]
STRETCHES = ["iteration 0", "champion"]
PARTS = [*STRETCHES, "best of all"]  # columns of the table of iterations that say which ones
RUN = ["run", "task", "arm", "seed", "score"]
DENSITIES = {  # metric → label of its axis, and what kind of chart it is
    "hessian_density": ("eigenvalue", "logarithmic"),
    "activation_histogram": ("activation", "density"),
}
LOWEST = 1e-8  # of a line's largest value: what a logarithmic axis draws
Picture = tuple[str, str, dict[str, Any]]  # its name, what it shows, its specification


# --- iterations ---


def iterations(results: Results) -> pd.DataFrame:
    """Return a row per finished run and iteration, at its best evaluation, the first of equal ones.

    Columns: `RUN`, length (epochs of an iteration), iteration, updates, epoch (of the iteration),
    `MEASURES`, and `PARTS`: whether the iteration is it. `training` is the last one logged until
    then in the iteration.
    """
    parts = [pd.DataFrame(columns=[*RUN, "length", "iteration", "updates", "epoch", *MEASURES])]
    for run, about in results.done.iterrows():
        stream = results.configs[run].get("stream") or {}
        rows = results.named(about.score, run).dropna(subset="value")
        if stream.get("name") != "repeated" or rows.empty:
            continue
        sign = 1 if higher_is_better(about.score) else -1
        best = rows.loc[(sign * rows.value).groupby(rows.phase).idxmax()]
        best = best.rename(columns={"phase": "iteration", "value": "validation"})
        best["length"] = stream["epochs"]
        best["epoch"] = best.epochs - best.iteration * best.length
        for name, start in (("test", "eval/test_"), ("training", "train/")):
            other = results.named(about.score.replace("eval/", start, 1), run)
            other = other.rename(columns={"phase": "iteration", "value": name})
            other = other[["updates", "iteration", name]]
            best = pd.merge_asof(best, other, on="updates", by="iteration")
        quality = sign * best.validation
        later = quality[best.iteration > 0]
        best["iteration 0"] = best.iteration == 0
        best["champion"] = best.index == (later.idxmax() if len(later) else None)
        best["best of all"] = best.index == quality.idxmax()
        parts.append(best.assign(**about[RUN[1:]], run=run)[[*parts[0], *PARTS]])
    return pd.concat(parts[1:] or parts, ignore_index=True)


def ends(best: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run: what iteration 0, the champion and the best iteration reach."""
    found = best[RUN].drop_duplicates().set_index("run")
    for part in PARTS:
        own = best[best[part]].set_index("run")[["iteration", "epoch", *MEASURES]]
        own = own.astype(dict.fromkeys(["iteration", "epoch"], "Int64"))  # as some have none
        found = found.join(own.add_prefix(f"{part}: "))
    return found


def table(found: pd.DataFrame, by: list[str]) -> str:
    """Return ends as a table in markdown: means, with a standard deviation where there are two."""
    shown = [name for name in MEASURES if found[f"iteration 0: {name}"].notna().any()]
    words = [f"{part}: {' / '.join(shown)} | iteration, epoch" for part in PARTS]
    lines = [" | ".join([*by, *words]), "|".join(["---"] * (len(by) + 2 * len(PARTS)))]
    for key, rows in found.groupby(by, sort=False):
        cells = [*map(str, key)]
        for part in PARTS:
            own = rows[[f"{part}: {name}" for name in ("iteration", "epoch")]].to_numpy(object)
            scores = [_spread(rows[f"{part}: {name}"], rows.score.iloc[0]) for name in shown]
            cells += [" / ".join(scores), "; ".join(f"{i}, {e}" for i, e in own)]
        lines.append(" | ".join(cells).replace("<NA>", "–"))
    return "\n".join(f"| {line} |" for line in lines)


def _spread(values: pd.Series, score: str) -> str:
    """Return mean ± standard deviation, accuracies in percent."""
    several = [own for own in (values.mean(), values.std()) if own == own]
    texts = [f"{100 * own:.2f}" if score.endswith("accuracy") else number(own) for own in several]
    return " ± ".join(texts) or "–"


def by_iteration(results: Results, best: pd.DataFrame) -> Picture:
    """Return the picture of the scores by iteration, mean and standard deviation over seeds."""
    rows = best.melt(["arm", "iteration"], MEASURES, "panel", "y").dropna(subset="y")
    data = rows.groupby(["panel", "arm", "iteration"], sort=False).y.agg(["mean", "std"])
    data["low"], data["high"] = data["mean"] - data["std"], data["mean"] + data["std"]
    data = data.reset_index().rename(columns={"iteration": "x", "mean": "y"}).assign(part="")
    caption = "Each iteration at its best epoch by validation: mean over seeds."
    caption += " Band: ± standard deviation." * bool(data["std"].notna().any())
    label = best.score.iloc[0].removeprefix("eval/")
    return "iterations", caption, panels(data, results, ("iteration", label), "whole")


# --- what was measured in iterations ---


def keys_of(results: Results, metric: str) -> dict[str, list[str]]:
    """Return network → the keys of a metric, in the order in which they were measured."""
    found: dict[str, list[str]] = {}
    for key in results.numbers.name.cat.categories:
        if key.startswith(f"metric/{metric}/"):
            found.setdefault(key.split("/")[2], []).append(key)
    return found


def vectors(results: Results, run: int, key: str, *others: str) -> pd.DataFrame:
    """Return the lines of a run where KEY/0, KEY/1, … are all finite numbers.

    Columns: phase, epochs, those of `others` (such as low, of KEY/low), and from 0 on.
    """
    size = sum(name.startswith(f"{key}/") for name in results.numbers.name.cat.categories)
    rows = {name: results.named(f"{key}/{name}", run) for name in (*others, *range(size))}
    found = {name: own.set_index("line").value for name, own in rows.items() if len(own)}
    places = results.named(f"{key}/0", run).set_index("line")[["phase", "epochs"]]
    return places.join(pd.DataFrame(found)).dropna()


def stretches(best: pd.DataFrame, run: int) -> list[tuple[str, Any]]:
    """Return "iteration 0" and "champion" with their rows, as far as there are any."""
    own = best[best.run == run]
    return [(part, row) for part in STRETCHES for row in own[own[part]].itertuples()]


def first_runs(results: Results, best: pd.DataFrame, key: str) -> Iterator[tuple[str, int]]:
    """Yield each arm and its run of the first seed that has measured KEY/0."""
    there = [len(results.named(f"{key}/0", run)) > 0 for run in best.run]
    yield from best[there].groupby("arm", sort=False).run.first().items()


def density(results: Results, run: int, row: Any, key: str, epoch: int) -> pd.DataFrame:
    """Return the density measured nearest to an epoch of an iteration; no rows without one.

    Columns: x and y of the line along the tops of its cells, two points each; iteration, epoch.
    """
    found = vectors(results, run, key, "low", "high")
    epochs = found.epochs[found.phase == row.iteration] - row.iteration * row.length
    if epochs.empty:
        return pd.DataFrame()
    line = (epochs - epoch).abs().idxmin()  # the earlier one of two
    values = found.loc[line].to_numpy(float)[4:]
    xs = np.repeat(np.linspace(found.low[line], found.high[line], len(values) + 1), 2)[1:-1]
    place = {"iteration": row.iteration, "epoch": epochs[line]}
    return pd.DataFrame({"x": xs, "y": np.repeat(values, 2)}).assign(**place)


def densities(
    results: Results, best: pd.DataFrame, metric: str, network: str, epoch: int = 0
) -> Iterator[Picture]:
    """Yield the picture of a density at the best epochs of iterations, or near the given one."""
    (label, kind), parts = DENSITIES[metric], []
    for arm, run in first_runs(results, best, key := f"metric/{metric}/{network}"):
        found = [
            density(results, run, row, key, epoch or row.epoch).assign(arm=arm, part=part)
            for part, row in stretches(best, run)
        ]
        own = pd.concat(found)
        if len(own):
            moments = own[["iteration", "epoch"]].drop_duplicates().itertuples(index=False)
            words = ", ".join(f"{iteration} at epoch {at}" for iteration, at in moments)
            parts.append(own.assign(panel=f"{arm}: iteration {words}"))
    if parts:
        data = pd.concat(parts)
        if kind == "logarithmic":
            most = data.groupby(["arm", "part"]).y.transform("max")
            data["y"] = data.y.where(data.y >= LOWEST * most)
        when = f"epoch {epoch}" if epoch else "the best epoch"
        caption = f"Measured nearest to {when} of iteration 0 and of the champion; first seed."
        name = f"{metric}-{network}{f'-epoch-{epoch}' * bool(epoch)}"
        yield name, caption, panels(data, results, (label, "density"), kind)


def saturation(
    results: Results, best: pd.DataFrame, network: str, keys: Sequence[str]
) -> Iterator[Picture]:
    """Yield the picture of the percentile of each layer of a network, mean over seeds."""
    parts = []
    for key in keys:
        title = key.partition(f"/{network}/")[2] or "all layers"
        rows = results.numbers[results.numbers.name == key].dropna(subset="value")
        for part in STRETCHES:
            found = rows.merge(best[best[part]], on="run")
            found = found[found.phase == found.iteration]
            found["x"] = found.epochs - found.phase * found.length
            mean = found.groupby(["arm", "x"], sort=False).value.mean().reset_index(name="y")
            parts.append(mean.assign(panel=title, part=part))
    data = pd.concat(parts)
    if len(data):
        caption = "98th percentile of the sizes of activations, mean over seeds. Arms that share "
        caption += "iteration 0 have one dashed line."
        spec = panels(data, results, ("epoch of the iteration", "98th percentile"), "whole")
        yield f"saturation_percentile-{network}", caption, spec


# --- trajectories ---


def plane_of(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the plane through the origin and two points: orthonormal directions, (numbers, 2).

    The first one leads to `first`; `last` lies on the positive side of the second.
    """
    basis, sides = np.linalg.qr(np.stack([first, last], axis=1))
    return basis * np.where(np.diag(sides) < 0, -1.0, 1.0)


def starts_at_initial(results: Results, run: int, network: str, row: Any) -> bool:
    """Return whether a network's weights were θ0 when an iteration began.

    A run begins there, unless a hook fires before the first update. A later iteration does if the
    last hook that fires as it begins puts all weights back. False where that is not certain.
    """
    fired = [own for own in results.receipts[run] if own["network"] == network]
    if row.iteration == 0:
        return all(own["clock"]["updates"] > 0 for own in fired)
    begin = {"phase": row.iteration, "epochs": row.iteration * row.length}
    here = [own["method"] for own in fired if begin.items() <= own["clock"].items()]
    stored = {"persistent": None, "full_reset": "stored"}  # what puts weights back → its `init`
    hooks = [own for own in results.configs[run]["hooks"] if here and own["method"] == here[-1]]
    return bool(hooks) and all(
        own.get("scope") in (None, "all")
        and stored.get(own["method"], "-") == (own.get("params") or {}).get("init")
        for own in hooks
    )


def trajectories(results: Results, best: pd.DataFrame, network: str) -> Iterator[Picture]:
    """Yield the picture of the paths of a network's weights, a panel and a plane per arm."""
    parts, shares, size = [], [], 0
    for arm, run in first_runs(results, best, key := f"metric/weight_sketch/{network}"):
        found, paths = vectors(results, run, key), {}
        for part, row in stretches(best, run):
            path = found[found.phase == row.iteration].to_numpy(float)[:, 2:]
            if len(path) and starts_at_initial(results, run, network, row):
                path = np.concatenate([np.zeros((1, path.shape[1])), path])  # the sketch of θ0
            paths |= {(part, row.iteration): path} if len(path) else {}
        if len(paths) == len(STRETCHES):
            plane = plane_of(*(path[-1] for path in paths.values()))
            size, points = len(plane), np.concatenate([*paths.values()])
            share = ((points @ plane) ** 2).sum() / max(1e-300, (points**2).sum())
            shares.append(f"{arm}: {share:.0%}")
            title = f"{arm}: iterations {' and '.join(str(iteration) for _, iteration in paths)}"
            for (part, _), path in paths.items():
                line = pd.DataFrame(path @ plane, columns=["x", "y"])
                parts.append(line.assign(arm=arm, part=part, panel=title))
    if parts:
        caption = (
            "Cross: θ0; dots: ends; first seed. Each panel has its own plane, the one through θ0 "
            f"and both ends; it keeps of the squared distances from θ0 {', '.join(shares)}. "
            f"Sketches of {size} numbers: the standard error of a distance is "
            f"{(2 * size) ** -0.5:.0%}. A line begins at the cross where training started at θ0, "
            "else at its first measurement."
        )
        labels = ("towards the end of iteration 0", "the champion's other direction")
        spec = panels(pd.concat(parts), results, labels, "plane")
        yield f"trajectories-{network}", caption, spec


# --- charts ---


def panels(
    data: pd.DataFrame, results: Results, labels: tuple[str, str], kind: str
) -> dict[str, Any]:
    """Return small charts side by side: a colour per arm, dashes for iteration 0.

    `data` has columns panel (its title), arm, part, x, y, and low and high of a band. The kind is
    whole (x is), density (y from 0 on), logarithmic (y is) or plane: both axes have one scale,
    lines a dot at their ends, and the origin a cross.
    """
    there = [look for look in looks(results.arms, results.baseline) if look.name in set(data.arm)]
    strokes: Any = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolOpacity": 1}
    legend = alt.Legend(title=None, orient="bottom", **strokes)
    colours = alt.Scale(domain=[own.name for own in there], range=[own.colour for own in there])
    colour = alt.Color("arm:N", scale=colours, legend=legend if len(there) > 1 else None)
    names = [own for own in STRETCHES if own in set(data.part)]
    dashes = alt.Scale(domain=STRETCHES, range=[[4, 3], [1, 0]])
    dash = alt.StrokeDash("part:N", scale=dashes, legend=legend) if names else alt.Undefined
    across = alt.Axis(tickCount=5, **({"tickMinStep": 1} if kind == "whole" else {}))
    up = alt.Axis(format="~e", tickCount=5) if kind == "logarithmic" else alt.Axis()
    charts = []
    for title, own in data.groupby("panel", sort=False):
        xs, ys = alt.Scale(zero=False), alt.Scale(zero=kind == "density")
        if kind == "logarithmic":
            ys = alt.Scale(type="log", nice=False)
        elif kind == "plane":
            sides: Any = [(min(0, own[name].min()), max(0, own[name].max())) for name in "xy"]
            half = 0.55 * max(high - low for low, high in sides) or 1.0
            middles = ((low + high) / 2 for low, high in sides)
            xs, ys = (alt.Scale(domain=[m - half, m + half], nice=False) for m in middles)
        x = alt.X("x:Q", title=labels[0], scale=xs, axis=across)
        y = alt.Y("y:Q", title=labels[1], scale=ys, axis=up)
        last = own.groupby(["arm", "part"]).cumcount(ascending=False) == 0
        rows = own.assign(n=range(len(own)), last=last)
        rows = json.loads(str(rows.to_json(orient="records", double_precision=15)))
        base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour)
        line = base.mark_line(clip=True, strokeWidth=1.6, point="low" in own)
        layers = [line.encode(order="n:Q", strokeDash=dash)]
        if "low" in own and own.low.notna().any():
            band = base.mark_area(opacity=0.15, clip=True)
            layers.insert(0, band.encode(y=alt.Y("low:Q", title=labels[1], scale=ys), y2="high:Q"))
        if kind == "plane":
            dots = base.transform_filter("datum.last").mark_point(filled=True, opacity=1)
            start = alt.Chart(alt.Data(values=[{"x": 0, "y": 0}])).encode(x=x, y=y)
            layers += [dots, start.mark_point(shape="cross", filled=True, size=60, color=INK)]
        size = {"width": 230, "height": 230} if kind == "plane" else {"width": 250, "height": 150}
        charts.append(alt.layer(*layers).properties(title=title, **size))
    spec = alt.concat(*charts, columns=3).to_dict()
    return {key: value for key, value in spec.items() if key != "config"}


def pictures(results: Results, best: pd.DataFrame, epochs: Sequence[int]) -> Iterator[Picture]:
    """Yield all pictures that the runs of a task have numbers for; `best` is of them."""
    yield by_iteration(results, best)
    for network in keys_of(results, "weight_sketch"):
        yield from trajectories(results, best, network)
    for network in keys_of(results, "hessian_density"):
        yield from densities(results, best, "hessian_density", network)
    for network in keys_of(results, "activation_histogram"):
        for epoch in (0, *epochs):
            yield from densities(results, best, "activation_histogram", network, epoch)
    for network, keys in keys_of(results, "saturation_percentile").items():
        yield from saturation(results, best, network, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of a study, or with runs in it")
    parser.add_argument("out", type=Path, help="folder of the pictures and champions.csv")
    parser.add_argument("--epochs", type=int, nargs="+", default=[], help="of histograms as well")
    args = parser.parse_args()
    best = iterations(results := read([args.folder]))
    if best.empty:
        parser.error(f"{args.folder}: no finished run has the stream repeated and a score")
    args.out.mkdir(parents=True, exist_ok=True)
    found = ends(best)
    found.to_csv(args.out / "champions.csv", index=False)
    for by in (["task", "arm", "seed"], ["task", "arm"]):
        print(f"{table(found, by)}\n")
    specs, captions = {}, {}
    for task, own in best.groupby("task", sort=False):
        for name, caption, spec in pictures(results, own, args.epochs):
            slug = unused(slug_of(f"{task} {name}"), specs)
            specs[slug], captions[slug] = spec, caption
    for name, files in draw(specs).items():
        (args.out / f"{name}.svg").write_text(files.svg)
        (args.out / f"{name}.png").write_bytes(files.png)
        print(f"![{captions[name]}]({name}.png)")


if __name__ == "__main__":
    main()
