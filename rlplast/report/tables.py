"""The tables of a report: a function each, from data frames to what the page shows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype, is_integer_dtype

from rlplast.core.mean_interval import FEWEST
from rlplast.report import sequences
from rlplast.report.arms import Look
from rlplast.report.charts import metrics_of
from rlplast.report.continuations import recoveries
from rlplast.report.estimators import stratified_interval
from rlplast.report.numbers import NOTHING, estimate, number
from rlplast.report.published import compared, uncompared
from rlplast.report.statistics import ALL_TASKS
from rlplast.report.view import Report
from rlplast.report.words import intervals, p_words
from rlplast.run.differences import leaves
from rlplast.run.info import device_words, resume_words
from rlplast.training.best import higher_is_better
from rlplast.training.config import dump_yaml, read_yaml

__all__ = ["Table", "table"]

Heads = Mapping[str, Sequence[str]]
LONGEST = 200  # letters of a config's value in a table
MOST = 5  # firings of one hook that have a row each
MADE_WITH = ("git_revision", "host", "threads", "processes")  # keys of run.json
# Keys of receipts whose means over seeds are shown; of a hook that fires often some are summed.
SUMS = ("firings", "sfe", "time/seconds")
MEANS = (
    *(*SUMS, "entries_touched", "sfe_normalized"),
    *("dfi_before", "dfi_after", "norm_before", "norm_after"),
)

# Table → column → its head, and what it means, to which `str.format` is told names.
COLUMNS: Mapping[str, Heads] = read_yaml(Path(__file__).parent / "columns.yaml")


class Table(NamedTuple):
    """A table of a page: the head, which columns are of numbers, and rows with the arm's index."""

    title: str
    head: list[str]
    numbers: list[bool]
    rows: list[tuple[int | None, list[str]]]
    caption: str = ""


def table(
    data: pd.DataFrame,
    looks: Sequence[Look],
    title: str = "",
    caption: str = "",
    heads: Heads | None = None,
    **names: str,
) -> Table:
    """Return a data frame as a table.

    Numbers are aligned; whole ones are counts. A column NAME with NAME_low and NAME_high is an
    estimate, with its interval in brackets. Columns without anything are left out. The column
    ``arm``, if there is one, says which look a row has.

    `heads` are the columns to show, all by default; their words are told `names`. The meaning of
    each column that is shown goes before the caption.
    """
    ends = {
        f"{name}{end}"
        for name in data
        for end in ("_low", "_high")
        if is_float_dtype(data.get(f"{name}_low"))
    }
    shown: dict[str, tuple[list[str], bool]] = {}
    meanings = []
    for name in heads or (own for own in data if own not in ends):
        texts, numeric = _texts(data, name)
        if set(texts) - {"", NOTHING}:
            head, *meaning = [own.format(**names) for own in heads[name]] if heads else [str(name)]
            shown[head] = texts, numeric
            meanings += meaning
    index = {look.name: look.index for look in looks}
    arms = [index.get(arm) for arm in data["arm"]] if "arm" in data else [None] * len(data)
    rows = [list(row) for row in zip(*(texts for texts, _ in shown.values()), strict=True)]
    return Table(
        title,
        list(shown),
        [numeric for _, numeric in shown.values()],
        list(zip(arms, rows, strict=True)),
        " ".join([*meanings, *([caption] if caption else [])]),
    )


def _texts(data: pd.DataFrame, name: str) -> tuple[list[str], bool]:
    """Return the cells of a column, and whether they are numbers."""
    if name not in data:
        return [""] * len(data), False
    values = data[name]
    if is_float_dtype(data.get(f"{name}_low")):
        return [estimate(row, name) for row in data.to_dict("records")], True
    if is_integer_dtype(values):
        return [f"{value:,}" for value in values], True
    if is_float_dtype(values):
        return [number(float(value)) for value in values], True
    texts = ["" if pd.isna(value) else str(value) for value in values]
    found = [text for text in texts if text not in ("", NOTHING)]
    words = name in ("arm", "task", "value")
    return texts, not words and all(text[0] in "-<0123456789" for text in found)


# --- numbers ---


def numbers(report: Report, task: str) -> Table:
    """Return the table of one task, or over all of them; a caption explains each column."""
    rows, pooled = report.groups[task], task == ALL_TASKS
    first, done = rows.iloc[0], report.results.done
    higher = pooled or higher_is_better(first.score)
    rows = rows.sort_values("final", ascending=not higher, kind="stable")
    own = done if pooled else done[done.task == task]
    if pooled or first.normalised_scale == "accuracy":
        rows = rows.drop(columns="normalised")
    if pooled or own.start.isna().all():
        rows = rows.drop(columns="auc_after")
    pairs = zip(rows.final_mean, rows.final_sd, strict=True)
    rows = rows.assign(
        spread=["" if sd != sd else f"{number(mean)} ± {number(sd)}" for mean, sd in pairs],
        p=["" if p != p else p_words(p) for p in rows.p_holm],
        lost=rows.diverged.astype(str).replace("0", NOTHING),
    )
    scale = first.scale if pooled else first.score
    return table(
        rows,
        report.looks,
        task,
        f"In brackets: {intervals(rows, 'final' if first.scale else 'improvement')}.",
        COLUMNS["numbers"],
        baseline=str(report.summary.baseline),
        scale=f" ({scale})" if scale else "",
        last=" or ".join(f"{100 * share:.3g}%" for share in sorted(set(own.final_share))),
        sense="higher" if higher else "lower",
        normalised=first.normalised_scale,
        moment="branch" if not pooled and report.branches(task) else "first hook",
    )


def drops(report: Report) -> Iterator[Table]:
    """Yield a table per task of what firings cost."""
    for task in report.tasks:
        rows = report.summary.of(task)
        rows = rows[rows.intervened > 0]
        back = [f"{row.recovered} of {row.intervened}" for row in rows.itertuples()]
        if len(rows):
            data, unit = rows.assign(back=back), report.axis(task)
            yield table(data, report.looks, task, "", COLUMNS["drops"], unit=unit)


def costs(report: Report) -> Iterator[Table | str]:
    """Yield a table per task of what runs cost, and a sentence on what branching saved."""
    for task in report.tasks:
        rows = report.summary.of(task)
        if rows.empty:
            continue
        rows = rows.assign(prefix=rows.seconds - rows.own_seconds)
        shared = (rows.prefix > 0).any()
        rows = rows if shared else rows.drop(columns=["prefix", "own_seconds"])
        yield table(rows, report.looks, task, "", COLUMNS["costs"])
        runs, full = report.single.runs, report.single.of(task).seconds.sum()
        took = runs[(runs.task == task) & (runs.status == "done")].own_seconds.sum()
        if shared and took < 0.995 * full:
            yield (
                f"{task}: all runs from the start would have taken {number(full)} s; with prefixes "
                f"run once it took {number(took)} s, {1 - took / full:.0%} less."
            )


# --- what runs measured at one moment ---


def ends(report: Report) -> Iterator[Table]:
    """Yield a table per task: the last evaluation and metrics of whole networks, by arm."""
    numbers = report.results.numbers
    for task in report.tasks:
        rows = numbers[numbers.run.isin(report.results.of(task).index)]
        yield from _measured(report, task, rows, "the last value that a run measured")


def after_firing(report: Report) -> Iterator[Table]:
    """Yield a table per task: what was measured at the clock of the first firing, by arm.

    Without a firing it is what a run measured where one of its seed fired first. A hook with a
    condition fires after the measurement that it reads, so runs with one have no such values.
    """
    results, what = report.results, "what a run measured right after the first firing"
    for task in report.tasks:
        runs, parts = results.of(task), []
        first: dict[int, Any] = {}
        conditions = [
            any(hook.get("when") for hook in results.configs[run].get("hooks") or ())
            for run in runs.index
        ]
        runs = runs[~np.array(conditions, bool)]
        clocks = {run: _firing_clock(report, run) for run in runs.index}
        for run, clock in clocks.items():
            if clock:
                first.setdefault(runs.seed[run], clock)
        for run, clock in clocks.items():
            rows = results.numbers[results.numbers.run == run]
            moment = clock or first.get(runs.seed[run])
            here = {unit: count for unit, count in (moment or {}).items() if unit in rows}
            if here:
                parts.append(rows[(rows[list(here)] == list(here.values())).all(axis=1)])
        if parts:
            yield from _measured(report, task, pd.concat(parts), what)


def _firing_clock(report: Report, run: int) -> Any:
    x, unit = report.results.runs.firing[run], report.results.runs.unit[run]
    own = (row["clock"] for row in report.results.scheduled(run))
    return next((clock for clock in own if clock[unit] == x), None)


def _measured(report: Report, task: str, rows: pd.DataFrame, what: str) -> Iterator[Table]:
    """Yield a table of the last of some values of runs, by arm, if there is more than a score."""
    names = [str(name) for name in rows.name.drop_duplicates()]
    keys = {name: name for name in names if name.startswith("eval/")}
    for network, metrics in metrics_of(report, task).items():
        keys |= {f"metric/{own}/{network}": f"{own} ({network})" for own in metrics}
    keys = {key: head for key, head in keys.items() if key in names}
    if set(keys) <= {report.score(task)}:
        return
    last = rows.drop_duplicates(["run", "name"], keep="last").pivot(
        index="run", columns="name", values="value"
    )
    data = []
    for look, runs in report.ordered(report.results.of(task)):
        own = last[last.index.isin(runs.index)]
        row: dict[str, Any] = {"arm": look.name}
        for key, head in keys.items() if len(own) else ():
            found = stratified_interval([own[key].dropna().to_numpy()], report.bounds(task, key))
            row |= {head: found.value, f"{head}_low": found.low, f"{head}_high": found.high}
        data += [row] if len(own) else []
    caption = (
        f"Interquartile mean over seeds of {what}. In brackets: "
        f"{intervals(report.summary.of(task))}."
    )
    yield table(pd.DataFrame(data), report.looks, task, caption)


# --- receipts, configs, versions ---


def receipts(report: Report) -> Iterator[Table]:
    """Yield a table per task: what each hook did to each network, seeds averaged."""
    for task in report.tasks:
        unit = report.unit(task)
        rows = [
            {"arm": look.name, "run": run, "x": row["clock"][unit]} | _receipt(row)
            for look, runs in report.ordered(report.results.of(task))
            for run in runs.index
            for row in report.results.receipts[run]
        ]
        if rows:
            words = {"unit": report.axis(task), "most": str(MOST)}
            data = _firings(pd.DataFrame(rows))
            yield table(data, report.looks, task, "", COLUMNS["receipts"], **words)


def _receipt(row: Mapping[str, Any]) -> dict[str, Any]:
    followers = (row.get("followers") or {}).items()
    return {
        "method": str(row.get("method")),
        "network": str(row.get("network")),
        "optimizer": str(row.get("optimizer_policy", "")),
        "followers": ", ".join(f"{name}: {what}" for name, what in followers),
        **{key: math.nan if row.get(key) is None else float(row[key]) for key in MEANS},
    }


def _firings(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per arm, method, network and firing, or one for all of a hook that is often."""
    hook, words, sums = ["arm", "method", "network"], ["optimizer", "followers"], [*SUMS]
    nth = rows.groupby([*hook, "run"]).cumcount()
    most = nth.groupby([rows[name] for name in hook]).transform("max")
    rows = rows.assign(nth=nth.where((most < MOST) & rows.norm_after.notna(), -1))
    each = rows.groupby([*hook, "nth", "run"], sort=False)
    seeds = each[[*MEANS, *words]].last()
    seeds[sums] = each[sums].sum(min_count=1)
    seeds[["from", "to"]] = each.x.agg(["min", "max"])
    firings = seeds.groupby([*hook, "nth"], sort=False)
    table = firings[[*MEANS]].mean()
    table["seeds"] = firings.size()
    table[words] = firings[words].agg(lambda own: "; ".join(filter(None, own.unique())))
    moments = zip(firings["from"].min(), firings["to"].max(), strict=True)
    table["clock"] = [" to ".join(f"{x:,}" for x in dict.fromkeys(pair)) for pair in moments]
    return table.reset_index()


def configs(report: Report) -> Iterator[Table | str]:
    """Yield what differs between arms."""
    results = report.results
    settings = pd.DataFrame(
        {
            run: {key: _yaml(value) for key, value in leaves(results.configs[run]) if key != "seed"}
            for run in results.done.index
        }
    ).T.fillna(NOTHING)
    rows = settings.groupby(results.done.arm).agg(lambda own: " | ".join(own.unique()))
    rows = rows.loc[[look.name for look, _ in report.ordered(results.done)], rows.nunique() > 1]
    if len(rows.columns):
        words = "Keys that differ between arms; values that differ within one are parted by |."
        yield table(rows.map(_cut).reset_index(), report.looks, "What differs", words)
    elif len(report.looks) > 1:
        yield "The configs of all arms are equal."


def runs(report: Report) -> Table:
    """Return a row per run: its numbers, and where it ran."""
    done = report.results.done
    data = done[["arm", "task", "seed", "final", "area", "updates", "seconds", "cpu_seconds"]]
    data = data.rename(columns={"final": "final score", "cpu_seconds": "CPU seconds"})
    hosts = [str(report.results.infos[run].get("host") or "") for run in done.index]
    best = ["" if own != own else f"{own:,.0f}" for own in done.best_at]
    caption = (
        "Area: mean height of the curve. Best at: where the evaluation was whose checkpoint the "
        "run kept, if it did. runs.csv has these and the keys of configs that differ."
    )
    return table(data.assign(**{"best at": best}, host=hosts), report.looks, "Runs", caption)


def texts(report: Report) -> Iterator[tuple[str, str, int]]:
    """Yield of each arm and task: a title, the config of its first seed, the index of the arm."""
    for look, own in report.ordered(report.results.done):
        for task, runs in own.groupby("task", sort=False):
            words = f"{look.name}, {task}: config of seed {runs.seed.iloc[0]}"
            config = report.results.configs[runs.index[0]]
            yield words, dump_yaml(config), look.index


def _yaml(value: Any) -> str:
    return dump_yaml(value, flow=True).strip()


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def versions(report: Report) -> tuple[Table, list[str]]:
    """Return which versions, hosts and threads runs say, and the names of those that differ."""
    infos = [report.results.infos[run] for run in report.results.done.index]
    made = pd.DataFrame(
        {str(key): str(value) for key, value in (info.get("versions") or {}).items()}
        | {key: str(info[key]) for key in MADE_WITH if info.get(key) is not None}
        | {"device": ", then ".join(map(device_words, info.get("devices") or ()))}
        | {"resume": resume_words(info)}
        for info in infos
    )
    rows, mixed = [], []
    for what, values in made.replace("", None).items():
        counts = values.dropna().value_counts(sort=False)
        words = [f"{value} ({count} of {len(infos)} runs)" for value, count in counts.items()]
        mixed += [str(what)] if len(counts) > 1 else []
        rows.append({"what": what, "value": "; ".join(words if len(counts) > 1 else counts.index)})
    return table(pd.DataFrame(rows, columns=["what", "value"]), ()), mixed


# --- continuations, published curves, sequences of tasks ---


def recovered(report: Report) -> Iterator[Table]:
    """Yield a table per task of the shares of continuations that recover."""
    for task, rows in recoveries(report.single).groupby("task", sort=False):
        how = "allows for continuations of one seed being alike"
        if (rows.seeds < FEWEST).any():
            how = "is that of these branches: other seeds may differ by more"
        ends = zip(rows.least, rows.most, strict=True)
        data = rows.assign(
            runs=[f"{a} of {b}" for a, b in zip(rows.recovered, rows["count"], strict=True)],
            level=[" to ".join(dict.fromkeys(map(number, pair))) for pair in ends],
        ).rename(columns={"value": "share", "low": "share_low", "high": "share_high"})
        words = {"how": how, "score": report.score(task)}
        yield table(data, report.looks, task, "", COLUMNS["recovered"], **words)


def published(report: Report) -> Iterator[Table | str]:
    """Yield a table per task of what was published beside ours, and what is not compared."""
    found = compared(report)
    for task, rows in found.groupby("task", sort=False):
        rows = rows.assign(published=rows.published_mean)
        yield table(rows, report.looks, task, "", COLUMNS["published"])
    yield from uncompared(report, found)


def in_turn(report: Report, task: str, visits: pd.DataFrame) -> Table:
    """Return the numbers of each arm of a sequence of tasks."""
    key = report.score(task)
    words = (
        "Means over tasks, then interquartile means over seeds: "
        f"{intervals(report.summary.of(task))}."
    )
    if not higher_is_better(key):
        words = f"Scores count with a minus. {words}"
    form = "over 1 − oracle" if "accuracy" in key else "a plain difference"
    rows = sequences.sequence(visits, "accuracy" in key)
    return table(rows, report.looks, task, words, COLUMNS["in_turn"], form=form)
