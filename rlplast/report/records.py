"""Tables of what runs recorded beside their scores: receipts, configs, versions."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from rlplast.report.gather import Gathered, RunData
from rlplast.report.html import Details, Part, Row, Table, Text
from rlplast.report.looks import Look

__all__ = ["configs", "number", "receipts", "versions", "without_empty_columns"]

MOST = 20  # firings of one hook that are listed
LONGEST = 200  # letters of a config's value in a table

_HEAD = (
    "arm",
    "method",
    "network",
    "optimizer",
    "followers",
    "clock",
    "seeds",
    "firings",
    "entries",
    "sfe",
    "dfi before",
    "dfi after",
    "norm before",
    "norm after",
    "seconds",
)


def number(value: float | None) -> str:
    """Return a number for a table: four digits, a dash where there is none.

    Examples:
        >>> number(0.123456), number(1234567.0), number(None), number(float("nan"))
        ('0.1235', '1,234,567', '–', '–')
    """
    if value is None or value != value:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def receipts(gathered: Gathered, arms: Sequence[Look]) -> tuple[Part, ...]:
    """Return a table per task: what each hook did to each network, seeds averaged."""
    tables = []
    for task in gathered.tasks:
        rows = []
        for arm in arms:
            runs = [r for r in gathered.runs if (r.task, r.arm) == (task, arm.name)]
            rows += [Row((arm.name, *cells), arm.index) for cells in _firings(runs)]
        if rows:
            caption = (
                "Means over the seeds. The n-th firing of a hook is one row, whenever a seed had "
                "it; a hook that fires after updates has one row, with sums per seed for firings "
                "and sfe (squared distance moved). dfi is the distance from isometry of what the "
                "method orthogonalises; norms are of the whole network."
            )
            unit = next(r.unit for r in gathered.runs if r.task == task).replace("_", " ")
            head = tuple(f"clock ({unit})" if name == "clock" else name for name in _HEAD)
            table = Table(head, tuple(rows), caption, words=5, title=task)
            tables.append(without_empty_columns(table))
    return tuple(tables)


def without_empty_columns(table: Table) -> Table:
    """Return a table without the columns in which no row has anything but a dash."""
    full = [
        column
        for column in range(len(table.head))
        if any(row.cells[column] not in ("", number(None)) for row in table.rows)
    ]
    return replace(
        table,
        head=tuple(table.head[column] for column in full),
        rows=tuple(Row(tuple(row.cells[c] for c in full), row.arm) for row in table.rows),
        words=sum(column < table.words for column in full),
    )


def _firings(runs: Sequence[RunData]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of an arm's rows, but for its name."""
    found: dict[tuple[str, str], list[list[Mapping[str, Any]]]] = {}
    for run in runs:
        own: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in run.receipts:
            own.setdefault((str(row.get("method")), str(row.get("network"))), []).append(row)
        for key, lines in own.items():
            found.setdefault(key, []).append(lines)
    unit = runs[0].unit if runs else ""
    for (method, network), seeds in found.items():
        sums = [[row for row in lines if row.get("norm_after") is None] for lines in seeds]
        scheduled = [[row for row in lines if row.get("norm_after") is not None] for lines in seeds]
        most = max(map(len, scheduled))
        for index in range(min(most, MOST)):
            rows = [lines[index] for lines in scheduled if index < len(lines)]
            yield (method, network, *_cells(rows, unit))
        if most > MOST:
            rest = f"and {most - MOST} more firings"
            yield (method, network, "", "", rest, *[""] * (len(_HEAD) - 6))
        if any(sums):
            yield (method, network, *_cells([_sum(lines, unit) for lines in sums if lines], unit))


def _sum(lines: Sequence[Mapping[str, Any]], unit: str) -> Mapping[str, Any]:
    """Return the receipts of an every-update hook as one."""
    total = {
        key: sum(line.get(key) or 0 for line in lines) for key in ("firings", "sfe", "time/seconds")
    }
    return {**lines[-1], **total, "span": (lines[0]["clock"][unit], lines[-1]["clock"][unit])}


def _cells(rows: Sequence[Mapping[str, Any]], unit: str) -> tuple[str, ...]:
    clocks = [x for row in rows for x in row.get("span", (row["clock"][unit],))]
    first, last = min(clocks), max(clocks)
    clock = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    followers = (
        ", ".join(f"{name}: {what}" for name, what in (row.get("followers") or {}).items())
        for row in rows
    )
    return (
        _distinct(str(row.get("optimizer_policy", "")) for row in rows),
        _distinct(followers),
        clock,
        str(len(rows)),
        *(_mean(rows, k) for k in ("firings", "entries_touched", "sfe")),
        *(_mean(rows, k) for k in ("dfi_before", "dfi_after", "norm_before", "norm_after")),
        _mean(rows, "time/seconds"),
    )


def _mean(rows: Iterable[Mapping[str, Any]], key: str) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    return number(statistics.fmean(values) if values else None)


def _distinct(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


def configs(gathered: Gathered, arms: Sequence[Look]) -> tuple[Part, ...]:
    """Return what differs between arms, and the whole config of each arm and task."""
    settings: list[dict[str, list[str]]] = []  # of each arm: key → its values, all runs'
    for arm in arms:
        own: dict[str, list[str]] = {}
        for run in gathered.runs:
            if run.arm == arm.name:
                for key, value in _leaves(run.config):
                    values = own.setdefault(key, [])
                    if value not in values:
                        values.append(value)
        settings.append(own)
    measured = [number for number, own in enumerate(settings) if own]
    keys = dict.fromkeys(key for own in settings for key in own)
    differing = [
        key
        for key in keys
        if key != "seed"
        and any(settings[n].get(key) != settings[measured[0]].get(key) for n in measured)
    ]
    rows = tuple(
        Row((key, *(_cut(" | ".join(own.get(key, ["–"]))) for own in settings)))
        for key in differing
    )
    head = ("key", *(arm.name for arm in arms))
    columns = (None, *(arm.index for arm in arms))
    parts: list[Part] = []
    if rows:
        caption = "Keys that differ between arms; values that differ within one are parted by |."
        parts.append(Table(head, rows, caption, len(head), "What differs", columns))
    elif len(measured) > 1:
        parts.append(Text("The configs of all arms are equal."))
    for arm in arms:
        for task in gathered.tasks:
            runs = [r for r in gathered.runs if (r.arm, r.task) == (arm.name, task)]
            if runs:
                words = f"{arm.name}, {task}: config of seed {runs[0].seed}"
                parts.append(Details(words, _yaml(runs[0].config), arm.index))
    return tuple(parts)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values as text; lists, such as hooks, are one value."""
    if isinstance(value, Mapping) and (value or not path):
        for key, own in value.items():
            yield from _leaves(own, f"{path}.{key}" if path else str(key))
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
        yield path, text.removesuffix("...\n").strip()


def _yaml(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def versions(gathered: Gathered) -> tuple[Part, ...]:
    """Return which versions, revisions, hosts and threads the runs say; differences plainly."""
    found: dict[str, dict[str, int]] = {}
    for run in gathered.runs:
        said = {str(k): v for k, v in (run.info.get("versions") or {}).items()}
        for key in ("git_revision", "host", "device", "threads", "processes"):
            if run.info.get(key) is not None:
                said[key.replace("_", " ")] = run.info[key]
        for key, value in said.items():
            values = found.setdefault(key, {})
            values[str(value)] = values.get(str(value), 0) + 1
    rows = []
    for key, values in found.items():
        text = "; ".join(
            value if len(values) == 1 else f"{value} ({count} of {len(gathered.runs)} runs)"
            for value, count in values.items()
        )
        rows.append(Row((key, text)))
    mixed = [key for key, values in found.items() if len(values) > 1]
    parts: list[Part] = []
    if mixed:
        parts.append(Text(f"Not all runs have the same {', '.join(mixed)}.", bad=True))
    if rows:
        parts.append(Table(("what", "value"), tuple(rows), words=2))
    return tuple(parts)
