"""The pictures of a report, drawn from its runs and numbers.

- `curves`, `scores`, `comparison`, `drops`, `metrics`, `costs`: pictures with their captions.
- `picture`: one of them, from what draws it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rlplast.report.figure_rows import Axis, Bar, Panel, Point, draw_rows
from rlplast.report.figures import Curve, draw_curves, draw_panels
from rlplast.report.gather import unused
from rlplast.report.html import Picture
from rlplast.report.looks import png_of, style, svg_of
from rlplast.report.plot import metric_names
from rlplast.report.run_data import curve
from rlplast.report.statistics import Estimate, align, curve_band
from rlplast.report.summary import ALL_TASKS, SummaryRow
from rlplast.report.view import Report, better, interval_words, slug_of

__all__ = ["comparison", "costs", "curves", "drops", "metrics", "picture", "scores"]


def picture(
    name: str, title: str, caption: str, draw: Callable[..., Figure], *args: Any
) -> Picture:
    """Return what `draw` draws of a name and `args`, as SVG and PNG."""
    with style():
        figure = draw(name, *args)
        svg = svg_of(figure)
        figure.set_layout_engine("none")  # what the first file has is the second one's too
        return Picture(name, title, caption, svg, png_of(figure), figure.get_figwidth())


def curves(report: Report) -> Iterator[Picture]:
    """Yield a picture of the score over a run for each task, and one from the first hook on.

    The second is left out where hooks fire at every task, so that it would show the same.
    """
    for task in report.tasks:
        drawn, interpolated = _bands(report, task)
        key, firings, branches = report.score(task), _firings(report, task), _branches(report, task)
        between = " (straight lines between a run's own)" if interpolated else ""
        words = interval_words(report.rows(task).values())
        caption = f"Interquartile mean over seeds at each point of {key}{between}; band: {words}."
        if branches:
            caption += " Dashed: where arms left a shared prefix."
        if firings:
            caption += " Marks below: where scheduled hooks fired in any seed."
        labels = (report.axis(task)[0], better(key))
        slug, start = report.slugs[task], report.summary.starts.get(task)
        rest = (report.arms, drawn, labels, branches, firings)
        yield picture(f"curve-{slug}", task, caption, draw_curves, *rest)
        if start is None or report.over_tasks(task):
            continue
        late = {arm: _from(own, start) for arm, own in drawn.items()}
        late = {arm: own for arm, own in late.items() if len(own.xs) > 1}
        if late:
            fired = {arm: [x for x in xs if x >= start] for arm, xs in firings.items()}
            title = f"{task}, from the {report.moment(task)} on"
            rest = (report.arms, late, labels, branches, fired)
            yield picture(f"curve-{slug}-late", title, caption, draw_curves, *rest)


def _bands(report: Report, task: str) -> tuple[dict[int, Curve], bool]:
    """Return index of an arm → its curve, and whether runs were measured at different points."""
    found, interpolated = {}, False
    for look in report.arms:
        own = [curve(run, run.score) for run in report.of(task, look.name)]
        xs, ys = align(own)
        if len(xs):
            found[look.index] = Curve(xs / report.axis(task)[1], *curve_band(ys))
            interpolated |= any(not np.isin(xs, points).all() for points, _ in own)
    return found, interpolated


def _branches(report: Report, task: str) -> list[float]:
    return [x / report.axis(task)[1] for x in report.branches(task)]


def _from(curve: Curve, start: float) -> Curve:
    late = curve.xs >= start
    low, high = (None if side is None else side[late] for side in (curve.low, curve.high))
    return Curve(curve.xs[late], curve.ys[late], low, high)


def _firings(report: Report, task: str) -> dict[int, list[float]]:
    """Return index of an arm → where its hooks fired; not those that fire after every update."""
    found = {}
    for look in report.arms:
        xs = {
            float(row["clock"][run.unit])
            for run in report.of(task, look.name)
            for row in run.receipts
            if row.get("norm_after") is not None
        }
        if xs:
            found[look.index] = [x / report.axis(task)[1] for x in sorted(xs)]
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


def scores(report: Report) -> Iterator[Picture]:
    """Yield a picture of the final scores and the areas for each task, and over all tasks."""
    for task, rows in report.groups.items():
        titles = {"final": "final score", "auc": "area under the curve"}
        if task == ALL_TASKS:
            name, label = "score-all", next(iter(rows.values())).scale
        else:
            name, label = f"score-{report.slugs[task]}", better(report.score(task))
            if report.summary.starts.get(task) is not None:
                titles["auc_after"] = f"area from the {report.moment(task)} on"
        panels = []
        for number, title in titles.items():
            points = {}
            for index, row in rows.items():
                seeds = [getattr(run, number) for run in report.measured(task, row.arm)]
                points[index] = _point(getattr(row, number), seeds)
            panels += _panel(title, label, points)
        if panels:
            yield _of_panels(report, name, task, rows.values(), panels)


def _of_panels(
    report: Report,
    name: str,
    title: str,
    rows: Iterable[SummaryRow],
    panels: list[Panel],
    words: str = "Points: interquartile mean over seeds; lines",
) -> Picture:
    points = [point for panel in panels for point in panel.numbers.values()]
    dotted = any(isinstance(point, Point) and point.seeds for point in points)
    dots = " Small dots: the seeds." if dotted else ""
    caption = f"{words}: {interval_words(rows)}.{dots}"
    return picture(name, title, caption, draw_rows, report.arms, panels)


def comparison(report: Report) -> Iterator[Picture]:
    """Yield pictures of how arms compare with the baseline; none without one."""
    baseline = report.summary.baseline
    if baseline is None:
        return
    everyone = [row for rows in report.groups.values() for row in rows.values()]
    chances: list[Panel] = []
    differences: list[Panel] = []
    for task, rows in report.groups.items():
        points = {i: _point(row.improvement) for i, row in rows.items()}
        chances += _panel(task, "probability", points, 0.5, "share")
        first = next(iter(rows.values()))
        label = first.scale if task == ALL_TASKS else first.score
        spread = {}
        for index, row in rows.items():
            theirs = {run.seed: run.final for run in report.measured(task, baseline)}
            own = report.measured(task, row.arm)
            seeds = [run.final - theirs[run.seed] for run in own if run.seed in theirs]
            spread[index] = _point(row.difference, seeds)
        differences += _panel(task, f"difference of {label}", spread, 0.0)
    if chances:
        words = (
            f"How likely a run of the arm ends better than a run of {baseline}: share of all "
            "pairs of seeds, ties half; lines"
        )
        title = f"Probability of improvement over {baseline}"
        yield _of_panels(report, "improvement", title, everyone, chances, words)
    if differences:
        words = (
            f"Final score minus that of {baseline} with the same seed; points: interquartile "
            "mean over seeds; lines"
        )
        title = f"Difference from {baseline}, by seed"
        yield _of_panels(report, "difference", title, everyone, differences, words)


def drops(report: Report) -> Iterator[Picture]:
    """Yield a picture of drops and recoveries for each task with an intervention."""
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
            *_panel("time to recover", report.unit(task), back, axis="time"),
        ]
        if panels:
            words = (
                "Drop: last score before the intervention against the first after it, in the "
                "sense of worse; of an arm without hooks, at the branch point. Time to recover: "
                "median over seeds, and seeds that did recover. Lines"
            )
            name = f"drop-{report.slugs[task]}"
            yield _of_panels(report, name, task, rows.values(), panels, words)


def metrics(report: Report) -> Iterator[Picture]:
    """Yield a picture of all plasticity metrics for each task and network."""
    used: list[str] = []
    for task in report.tasks:
        axis, step = report.axis(task)
        rows = (row for run in report.of(task) for row in run.metrics)
        for network, names in metric_names(rows).items():
            panels: dict[str, dict[int, Curve]] = {metric: {} for metric in names}
            for metric, look in itertools.product(names, report.arms):
                key = f"metric/{metric}/{network}"
                xs, ys = align([curve(run, key) for run in report.of(task, look.name)])
                if len(xs):
                    panels[metric][look.index] = Curve(xs / step, np.nanmean(ys, axis=0))
            name = f"metrics-{report.slugs[task]}-{slug_of(network)}"
            used.append(name := unused(name, used, "-"))
            caption = "Mean over seeds; each panel has its own y axis."
            rest = (report.arms, panels, axis, _branches(report, task))
            yield picture(name, f"{task}, {network}", caption, draw_panels, *rest)


def costs(report: Report) -> Iterator[Picture]:
    """Yield a picture of the seconds that a run of each arm took."""
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
        panels.append(Panel(task, f"{unit} per run", bars, axis="bars"))
    shared = any(row.seconds > row.own_seconds for row in report.summary.rows)
    hatched = " Hatched: the prefix, run once for all arms of a seed." if shared else ""
    caption = f"Mean over seeds.{hatched}"
    yield picture("cost", "Wall-clock time", caption, draw_rows, report.arms, panels)
