"""What a report says, section by section, and its folder.

- `sections`: text, tables and pictures.
- `write_report`: report.html, summary.csv, and the pictures as .svg and .png.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rlplast.core.checkpoint.files import fsync
from rlplast.core.errors import RlplastError
from rlplast.report import pictures, records
from rlplast.report.gather import Gathered, higher_is_better
from rlplast.report.html import Part, Picture, Row, Section, Table, Text, page
from rlplast.report.records import number, without_empty_columns
from rlplast.report.statistics import Estimate
from rlplast.report.summary import ALL_TASKS, Summary, SummaryRow, write_csv
from rlplast.report.view import Report, interval_words

__all__ = ["estimate", "sections", "write_report"]

_COMPARED = ("P(improvement)", "difference by seed")
SHOWN = 30  # missing runs that are named one by one


def write_report(gathered: Gathered, summary: Summary, out: Path, footer: str = "") -> Path:
    """Write a report's files, each whole at any moment; what is there of other names stays.

    Args:
        gathered: the runs.
        summary: their numbers.
        out: a folder, made if it is not there.
        footer: the last line of the page.

    Returns:
        The page.

    Raises:
        RlplastError: if a file cannot be written.
    """
    report = Report(gathered, summary)
    contents = sections(report)
    files: dict[str, bytes] = {}
    for section in contents:
        for part in section.parts:
            if isinstance(part, Picture):
                files |= {f"{part.name}.svg": _encoded(part.svg), f"{part.name}.png": part.png}
    text = page(gathered.name, report.arms, contents, footer)
    files["report.html"] = _encoded(text)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _write(out / name, content)
    except OSError as error:
        raise RlplastError(f"{out}: the report could not be written ({error})") from error
    write_csv(summary, out / "summary.csv")
    return out / "report.html"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # JSON may hold halves of letters, which have no code


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    fsync(temporary)
    temporary.rename(path)


def sections(report: Report) -> tuple[Section, ...]:
    """Return a report's sections; those with nothing to say have no parts."""
    gathered, arms = report.gathered, report.arms
    return (
        Section("summary", "Summary", (*_headline(report), *_results(report))),
        Section("curves", "Learning curves", tuple(pictures.curves(report))),
        Section("scores", "Scores", (*pictures.scores(report), *_scores(report))),
        Section(
            "comparison",
            "Comparison with the baseline",
            (*pictures.comparison(report), *_comparison(report)),
        ),
        Section("drops", "Drop and recovery", (*pictures.drops(report), *_drops(report))),
        Section("metrics", "Plasticity metrics", tuple(pictures.metrics(report))),
        Section("receipts", "Receipts", records.receipts(gathered, arms)),
        Section("costs", "Cost", (*pictures.costs(report), *_costs(report))),
        Section("configs", "Configs", records.configs(gathered, arms)),
        Section("versions", "Versions", records.versions(gathered)),
    )


def estimate(found: Estimate | None) -> str:
    """Return a value with its interval.

    Examples:
        >>> estimate(Estimate(1.25, 1.0, 1.5, 3)), estimate(Estimate(2.0, float("nan"), 1.0, 1))
        ('1.25 [1, 1.5]', '2')
    """
    if found is None or found.value != found.value:
        return number(None)
    if found.low != found.low:
        return number(found.value)
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def _headline(report: Report) -> Iterator[Part]:
    gathered = report.gathered
    seeds = sorted({run.seed for run in gathered.runs})
    done, missing = len(gathered.runs), len(gathered.missing)
    yield Text(
        f"{_listed(gathered.tasks, 'task')}; {_listed(gathered.arms, 'arm')}; "
        f"{_listed([str(seed) for seed in seeds], 'seed')}. "
        + (f"Baseline: {gathered.baseline}." if gathered.baseline else "No baseline.")
    )
    left = f"; {missing} {'cell is' if missing == 1 else 'cells are'} not" if missing else ""
    yield Text(f"{done} {'run is' if done == 1 else 'runs are'} done{left}.")
    if missing:
        rest = f"; and {missing - SHOWN} more" if missing > SHOWN else ""
        names = "; ".join(gathered.missing[:SHOWN])
        yield Text(f"Not done, and in no number below: {names}{rest}.", bad=True)
    for note in dict.fromkeys((*gathered.notes, *report.summary.notes)):
        yield Text(f"Note: {note}")


def _listed(names: tuple[str, ...] | list[str], noun: str) -> str:
    plural = noun if len(names) == 1 else f"{noun}s"
    return f"{len(names)} {plural}: {', '.join(names)}"


def _results(report: Report) -> Iterator[Table]:
    """Yield the table over all tasks; where it does not say it all, one per task too."""
    overall = report.aggregates()
    if overall:
        yield _result(report, overall)
    known = [row for row in overall.values() if row.final.value == row.final.value]
    if len(known) < len(report.arms):
        for task in report.tasks():
            if report.rows(task):
                yield _result(report, report.rows(task))


def _result(report: Report, rows: dict[int, SummaryRow]) -> Table:
    """Return the table of one task, or over all of them."""
    first = next(iter(rows.values()))
    name = first.scale if first.task == ALL_TASKS else first.score
    count = "runs" if first.task == ALL_TASKS else "seeds"
    head = ("arm", count, "final score" + (f" ({name})" if name else ""), *_COMPARED)
    cells = {
        index: (estimate(row.final), estimate(row.improvement), estimate(row.difference))
        for index, row in rows.items()
    }
    body = tuple(Row((rows[i].arm, str(rows[i].seeds), *own), i) for i, own in cells.items())
    table = without_empty_columns(Table(head, body, title=first.task))
    caption = f"Intervals: {_interval(rows)}."
    if head[2] in table.head:
        pooled = " and all tasks" if first.task == ALL_TASKS else ""
        words = f"interquartile mean over seeds{pooled} of the mean evaluation"
        caption = f"Final score: {words} in the last tenth of a run. {caption}"
    if _COMPARED[0] in table.head:
        caption += (
            f" {_COMPARED[0]}: how likely a run ends better than one of {report.summary.baseline}."
        )
    return replace(table, caption=caption)


def _interval(rows: dict[int, SummaryRow]) -> str:
    return interval_words(rows.values())


def _scores(report: Report) -> Iterator[Table]:
    for task, rows in _groups(report):
        if task == ALL_TASKS:
            continue  # the summary has it
        first = next(iter(rows.values()))
        head = ["arm", "seeds", f"final {first.score}"]
        scaled = any(
            row.normalised is not None and row.normalised != row.final for row in rows.values()
        )
        branched = report.summary.starts.get(task) is not None
        if scaled:
            head.append(first.normalised_scale)
        head.append("area under the curve")
        if branched:
            head.append(f"area from the {report.moment(task)} on")
        body = []
        for index, row in rows.items():
            cells = [row.arm, str(row.seeds), estimate(row.final)]
            cells += [estimate(row.normalised)] if scaled else []
            cells += [estimate(row.auc)]
            cells += [estimate(row.auc_after)] if branched else []
            body.append(Row(tuple(cells), index))
        sense = "higher" if higher_is_better(first.score) else "lower"
        caption = (
            f"Final: interquartile mean over seeds of the mean evaluation in the last tenth of a "
            f"run, {sense} is better. Area: by trapezoids, over its length, so in the units of "
            f"the score. Intervals: {_interval(rows)}."
        )
        yield Table(tuple(head), tuple(body), caption, title=task)


def _groups(report: Report) -> Iterator[tuple[str, dict[int, SummaryRow]]]:
    for task in report.tasks():
        rows = report.rows(task)
        if rows:
            yield task, rows
    if report.aggregates():
        yield ALL_TASKS, report.aggregates()


def _comparison(report: Report) -> Iterator[Table]:
    baseline = report.summary.baseline
    body, everyone = [], {}
    for task, rows in _groups(report):
        for index, row in rows.items():
            if row.improvement is not None or row.difference is not None:
                pairs = row.difference.count if row.difference is not None else None
                cells = (row.arm, task, estimate(row.improvement), estimate(row.difference))
                body.append(Row((*cells, str(pairs or number(None))), index))
                everyone[len(everyone)] = row
    if body:
        head = ("arm", "task", *_COMPARED, "pairs")
        caption = (
            f"Against {baseline}. P(improvement) is 0.5 for equals; of a difference, the interval "
            "tells whether 0 is in it. Differences are in the units of the score, so negative "
            f"ones are better for losses. Intervals: {_interval(everyone)}."
        )
        yield Table(head, tuple(body), caption, words=2)


def _drops(report: Report) -> Iterator[Table]:
    for task, rows in _groups(report):
        unit = "" if task == ALL_TASKS else report.unit(task)
        body = [
            Row(
                (
                    row.arm,
                    estimate(row.drop),
                    number(row.recovery),
                    f"{row.recovered} of {row.intervened}",
                ),
                index,
            )
            for index, row in rows.items()
            if row.drop is not None and task != ALL_TASKS
        ]
        if body:
            head = ("arm", "drop", f"time to recover ({unit})", "seeds that recovered")
            caption = (
                "Drop: interquartile mean over seeds of the last score before the intervention "
                "against the first after it; negative where the score got better. Time to "
                "recover: median over seeds of the time to the first score as good as the last "
                "one before; a dash where half of them or more never got there."
            )
            yield Table(head, tuple(body), caption, title=task)


def _costs(report: Report) -> Iterator[Part]:
    for task, rows in _groups(report):
        if task == ALL_TASKS:
            continue
        shared = any(row.seconds > row.own_seconds for row in rows.values())
        body = []
        for index, row in rows.items():
            parts = (row.own_seconds, row.seconds - row.own_seconds) if shared else ()
            numbers = (row.seconds, *parts, row.updates)
            body.append(Row((row.arm, str(row.seeds), *map(number, numbers)), index))
        split = ("after the branch", "shared prefix") if shared else ()
        head = ("arm", "seeds", "seconds", *split, "updates")
        yield Table(head, tuple(body), "Means of a run, over seeds.", title=task)
        saving = _saving(report, task)
        if saving:
            yield Text(saving)


def _saving(report: Report, task: str) -> str:
    """Return what branching saved on a task; empty if nothing was shared."""
    runs = [run for run in report.summary.runs if run.task == task]
    full, own = sum(run.seconds for run in runs), sum(run.own_seconds for run in runs)
    prefixes = report.summary.prefix_seconds.get(task, 0.0)
    if full <= own or full <= 0:
        return ""
    took = own + prefixes
    return (
        f"{task}: all runs from the start would have taken {number(full)} s; with prefixes run "
        f"once ({number(prefixes)} s) and {number(own)} s after them it took {number(took)} s, "
        f"{1 - took / full:.0%} less. Wall-clock times of runs that share a machine depend on "
        "one another."
    )
