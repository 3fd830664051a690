"""The charts of a report, made from its runs and numbers.

- `curves`, `ranking`, `chances`: the first charts, with their captions.
- `comparison`, `drops`, `metrics`, `costs`: others.
- `thinned`: a curve with fewer points, as the page draws it.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from rlplast.report import charts, published
from rlplast.report.arm_styles import unused
from rlplast.report.charts import Curve, Firing
from rlplast.report.numbers import judged
from rlplast.report.page import Chart
from rlplast.report.plot import metric_names
from rlplast.report.rows import Axis, Bar, Panel, Point, chart_of_rows
from rlplast.report.rows import ranking as rows_of
from rlplast.report.run_data import RunData, curve
from rlplast.report.statistics import Estimate, align, curve_band
from rlplast.report.summary import ALL_TASKS, SummaryRow
from rlplast.report.view import Report, better, interval_words, ranked, slug_of

__all__ = ["chances", "comparison", "costs", "curves", "drops", "metrics", "ranking", "thinned"]

POINTS = 3000  # of all curves of a chart together, so that a page is quick
PANEL_POINTS = 40  # of a curve of a small chart
CHANCES = (
    "How likely a run of the arm ends better than one of the baseline: share of all pairs of "
    "seeds, ties half. Lines"
)
SEED_POINTS = 24_000  # of all seeds' curves of a page, so that it is small


def thinned(curve: Curve, most: int) -> Curve:
    """Return a curve with at most so many points, at even distances by number, both ends kept."""
    if len(curve.xs) <= most:
        return curve
    kept = np.unique(np.linspace(0, len(curve.xs) - 1, max(2, most)).round().astype(int))
    low, high = (None if side is None else side[kept] for side in (curve.low, curve.high))
    return Curve(curve.xs[kept], curve.ys[kept], low, high)


def curves(report: Report, task: str) -> Chart:
    """Return the chart of the score over a task's runs."""
    gathered = report.gathered
    most = max(12, SEED_POINTS // len(gathered.runs + gathered.running))
    name, step = report.axis(task)
    drawn, seeds, interpolated = {}, {}, False
    for look in report.arms:
        own = {run.seed: curve(run, run.score) for run in report.of(task, look.name)}
        xs, ys = align(list(own.values()))
        if not len(xs):
            continue
        band = Curve(xs / step, *curve_band(ys, report.bounds(task, report.score(task))))
        drawn[look.index] = thinned(band, max(20, POINTS // len(report.arms)))
        interpolated |= any(not np.isin(xs, points).all() for points, _ in own.values())
        if len(own) > 1:
            seeds[look.index] = {
                seed: thinned(Curve(points / step, ys), most) for seed, (points, ys) in own.items()
            }
    key, firings, branches = report.score(task), _firings(report, task), _branches(report, task)
    between = " (straight lines between a run's own)" if interpolated else ""
    words = interval_words(report.rows(task).values())
    caption = f"Interquartile mean over seeds at each point of {key}{between}. Band: {words}."
    going: dict[int, dict[int, Curve]] = {}
    index = {look.name: look.index for look in report.arms}
    for run in report.running(task):
        xs, ys = curve(run, run.score)
        going.setdefault(index[run.arm], {})[run.seed] = thinned(Curve(xs / step, ys), most)
    if going:
        caption += " Thin dotted lines: runs that have not ended, which are in no number."
    if branches:
        caption += " Dashed line: where arms left a shared prefix."
    if firings:
        caption += " Marks below: where scheduled hooks fired, in any seed."
    theirs = published.bands(report, task)
    caption += published.band_words(report, theirs)
    labels = (name, better(key))
    spec = charts.curves(report.arms, drawn, seeds, labels, branches, firings, theirs, going)
    return Chart(f"curve-{report.slugs[task]}", "Learning curves", caption, spec)


def _branches(report: Report, task: str) -> list[float]:
    return [x / report.axis(task)[1] for x in report.branches(task)]


def _firings(report: Report, task: str) -> dict[int, list[Firing]]:
    """Return index of an arm → where its hooks fired; not those that fire after every update."""
    found = {}
    for look in report.arms:
        causes: dict[float, dict[str, None]] = {}
        for run in report.of(task, look.name):
            for row in run.receipts:
                if row.get("norm_after") is not None:
                    x = row["clock"][run.unit] / report.axis(task)[1]
                    causes.setdefault(x, {})[f"{row.get('method')} on {row.get('network')}"] = None
        if causes:
            found[look.index] = [Firing(x, ", ".join(causes[x])) for x in sorted(causes)]
    return found


def _point(estimate: Estimate | None, seeds: Iterable[float] = ()) -> Point | None:
    if estimate is None or math.isnan(estimate.value):
        return None
    finite = tuple(value for value in seeds if not math.isnan(value))
    return Point(estimate.value, estimate.low, estimate.high, finite if len(finite) > 1 else ())


def _panel(
    title: str,
    xlabel: str,
    points: Mapping[int, Point | None],
    reference: float | None = None,
    axis: Axis = "free",
) -> list[Panel]:
    """Return the panel, if it has anything to show."""
    known = {arm: point for arm, point in points.items() if point is not None}
    return [Panel(title, xlabel, known, reference, axis)] if known else []


def ranking(report: Report, task: str) -> Chart | None:
    """Return the chart of the final scores on a task, or over all, the best arm on top."""
    rows = ranked(report.rows(task)) if report.rows(task) else {}
    points: dict[int, Point] = {}
    for index, row in rows.items():
        own = _point(row.final, [run.final for run in report.measured(task, row.arm)])
        if own is not None:
            points[index] = own
    if not points:
        return None
    first = next(iter(rows.values()))
    label = first.scale if task == ALL_TASKS else better(first.score)
    own = next((i for i, row in rows.items() if row.arm == report.summary.baseline), None)
    reference = points[own].value if own in points and len(points) > 1 else None
    spec = rows_of(report.arms, Panel("", f"final score: {label}", points, reference))
    caption = f"Points: interquartile mean over seeds. Lines: {interval_words(rows.values())}."
    if any(point.seeds for point in points.values()):
        caption += " Small dots: the seeds."
    if reference is not None:
        caption += f" Dashed line: {report.summary.baseline}."
    return Chart(f"score-{report.slugs[task]}", "Final score", caption, spec)


def chances(report: Report) -> Chart | None:
    """Return the chart of how likely each arm beats the baseline over all tasks."""
    rows = report.rows(ALL_TASKS)
    found = {index: _point(row.improvement) for index, row in rows.items()}
    points = {index: point for index, point in found.items() if point is not None}
    if not points:
        return None
    points = dict(sorted(points.items(), key=lambda own: -own[1].value))
    panel = Panel("", f"P(improvement) over {report.summary.baseline}", points, 0.5, "share")
    caption = f"{CHANCES}: {interval_words(rows.values())}."
    spec = rows_of(report.arms, panel)
    return Chart("improvement-all", "Probability of improvement", caption, spec)


def _of_panels(
    report: Report,
    name: str,
    title: str,
    rows: Iterable[SummaryRow],
    panels: list[Panel],
    words: str = "Points: interquartile mean over seeds; lines",
) -> Chart:
    points = [point for panel in panels for point in panel.numbers.values()]
    dotted = any(isinstance(point, Point) and point.seeds for point in points)
    dots = " Small dots: the seeds." if dotted else ""
    caption = f"{words}: {interval_words(rows)}.{dots}"
    return Chart(name, title, caption, chart_of_rows(report.arms, panels))


def comparison(report: Report) -> Iterator[Chart]:
    """Yield charts of how arms compare with the baseline; none without one."""
    baseline = report.summary.baseline
    if baseline is None:
        return
    everyone = [row for rows in report.groups.values() for row in rows.values()]
    won: list[Panel] = []
    differences: list[Panel] = []
    for task, rows in report.groups.items():
        points = {i: _point(row.improvement) for i, row in rows.items()}
        won += _panel(task, "probability", points, 0.5, "share")
        first = next(iter(rows.values()))
        label = first.scale if task == ALL_TASKS else first.score
        spread = {}
        for index, row in rows.items():
            theirs = {run.seed: run.final for run in report.measured(task, baseline)}
            own = report.measured(task, row.arm)
            seeds = [run.final - theirs[run.seed] for run in own if run.seed in theirs]
            spread[index] = _point(judged(row.difference), seeds)
        differences += _panel(task, f"difference of {label}", spread, 0.0)
    if won:
        title = f"Probability of improvement over {baseline}"
        yield _of_panels(report, "improvement", title, everyone, won, CHANCES)
    if differences:
        words = (
            f"Final score minus that of {baseline}, by seed where at least 5 seeds are shared. "
            "Points: interquartile mean over seeds, or difference of the means; lines"
        )
        title = f"Difference from {baseline}"
        yield _of_panels(report, "difference", title, everyone, differences, words)


def drops(report: Report) -> Iterator[Chart]:
    """Yield a chart of drops and recoveries for each task with an intervention."""
    for task in report.tasks:
        rows = {i: row for i, row in report.rows(task).items() if row.drop is not None}
        fell: dict[int, Point | None] = {}
        back: dict[int, Point | None] = {}
        for index, row in rows.items():
            found = [r.drop for r in report.measured(task, row.arm) if r.drop is not None]
            fell[index] = _point(row.drop, (d.drop for d in found))
            times = tuple(d.recovered_after for d in found if d.recovered_after is not None)
            if times:
                back[index] = Point(row.recovery, seeds=times)
        panels = [
            *_panel("drop", f"lost {report.score(task)}", fell, 0.0),
            *_panel("time to recover", report.unit(task), back, axis="zero"),
        ]
        if panels:
            words = (
                "Drop: last score before the intervention against the first after it, in the "
                "sense of worse; of an arm without hooks, at the branch point. Time to recover: "
                "median over seeds, and seeds that did recover. Lines"
            )
            name = f"drop-{report.slugs[task]}"
            yield _of_panels(report, name, task, rows.values(), panels, words)


def metrics(report: Report) -> Iterator[Chart]:
    """Yield a chart of all plasticity metrics for each task and network, with its layers."""
    used: list[str] = []
    for task in report.tasks:
        axis, step = report.axis(task)
        rows = [row for run in report.of(task) for row in run.metrics]
        layers = _layers(rows)
        for network, names in metric_names(rows).items():
            found: dict[str, dict[str, dict[int, Curve]]] = {metric: {} for metric in names}
            for metric, look in itertools.product(names, report.arms):
                for layer in ("", *layers.get((metric, network), ())):
                    key = "/".join(filter(None, ("metric", metric, network, layer)))
                    own = _mean_curve(report.of(task, look.name), key, step)
                    if own is not None:
                        found[metric].setdefault(layer, {})[look.index] = own
            name = f"metrics-{report.slugs[task]}-{slug_of(network)}"
            used.append(name := unused(name, used, "-"))
            caption = "Mean over seeds; each panel has its own y axis."
            if any(len(own) > 1 for own in found.values()):
                caption += " Choose a layer below the panels."
            spec = charts.panels(report.arms, found, axis, _branches(report, task))
            yield Chart(name, f"{task}, {network}", caption, spec)


def _layers(rows: Iterable[Mapping[str, object]]) -> dict[tuple[str, str], list[str]]:
    """Return metric and network → the layers, or tensors, it was measured of."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for key in dict.fromkeys(key for row in rows for key in row if key.startswith("metric/")):
        parts = key.split("/", 3)
        if len(parts) == 4:
            found.setdefault((parts[1], parts[2]), {})[parts[3]] = None
    return {own: list(layers) for own, layers in found.items()}


def _mean_curve(runs: Iterable[RunData], key: str, step: int) -> Curve | None:
    xs, ys = align([curve(run, key) for run in runs])
    return thinned(Curve(xs / step, np.nanmean(ys, axis=0)), PANEL_POINTS) if len(xs) else None


def costs(report: Report) -> Iterator[Chart]:
    """Yield a chart of the seconds that a run of each arm took."""
    longest = max((row.seconds for row in report.summary.rows), default=0.0)
    if longest <= 0:
        return
    size, unit = next(
        (pair for pair in ((3600.0, "hours"), (60.0, "minutes")) if longest > 2 * pair[0]),
        (1.0, "seconds"),
    )
    panels = []
    for task in report.tasks:
        bars = {
            index: Bar(row.own_seconds / size, (row.seconds - row.own_seconds) / size)
            for index, row in report.rows(task).items()
        }
        panels.append(Panel(task, f"{unit} per run", bars))
    shared = any(row.seconds > row.own_seconds for row in report.summary.rows)
    pale = " Pale: the prefix, run once for all arms of a seed." if shared else ""
    caption = f"Mean over seeds.{pale}"
    yield Chart("cost", "Wall-clock time", caption, chart_of_rows(report.arms, panels))
