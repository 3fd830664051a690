"""A study tried out: the same arms, a few steps each, on meaningless data.

Nothing that comes out is a result. It shows that each arm runs: that packages are there, hooks
fire and metrics are measured.

- `run_smoke`: does that, and looks at what came out → a `Smoke`.
- `shrunk_study`: one seed, and one run of every arm; `smoke_runs`: these runs, made small.

What becomes of a run's own config is `rlplast.run.shrink`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, Interrupted
from rlplast.run.info import versions
from rlplast.run.read import read_lines
from rlplast.run.shrink import make_start, shrunk, sources
from rlplast.study.api import (
    build_each,
    planned_runs,
    read_study_config,
    run_workers,
    write_study,
)
from rlplast.study.claims import Claims
from rlplast.study.executors import make_executor
from rlplast.study.folder import StudyFolder
from rlplast.study.plan import Cell, PlannedRun, plan
from rlplast.study.spec import StudyConfig
from rlplast.study.watch import Failure, Progress
from rlplast.training.run_folder import numbered

__all__ = ["Smoke", "run_smoke", "shrunk_study", "smoke_folder", "smoke_runs"]

# Metrics that are there only if an arm has what they measure.
_OF_ROWS = {"awake_fraction": "lifecycle", "unit_age": "cbp"}


@dataclass(frozen=True)
class Smoke:
    """What came out of a study that was tried out.

    Attributes:
        folder: the study's.
        cells: of each its name, the seconds it took, if it ran, and what is wrong with it.
        same: a run that was left out → the run that it equals when made small.
        unmeasured: metrics that arms list and nobody measured.
        untried: what arms read from outside and these runs did not.
        ran: whether any cell came to its end, so that there is something to report.
    """

    folder: Path
    cells: list[tuple[str, float | None, list[str]]]
    same: dict[str, str]
    unmeasured: list[str]
    untried: list[str]
    ran: bool

    @property
    def faults(self) -> int:
        """How many faults there are."""
        return sum(len(wrong) for _, _, wrong in self.cells) + len(self.unmeasured)


def smoke_folder(source: str | Path, out: str | Path | None) -> Path:
    """Return the folder of a smoke: a new one, since an old one may be of other code.

    Raises:
        ConfigError: if `out` is not empty.
    """
    if out is None:
        path = Path("runs") / f"smoke-{Path(source).stem}"
        return numbered(path.with_name(f"{path.name}-")) if path.exists() else path
    path = Path(out)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"--out {path} is not empty: --smoke begins anew, choose another one")
    return path


def run_smoke(
    source: str | Path,
    path: Path,
    jobs: int | None = None,
    observer: Callable[[Progress], object] = lambda progress: None,
    step: Callable[[str], object] = lambda text: None,
) -> Smoke:
    """Try a study out, as many cells at once as there are cores.

    Args:
        source: a file or a shipped name.
        path: as of `smoke_folder`.
        jobs: cells at the same time, at most.
        observer: called with the progress at every event, and about twice a second.
        step: called with each step of what is done before the first cell runs.

    Raises:
        ConfigError: naming the arm that cannot be built.
        Interrupted: after KeyboardInterrupt.
    """
    study = shrunk_study(read_study_config(source, jobs=jobs))
    runs, same = smoke_runs(study, path / "start")
    cells = plan(runs)
    folder = StudyFolder(path)
    try:
        folder.open_for(versions())
        build_each(cells, step)
        for run in runs:
            make_start(run.config)
        write_study(folder, study, cells, source, smoke=True)
        try:
            failures = run_workers(folder, cells, make_executor("local", jobs, 1, {}), observer)
        except Interrupted:
            message = f"stopped; nothing of {path} is of use: delete it"
            raise Interrupted(message) from None
    finally:
        folder.close()
    return _judged(cells, failures, path, same, _untried(study))


def _judged(
    cells: Sequence[Cell],
    failures: Sequence[Failure],
    path: Path,
    same: dict[str, str],
    untried: list[str],
) -> Smoke:
    """Look at what cells have left."""
    claims = Claims(path, 0)
    claims.look()
    reasons = {failure.cell.key: failure.reason for failure in failures}
    rows = []
    for cell in cells:
        wrong = [reasons[cell.key]] if cell.key in reasons else []
        if not wrong and cell.arm is not None:
            wrong = _faults_of(cell, path)
        rows.append((cell.name, _seconds(claims, cell), wrong))
    arms = [cell for cell in cells if cell.key not in reasons and cell.arm is not None]
    ran = len(failures) < len(cells)
    return Smoke(path, rows, same, _unmeasured(arms, path), untried, ran)


def _seconds(claims: Claims, cell: Cell) -> float | None:
    attempts = claims.attempts.get(cell.key)
    return attempts[-1].row.get("seconds") if attempts else None


def _untried(study: StudyConfig) -> list[str]:
    """Return what the runs of a study read from outside, and small ones do not."""
    read = (sources(run.config).items() for run in planned_runs(study))
    return list(dict.fromkeys(f"{key}: {source}" for row in read for key, source in row))


def smoke_runs(study: StudyConfig, starts: Path) -> tuple[list[PlannedRun], dict[str, str]]:
    """Return a study's runs made small, and which are left out since they are equal to another.

    Runs to start from are looked for in the folder `starts`.

    Raises:
        ConfigError: naming the arm whose config is wrong.
    """
    first: dict[str, PlannedRun] = {}
    same: dict[str, str] = {}
    for run in planned_runs(study):
        try:
            config = shrunk(run.config, starts.resolve())
        except ConfigError as error:
            raise ConfigError(f"arm {run.arm!r}, made small: {error}") from error
        small = PlannedRun(run.task, run.seed, run.arm, config)
        key = json.dumps(vars(config), default=vars, sort_keys=True)
        other = first.setdefault(key, small)
        if other is not small:
            same[_name(small)] = _name(other)
    return list(first.values()), same


def _name(run: PlannedRun) -> str:
    return "/".join(part for part in (run.task, f"seed-{run.seed}", run.arm) if part)


def shrunk_study(study: StudyConfig) -> StudyConfig:
    """Return a study with one seed, and the first run of each grid and sample.

    All tasks and all arms stay. Cells run here, one thread each, and are not tried again. Nothing
    published is compared with them.
    """
    arms = {name: _first(arm) if arm else arm for name, arm in study.arms.items()}
    smaller = dataclasses.replace(
        study,
        seeds=study.seed_list()[:1],
        arms=arms,
        baseline=None,
        published=None,
        threads=1,
        jobs=None,
        retries=0,
        executor={"kind": "local"},
    )
    kept = [name for name, _ in smaller.expanded()]
    return dataclasses.replace(smaller, baseline=study.baseline if study.baseline in kept else None)


def _first(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Return an arm that stands for one run."""
    arm = dict(arm)
    if arm.get("grid"):
        arm["grid"] = {key: values[:1] for key, values in arm["grid"].items()}
    if arm.get("sample"):
        arm["sample"] = {**arm["sample"], "count": 1}
    return arm


def _faults_of(cell: Cell, study: Path) -> list[str]:
    """Return what is wrong with a cell that has run to its end: hooks that did not fire."""
    receipts = read_lines(study / cell.folder / "receipts.jsonl")
    fired = {row["hook"] for row in receipts}
    keys = zip(cell.config.hooks, cell.config.hook_keys(), strict=True)
    missing = [(i, row["method"]) for i, (row, key) in enumerate(keys) if key not in fired]
    return [f"hooks[{i}] ({method}) did not fire" for i, method in missing]


def _unmeasured(cells: Sequence[Cell], study: Path) -> list[str]:
    """Return the metrics that cells list and no cell that lists them has measured."""
    listed: dict[str, bool] = {}
    for cell in cells:
        if cell.config.metrics.every is None:
            continue
        keys = {key for row in read_lines(study / cell.folder / "metrics.jsonl") for key in row}
        measured = {key.split("/")[1] for key in keys if key.startswith("metric/")}
        for name in cell.config.metrics.names:
            listed[name] = listed.get(name, False) or name in measured
    methods = {row["method"] for cell in cells for row in (*cell.config.layers, *cell.config.hooks)}
    return [
        name
        for name, found in listed.items()
        if not found and _OF_ROWS.get(name) in (None, *methods)
    ]
