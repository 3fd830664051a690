"""The pictures of a report, drawn from its runs and numbers.

- `curves`, `scores`, `comparison`, `drops`, `metrics`, `costs`: pictures with their captions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlplast.report.figure_rows import Bar, Panel, Point, draw_bars, draw_points
from rlplast.report.figures import Curve, draw_curves, draw_panels
from rlplast.report.gather import RunData, curve
from rlplast.report.html import Picture
from rlplast.report.statistics import Estimate, align, curve_band
from rlplast.report.summary import ALL_TASKS, SummaryRow
from rlplast.report.svg import png_of, style, svg_of
from rlplast.report.view import LEVEL, RESAMPLES, Report, better, interval_words, slug_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["comparison", "costs", "curves", "drops", "metrics", "scores"]


def _picture(
    name: str, title: str, caption: str, draw: Callable[..., "Figure"], *args: Any
) -> Picture:
    with style():
        figure = draw(name, *args)
        svg = svg_of(figure)
        figure.set_layout_engine("none")  # what the first file has is the second one's too
        return Picture(name, title, caption, svg, png_of(figure), figure.get_figwidth())


def curves(report: Report) -> Iterator[Picture]:
    """Yield a picture of the score over a run for each task, and one from the first hook on."""
    for task in report.tasks():
        drawn, interpolated = _bands(report, task)
        key, firings, branches = report.key(task), _firings(report, task), report.branches(task)
        between = " (straight lines between a run's own)" if interpolated else ""
        words = interval_words(report.rows(task).values())
        caption = f"Interquartile mean over seeds at each point of {key}{between}; band: {words}."
        if branches:
            caption += " Dashed: where arms left a shared prefix."
        if firings:
            caption += " Marks below: where scheduled hooks fired in any seed."
        labels = (report.unit(task), better(key))
        slug, start = report.slugs[task], report.summary.starts.get(task)
        rest = (report.arms, drawn, labels, branches, firings)
        yield _picture(f"curve-{slug}", task, caption, draw_curves, *rest)
        if start is None:
            continue
        late = {arm: _from(own, start) for arm, own in drawn.items()}
        late = {arm: own for arm, own in late.items() if len(own.xs) > 1}
        if late:
            fired = {arm: [x for x in xs if x >= start] for arm, xs in firings.items()}
            title = f"{task}, from the {report.moment(task)} on"
            rest = (report.arms, late, labels, branches, fired)
            yield _picture(f"curve-{slug}-late", title, caption, draw_curves, *rest)


def _bands(report: Report, task: str) -> tuple[dict[int, Curve], bool]:
    """Return index of an arm → its curve, and whether runs were measured at different points."""
    found, interpolated = {}, False
    for look in report.arms:
        own = [curve(run, report.key(task)) for run in report.of(task, look.name)]
        xs, ys = align(own)
        if len(xs):
            found[look.index] = Curve(xs, *curve_band(ys, LEVEL, RESAMPLES))
            interpolated |= any(not np.isin(xs, points).all() for points, _ in own)
    return found, interpolated


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
            found[look.index] = sorted(xs)
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
    axis: Literal["free", "share", "time"] = "free",
) -> list[Panel]:
    """Return the panel, if it has anything to show."""
    there = {arm: point for arm, point in points.items() if point is not None}
    return [Panel(title, xlabel, there, reference, axis)] if there else []


def scores(report: Report) -> Iterator[Picture]:
    """Yield a picture of the final scores and the areas for each task, and over all tasks."""
    for task in report.tasks():
        rows, label = report.rows(task), better(report.key(task))
        runs = {a.index: report.measured(task, a.name) for a in report.arms}
        panels = [
            *_panel(
                "final score",
                label,
                {i: _point(row.final, (r.final for r in runs[i])) for i, row in rows.items()},
            ),
            *_panel(
                "area under the curve",
                label,
                {i: _point(row.auc, (r.auc for r in runs[i])) for i, row in rows.items()},
            ),
        ]
        if report.summary.starts.get(task) is not None:
            after = {
                i: _point(row.auc_after, (r.auc_after for r in runs[i])) for i, row in rows.items()
            }
            panels += _panel(f"area from the {report.moment(task)} on", label, after)
        if panels:
            yield _of_panels(report, f"score-{report.slugs[task]}", task, rows.values(), panels)
    rows = report.aggregates()
    if rows:
        scale = next(iter(rows.values())).scale
        panels = [
            *_panel("final score", scale, {i: _point(row.final) for i, row in rows.items()}),
            *_panel("area under the curve", scale, {i: _point(r.auc) for i, r in rows.items()}),
        ]
        if panels:
            yield _of_panels(report, "score-all", ALL_TASKS, rows.values(), panels)


def _of_panels(
    report: Report,
    name: str,
    title: str,
    rows: Iterable[SummaryRow],
    panels: list[Panel],
    words: str = "Points: interquartile mean over seeds; lines",
) -> Picture:
    dotted = any(point.seeds for panel in panels for point in panel.points.values())
    dots = " Small dots: the seeds." if dotted else ""
    caption = f"{words}: {interval_words(rows)}.{dots}"
    return _picture(name, title, caption, draw_points, report.arms, panels)


def comparison(report: Report) -> Iterator[Picture]:
    """Yield pictures of how arms compare with the baseline; none without one."""
    baseline = report.summary.baseline
    if baseline is None:
        return
    groups = [(task, report.rows(task)) for task in report.tasks()]
    if report.summary.aggregates:
        groups.append((ALL_TASKS, report.aggregates()))
    everyone = [row for _, rows in groups for row in rows.values()]
    chances: list[Panel] = []
    differences: list[Panel] = []
    for task, rows in groups:
        points = {i: _point(row.improvement) for i, row in rows.items()}
        chances += _panel(task, "probability", points, 0.5, "share")
        label = next((r.scale if task == ALL_TASKS else r.score for r in rows.values()), "")
        spread = {
            i: _point(row.difference, _differences(report, task, row.arm))
            for i, row in rows.items()
        }
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


def _differences(report: Report, task: str, arm: str) -> list[float]:
    theirs = {run.seed: run.final for run in report.measured(task, report.summary.baseline or "")}
    own = report.measured(task, arm)
    return [run.final - theirs[run.seed] for run in own if run.seed in theirs]


def drops(report: Report) -> Iterator[Picture]:
    """Yield a picture of drops and recoveries for each task with an intervention."""
    for task in report.tasks():
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
            *_panel("drop", f"lost {report.key(task)}", fell, 0.0),
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
    used: set[str] = set()
    for task in report.tasks():
        runs = [run for run in report.gathered.runs if run.task == task]
        for network, names in _metric_names(runs).items():
            panels = {}
            for metric in names:
                own = {
                    look.index: _mean_curve(
                        report.of(task, look.name), f"metric/{metric}/{network}"
                    )
                    for look in report.arms
                }
                panels[metric] = {arm: found for arm, found in own.items() if len(found.xs)}
            name = f"metrics-{report.slugs[task]}-{slug_of(network)}"
            while name in used:
                name += "-2"
            used.add(name)
            yield _picture(
                name,
                f"{task}, {network}",
                "Mean over seeds; each panel has its own y axis.",
                draw_panels,
                report.arms,
                panels,
                report.unit(task),
                report.branches(task),
            )


def _metric_names(runs: Iterable[RunData]) -> dict[str, list[str]]:
    """Return network → metrics measured of it; not those of one tensor, such as a temperature."""
    parts = {
        tuple(name.split("/")[1:])
        for run in runs
        for row in run.metrics
        for name, value in row.items()
        if name.startswith("metric/") and value is not None
    }
    tensors: dict[str, set[str]] = {}
    for metric, network, *tensor in (own for own in parts if len(own) > 1):
        if tensor and metric in ("weight_norm", "weight_difference"):
            tensors.setdefault(network, set()).add("/".join(tensor))
    found: dict[str, list[str]] = {}
    for own in sorted(parts):
        if len(own) == 2 and len(tensors.get(own[1], "ab")) != 1:
            found.setdefault(own[1], []).append(own[0])
    return found


def _mean_curve(runs: Iterable[RunData], key: str) -> Curve:
    xs, ys = align([curve(run, key) for run in runs])
    return Curve(xs, np.nanmean(ys, axis=0) if len(xs) else xs)


def costs(report: Report) -> Iterator[Picture]:
    """Yield a picture of the seconds that a run of each arm took."""
    longest = max((row.seconds for row in report.summary.rows), default=0.0)
    size, unit = next(
        (pair for pair in ((3600.0, "hours"), (60.0, "minutes")) if longest > 2 * pair[0]),
        (1.0, "seconds"),
    )
    panels = {}
    for task in report.tasks():
        panels[task, f"{unit} per run"] = {
            index: Bar(row.own_seconds / size, (row.seconds - row.own_seconds) / size)
            for index, row in report.rows(task).items()
        }
    if longest > 0:
        shared = any(bar.shared > 0 for bars in panels.values() for bar in bars.values())
        hatched = " Hatched: the prefix, run once for all arms of a seed." if shared else ""
        caption = f"Mean over seeds.{hatched}"
        yield _picture("cost", "Wall-clock time", caption, draw_bars, report.arms, panels)
