"""The tables of a report: a function each, from data frames to what the page shows.

- `table`: a data frame as a table, an estimate as a value and its interval.
- `numbers`, `drops`, `costs`, `ends`, `after_firing`, `receipts`, `runs`, `differing`, `versions`,
  `recovered`, `published`, `in_turn`, `each_visit`: those of a report.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from rlplast.core.mean_interval import FEWEST
from rlplast.report import published as theirs
from rlplast.report import sequences
from rlplast.report.arms import Look
from rlplast.report.charts import metrics_of
from rlplast.report.continuations import recoveries
from rlplast.report.estimators import stratified_interval
from rlplast.report.numbers import NOTHING, column, number
from rlplast.report.statistics import ALL_TASKS
from rlplast.report.view import Report
from rlplast.report.words import cost, intervals, p_words
from rlplast.run.differences import leaves
from rlplast.run.info import device_words
from rlplast.training.best import higher_is_better

__all__ = ["Cell", "Table", "table"]

LONGEST = 200  # letters of a config's value in a table
MOST = 5  # firings of one hook that have a row each
MEANS = {  # head → key of a receipt
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


class Cell(NamedTuple):
    """A cell: its text; whether it is of a number; whether it is an interval's; its columns."""

    text: str
    number: bool = False
    end: bool = False
    span: int = 1


class Table(NamedTuple):
    """A table of a page: the head, and rows, each hidden with its arm, if it has one."""

    title: str
    head: list[Cell]
    rows: list[tuple[int | None, list[Cell]]]
    caption: str = ""


def table(data: pd.DataFrame, looks: Sequence[Look], title: str = "", caption: str = "") -> Table:
    """Return a data frame as a table.

    Columns of numbers are aligned; whole ones are counts. A column NAME with NAME_low and NAME_high
    is an estimate, in two columns under one head. Columns without anything are left out.

    Args:
        data: its column ``arm``, if there is one, says which look a row has.
        looks: of all arms.
        title: above it.
        caption: below it.
    """
    head: list[Cell] = []
    columns: list[list[Cell]] = []
    for name in data:
        values = data[name]
        if _estimated(data, str(name).removesuffix("_low").removesuffix("_high"), name):
            continue
        if _estimated(data, name):
            ends = [data[f"{name}{end}"].to_numpy(float) for end in ("", "_low", "_high")]
            parts = column(np.concatenate(ends), ends[2] - ends[1])
            one, low, high = (parts[i * len(data) : (i + 1) * len(data)] for i in range(3))
            between = [
                "" if a == NOTHING else f"[{a}, {b}]" for a, b in zip(low, high, strict=True)
            ]
            shown = [(one, False), (between, True)]
        elif pd.api.types.is_integer_dtype(values):
            shown = [([f"{value:,}" for value in values], False)]
        elif pd.api.types.is_float_dtype(values):
            shown = [(column(values.to_numpy()), False)]
        else:
            texts = ["" if pd.isna(own) else str(own) for own in values]
            found = [text for text in texts if text not in ("", NOTHING)]
            if found:
                words = name in ("arm", "task", "value")
                numbers = not words and all(text[0] in "-<0123456789" for text in found)
                head.append(Cell(str(name), numbers))
                columns.append([Cell(text, numbers) for text in texts])
            continue
        shown = [(texts, end) for texts, end in shown if set(texts) - {"", NOTHING}]
        if shown:
            head.append(Cell(str(name), True, span=len(shown)))
            columns += [[Cell(text, True, end) for text in texts] for texts, end in shown]
    index = {look.name: look.index for look in looks}
    arms = [index.get(arm) for arm in data["arm"]] if "arm" in data else [None] * len(data)
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Table(title, head, list(zip(arms, rows, strict=True)), caption)


def _estimated(data: pd.DataFrame, name: Any, but: Any = None) -> bool:
    """Whether a column is an estimate that has its ends beside it, and is not `but`."""
    parts = (data.get(f"{name}{end}") for end in ("", "_low", "_high"))
    return name != but and all(pd.api.types.is_float_dtype(own) for own in parts)


def renamed(data: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return some columns of a data frame, by their new names; estimates with their ends."""
    found = {}
    for old, new in names.items():
        for end in ("", "_low", "_high"):
            if f"{old}{end}" in data:
                found[f"{new}{end}"] = data[f"{old}{end}"]
    return pd.DataFrame(found)


def _explained(
    rows: pd.DataFrame, heads: Mapping[str, tuple[str, str]], looks: Sequence[Look], title: str
) -> tuple[Table, list[str]]:
    """Return columns under their heads as a table, and what those that are shown mean."""
    found = table(renamed(rows, {key: head for key, (head, _) in heads.items()}), looks, title)
    shown = {cell.text for cell in found.head}
    return found, [text for head, text in heads.values() if head in shown and text]


# --- numbers ---


def numbers(report: Report, task: str) -> Table:
    """Return the table of one task, or over all of them; a caption explains each column."""
    rows, pooled = report.groups[task], task == ALL_TASKS
    baseline, first = report.summary.baseline, rows.iloc[0]
    sign = 1 if not pooled and not higher_is_better(first.score) else -1
    rows = rows.iloc[np.argsort(sign * rows.final.to_numpy(), kind="stable")]
    name = first.scale if pooled else first.score
    final = "final score" + (f" ({name})" if name else "")
    moment = "branch" if not pooled and report.branches(task) else "first hook"
    late = not pooled and report.results.of(task).start.notna().any()
    normalised = (not pooled and first.normalised_scale) or "normalised"
    if pooled or normalised == "accuracy":
        rows = rows.drop(columns=["normalised", "normalised_low", "normalised_high"])
    if not late:
        rows = rows.drop(columns=["auc_after", "auc_after_low", "auc_after_high"])
    spread = [
        f"{number(row.final_mean)} ± {number(row.final_sd)}" if row.final_sd == row.final_sd else ""
        for row in rows.itertuples()
    ]
    tested = ["" if p != p else p_words(p) for p in rows.p_holm]
    lost = rows.diverged.where(rows.diverged > 0).astype("Int64").astype(object)
    rows = rows.assign(
        spread=spread, p=tested, lost=[NOTHING if own is pd.NA else own for own in lost]
    )
    heads = {
        "arm": ("arm", ""),
        "difference": (
            "difference",
            f"Difference: from {baseline}, by seed where at least 5 seeds are shared.",
        ),
        "p": (
            "p (Holm)",
            "p (Holm): of no difference, corrected for the number of arms"
            f"{' and tasks' * (not pooled and len(report.tasks) > 1)}; intervals are not.",
        ),
        "final": (
            final,
            f"Final score: interquartile mean over {'seeds and all tasks' if pooled else 'seeds'} "
            f"of the mean score in the last {_last_part(report, task)} of a run, "
            f"{'higher' if sign < 0 else 'lower'} is better.",
        ),
        "spread": ("mean ± SD", "Mean ± SD: of the final scores, standard deviation over seeds."),
        "improvement": (
            "P(improvement)",
            f"P(improvement): how likely a run ends better than one of {baseline}.",
        ),
        "seeds": ("runs" if pooled else "seeds", ""),
        "lost": (
            "diverged",
            "Diverged: runs with no finite score at their end, which are in no other number.",
        ),
        "change": (
            "change since the first tasks",
            "Change: final score minus the mean in the first tenth of the run. Tasks are drawn "
            "alike, so an arm that gets worse has lost plasticity, if 0 is not in the interval.",
        ),
        "normalised": (normalised, ""),
        "auc": (
            "area under the curve",
            "Area: by trapezoids, over its length, so in the units of the score.",
        ),
        "auc_after": (f"area from the {moment} on", ""),
    }
    found, words = _explained(rows, heads, report.looks, task)
    words.append(f"In brackets: {intervals(rows, 'final' if first.scale else 'improvement')}.")
    return found._replace(caption=" ".join(words))


def _last_part(report: Report, task: str) -> str:
    """Return in words the share of a task's runs, or of all, that final scores average."""
    done = report.results.done
    own = done if task == ALL_TASKS else done[done.task == task]
    return " or ".join(f"{100 * share:.3g}%" for share in sorted(set(own.final_share)))


def drops(report: Report) -> Iterator[Table]:
    """Yield a table per task of what firings cost."""
    for task in report.tasks:
        rows = report.summary.of(task)
        rows = rows[rows.intervened > 0]
        back = [f"{row.recovered} of {row.intervened}" for row in rows.itertuples()]
        unit = report.unit(task).replace("_", " ")
        heads = {
            "arm": "arm",
            "drop": "drop",
            "lost_area": f"area lost (score × {unit})",
            "recovery": f"time to recover ({unit})",
            "back": "firings that recovered",
        }
        caption = (
            "Drop: interquartile mean over seeds of the last score before a firing against the "
            "first after it, a mean over the firings of a run; negative where the score got "
            "better. Area lost: likewise, between the last score before and the curve after, "
            "until it is back there or until the next firing. Time to recover: median over all "
            "firings of the time to the first score as good as the last one before; a dash where "
            "half of them or more were not followed by one. An arm without hooks is measured at "
            "the branch."
        )
        if len(rows):
            yield table(renamed(rows.assign(back=back), heads), report.looks, task, caption)


def costs(report: Report) -> Iterator[Table | str]:
    """Yield a table per task of what runs cost, and a sentence on what branching saved."""
    for task in report.tasks:
        rows = report.summary.of(task)
        if rows.empty:
            continue
        heads = {"arm": "arm", "seeds": "seeds", "seconds": "seconds"}
        shared = bool((rows.seconds > rows.own_seconds).any())
        heads |= {"own_seconds": "after the branch", "prefix": "shared prefix"} if shared else {}
        heads |= {"cpu_seconds": "CPU seconds"} if rows.cpu_seconds.notna().any() else {}
        heads["updates"] = "updates"
        data = renamed(rows.assign(prefix=rows.seconds - rows.own_seconds), heads)
        caption = "Means of a run, over seeds."
        if "CPU seconds" in data:
            caption += (
                " Wall-clock seconds depend on what else the machine did; CPU seconds, of all "
                "threads, depend on it less."
            )
        yield table(data, report.looks, task, caption)
        yield from _saving(report, task)


def _saving(report: Report, task: str) -> Iterator[str]:
    """Yield what branching saved on a task, if anything was shared."""
    runs, own = report.results.runs, report.results.of(task)
    full, after = own.seconds.sum(), own.own_seconds.sum()
    took, _ = cost(replace(report.results, runs=runs[runs.task == task]))
    if full > 0 and took < 0.995 * full:
        yield (
            f"{task}: all runs from the start would have taken {number(full)} s; with prefixes run "
            f"once ({number(took - after)} s) and {number(after)} s after them it took "
            f"{number(took)} s, {1 - took / full:.0%} less. Wall-clock times "
            "of runs that share a machine depend on one another."
        )


# --- what runs measured at one moment ---


def ends(report: Report) -> Iterator[Table]:
    """Yield a table per task: the last evaluation and metrics of whole networks, by arm."""
    for task in report.tasks:
        last = {run: None for run in report.results.of(task).index}
        yield from _measured(report, task, last, "the last value that a run measured")


def after_firing(report: Report) -> Iterator[Table]:
    """Yield a table per task: what was measured at the clock of the first firing, by arm.

    Hooks fire before a measurement at the same clock, and updates come after it. A run without a
    firing has what it measured where one of its seed fired first. A hook with a condition fires
    after the measurement that it reads, so runs with one have no such values.
    """
    results = report.results
    for task in report.tasks:
        runs = [
            run
            for run in results.of(task).index
            if not any(hook.get("when") for hook in results.configs[run].get("hooks") or ())
        ]
        clocks = {run: _firing_clock(report, run) for run in runs}
        first: dict[int, Any] = {}
        for run, clock in clocks.items():
            if clock:
                first.setdefault(results.runs.seed[run], clock)
        there = {run: clock or first.get(results.runs.seed[run]) for run, clock in clocks.items()}
        there = {run: clock for run, clock in there.items() if clock}
        yield from _measured(
            report, task, there, "what a run measured right after the first firing"
        )


def _firing_clock(report: Report, run: int) -> Any:
    x, unit = report.results.runs.firing[run], report.results.runs.unit[run]
    own = (row for row in report.results.receipts[run] if row.get("norm_after") is not None)
    return next((row["clock"] for row in own if row["clock"][unit] == x), None)


def _measured(report: Report, task: str, at: Mapping[int, Any], what: str) -> Iterator[Table]:
    """Yield a table of the last values of runs, by arm, if there is more than their score."""
    results = report.results
    rows = results.numbers[results.numbers.run.isin(list(at))]
    names = [str(name) for name in rows.name.drop_duplicates()]
    keys = {name: name for name in names if name.startswith("eval/")}
    for network, metrics in metrics_of(report, task).items():
        keys |= {f"metric/{own}/{network}": f"{own} ({network})" for own in metrics}
    values: dict[str, dict[int, float]] = {key: {} for key in keys}
    for key, own in values.items():
        for run, moment in at.items():
            found = results.named(key, run)
            for unit, count in (moment or {}).items():
                found = found[found[unit] == count] if unit in found else found
            if len(found):
                own[run] = found["value"].iat[-1]
    values = {key: own for key, own in values.items() if own}
    if set(values) <= {report.score(task)}:
        return
    data = []
    for look, runs in report.ordered(results.of(task)):
        if runs.index.isin(list(at)).any():
            row: dict[str, Any] = {"arm": look.name}
            for key, own in values.items():
                known = np.array([own.get(run, math.nan) for run in runs.index])
                found = stratified_interval([known[np.isfinite(known)]], report.bounds(task, key))
                row |= {keys[key]: found.value}
                row |= {f"{keys[key]}_low": found.low, f"{keys[key]}_high": found.high}
            data.append(row)
    caption = (
        f"Interquartile mean over seeds of {what}. In brackets: "
        f"{intervals(report.summary.of(task))}."
    )
    yield table(pd.DataFrame(data), report.looks, task, caption)


# --- receipts, configs, versions ---


def receipts(report: Report) -> Iterator[Table]:
    """Yield a table per task: what each hook did to each network, seeds averaged."""
    for task in report.tasks:
        rows = [
            {"arm": look.name} | row
            for look, runs in report.ordered(report.results.of(task))
            for row in _fired(report, runs, f"clock ({report.unit(task).replace('_', ' ')})")
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
            yield table(pd.DataFrame(rows), report.looks, task, caption)


def _fired(report: Report, runs: pd.DataFrame, head: str) -> Iterator[dict[str, Any]]:
    """Yield what each hook of an arm did to each network, a row per firing or for all of them."""
    found: dict[tuple[str, str], dict[int, list[Any]]] = {}  # method, network → run → its
    for run in runs.index:
        for row in report.results.receipts[run]:
            key = str(row.get("method")), str(row.get("network"))
            found.setdefault(key, {}).setdefault(run, []).append(row)
    unit = runs.unit.iloc[0]
    for (method, network), own in found.items():
        sums = [[r for r in rows if r.get("norm_after") is None] for rows in own.values()]
        fired = [[r for r in rows if r.get("norm_after") is not None] for rows in own.values()]
        most = max(map(len, fired))
        parts = [
            [rows[n] for rows in fired if n < len(rows)] for n in range(most if most <= MOST else 0)
        ]
        for often in (fired if most > MOST else [], sums):
            parts.append([_sum(rows, unit) for rows in often if rows])
        for rows in filter(None, parts):
            yield {"method": method, "network": network} | _receipt(rows, unit, head)


def _sum(lines: Sequence[Any], unit: str) -> dict[str, Any]:
    """Return the receipts of a hook that fires often as one."""
    keys = ("firings", "sfe", "time/seconds")
    total = {key: sum(line.get(key) or 0 for line in lines) for key in keys}
    return {**lines[-1], **total, "span": (lines[0]["clock"][unit], lines[-1]["clock"][unit])}


def _receipt(rows: Sequence[Mapping[str, Any]], unit: str, head: str) -> dict[str, Any]:
    clocks = [x for row in rows for x in row.get("span", (row["clock"][unit],))]
    ends = dict.fromkeys((min(clocks), max(clocks)))
    followers = [
        ", ".join(f"{name}: {what}" for name, what in (row.get("followers") or {}).items())
        for row in rows
    ]
    found: dict[str, Any] = {
        "optimizer": _distinct([str(row.get("optimizer_policy", "")) for row in rows]),
        "followers": _distinct(followers),
        head: " to ".join(f"{x:,}" for x in ends),
        "seeds": len(rows),
    }
    for name, key in MEANS.items():
        values = [row[key] for row in rows if row.get(key) is not None]
        found[name] = float(np.mean(values)) if values else math.nan
    return found


def _distinct(words: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


def configs(report: Report) -> Iterator[Table | str]:
    """Yield what differs between arms."""
    results = report.results
    settings = {
        run: {key: _yaml(value) for key, value in leaves(results.configs[run]) if key != "seed"}
        for run in results.done.index
    }
    keys = list(dict.fromkeys(key for own in settings.values() for key in own))
    rows = []
    for look, runs in report.ordered(results.done):
        own = {
            key: " | ".join(dict.fromkeys(settings[run].get(key, NOTHING) for run in runs.index))
            for key in keys
        }
        rows.append({"arm": look.name} | own)
    data = pd.DataFrame(rows)
    differing = [key for key in keys if data[key].nunique() > 1]
    if differing:
        words = "Keys that differ between arms; values that differ within one are parted by |."
        shown = data[["arm", *differing]].map(_cut)
        yield table(shown, report.looks, "What differs", words)
    elif len(report.looks) > 1:
        yield "The configs of all arms are equal."


def runs(report: Report) -> Table:
    """Return a row per run: its numbers, and where it ran."""
    done = report.results.done
    data = done[["arm", "task", "seed", "final", "area", "updates", "seconds", "cpu_seconds"]]
    data = data.rename(columns={"final": "final score", "cpu_seconds": "CPU seconds"})
    best = done.best_at.astype(object)
    data = data.assign(**{"best at": ["" if own != own else f"{own:,.0f}" for own in best]})
    hosts = [str(report.results.infos[run].get("host") or "") for run in done.index]
    caption = "Area: mean height of the curve."
    if done.best_at.notna().any():
        caption += " Best at: where the evaluation was whose checkpoint the run kept."
    caption += " runs.csv has these and the keys of configs that differ."
    return table(data.assign(host=hosts), report.looks, "Runs", caption)


def texts(report: Report) -> Iterator[tuple[str, str, int]]:
    """Yield of each arm and task: a title, the config of its first seed, the index of the arm."""
    for look, own in report.ordered(report.results.done):
        for task, runs in own.groupby("task", sort=False):
            words = f"{look.name}, {task}: config of seed {runs.seed.iloc[0]}"
            config = report.results.configs[runs.index[0]]
            yield words, yaml.safe_dump(config, sort_keys=False, allow_unicode=True), look.index


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def versions(report: Report) -> tuple[Table, list[str]]:
    """Return which versions, hosts and threads runs say, and the names of those that differ."""
    infos = [report.results.infos[run] for run in report.results.done.index]
    found: dict[str, list[str]] = {}
    for info in infos:
        own = {str(key): value for key, value in (info.get("versions") or {}).items()}
        for key in ("git_revision", "host", "threads", "processes"):
            if info.get(key) is not None:
                own[key.replace("_", " ")] = info[key]
        if info.get("devices"):
            own["device"] = ", then ".join(map(device_words, info["devices"]))
        if info.get("environment"):
            begun = ", with new episodes at a resume" if info.get("new_episodes") else ""
            own["resume of environments"] = info["environment"]["resume"] + begun
        for key, value in own.items():
            found.setdefault(key, []).append(str(value))
    rows, mixed = [], []
    for key, values in found.items():
        counts = pd.Series(values).value_counts(sort=False)
        words = [f"{value} ({count} of {len(infos)} runs)" for value, count in counts.items()]
        mixed += [key] if len(counts) > 1 else []
        rows.append({"what": key, "value": "; ".join(words) if len(counts) > 1 else values[0]})
    return table(pd.DataFrame(rows, columns=["what", "value"]), ()), mixed


# --- continuations, published curves, sequences of tasks ---


def recovered(report: Report) -> Iterator[Table]:
    """Yield a table per task of the shares of continuations that recover."""
    level = report.results.recovered
    where = "the best score of its prefix" if level is None else "the score that the study names"
    for task, rows in recoveries(report.single).groupby("task", sort=False):
        how = "The interval allows for continuations of one seed being alike."
        if (rows.seeds < FEWEST).any():
            how = (
                f"With fewer than {FEWEST} seeds the interval is that of these branches: other "
                "seeds may differ by more."
            )
        caption = (
            f"A continuation recovers if its final score is at least as good as {where}. All goes "
            "on from the same weights, optimizer state, replay and open episodes; environments, "
            "exploration, batches and hooks draw anew. Everywhere else in this report a seed's "
            f"continuations are one run, their mean. {how}"
        )
        levels = [
            number(a) if a == b else f"{number(a)} to {number(b)}"
            for a, b in zip(rows.least, rows.most, strict=True)
        ]
        data = rows[["arm"]].assign(
            **{
                "share that recovers": rows.value,
                "share that recovers_low": rows.low,
                "share that recovers_high": rows.high,
                "runs": [f"{a} of {b}" for a, b in zip(rows.recovered, rows["count"], strict=True)],
                "seeds": rows.seeds,
                f"from {report.score(task)}": levels,
            }
        )
        yield table(data, report.looks, task, caption)


def published(report: Report) -> Iterator[Table | str]:
    """Yield what was published beside ours: a sentence per arm, and a table per task."""
    yield from theirs.verdicts(report)
    for task, rows in theirs.compared(report).groupby("task", sort=False):
        caption = (
            "Ours: mean over seeds of each seed's mean evaluation in the last 20k env_steps, as "
            "the published one. In brackets: published mean ± 2 standard errors (standard "
            "deviation over the root of the seeds). Ours has an error too, which the verdict "
            "leaves out: with few seeds even an equal agent is often outside."
        )
        heads = {
            "arm": "arm",
            "verdict": "ours is",
            "env_steps": "env_steps",
            "mean": "ours",
            "seeds": "seeds",
            "published": "published",
            "published_seeds": "published seeds",
        }
        yield table(
            renamed(rows.assign(published=rows.published_mean), heads), report.looks, task, caption
        )


def in_turn(report: Report, task: str, visits: pd.DataFrame) -> Table:
    """Return the numbers of each arm of a sequence of tasks."""
    key, oracle = report.score(task), sequences.ORACLE
    form = "over 1 − oracle" if "accuracy" in key else "a plain difference"
    heads = {
        "arm": ("arm", ""),
        "seeds": ("seeds", ""),
        "revisits": (
            "later visits − first",
            "Later visits − first: mean score of a visit of a task minus that of its first visit.",
        ),
        "late_change": (
            "second half − first task",
            "Second half − first task: mean score of the second half of the tasks minus that of "
            "the first; plasticity only where tasks are equally hard.",
        ),
        "plasticity_loss": (
            "plasticity loss",
            f"Plasticity loss: score at the end of a task, {oracle} minus arm, without the first "
            "task; not normalised.",
        ),
        "forward_transfer": (
            "forward transfer",
            "Forward transfer: mean score of the first visit of a task, arm minus "
            f"{oracle}, {form}, without the first task.",
        ),
        "forgetting": (
            "forgetting",
            "Forgetting: score at the end of a task's last visit minus that at the end of the run, "
            "without the task trained last.",
        ),
    }
    rows = sequences.sequence(visits, "accuracy" in key)
    found, words = _explained(rows, heads, report.looks, task)
    words += ["Scores count with a minus."] if not higher_is_better(key) else []
    words.append(
        "Means over tasks, then interquartile means over seeds: "
        f"{intervals(report.summary.of(task))}."
    )
    return found._replace(caption=" ".join(words))


def each_visit(report: Report, task: str, visits: pd.DataFrame) -> Table:
    """Return the table of each task's visits."""
    rows = sequences.by_visit(visits, "accuracy" in report.score(task))
    caption = "Visit 1: mean score while the task was trained first. Forgetting: of that task."
    return table(rows, report.looks, f"{task}, each visit", caption)
