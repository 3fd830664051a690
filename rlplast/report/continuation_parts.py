"""What a report says of continuations: the shares that recover, as a table and a chart."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from rlplast.core.mean_interval import FEWEST
from rlplast.report.continuations import Recoveries, recoveries, share_recovered
from rlplast.report.numbers import estimate, number
from rlplast.report.page import Chart, Part, Row, Table
from rlplast.report.rows import Panel, Point, chart_of_rows
from rlplast.report.view import Report

__all__ = ["parts"]


def parts(report: Report) -> Iterator[Part]:
    """Yield for each task with continuations a table of the shares that recover, and a chart."""
    gathered = report.gathered
    found = recoveries(gathered.continued, gathered.recovered)
    index = {look.name: look.index for look in report.arms}
    panels = []
    for task in report.tasks:
        own = [one for one in found if one.task == task]
        if not own:
            continue
        shares = {one.arm: share_recovered(list(one.seeds.values())) for one in own}
        rows = [
            Row(
                (
                    one.arm,
                    estimate(shares[one.arm]),
                    f"{sum(map(sum, one.seeds.values()))} of {shares[one.arm].count}",
                    str(len(one.seeds)),
                    _range(one.levels.values()),
                ),
                index[one.arm],
            )
            for one in own
        ]
        head = ("arm", "share that recovers", "runs", "seeds", f"from {report.score(task)}")
        yield Table(head, tuple(rows), _caption(own, gathered.recovered), title=task)
        points = {
            index[one.arm]: Point(
                shares[one.arm].value,
                shares[one.arm].low,
                shares[one.arm].high,
                tuple(float(np.mean(runs)) for runs in one.seeds.values()),
            )
            for one in own
        }
        panels.append(Panel(task, "share that recovers", points, None, "share"))
    if panels:
        caption = "Points: share of continuations that recover; lines: its interval. Dots: seeds."
        spec = chart_of_rows(report.arms, panels)
        yield Chart("continuations", "Share that recovers", caption, spec)


def _range(values: Collection[float]) -> str:
    low, high = min(values), max(values)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _caption(found: Sequence[Recoveries], level: float | None) -> str:
    where = "the best score of its prefix" if level is None else "the score that the study names"
    few = any(len(one.seeds) < FEWEST for one in found)
    how = (
        f"With fewer than {FEWEST} seeds the interval is that of these branches: other seeds may "
        "differ by more."
        if few
        else "The interval allows for continuations of one seed being alike."
    )
    return (
        f"A continuation recovers if its final score is at least as good as {where}. All goes on "
        "from the same weights, optimizer state, replay and open episodes; environments, "
        "exploration, batches and hooks draw anew. Everywhere else in this report a seed's "
        f"continuations are one run, their mean. {how}"
    )
