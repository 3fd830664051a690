"""A report: read runs, compute their numbers, and write a page, its pictures and its tables.

The template escapes whatever text it is given. Nothing is loaded from anywhere. Behind each chart
stands its picture, which is seen where no script draws it: on paper, or in a browser without.
"""

import base64
import gzip
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import jinja2
import pandas as pd

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.report import charts, drawing, sequences, tables, vega
from rlplast.report.arms import Look
from rlplast.report.charts import Chart
from rlplast.report.frame import read, table_of_runs
from rlplast.report.published import compared
from rlplast.report.statistics import ALL_TASKS
from rlplast.report.tables import Table
from rlplast.report.view import Report, report_of
from rlplast.report.words import Card, card
from rlplast.run.info import versions
from rlplast.training.files import whole

__all__ = ["Written", "page", "report", "sections", "write_report"]

PANELS = 12  # tasks of a sequence that have a panel, and rows of a table, each
ENDS = ("svg", "png")  # of the files of a picture
_HERE = Path(__file__).parent


class Pair(NamedTuple):
    """Charts that lie beside each other where there is room."""

    title: str
    charts: Sequence[Chart]


class Text(NamedTuple):
    """A text that is folded away, letter for letter; hidden with its arm."""

    title: str
    text: str
    arm: int


Part = str | Chart | Pair | Table | Text | Card


class Section(NamedTuple):
    """A part of the page that folds, with a heading; `name` is where links to it point."""

    name: str
    title: str
    parts: Sequence[Part]
    open: bool = False

    @property
    def charts(self) -> list[Chart]:
        """Its charts, in order."""
        parts = (part.charts if isinstance(part, Pair) else (part,) for part in self.parts)
        return [part for own in parts for part in own if isinstance(part, Chart)]


@dataclass(frozen=True, repr=False)
class Written:
    """A report: its page, the runs, and their numbers."""

    page: Path
    report: Report

    @property
    def summary(self) -> pd.DataFrame:
        """What summary.csv says; `rlplast.report.statistics.Summary` lists the columns."""
        return self.report.summary.rows

    def __repr__(self) -> str:
        """Return where the page is, and of how much; the numbers are in `summary`."""
        arms, runs = len(self.report.results.arms), len(self.report.results.done)
        return f"<Report {self.page}: {arms} arms, {runs} runs>"


def report(
    *folders: str | Path,
    out: str | Path | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> Written:
    """Write a report of studies and runs, as `rlplast report` does.

    Args:
        *folders: of studies, of runs, or with such folders somewhere in them.
        out: the folder to write, in which pictures, ``summary.csv``, ``runs.csv`` and
            ``curves.csv`` lie beside the page; default: ``report`` in the first one.
        warn: called with a line that says why charts could not be drawn as pictures.

    Raises:
        ConfigError: if no run is done, or the runs cannot be compared; or if `out` is a file.
        DamagedFile: if a file is cut or altered.
    """
    paths = [Path(folder) for folder in folders]
    where = paths[0] / "report" if out is None else Path(out)
    if where.exists() and not where.is_dir():
        raise ConfigError(f"--out {where} is a file: allowed is a folder, which may be new")
    found = report_of(read(paths))
    return Written(write_report(found, where, warn), found)


def write_report(report: Report, out: Path, warn: Callable[[str], object] = warnings.warn) -> Path:
    """Write a report's files, each whole at any moment, and return its page.

    If charts cannot be drawn, they are on the page all the same, without pictures; `warn` gets a
    line.

    Raises:
        RlplastError: if a file cannot be written.
    """
    contents = sections(report)
    specs = {chart.name: chart.spec for section in contents for chart in section.charts}
    found: dict[str, drawing.Picture] = {}
    try:
        found = drawing.draw(specs)
    except RlplastError as error:
        warn(f"pictures are not drawn: {error}")
    files: dict[str, bytes | None] = {f"{name}.{end}": None for name in specs for end in ENDS}
    for name, own in found.items():
        files |= {f"{name}.svg": _encoded(own.svg), f"{name}.png": own.png}
    svgs = {name: own.svg for name, own in found.items()}
    footer = f"rlplast {versions().get('rlplast', '')}"
    text = page(report.results.name, report.looks, contents, footer, svgs)
    files["report.html"] = _encoded(text)
    theirs = compared(report)
    parts = {
        "summary": report.summary.rows,
        "runs": table_of_runs(report.single),
        "curves": _curves(report),
        "published": theirs if len(theirs) else None,
    }
    for name, data in parts.items():
        files[f"{name}.csv"] = None if data is None else _encoded(data.to_csv(index=False))
    _write_files(files, out)
    return out / "report.html"


def _curves(report: Report) -> pd.DataFrame:
    """Return the score of each finished run: task, arm, seed, x in its unit, score."""
    parts = []
    for run in report.results.done.itertuples():
        xs, ys = report.results.curve(run.Index, run.score)
        about = {"task": run.task, "arm": run.arm, "seed": run.seed}
        parts.append(
            pd.DataFrame(about | {"unit": run.unit, "x": xs, "score": run.score, "value": ys})
        )
    return pd.concat(parts, ignore_index=True)


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


def sections(report: Report) -> list[Section]:
    """Return a report's sections; those with nothing to say have no parts."""
    about, mixed = tables.versions(report)
    words = f"Not all runs have the same {', '.join(mixed)}."
    numbers = [tables.numbers(report, task) for task in report.groups]
    texts = [Text(*own) for own in tables.texts(report)]
    found = [
        ("summary", "Summary", [card(report.single, report.results, report.summary)]),
        ("curves", "Scores and learning curves", _pairs(report)),
        ("numbers", "Numbers", [own for own in numbers if len(own.head) > 2]),
        ("continuations", "Continuations", tables.recovered(report)),
        ("published", "Published curves", tables.published(report)),
        ("sequence", "Sequence of tasks", _sequences(report)),
        ("profiles", "Performance profiles", charts.profiles(report)),
        ("ends", "At the end of a run", tables.ends(report)),
        ("firing", "Right after the first firing", tables.after_firing(report)),
        ("drops", "Drop and recovery", tables.drops(report)),
        ("metrics", "Plasticity metrics", charts.metrics(report)),
        ("receipts", "Receipts", tables.receipts(report)),
        ("costs", "Cost", tables.costs(report)),
        ("configs", "Configs", [*tables.configs(report), tables.runs(report), *texts]),
        ("versions", "Versions", [*([words] if mixed else []), *([about] if about.rows else [])]),
    ]
    opened = {"curves", "numbers", "continuations", "published", "sequence"}
    return [Section(name, title, tuple(own), name in opened) for name, title, own in found]


def _pairs(report: Report) -> Iterator[Pair]:
    """Yield the charts of final scores and of curves, of all tasks and of each."""
    going = [task for task in report.results.going.task.unique() if task not in report.groups]
    tasks = [*report.groups, *going]
    for task in tasks:
        if task == ALL_TASKS and len(report.looks) == 1:
            continue
        ranking = charts.ranking(report, task)
        found = [ranking] if ranking is not None else []
        found += [charts.curves(report, task)] if task != ALL_TASKS else []
        if found:
            yield Pair(task if len(tasks) > 1 else "", found)


def _sequences(report: Report) -> Iterator[Part]:
    """Yield charts and tables of each task of a study that is a sequence of tasks."""
    for task in report.tasks:
        runs = report.results.of(task)
        names = list(dict.fromkeys(sequences.tasks_in(report.results.configs[runs.index[0]])))
        if len(names) < 2:
            continue
        visits = sequences.visits(report.results, runs.index)
        apart = visits["last"].notna().any()  # tasks were evaluated while others were trained
        if not apart and sequences.ORACLE not in set(visits.arm):
            continue  # the curves say it all
        yield charts.tasks_in_turn(report, task, visits)
        if apart and len(names) <= PANELS:
            yield charts.each_task(report, task, names)
        yield tables.in_turn(report, task, visits)


def page(
    title: str,
    looks: Sequence[Look],
    sections: Iterable[Section],
    footer: str,
    svgs: Mapping[str, str],
) -> str:
    """Return a whole page, with a box for each arm of `looks`, which hides it.

    Sections without parts are left out; the first one has no heading, and stands above the boxes.
    `svgs` are the charts' .svg files by name.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["kind"] = lambda part: type(part).__name__
    shown = [section for section in sections if section.parts]
    specs = {chart.name: chart.spec for section in shown for chart in section.charts}
    axes = [axis for spec in specs.values() for axis in spec.get("usermeta", {}).get("axes", ())]
    return environment.get_template("report.html.j2").render(
        title=title,
        arms=looks,
        index={look.name: look.index for look in looks},
        sections=shown,
        footer=footer,
        stills={name: _still(svg) for name, svg in svgs.items()},
        data={"config": vega.CONFIG, "charts": specs, "arms": [look.name for look in looks]},
        seeds=any(spec["datasets"].get("seeds") for spec in specs.values()),
        axes=list(dict.fromkeys(axes)),
        vega=_vega() if specs else "",
    )


def _still(svg: str) -> str:
    """Return a picture as an address that holds it; nothing in an image is read aloud."""
    read = re.sub(r' (?:aria-[a-z]+|role)="[^"<>]*"', "", svg)
    return "data:image/svg+xml," + quote(read, safe=" <>/=:;,()'!*~?$&@[]{}|")


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, compressed to less than half."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vega.VERSION)
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
