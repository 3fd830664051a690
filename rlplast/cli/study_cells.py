"""From a study's config to its cells: shared by what runs a study, tries it out, or plans it.

- `read_study_config`: a path or shipped name → a checked study.
- `study_cells`: its cells, every run's config resolved.
- `cells_of`: the cells of some runs of it, such as a trial's.
- `build_each`: whether every arm can be built.
- `study_folder`: where the command's study goes; `write_study`: its plan, into that folder.
"""

import argparse
import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlplast.cli.cell import config_path
from rlplast.core.errors import ConfigError, RlplastError
from rlplast.run.build import build, check_hooks_of_processes, check_processes
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.info import command, resume_info, resume_words, versions
from rlplast.run.loggers.logger import check_loggers
from rlplast.run.shipped import find_config
from rlplast.study.folder import StudyFolder
from rlplast.study.plan import Cell, PlannedRun, plan
from rlplast.study.published import published_curves
from rlplast.study.spec import ArmRun, StudyConfig, runs_of
from rlplast.training.config import read_yaml
from rlplast.training.run_folder import write_text

__all__ = [
    "build_each",
    "cells_of",
    "planned_runs",
    "read_study_config",
    "study_cells",
    "study_folder",
    "write_study",
]


def read_study_config(source: str) -> StudyConfig:
    """Return a study's checked config from a path or a shipped name.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    study = StudyConfig.parse(read_yaml(find_config(source)))
    published_curves(study)
    return study


def study_cells(study: StudyConfig) -> list[Cell]:
    """Return the cells of a study, every run's config resolved.

    Raises:
        ConfigError: naming the arm whose config is wrong.
    """
    return plan(planned_runs(study))


def study_folder(args: argparse.Namespace) -> Path:
    """Return where the study of a command goes: --out, or by default runs/study-NAME."""
    return Path(args.out) if args.out else Path("runs") / f"study-{Path(args.config).stem}"


def planned_runs(study: StudyConfig) -> list[PlannedRun]:
    """Return the runs of a study, their configs resolved.

    Raises:
        ConfigError: naming the arm whose config is wrong.
    """
    return _resolved(study, runs_of(study))


def cells_of(study: StudyConfig, arm_runs: Sequence[ArmRun]) -> list[Cell]:
    """Return the cells of some runs of a study, every config resolved.

    Raises:
        ConfigError: naming the arm whose config is wrong.
    """
    return plan(_resolved(study, arm_runs))


def _resolved(study: StudyConfig, arm_runs: Sequence[ArmRun]) -> list[PlannedRun]:
    runs, read = [], {}  # seeds differ in nothing else: one of them is read
    for run in arm_runs:
        try:
            if (run.task, run.arm) not in read:
                read[run.task, run.arm] = config = read_config(study.base, *run.overrides)
                check_processes(config, study.processes)
        except ConfigError as error:
            raise ConfigError(f"arm {run.arm!r}: {error}") from error
        config = dataclasses.replace(copy.deepcopy(read[run.task, run.arm]), seed=run.seed)
        runs.append(PlannedRun(run.task, run.seed, run.arm, config, study.processes))
    return runs


def build_each(
    left: Sequence[Cell], told: Callable[[str], None] = lambda text: None, processes: int = 1
) -> tuple[str, ...]:
    """Build each arm of each task once, before hours are spent on what it goes on from.

    Args:
        left: the cells.
        told: called with what is built next.
        processes: that train each together.

    Returns:
        A line for each environment that cannot be resumed exactly.

    Raises:
        ConfigError: naming the arm, for whatever its config asks that is not there.
    """
    seen = set()
    levels: dict[str, None] = {}
    for cell in left:
        if cell.arm is None or (cell.task, cell.arm) in seen:
            continue
        seen.add((cell.task, cell.arm))
        told(f"checking that every arm can be built: {cell.name}")
        try:
            check_loggers(cell.config)
            trainable, hooks = build(cell.config.to_resume())
            trainable.close()
            check_hooks_of_processes(hooks, processes)
        except RlplastError as error:
            raise ConfigError(f"arm {cell.arm!r}: {error}") from error
        info = resume_info(trainable)
        found = info.get("environment", {"resume": "exact"})
        if found["resume"] != "exact":
            parts = found["resume"] == "restarted"
            more = "; after the shared prefix each arm begins a new episode" if parts else ""
            levels[f"{found['id']}, after an interruption: {resume_words(info)}{more}"] = None
    return tuple(levels)


def write_study(
    folder: StudyFolder, study: StudyConfig, cells: Sequence[Cell], source: str, smoke: bool = False
) -> None:
    """Write the plan: configs before study.json, which names them, and says if it is a smoke."""
    write_text(folder.path / "study.yaml", find_config(source).read_text())
    (folder.path / "configs").mkdir(exist_ok=True)
    for cell in cells:
        path = config_path(folder.path, cell.key)
        text = dump_config(cell.config)
        if not path.exists() or path.read_bytes() != text.encode():  # edited, or cut short
            write_text(path, text)
    trials = (cell.arm for cell in cells if cell.arm is not None)
    arms = list(dict.fromkeys([*(run.arm for run in runs_of(study)), *trials]))
    about: dict[str, Any] = {
        "name": Path(source).stem,
        "command": command(),
        "versions": versions(),
        "baseline": study.baseline or ("none" if "none" in arms else None),
        "arms": arms,
        "tasks": list(study.task_list()),
        "seeds": study.seed_list(),
        "smoke": smoke,
    }
    published = published_curves(study)
    if published:
        about["published"] = [dataclasses.asdict(curve) for curve in published]
    folder.write_plan(about, cells)
