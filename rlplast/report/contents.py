"""What a report says, section by section, and its folder.

- `report`: reads runs, computes their numbers and writes the report.
- `sections`: text, tables and pictures.
- `write_report`: report.html, summary.csv, published.csv where there are published curves, and the
  charts as .svg and .png.
- `write_waiting`: a page for while no run is done.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.report import (
    closeups,
    continuation_parts,
    iterations,
    pictures,
    published,
    records,
    sequence_parts,
    vega,
)
from rlplast.report.card import card, left_words
from rlplast.report.ends import after_firing, ends
from rlplast.report.gather import Gathered, gather
from rlplast.report.numbers import count, estimate, judged, number
from rlplast.report.page import Card, Line, Pair, Part, Row, Section, Table, Text, page
from rlplast.report.records import without_empty_columns
from rlplast.report.stretches import has_iterations
from rlplast.report.summary import ALL_TASKS, Summary, SummaryRow, csv_text, summarise
from rlplast.report.trust import p_words
from rlplast.report.view import Report, Rows, interval_words, ranked
from rlplast.run.info import versions
from rlplast.training.best import higher_is_better
from rlplast.training.files import whole

__all__ = ["Written", "report", "sections", "write_report", "write_waiting"]

Columns = dict[str, Callable[[SummaryRow], str]]  # head → what a row has in the column


@dataclass(frozen=True, repr=False)
class Written:
    """A report: its page, the runs, and their numbers."""

    page: Path
    gathered: Gathered
    summary: Summary

    def __repr__(self) -> str:
        """Return where the page is, and of how much; the numbers are in `summary`."""
        arms, runs = len(self.gathered.arms), len(self.gathered.runs)
        return f"<Report {self.page}: {arms} arms, {runs} runs>"


def report(
    *folders: str | Path,
    out: str | Path | None = None,
    warn: Callable[[str], object] = warnings.warn,
    live: bool = False,
) -> Written:
    """Write a report of studies and runs, as `rlplast report` does.

    Args:
        *folders: of studies, of runs, or with such folders somewhere in them.
        out: the folder to write, in which pictures and ``summary.csv`` lie beside the page;
            default: ``report`` in the first one.
        warn: called with a line for a chart that could not be drawn as a picture.
        live: whether the page is written again and again; no pictures are then drawn, and those
            of before are deleted, until all runs have ended.

    Raises:
        ConfigError: if no run is done, or the runs cannot be compared; or if `out` is a file.
        DamagedFile: if a file is cut or altered.
    """
    paths = [Path(folder) for folder in folders]
    where = paths[0] / "report" if out is None else Path(out)
    if where.exists() and not where.is_dir():
        raise ConfigError(f"--out {where} is a file: allowed is a folder, which may be new")
    gathered = gather(paths)
    summary = summarise(gathered)
    footer = f"rlplast {versions().get('rlplast', '')}"
    drawn = not (live and gathered.left)
    page = write_report(gathered, summary, where, footer, warn, drawn)
    return Written(page, gathered, summary)


def write_report(
    gathered: Gathered,
    summary: Summary,
    out: Path,
    footer: str = "",
    warn: Callable[[str], object] = warnings.warn,
    pictures: bool = True,
) -> Path:
    """Write a report's files, each whole at any moment, and return its page.

    The folder is made if it is not there; what is in it of other names stays. A chart that cannot
    be drawn has no picture, and is on the page all the same; `warn` gets a line.

    Raises:
        RlplastError: if a file cannot be written.
    """
    report = Report(gathered, summary)
    contents = sections(report)
    specs = {chart.name: chart.spec for section in contents for chart in section.charts}
    drawn = vega.draw(specs, warn) if pictures else {}
    files: dict[str, bytes | None] = {}
    for name in specs:
        svg, png = drawn.get(name, (None, None))
        files |= {f"{name}.svg": None if svg is None else _encoded(svg), f"{name}.png": png}
    svgs = {name: picture.svg for name, picture in drawn.items()}
    text = page(gathered.name, report.arms, contents, footer, svgs)
    files["report.html"] = _encoded(text)
    files["summary.csv"] = _encoded(csv_text(summary))
    theirs = published.compared(report)
    files["published.csv"] = _encoded(published.published_csv(theirs)) if theirs else None
    _write_files(files, out)
    return out / "report.html"


def write_waiting(gathered: Gathered, out: Path) -> None:
    """Write a page of runs of which none is done: what is left, and curves so far."""
    report = Report(gathered, summarise(gathered))
    cells = (("Which cells are missing, and why", gathered.missing),)
    left = (("Left", left_words(report)),) if gathered.left else ()
    waiting = Card((Line("No run is done yet."),), left, folded=cells)
    contents = [
        Section("summary", "Summary", (waiting,)),
        Section("curves", "Learning curves", tuple(_pairs(report)), open=True),
    ]
    text = page(gathered.name, report.arms, contents)
    _write_files({"report.html": _encoded(text)}, out)


def _write_files(files: Mapping[str, bytes | None], out: Path) -> None:
    """Write files into a folder; one of an older report that has no content now is deleted."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if content is None:
                (out / name).unlink(missing_ok=True)
            else:
                with whole(out / name) as temporary:
                    temporary.write_bytes(content)
    except OSError as error:
        raise RlplastError(f"{out}: the report could not be written ({error})") from error


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # JSON may hold halves of letters, which have no code


def sections(report: Report) -> tuple[Section, ...]:
    """Return a report's sections; those with nothing to say have no parts."""
    return (
        Section("summary", "Summary", (card(report),)),
        Section("curves", "Scores and learning curves", tuple(_pairs(report)), open=True),
        Section("numbers", "Numbers", tuple(_results(report)), open=True),
        Section(
            "continuations", "Continuations", tuple(continuation_parts.parts(report)), open=True
        ),
        Section("published", "Published curves", tuple(published.parts(report)), open=True),
        Section("iterations", "Iterations", tuple(iterations.parts(report)), open=True),
        Section("sequence", "Sequence of tasks", tuple(sequence_parts.parts(report)), open=True),
        Section("comparison", "Comparison with the baseline", tuple(pictures.comparison(report))),
        Section("ends", "At the end of a run", tuple(ends(report))),
        Section("firing", "Right after the first firing", tuple(after_firing(report))),
        Section("drops", "Drop and recovery", (*pictures.drops(report), *_drops(report))),
        Section("metrics", "Plasticity metrics", tuple(pictures.metrics(report))),
        Section("closeups", "Trajectories and densities", tuple(closeups.parts(report))),
        Section("receipts", "Receipts", records.receipts(report)),
        Section("costs", "Cost", (*pictures.costs(report), *_costs(report))),
        Section("configs", "Configs", records.configs(report)),
        Section("versions", "Versions", records.versions(report.gathered.runs)),
    )


def _pairs(report: Report) -> Iterator[Pair]:
    """Yield the charts of final scores and of curves, of all tasks and of each."""
    several = len(report.tasks) > 1
    for task in _pooled_first(report):
        if task == ALL_TASKS and len(report.arms) == 1:
            continue
        beside = pictures.chances(report) if task == ALL_TASKS else pictures.curves(report, task)
        charts = [pictures.ranking(report, task), beside]
        found = tuple(chart for chart in charts if chart is not None)
        if found:
            yield Pair(task if several else "", found)
    for task in dict.fromkeys(run.task for run in report.gathered.running):
        if task not in report.groups:
            yield Pair(task, (pictures.curves(report, task),))


def _results(report: Report) -> Iterator[Table]:
    """Yield the table over all tasks, if there is one, then one per task."""
    tables = (_result(report, report.groups[task]) for task in _pooled_first(report))
    yield from (table for table in tables if len(table.head) > 2)  # more than how many runs


def _pooled_first(report: Report) -> list[str]:
    return sorted(report.groups, key=lambda task: task != ALL_TASKS)


def _result(report: Report, rows: Rows) -> Table:
    """Return the table of one task, or over all of them; a caption explains each column."""
    first = next(iter(rows.values()))
    task, pooled = first.task, first.task == ALL_TASKS
    baseline, best = report.summary.baseline, {} if pooled else _best(report, task)
    name = first.scale if pooled else first.score
    sense = "higher" if higher_is_better(first.score) else "lower"
    over = "seeds and all tasks" if pooled else "seeds"
    normalised = (not pooled and first.normalised_scale) or "normalised"
    late = not pooled and report.summary.starts.get(task) is not None
    found: dict[str, tuple[Callable[[SummaryRow], str], str]] = {
        "difference": (
            lambda row: estimate(judged(row.difference)),
            f"Difference: from {baseline}, by seed where at least 5 seeds are shared.",
        ),
        "p (Holm)": (
            lambda row: number(None) if row.p_holm is None else p_words(row.p_holm),
            "p (Holm): of no difference, corrected for the number of arms"
            f"{' and tasks' * (not pooled and len(report.tasks) > 1)}; intervals are not.",
        ),
        "final score" + (f" ({name})" if name else ""): (
            lambda row: estimate(row.final),
            f"Final score: interquartile mean over {over} of the mean score in the last "
            f"{_last_part(report, task)} of a run, {sense} is better.",
        ),
        "P(improvement)": (
            lambda row: estimate(row.improvement),
            f"P(improvement): how likely a run ends better than one of {baseline}.",
        ),
        "runs" if pooled else "seeds": (lambda row: str(row.seeds), ""),
        "diverged": (
            lambda row: str(row.diverged or number(None)),
            "Diverged: runs with no finite score at their end, which are in no other number.",
        ),
        "change since the first tasks": (
            lambda row: estimate(row.change),
            "Change: final score minus the mean in the first tenth of the run. Tasks are drawn "
            "alike, so an arm that gets worse has lost plasticity, if 0 is not in the interval.",
        ),
        normalised: (
            lambda row: estimate(None if row.normalised == row.final else row.normalised),
            "",
        ),
        "area under the curve": (
            lambda row: estimate(row.auc),
            "Area: by trapezoids, over its length, so in the units of the score.",
        ),
        f"area from the {report.moment(task) if late else ''} on": (
            lambda row: estimate(row.auc_after) if late else number(None),
            "",
        ),
        **{
            head: (cell, "Best: where the evaluation was whose checkpoint a run kept, by seed.")
            for head, cell in best.items()
        },
    }
    table = _table(ranked(rows), {head: cell for head, (cell, _) in found.items()}, "", task)
    table = without_empty_columns(table)
    words = [found[head][1] for head in table.head if head in found and found[head][1]]
    words.append(f"In brackets: {interval_words(rows.values())}.")
    return replace(table, caption=" ".join(words))


def _last_part(report: Report, task: str) -> str:
    """Return in words the share of a task's runs, or of all, that final scores average."""
    runs = [run for run in report.gathered.runs if task in (run.task, ALL_TASKS)]
    shares = sorted({100 * run.final_share for run in runs})
    return " or ".join(f"{share:.3g}%" for share in shares)


def _table(rows: Rows, columns: Columns, caption: str, title: str) -> Table:
    body = [
        Row((row.arm, *(cell(row) for cell in columns.values())), index)
        for index, row in rows.items()
    ]
    return Table(("arm", *columns), tuple(body), caption, title=title)


def _best(report: Report, task: str) -> Columns:
    """Return the column that says where runs were at their best, if they keep that checkpoint."""
    runs = [run for run in report.of(task) if run.best is not None]
    if not runs:
        return {}
    iterated = has_iterations(runs[0])
    unit = "phase" if iterated else runs[0].unit

    def cell(row: SummaryRow) -> str:
        bests = (run.best for run in report.of(task, row.arm))
        return ", ".join(str(best.clock.get(unit)) if best else number(None) for best in bests)

    return {f"best at {unit.replace('_', ' ')}{' (0 included)' if iterated else ''}": cell}


def _drops(report: Report) -> Iterator[Table]:
    for task in report.tasks:
        rows = {i: row for i, row in report.rows(task).items() if row.drop is not None}
        columns: Columns = {
            "drop": lambda row: estimate(row.drop),
            f"area lost (score × {report.unit(task)})": lambda row: estimate(row.lost_area),
            f"time to recover ({report.unit(task)})": lambda row: number(row.recovery),
            "seeds that recovered": lambda row: f"{row.recovered} of {row.intervened}",
        }
        caption = (
            "Drop: interquartile mean over seeds of the last score before the intervention "
            "against the first after it; negative where the score got better. "
            "Area lost: interquartile mean over seeds of the area between the last score before "
            "and the curve after, until it is back there or ends. Time to recover: median over "
            "seeds of the time to the first score as good as the last one before; a dash where "
            "half of them or more never got there."
        )
        if rows:
            yield _table(rows, columns, caption, task)


def _costs(report: Report) -> Iterator[Part]:
    for task, rows in report.groups.items():
        if task == ALL_TASKS:
            continue
        columns: Columns = {
            "seeds": lambda row: str(row.seeds),
            "seconds": lambda row: number(row.seconds),
        }
        if any(row.seconds > row.own_seconds for row in rows.values()):
            columns["after the branch"] = lambda row: number(row.own_seconds)
            columns["shared prefix"] = lambda row: number(row.seconds - row.own_seconds)
        columns["updates"] = lambda row: count(row.updates)
        yield _table(rows, columns, "Means of a run, over seeds.", task)
        yield from _saving(report, task)


def _saving(report: Report, task: str) -> Iterator[Text]:
    """Yield what branching saved on a task, if anything was shared."""
    runs = [run for run in report.summary.runs if run.task == task]
    full, own = sum(run.seconds for run in runs), sum(run.own_seconds for run in runs)
    prefixes = report.summary.prefix_seconds.get(task, 0.0)
    took = own + prefixes
    if full > max(own, 0):
        yield Text(
            f"{task}: all runs from the start would have taken {number(full)} s; with prefixes run "
            f"once ({number(prefixes)} s) and {number(own)} s after them it took {number(took)} s, "
            f"{1 - took / full:.0%} less. Wall-clock times of runs that share a machine depend on "
            "one another."
        )
