"""What a report says of runs whose phases train on the same data again: table and charts."""

from collections.abc import Iterator, Sequence

import numpy as np

from rlplast.report import charts
from rlplast.report.charts import Curve
from rlplast.report.closeups import champions_words, networks_of
from rlplast.report.lines import Line, chart_of_lines
from rlplast.report.numbers import count, number
from rlplast.report.page import Chart, Part, Row, Table
from rlplast.report.records import without_empty_columns
from rlplast.report.run_data import RunData
from rlplast.report.statistics import align, curve_band
from rlplast.report.stretches import (
    Stretch,
    champion,
    epoch_of,
    has_iterations,
    iterations,
    rows_of,
    stretches,
)
from rlplast.report.view import Report, better, interval_words, slug_of

__all__ = ["parts"]

BY_LAYER = ("saturation_percentile",)  # what a run measures of each layer's activations


def parts(report: Report) -> Iterator[Part]:
    """Yield a table and charts of each task whose runs have iterations."""
    for task in report.tasks:
        if any(champion(run) is not None for run in report.of(task)):
            yield _champions(report, task)
            yield _by_iteration(report, task)
            yield from _by_layer(report, task)


def _champions(report: Report, task: str) -> Table:
    """Return the table of iteration 0 and the champion of each run."""
    score = report.score(task)
    test = score.replace("eval/", "eval/test_", 1)
    rows = []
    for look in report.arms:
        for run in report.of(task, look.name):
            found, best = iterations(run), champion(run)
            first, last = found.get(0, {}), found.get(best, {}) if best is not None else {}
            cells = (
                *(number(first.get(key)) for key in (score, test)),
                count(best),
                count(epoch_of(run, last) if last else None),
                *(number(last.get(key)) for key in (score, test)),
            )
            rows.append(Row((look.name, str(run.seed), *cells), look.index))
    head = (f"iteration 0: {score}", test, "champion: iteration", "its epoch", f"its {score}")
    caption = (
        f"Champion: the iteration with the best {score}, without iteration 0. Each is shown at its "
        "best evaluation."
    )
    table = Table(("arm", "seed", *head, f"its {test}"), tuple(rows), caption, 2, task)
    return without_empty_columns(table)


def _by_iteration(report: Report, task: str) -> Chart:
    """Return the chart of the best score of each iteration."""
    key, drawn = report.score(task), {}
    for look in report.arms:
        curves = []
        for run in report.of(task, look.name):
            found = sorted(iterations(run).items())
            values = [row[key] for _, row in found]
            curves.append((np.array([n for n, _ in found], float), np.array(values, float)))
        xs, ys = align(curves)
        if len(xs):
            drawn[look.index] = Curve(xs, *curve_band(ys, report.bounds(task, key)))
    caption = (
        f"Best {key} of each iteration, interquartile mean over seeds; band: "
        f"{interval_words(report.rows(task).values())}."
    )
    spec = charts.curves(report.arms, drawn, {}, ("iteration", better(key)), (), {})
    return Chart(f"iterations-{report.slugs[task]}", f"{task}, by iteration", caption, spec)


def _by_layer(report: Report, task: str) -> Iterator[Chart]:
    """Yield charts of a metric of each layer over iteration 0 and over the champion."""
    for metric in BY_LAYER:
        for network, keys in networks_of(report.of(task), metric).items():
            found: dict[str, list[Line]] = {}
            for key in keys:
                title = key.partition(f"/{network}/")[2] or "all layers"
                for look in report.arms:
                    found.setdefault(title, []).extend(
                        _lines(report.of(task, look.name), look.index, key)
                    )
            if not any(found.values()):
                continue
            name = f"layers-{report.slugs[task]}-{slug_of(metric)}-{slug_of(network)}"
            caption = (
                f"Mean over seeds, over the epochs of an iteration. {champions_words(report, task)}"
            )
            if len(report.arms) > 1:
                caption += " Arms that share iteration 0 have one dashed line."
            spec = chart_of_lines(report.arms, found, ("epoch of the iteration", metric))
            yield Chart(name, f"{task}, {network}: {metric} of each layer", caption, spec)


def _lines(runs: Sequence[RunData], arm: int, key: str) -> Iterator[Line]:
    """Yield the mean over runs of a number, over iteration 0 and over the champion."""
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for run in filter(has_iterations, runs):
        for stretch in stretches(run):
            found.setdefault(stretch.words, []).append(_over(run, stretch, key))
    for words, curves in found.items():
        xs, ys = align(curves)
        if len(xs):
            yield Line(arm, words, xs, np.nanmean(ys, axis=0))


def _over(run: RunData, stretch: Stretch, key: str) -> tuple[np.ndarray, np.ndarray]:
    rows = [row for row in rows_of(run, stretch) if row.get(key) is not None]
    xs, ys = [epoch_of(run, row) for row in rows], [row[key] for row in rows]
    return np.array(xs, float), np.array(ys, float)
