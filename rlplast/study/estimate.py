"""What a study will take. It keeps nothing and needs no data.

- `plan_study`: its cells, what each takes, and what stands in the way → a `StudyPlan`.
- `estimate`: what cells take.

Counts follow from the configs. Cells that have run say how fast others are; else some steps of the
run are timed here.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, RlplastError
from rlplast.run.length import env_steps_at, updates_at
from rlplast.run.rates import timed_here
from rlplast.run.read import read_info, read_lines
from rlplast.run.shrink import sources
from rlplast.study.api import (
    build_each,
    executor_of,
    read_study_config,
    study_cells,
    study_folder,
)
from rlplast.study.folder import cell_row, is_started
from rlplast.study.plan import Cell, plan
from rlplast.study.show import share_of
from rlplast.study.smoke import shrunk_study, smoke_runs
from rlplast.study.spec import StudyConfig
from rlplast.study.state import pending
from rlplast.training.config import RunConfig

__all__ = ["StudyPlan", "estimate", "plan_study"]

_OF_A_HUB = ("data.huggingface.path", "model.pretrained")  # no folders, or not for certain
_SECONDS = 3.0  # after which no further config is timed
_SAME_SPEED = ("seed", "continuation", "total", "log", "evaluate", "metrics", "checkpoint")


@dataclass(frozen=True)
class StudyPlan:
    """What a study will take, and what stands in its way.

    Attributes:
        config: the study's keys.
        cells: its cells.
        takes: what each takes by its key, as of `estimate`.
        left: by key, the share that is left of each cell that has something left to do; None if no
            cell has begun.
        basis: where that comes from, in a sentence.
        absent: folders that runs read and that are not there.
        not_installed: packages that arms need, in words.
        levels: a line for each environment that cannot be resumed exactly.
        problem: why an arm cannot be built, or the executor cannot be had.
    """

    config: StudyConfig
    cells: list[Cell]
    takes: dict[str, Counter[str]]
    left: dict[str, float] | None
    basis: str
    absent: tuple[str, ...]
    not_installed: tuple[str, ...]
    levels: tuple[str, ...]
    problem: ConfigError | None


def plan_study(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    executor: str | None = None,
    jobs: int | None = None,
) -> StudyPlan:
    """Plan a study; arguments and errors as of `rlplast.study`."""
    study = read_study_config(source, executor, jobs)
    cells = study_cells(study)
    folder = study_folder(source, out)
    takes, basis = estimate(cells, folder)
    absent = dict.fromkeys(name for cell in cells for name in _absent(cell.config))
    problem, lacking, levels = None, set[str](), dict[str, None]()
    try:
        _check_arms(study, lacking, levels)
        executor_of(study, cells).stop()
    except ConfigError as error:
        problem = error
    found = tuple(absent), tuple(sorted(lacking)), tuple(levels)
    return StudyPlan(study, cells, takes, _left(cells, folder), basis, *found, problem)


def _left(cells: Sequence[Cell], folder: Path) -> dict[str, float] | None:
    """Return the share that is left of the cells that are not done, by their key."""
    if not any(is_started(folder / cell.folder) for cell in cells):
        return None
    return {
        row["key"]: 1 - (share_of(folder / row["folder"], row) or 0.0)
        for row in pending([cell_row(cell) for cell in cells], folder)
    }


def _absent(config: RunConfig) -> list[str]:
    """Return the folders that a run reads and that are not there."""
    named = {key: s for key, s in sources(config).items() if key not in _OF_A_HUB}
    return [f"{s} ({key})" for key, s in named.items() if not Path(s).expanduser().is_dir()]


def _check_arms(study: StudyConfig, lacking: set[str], levels: dict[str, None]) -> None:
    """Build every arm, made small, so that no data are needed; note what is not installed."""
    for run in smoke_runs(shrunk_study(study), Path())[0]:
        try:
            levels |= dict.fromkeys(build_each(plan([run]), processes=study.processes))
        except ConfigError as error:
            if not _for_want_of_a_package(error):
                raise
            lacking.add(str(error).partition(": ")[2])


def _for_want_of_a_package(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ImportError):
            return True
        error = error.__cause__
    return False


def estimate(cells: Sequence[Cell], folder: Path) -> tuple[dict[str, Counter[str]], str]:
    """Return what each cell takes, by its key, and a sentence that says where that comes from.

    Of a cell these are ``env_steps``, ``updates`` and, if a rate is known, ``seconds`` of one
    process with the run's threads. As long as none has run, also ``disk``, in bytes.

    Args:
        cells: of a study.
        folder: the study's, in which some may have run.
    """
    alike: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        alike[_speed_key(cell.config)].append(cell)
    rates: dict[str, dict[str, float]] = {}
    ran, problem, until = 0, "", time.perf_counter() + _SECONDS
    for key, own in alike.items():
        runs = [_taken(folder / cell.folder) for cell in own]
        seconds, updates = (sum(column) for column in zip(*runs, strict=True))
        try:
            if updates:
                rates[key], ran = {"updates": seconds / updates}, ran + 1
            elif not rates or time.perf_counter() < until:
                rates[key] = timed_here(own[0].config)
        except Exception as error:  # environments and networks of users may raise anything
            message = str(error) if isinstance(error, RlplastError) else repr(error)
            problem = problem or shorten(message, 300)
    first = next(iter(rates.values()), {})
    found = {
        c.key: _of_cell(c, rates.get(key, first), ran) for key, own in alike.items() for c in own
    }
    if not rates:
        return found, f"no estimate of time and disk: {problem}"
    here = (
        "timed here, without compilation, evaluations, metrics, writing, hooks outside of updates"
    )
    counts = {f"from cells of {folder}": ran, here: len(rates) - ran}
    counts |= {"taken for like the first": len(alike) - len(rates)}
    words = [f"{count} of {len(alike)} configs {how}" for how, count in counts.items() if count]
    words += [f"{1e3 * first[u]:.3g} ms for {u}" for u in ("env_steps", "updates") if u in first]
    return found, "; ".join([f"basis: {words[0]}", *words[1:], *([problem] if problem else [])])


def _speed_key(config: Any) -> str:
    """Return the keys that decide a run's speed; of hooks only those inside updates."""
    keys = {k: v for k, v in vars(config).items() if k not in _SAME_SPEED}
    keys["hooks"] = [row for row in config.hooks if row.get("every") == "1 updates"]
    return json.dumps(keys, default=vars, sort_keys=True)


def _taken(run: Path) -> tuple[float, int]:
    """Return seconds and updates of a run, without its prefix; 0 where there is none."""
    try:
        last = next(r for r in read_lines(run / "metrics.jsonl")[::-1] if "time/seconds" in r)
        origin = read_info(run).get("branched_from") or {"seconds": 0.0, "clock": {"updates": 0}}
        updates = last["updates"] - origin["clock"]["updates"]
        return (last["time/seconds"] - origin["seconds"], updates) if updates > 0 else (0.0, 0)
    except (RlplastError, LookupError, TypeError, StopIteration):  # it has not begun, or is damaged
        return 0.0, 0


def _of_cell(cell: Cell, rates: Mapping[str, float], ran: int) -> Counter[str]:
    config: Any = cell.config
    total = config.total_time()

    def between(count: Callable[[Any, Time], float]) -> float:
        start = min((count(config, time) for time in cell.starts), default=0.0)
        stop = min(count(config, time) for time in cell.stops or (total,))
        return max(0.0, min(stop, count(config, total)) - start)

    counts = {"env_steps": between(env_steps_at), "updates": between(updates_at)}
    found: Any = Counter(counts)
    if rates:
        found["seconds"] = sum(n * rates.get(unit, 0.0) for unit, n in counts.items())
    if "checkpoint" in rates and not ran:
        every = config.intervals()
        kept = 1 if cell.arm is None else every.keep + (every.best is not None)
        held = min(config.agent.buffer_size, counts["env_steps"]) if "row" in rates else 0
        found["disk"] = kept * rates["checkpoint"] + held * rates.get("row", 0.0)
        found["disk"] += 0.0 if cell.parent else rates["initial"]
    return found
