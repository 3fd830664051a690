"""What a study will take: `plan_study` → a `StudyPlan`. It keeps nothing, and needs no data.

Counts follow from the configs; seconds from cells that have run, else from steps made here.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.run.length import agent_at, length
from rlplast.run.read import read_lines
from rlplast.run.timing import paced, ready, updates, variables
from rlplast.study import api
from rlplast.study.plan import Cell, weights
from rlplast.study.smoke import smoke_study
from rlplast.study.spec import StudyConfig

__all__ = ["StudyPlan", "estimate", "plan_study"]

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # nothing is fetched


@dataclass(frozen=True)
class StudyPlan:
    """What a study will take, and what stands in its way.

    Attributes:
        config: the study's keys.
        cells: its cells.
        takes: what each takes, by its key, as of `estimate`.
        notes: where seconds come from; folders that runs read and that are not there; environments
            that cannot be resumed exactly.
        problem: why an arm cannot be built here, or the executor cannot be had.
    """

    config: StudyConfig
    cells: list[Cell]
    takes: dict[str, Counter[str]]
    notes: list[str]
    problem: ConfigError | None


def plan_study(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    executor: str | None = None,
    jobs: int | None = None,
) -> StudyPlan:
    """Plan a study; arguments and errors as of `rlplast.study`."""
    study, problem = api.read_study_config(source, executor, jobs), None
    cells = api.study_cells(study)
    with variables(**_OFFLINE):
        takes, notes = estimate(cells, api.study_folder(source, out))
        try:
            keys, _, replaced = smoke_study(study)  # which needs no data
            folders = {Path(text): key for text, key in replaced.items() if "/" in text}
            notes += [f"not there yet: {f} ({k})" for f, k in folders.items() if not f.exists()]
            small = api.study_cells(StudyConfig.parse(keys))
            notes += api.build_each(small, processes=study.processes)
            api.executor_of(study, cells).stop()
        except ConfigError as error:
            problem = error
    return StudyPlan(study, cells, takes, notes, problem)


def estimate(cells: Sequence[Cell], folder: Path) -> tuple[dict[str, Counter[str]], list[str]]:
    """Return what each cell takes, by its key, and in words where that comes from.

    These are ``env_steps``, ``updates`` and, if a rate is known, ``seconds`` of one process with
    the run's threads. A task's rate is that of its cells in `folder` that have run; else its first
    run is timed here.
    """
    found, notes, taken = dict[str, Counter[str]](), list[str](), _steps(cells)
    for task in dict.fromkeys(cell.task for cell in cells):
        own = [cell for cell in cells if cell.task == task]
        ran = sum((_taken(folder / cell.folder) for cell in own), Counter[str]())
        where, rate = f"from cells in {folder}", dict[str, float]()
        try:
            if ran["updates"]:
                rate = {"updates": ran["seconds"] / ran["updates"]}
            else:
                where, rate = "timed here, eager", _timed_here(own[0].config)
            words = ", ".join(f"{1e3 * seconds:.3g} ms for {u}" for u, seconds in rate.items())
        except Exception as error:  # environments and networks of users may raise anything
            where, words = "no estimate of time", str(error)
        notes.append(f"{task or 'seconds'}, {where}: {words}")
        for cell in own:
            takes = taken[cell.key]
            seconds = sum(takes[unit] * each for unit, each in rate.items())
            found[cell.key] = Counter(takes | ({"seconds": seconds} if rate else {}))
    return found, notes


def _steps(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Return the env_steps and updates that each cell makes, by its key."""
    shares, found = weights(cells), dict[str, dict[str, float]]()
    ends: dict[str | None, tuple[float, float]] = {None: (0.0, 0.0)}  # of agents
    for cell in cells:  # a prefix comes before what goes on from it
        config: Any = cell.config
        whole = length(config)
        if not hasattr(config, "agent"):
            found[cell.key] = {"updates": shares[cell.key] * whole.get("updates", 0.0)}
            continue
        env_steps = math.ceil(whole["env_steps"] / config.env.num_envs) * config.env.num_envs
        stops = [agent_at(config, time) for time in cell.stops]
        end = min(stops or [(env_steps, whole.get("updates", 0.0))])
        steps, updates = (a - b for a, b in zip(end, ends[cell.parent], strict=True))
        found[cell.key], ends[cell.key] = {"env_steps": steps, "updates": updates}, end
    return found


def _taken(run: Path) -> Counter[str]:
    """Return the seconds and updates of a run, its prefix's too; nothing of one without any."""
    with suppress(RlplastError, LookupError):
        last = [row for row in read_lines(run / "metrics.jsonl") if "time/seconds" in row][-1]
        return Counter({"seconds": last["time/seconds"], "updates": last["updates"]})
    return Counter()


def _timed_here(config: Any) -> dict[str, float]:
    """Return the seconds of an update, and of an agent's env_step."""
    trainable, _ = ready(config.to_resume(), "off")
    sides, counts = {"updates": updates(trainable)}, {"updates": 1}
    if hasattr(trainable, "experience"):  # whose environments step together
        sides["env_steps"] = lambda n: [trainable._environment_step() for _ in range(n)]
        counts["env_steps"] = config.env.num_envs
    try:
        return {unit: times[0] / counts[unit] for unit, times in paced(sides, 1).items()}
    finally:
        trainable.close()
