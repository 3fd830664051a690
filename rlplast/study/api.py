"""Studies as a library: what `rlplast study` does, and Python may."""

import copy
import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.core.validation import check_value
from rlplast.run.build import build, check_hooks_of_processes, check_processes
from rlplast.run.config_file import merged, read_config
from rlplast.run.imports import imported
from rlplast.run.info import command, resume_info, resume_words, versions
from rlplast.run.loggers.logger import check_loggers
from rlplast.run.read import status
from rlplast.run.shipped import find_config
from rlplast.study.claims import Claims
from rlplast.study.executors import Executor, make_executor
from rlplast.study.folder import (
    StudyFolder,
    cell_row,
    check_versions,
    config_path,
    read_study,
)
from rlplast.study.plan import Cell, PlannedRun, plan
from rlplast.study.published import published_curves
from rlplast.study.spec import StudyConfig, runs_of
from rlplast.study.state import pending
from rlplast.study.watch import Failure, Progress, watch
from rlplast.training.config import dump_yaml, read_yaml
from rlplast.training.run_folder import write_text

__all__ = [
    "StudyResult",
    "build_each",
    "executor_of",
    "planned_runs",
    "read_study_config",
    "study",
    "study_cells",
    "study_folder",
    "write_study",
]


_WRITERS = 16  # of configs at the same time


@dataclass(frozen=True)
class StudyResult:
    """How a study ended.

    Attributes:
        folder: the study's.
        cells: the folder of each cell below that → done; failed; skipped, for want of its prefix;
            absent, of a prefix that nothing needs any more.
        failures: why some are not done, and where their logs are.
        began: whether anything was left to do.
    """

    folder: Path
    cells: dict[str, str]
    failures: list[Failure]
    began: bool


def study(
    config: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    executor: str | None = None,
    jobs: int | None = None,
    observer: Callable[[Progress], object] = lambda progress: None,
    report: Callable[[str], object] = lambda text: None,
    step: Callable[[str], object] = lambda text: None,
    planned: Callable[[StudyConfig, list[Cell]], object] = lambda config, cells: None,
    smoke: bool = False,
) -> StudyResult:
    """Run a study, or go on with it, as `rlplast study` does.

    Args:
        config: a path, a shipped name such as ``study/demo``, or a mapping of keys.
        out: the study's folder; default: ``runs/study-NAME``. A mapping needs one.
        executor: local, ray or slurm; default: the config's.
        jobs: runs at the same time; default: the config's, else as many as there is room for.
        observer: called with a `Progress` at every event, and up to five times a second.
        report: called with a line for each environment that cannot be resumed exactly.
        step: called with each step of what is done before the first cell runs.
        planned: called with the study's config and cells, before anything is done.
        smoke: whether reports say that nothing in it is a result.

    Returns:
        The folder, and what has become of each cell. A cell that fails raises nothing.

    Raises:
        ConfigError: naming the key or the arm, its value and what is allowed; or what stands in the
            way of the folder.
        Interrupted: after KeyboardInterrupt, once the running cells have saved.
    """
    keys = read_study_config(config, executor, jobs)
    cells = study_cells(keys)
    planned(keys, cells)
    folder = StudyFolder(study_folder(config, out))
    try:
        if (folder.path / "study.json").exists():
            check_versions(folder.path, read_study(folder.path))
        rows = [cell_row(cell) for cell in cells]
        left = {row["key"] for row in pending(rows, folder.path)}
        for line in build_each([c for c in cells if c.key in left], step, keys.processes):
            report(line)
        workers = executor_of(keys, cells)
        step("writing the plan")
        write_study(folder, keys, cells, config, smoke)
        _try_again(folder.path, left)
        failures = watch(folder.path, cells, workers, observer)
    finally:
        folder.close()
    states = {cell.folder: status(folder.path / cell.folder) for cell in cells}
    states |= {f.cell.folder: "failed" if f.log else "skipped" for f in failures}
    return StudyResult(folder.path, states, failures, bool(left))


def study_folder(source: str | Path | Mapping[str, Any], out: str | Path | None) -> Path:
    """Return where a study goes; ConfigError for a mapping, which has no name, without a folder."""
    if out is not None:
        return Path(out)
    if isinstance(source, Mapping):
        raise ConfigError("out = None: a study that is a mapping has no name; say out=FOLDER")
    return Path("runs") / f"study-{Path(source).stem}"


def read_study_config(
    source: str | Path | Mapping[str, Any],
    executor: str | None = None,
    jobs: int | None = None,
) -> StudyConfig:
    """Return a study's checked config; arguments as of `study`."""
    if jobs is not None:
        check_value("--jobs", jobs, PositiveInt)
    mapped = isinstance(source, Mapping)
    study = StudyConfig.parse(dict(source) if mapped else read_yaml(find_config(str(source))))
    published_curves(study)
    if executor is not None and executor != study.executor.get("kind", "local"):
        study = dataclasses.replace(study, executor={"kind": executor})  # options are another's
    return study if jobs is None else dataclasses.replace(study, jobs=jobs)


def study_cells(study: StudyConfig) -> list[Cell]:
    """Return the cells of a study, every run's config resolved; errors as of `planned_runs`."""
    return plan(planned_runs(study), study.continuations)


def planned_runs(study: StudyConfig) -> list[PlannedRun]:
    """Return the runs of a study with their configs; ConfigError names an arm that is wrong."""
    base = merged(study.base)
    runs, read = [], {}  # seeds differ in nothing else: one of them is read
    for run in runs_of(study):
        try:
            if (run.task, run.arm) not in read:
                read[run.task, run.arm] = config = read_config(base, *run.overrides)
                check_processes(config, study.processes)
        except ConfigError as error:
            raise ConfigError(f"arm {run.arm!r}: {error}") from error
        config = dataclasses.replace(copy.deepcopy(read[run.task, run.arm]), seed=run.seed)
        runs.append(PlannedRun(run.task, run.seed, run.arm, config, study.processes))
    return runs


def build_each(
    left: Sequence[Cell], report: Callable[[str], object] = lambda text: None, processes: int = 1
) -> tuple[str, ...]:
    """Build each arm of each task once, so that errors show before hours of training.

    `report` is called with what is built next. Returns a line for each environment that cannot be
    resumed exactly.

    Raises:
        ConfigError: naming the arm, for whatever its config asks that is not there.
    """
    seen = set()
    levels: dict[str, None] = {}
    tried: dict[str, dict[str, Any]] = {}  # section `env` of a config → what run.json would say
    for cell in left:
        if cell.arm is None or (cell.task, cell.arm) in seen:
            continue
        seen.add((cell.task, cell.arm))
        report(f"checking that every arm can be built: {cell.name}")
        try:
            check_loggers(cell.config)
            trainable, hooks = build(cell.config.to_resume())
            trainable.close()
            check_hooks_of_processes(hooks, processes)
        except RlplastError as error:
            raise ConfigError(f"arm {cell.arm!r}: {error}") from error
        key = repr(getattr(cell.config, "env", None))
        info = tried[key] = resume_info(trainable, tried.get(key, {}))
        found = info.get("environment", {"resume": "exact"})
        if found["resume"] != "exact":
            parts = found["resume"] == "restarted"
            more = "; after the shared prefix each arm begins a new episode" if parts else ""
            levels[f"{found['id']}, after an interruption: {resume_words(info)}{more}"] = None
    return tuple(levels)


def write_study(
    folder: StudyFolder,
    study: StudyConfig,
    cells: Sequence[Cell],
    source: str | Path | Mapping[str, Any],
    smoke: bool = False,
) -> None:
    """Write the plan: configs before study.json, which names them, and says if it is a smoke."""
    if isinstance(source, Mapping):
        name, text = folder.path.name, dump_yaml(dict(source))
    else:
        name, text = Path(source).stem, find_config(str(source)).read_text()
    write_text(folder.path / "study.yaml", text)
    (folder.path / "configs").mkdir(exist_ok=True)

    def write(cell: Cell) -> None:
        path = config_path(folder.path, cell.key)
        text = json.dumps(dataclasses.asdict(cell.config), indent=1)
        if not path.exists() or path.read_bytes() != text.encode():  # edited, or cut short
            write_text(path, text)

    with ThreadPoolExecutor(_WRITERS) as pool:  # most of the time a disk is waited for
        list(pool.map(write, cells))
    arms = list(dict.fromkeys(run.arm for run in runs_of(study)))
    about: dict[str, Any] = {
        "name": name,
        "command": command(),
        "versions": versions(),
        "baseline": study.baseline or ("none" if "none" in arms else None),
        "arms": arms,
        "tasks": list(study.task_list()),
        "seeds": study.seed_list(),
        "smoke": smoke,
        "retries": study.retries,
        "processes": study.processes,
        "threads": max(cell.config.threads for cell in cells),
        "imports": imported(),
        "folder": str(Path.cwd()),
    }
    if study.recovered is not None:
        about["recovered"] = study.recovered
    published = published_curves(study)
    if published:
        about["published"] = [dataclasses.asdict(curve) for curve in published]
    folder.write_plan(about, cells)


def executor_of(study: StudyConfig, cells: Sequence[Cell]) -> Executor:
    """Return the executor that a study names, for its cells; ConfigError if it cannot be had."""
    options = {key: value for key, value in study.executor.items() if key != "kind"}
    threads = max(cell.config.threads for cell in cells)
    kind = study.executor.get("kind", "local")
    return make_executor(kind, study.jobs, threads, options, study.processes)


def _try_again(root: Path, left: Collection[str]) -> None:
    """Free what failed before, and what is left though it was done: its folder is gone."""
    claims = Claims(root, 0)
    claims.look()
    for cell, state in claims.states.items():
        if state in ("failed", "done") and cell in left:
            claim = claims.claim(cell)
            if claim is not None:
                claim.finish("again")
