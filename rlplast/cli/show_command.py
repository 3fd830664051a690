"""Show: where a run or a study is, what it measured last, what comes next, what lies on disk.

RUN is the folder of a run or of a study, while it runs or later. Nothing in it is changed.
"""

import argparse
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from rlplast.cli.output import new_console, show_json
from rlplast.cli.tables import clock_words, figure, rate, receipt_table, show_rows, size
from rlplast.core.duration import duration
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.report.numbers import estimate
from rlplast.run.read import meant, unaltered
from rlplast.run.show import show_run
from rlplast.study.folder import log_file, study_of
from rlplast.study.show import show_study

__all__ = ["add_arguments", "run"]

_RECEIPTS = 5  # the newest ones
_FEW = 20  # failures and running cells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a run or a study")
    parser.add_argument("--json", action="store_true", help="print data, not text")


def run(args: argparse.Namespace) -> int:
    folder = args.folder
    if (folder / "study.json").exists():
        found, text = show_study(folder) | _arms(folder), _study_text
    elif (folder / "config.yaml").exists():
        found, text = show_run(folder) | _cost(folder), _run_text
        study = study_of(folder)
        if study is not None:
            cell = folder.resolve().relative_to(study.resolve())
            found["files"]["log"] = str(study / log_file(cell.as_posix()))
    else:
        why = "it has no config.yaml" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{folder} is no folder of a run or a study: {why}{meant(folder)}")
    if args.json:
        show_json(found)
    else:
        text(new_console(), found)
    return 0


def _cost(folder: Path) -> dict[str, Any]:
    """Return what each firing cost, and in what: the score's name and the unit of time."""
    from rlplast.report.frame import read_run  # pandas is slow to import
    from rlplast.report.statistics import firings

    results = read_run(folder)
    with unaltered(folder):
        rows = firings(results)
    cost = []
    for row in rows.to_dict("records"):
        after = row["recovered_after"]
        own = {"methods": row["methods"].split(", "), "at": int(row["at"]), "drop": row["drop"]}
        own |= {"recovered_after": after if math.isfinite(after) else None, "area": row["area"]}
        cost += [own] if row["methods"] else []
    about = results.runs.loc[0]
    return {"cost": {"score": about.score, "unit": about.unit, "firings": cost}}


def _arms(folder: Path) -> dict[str, Any]:
    """Return what the finished runs of a study say so far: its arms' scores, and the verdict."""
    from rlplast.report.frame import NothingDone, read
    from rlplast.report.view import report_of
    from rlplast.report.words import verdict_words

    try:
        report = report_of(read([folder]))
    except NothingDone:
        return {"arms": [], "verdict": []}
    except (ConfigError, DamagedFile) as error:  # the rest of what is shown is true all the same
        return {"arms": [], "verdict": [f"There are no scores: {error}"]}
    keys = ["task", "arm", "seeds", "score", "final", "final_low", "final_high"]
    rows = report.summary.rows.to_dict("records")
    arms = [{key: None if row[key] != row[key] else row[key] for key in keys} for row in rows]
    return {"arms": arms, "verdict": verdict_words(report.results, report.summary)}


def _run_text(console: Console, found: Mapping[str, Any]) -> None:
    receipts, following = found["receipts"], found["next"]
    nothing = "not known" if found["progress"] is None else "none"
    rows = [
        ("run", f"{found['folder']} ({found['kind']})"),
        ("status", _since(found)),
        ("command", _command(found["command"])),
        *([("device", found["device"])] if found["device"] else []),
        *([("resume", found["resume"])] if found["resume"] else []),
        ("progress", _progress(found)),
        ("training", _measured(found["train"], "train/")),
        ("evaluation", _measured(found["eval"], "eval/")),
        *([("metrics", _measured(found["metrics"], "metric/"))] if found["metrics"] else []),
        ("next firing", f"{following['method']} at {following['at']}" if following else nothing),
        ("receipts", ", ".join(f"{n:,} of {m}" for m, n in receipts["of"].items()) or "none"),
    ]
    show_rows(console, rows)
    fired = [row for row in receipts["newest"] if row.get("norm_after") is not None][-_RECEIPTS:]
    if fired:
        unit = "env_steps" if "env_steps" in fired[-1]["clock"] else "updates"
        console.print(receipt_table(fired, unit, console.width))
    if found["cost"]["firings"]:
        console.print(_cost_table(found["cost"]))
    ends = [] if found["best"] is None else [("best", found["best"])]
    show_rows(console, [("checkpoints", _checkpoints(found)), *ends, *_disk(found)])


def _cost_table(cost: Mapping[str, Any]) -> Table:
    """Return a table of what the newest firings cost."""
    heads = (f"drop of\n{cost['score']}", f"recovered\nafter {cost['unit']}", "area\nlost")
    columns = [Column(head, overflow="fold") for head in ("fired", "at")]
    columns += [Column(head, justify="right", overflow="fold") for head in heads]
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in cost["firings"][-_RECEIPTS:]:
        after = "not yet" if row["recovered_after"] is None else f"{row['recovered_after']:,.0f}"
        names = ", ".join(row["methods"])
        table.add_row(names, f"{row['at']:,}", figure(row["drop"]), after, figure(row["area"]))
    return table


def _since(found: Mapping[str, Any]) -> str:
    words = [found["status"] + (", as training diverged," if found["diverged"] else "")]
    words += [f"since {found['since']}"] if found["since"] else []
    words += [f"on {found['host']}"] if found["host"] else []
    if found["status"] == "stopped":
        words.append(f"(no process has it: `rlplast resume {found['folder']}` goes on)")
    return " ".join(words)


def _command(words: Sequence[str] | None) -> str:
    return shlex.join(words) if words else "not known"


def _progress(found: Mapping[str, Any]) -> str:
    """Say how far a run is; without a length in run.json what the clock says."""
    progress = found["progress"]
    if progress is None:
        return f"{clock_words(found['clock']) or 'its beginning'} (its length is not in run.json)"
    done, total, unit = (progress[key] for key in ("done", "total", "unit"))
    words = [f"{progress['share']:.0%}", f"{done:,} of {total:,} {unit}"]
    words += [rate(progress["rate"], unit)] if progress["rate"] else []
    words += [f"{duration(progress['seconds'])} so far"] if progress["seconds"] else []
    left = progress["seconds_left"]
    return ", ".join([*words, *([] if left is None else [f"{duration(left)} left"])])


def _measured(row: Mapping[str, Any] | None, start: str) -> str:
    """Say what a line measured, and when."""
    if row is None:
        return "none yet"
    values = [f"{k.removeprefix(start)} {figure(row[k])}" for k in row if k.startswith(start)]
    return f"{', '.join(values)}; at {clock_words(row)}"


def _checkpoints(found: Mapping[str, Any]) -> str:
    rows = found["checkpoints"]
    names = [
        f"{r['name']} {size(r['bytes'])}{'' if r['complete'] else ' incomplete'}" for r in rows
    ]
    return ", ".join(names) or "none"


def _disk(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say how much lies on the disk, and which files of the folder are worth reading."""
    names = [os.path.relpath(path, found["folder"]) for path in found["files"].values()]
    return [("disk", size(found["bytes"])), ("files", ", ".join(names))]


def _study_text(console: Console, found: Mapping[str, Any]) -> None:
    cells = found["cells"]
    states = ", ".join(f"{number} {status}" for status, number in sorted(cells.items()))
    name = (
        f"{found['name']}, a smoke: nothing in it is a result" if found["smoke"] else found["name"]
    )
    rows = [
        ("study", f"{found['folder']} ({name})"),
        ("command", _command(found["command"])),
        ("cells", f"{states}; {sum(cells.values())} in all"),
    ]
    for cell in found["running"][:_FEW]:
        share = "" if cell["share"] is None else f" {cell['share']:.0%}"
        rows.append(("running", f"{cell['name']}{share}"))
    for cell in found["failures"][:_FEW]:
        log = f" (log: {cell['log']})" if cell["log"] else ""
        rows.append(("failed", f"{cell['name']}: {cell['reason'] or 'no reason noted'}{log}"))
    for key in ("running", "failures"):
        more = len(found[key]) - _FEW
        rows += [(key, f"and {more} more: --json has them")] if more > 0 else []
    show_rows(console, rows)
    if found["arms"]:
        table = Table("task", "arm", "seeds", "final score", box=None, pad_edge=False)
        for row in found["arms"]:
            table.add_row(row["task"], row["arm"], str(row["seeds"]), estimate(row, "final"))
        console.print(table)
    for words in found["verdict"]:
        console.print(words, highlight=False)
    show_rows(console, _disk(found))
