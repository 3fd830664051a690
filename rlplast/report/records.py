"""Tables of what runs recorded beside their scores: receipts, configs, versions."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from rlplast.report.numbers import NOTHING, count, number
from rlplast.report.page import Details, Part, Row, Table, Text
from rlplast.report.run_data import RunData
from rlplast.report.view import Report
from rlplast.run.differences import leaves
from rlplast.run.info import device_words

__all__ = ["configs", "receipts", "versions", "without_empty_columns"]

MOST = 5  # firings of one hook that have a row each
_COUNTS = ("firings", "entries_touched")  # keys of a receipt
Receipt = Mapping[str, Any]
LONGEST = 200  # letters of a config's value in a table

_MEANS = {  # head → key of a receipt
    "firings": "firings",
    "entries": "entries_touched",
    "sfe": "sfe",
    "sfe / norm²": "sfe_normalized",
    "dfi before": "dfi_before",
    "dfi after": "dfi_after",
    "norm before": "norm_before",
    "norm after": "norm_after",
    "seconds": "time/seconds",
}


def receipts(report: Report) -> tuple[Part, ...]:
    """Return a table per task: what each hook did to each network, seeds averaged."""
    tables = []
    for task in report.tasks:
        rows = [
            Row((arm.name, *cells), arm.index)
            for arm in report.arms
            for cells in _firings(report.of(task, arm.name))
        ]
        if rows:
            caption = (
                "Means over the seeds. The n-th firing of a hook is one row, whenever a seed had "
                f"it. A hook that fires after updates, or more than {MOST} times, has one row: "
                "sums per seed of firings, sfe and seconds, and the last of the others. sfe is "
                "the squared distance moved; sfe / norm² is over the squared norm before. dfi is "
                "the distance from isometry of what the method orthogonalises; norms are of the "
                "whole network."
            )
            words = ("arm", "method", "network", "optimizer", "followers")
            head = (*words, f"clock ({report.unit(task)})", "seeds", *_MEANS)
            table = Table(head, tuple(rows), caption, len(words), task)
            tables.append(without_empty_columns(table))
    return tuple(tables)


def without_empty_columns(table: Table) -> Table:
    """Return a table without the columns in which no row has anything but a dash."""
    full = [
        column
        for column in range(len(table.head))
        if any(row.cells[column] not in ("", NOTHING) for row in table.rows)
    ]
    return replace(
        table,
        head=tuple(table.head[column] for column in full),
        rows=tuple(Row(tuple(row.cells[c] for c in full), row.arm) for row in table.rows),
        words=sum(column < table.words for column in full),
    )


def _firings(runs: Sequence[RunData]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of an arm's rows, but for its name."""
    found: dict[tuple[str, str], dict[int, list[Receipt]]] = {}  # method, network → seed → its
    for run in runs:
        for row in run.receipts:
            key = str(row.get("method")), str(row.get("network"))
            found.setdefault(key, {}).setdefault(run.seed, []).append(row)
    for key, seeds in found.items():
        sums = [[r for r in lines if r.get("norm_after") is None] for lines in seeds.values()]
        fired = [[r for r in lines if r.get("norm_after") is not None] for lines in seeds.values()]
        most = max(map(len, fired))
        for index in range(most if most <= MOST else 0):
            rows = [lines[index] for lines in fired if index < len(lines)]
            yield (*key, *_cells(rows, runs[0].unit))
        for often in (fired if most > MOST else [], sums):
            rows = [_sum(lines, runs[0].unit) for lines in often if lines]
            if rows:
                yield (*key, *_cells(rows, runs[0].unit))


def _sum(lines: Sequence[Receipt], unit: str) -> Receipt:
    """Return the receipts of a hook that fires often as one."""
    keys = ("firings", "sfe", "time/seconds")
    total = {key: sum(line.get(key) or 0 for line in lines) for key in keys}
    return {**lines[-1], **total, "span": (lines[0]["clock"][unit], lines[-1]["clock"][unit])}


def _cells(rows: Sequence[Receipt], unit: str) -> tuple[str, ...]:
    clocks = [x for row in rows for x in row.get("span", (row["clock"][unit],))]
    first, last = min(clocks), max(clocks)
    clock = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    followers = (
        ", ".join(f"{name}: {what}" for name, what in (row.get("followers") or {}).items())
        for row in rows
    )
    policies = (str(row.get("optimizer_policy", "")) for row in rows)
    means = (_mean(rows, key) for key in _MEANS.values())
    return (_distinct(policies), _distinct(followers), clock, str(len(rows)), *means)


def _mean(rows: Iterable[Receipt], key: str) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    mean = statistics.fmean(values) if values else None
    return count(mean) if key in _COUNTS else number(mean)


def _distinct(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


def configs(report: Report) -> tuple[Part, ...]:
    """Return what differs between arms, a table of all runs, and each arm's whole config."""
    runs = report.gathered.runs
    settings = [{k: _yaml_text(v) for k, v in leaves(run.config)} for run in runs]
    keys = [key for key in dict.fromkeys(k for own in settings for k in own) if key != "seed"]
    arms: dict[str, dict[str, str]] = {}
    for run, own in zip(runs, settings, strict=True):
        values = arms.setdefault(run.arm, {})
        for key in keys:
            value = own.get(key, "–")
            if value not in values.setdefault(key, value).split(" | "):
                values[key] += f" | {value}"
    differing = [key for key in keys if len({own[key] for own in arms.values()}) > 1]
    parts: list[Part] = []
    if differing:
        rows = [
            Row((look.name, *(_cut(arms[look.name][key]) for key in differing)), look.index)
            for look in report.arms
            if look.name in arms
        ]
        caption = "Keys that differ between arms; values that differ within one are parted by |."
        head = ("arm", *differing)
        parts.append(Table(head, tuple(rows), caption, len(head), "What differs"))
    elif len(arms) > 1:
        parts.append(Text("The configs of all arms are equal."))
    parts.append(_runs(report, settings, arms))
    for arm in report.arms:
        for task in report.tasks:
            for run in report.of(task, arm.name)[:1]:
                words = f"{arm.name}, {task}: config of seed {run.seed}"
                text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
                parts.append(Details(words, text, arm.index))
    return tuple(parts)


def _runs(report: Report, settings: Sequence[Mapping[str, str]], arms: Mapping) -> Table:
    """Return a row per run: its numbers, and values that not all runs of its arm have."""
    index = {look.name: look.index for look in report.arms}
    rows = []
    for data, run, own in zip(report.gathered.runs, report.summary.runs, settings, strict=True):
        mixed = [f"{k}: {own[k]}" for k, v in arms[run.arm].items() if k in own and v != own[k]]
        numbers = (number(run.final), number(run.auc), count(run.updates), number(run.seconds))
        cells = (run.arm, run.task, _cut("; ".join(mixed)), str(run.seed), *numbers)
        rows.append(Row((*cells, str(data.info.get("host") or "")), index[run.arm]))
    head = ("arm", "task", "config of its own", "seed", "final score", "area", "updates", "seconds")
    caption = "Area: mean height of the curve. Config of its own: where runs of one arm differ."
    table = Table((*head, "host"), tuple(rows), caption, 3, "Runs")
    return without_empty_columns(table)


def _yaml_text(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def versions(runs: Sequence[RunData]) -> tuple[Part, ...]:
    """Return which versions, revisions, hosts and threads the runs say; differences plainly."""
    found: dict[str, Counter[str]] = {}
    for run in runs:
        own = {str(k): v for k, v in (run.info.get("versions") or {}).items()}
        for key in ("git_revision", "host", "threads", "processes"):
            if run.info.get(key) is not None:
                own[key.replace("_", " ")] = run.info[key]
        if run.info.get("devices"):
            own["device"] = ", then ".join(map(device_words, run.info["devices"]))
        if run.info.get("environment"):
            begun = ", with new episodes at a resume" if run.info.get("new_episodes") else ""
            own["resume of environments"] = run.info["environment"]["resume"] + begun
        for key, value in own.items():
            found.setdefault(key, Counter())[str(value)] += 1
    rows = []
    for key, values in found.items():
        counted = [f"{value} ({count} of {len(runs)} runs)" for value, count in values.items()]
        rows.append(Row((key, "; ".join(counted if len(counted) > 1 else values))))
    mixed = [key for key, values in found.items() if len(values) > 1]
    parts: list[Part] = []
    if mixed:
        parts.append(Text(f"Not all runs have the same {', '.join(mixed)}.", bad=True))
    if rows:
        parts.append(Table(("what", "value"), tuple(rows), words=2))
    return tuple(parts)
