"""A study's folder: its plan, its lock, and what has become of each cell.

    STUDY/study.yaml      the study's config, as given
    STUDY/study.json      format, versions, arms, tasks, seeds, and the cells with their folders
    STUDY/claims/<key>.<n>     who ran which cell when, and how that ended (`rlplast.study.claims`)
    STUDY/configs/<key>.json   each cell's resolved config
    STUDY/logs/…          a log per cell
    STUDY/cells/…         a run's folder per cell

A cell's folder is named by its arm and a hash of its config. So a changed or renamed arm gets
another one, and the others stay.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.validation import validated
from rlplast.run.info import versions
from rlplast.run.read import read_json, status
from rlplast.run.shapes import Study
from rlplast.training.files import lock
from rlplast.training.run_folder import write_json

if TYPE_CHECKING:  # which takes a second to import
    from rlplast.study.plan import Cell

__all__ = [
    "FORMAT",
    "StudyFolder",
    "cell_row",
    "check_versions",
    "config_path",
    "is_done",
    "is_prefix",
    "is_started",
    "lines_of",
    "log_file",
    "read_study",
    "study_of",
]

FORMAT = 1
_EARLY = {".lock", ".study.yaml.tmp"}  # before the config
_FIRST = {*_EARLY, "study.yaml", "configs", ".study.json.tmp"}  # before the plan


def read_study(path: Path) -> dict[str, Any]:
    """Return what study.json says.

    Raises:
        ConfigError: if the folder is no study's, or of a version that this one cannot read.
        DamagedFile: if the file is cut or altered.
    """
    file, remedy = path / "study.json", "restore it, or choose another --out"
    if not file.exists():
        raise ConfigError(f"{path} is no study's folder: it has no study.json")
    try:
        study = read_json(file)
    except DamagedFile as error:
        raise DamagedFile(f"{file} is damaged ({error}): {remedy}") from error
    if isinstance(study.get("format"), int) and study["format"] != FORMAT:
        versions = study.get("versions")
        by = versions.get("rlplast") if isinstance(versions, dict) else "another version"
        raise ConfigError(
            f"{path} has study format {study['format']}, written by rlplast {by}: this version "
            f"reads {FORMAT}; use that version, or another --out"
        )
    try:
        validated(Study, study, file.name)
    except ConfigError as error:
        raise DamagedFile(f"{file} is damaged: {error}; {remedy}") from error
    return study


def check_versions(path: Path, study: Mapping[str, Any]) -> None:
    """Check that a study was begun with the versions that are here; else raise ConfigError.

    `study` is what study.json in the folder `path` says. Compared arms come from one version.
    """
    here = versions()
    for package in ("rlplast", "torch"):
        began = study["versions"].get(package)
        if began != here.get(package):
            raise ConfigError(
                f"{path} was begun with {package} {began}, this is {here.get(package)}: runs of "
                "one comparison should come from one version; install that one, or choose another "
                "--out"
            )


def study_of(run: Path) -> Path | None:
    """Return the study that a run's folder is a cell of; None if it is none's."""
    for path in (run.absolute(), run.resolve()):  # cells may be kept elsewhere, behind a link
        for study in path.parents:
            if (study / "study.json").is_file() and study / "cells" in path.parents:
                return study
    return None


def is_prefix(study: Path, run: Path) -> bool:
    """Whether a run's folder is one of a study's prefixes."""
    prefixes = (cell for cell in read_study(study)["cells"] if cell["kind"] == "prefix")
    return any((study / cell["folder"]).resolve() == run.resolve() for cell in prefixes)


def is_done(folder: Path) -> bool:
    """Whether a cell's run has come to its end."""
    return status(folder) == "done"


def is_started(folder: Path) -> bool:
    """Whether a cell's run has begun and needs its prefix no more."""
    return (folder / "run.json").is_file()


def config_path(study: Path, key: str) -> Path:
    """Return where the config of a cell lies."""
    return study / "configs" / f"{key}.json"


def log_file(cell_folder: str) -> str:
    """Return where a cell's output goes, below the study's folder, given the cell's folder."""
    return f"logs/{cell_folder.removeprefix('cells/').replace('/', '_')}.log"


def lines_of(log: Path) -> list[str]:
    """Return the lines of a log that say something; none if somebody has deleted it."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line.strip() for line in text.splitlines() if line.strip()]


def cell_row(cell: "Cell") -> dict[str, Any]:
    """Return a cell as study.json lists it."""
    return {
        "key": cell.key,
        "kind": "prefix" if cell.arm is None else "arm",
        "task": cell.task,
        "seed": cell.seed,
        "arm": cell.arm,
        "continuation": cell.config.continuation,
        "name": cell.name,
        "folder": cell.folder,
        "parent": cell.parent,
        "starts": [str(time) for time in cell.starts],
        "stops": [str(time) for time in cell.stops],
    }


class StudyFolder:
    """The one writer of a study's folder, which it makes and locks.

    Raises:
        ConfigError: if another study runs in it, it holds something else, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._refuse_foreign()
            self.path.mkdir(parents=True, exist_ok=True)
            taken = lock(self.path / ".lock")
        except OSError as error:
            raise ConfigError(
                f"--out {self.path} cannot be written: {error}; choose another one"
            ) from error
        if taken is None:
            raise ConfigError(
                f"{self.path} is in use by another study: wait for it, help it with `rlplast work "
                f"{self.path}`, or choose another --out"
            )
        self._lock = taken

    def _refuse_foreign(self) -> None:
        """Refuse a folder that holds something else, before a lock is left in it."""
        other = study_of(self.path)
        if other is not None:
            raise ConfigError(
                f"--out {self.path} lies among the cells of the study {other}: choose another one"
            )
        names = {p.name for p in self.path.iterdir()} if self.path.exists() else set()
        begun = "study.json" in names or ("study.yaml" in names and names <= _FIRST)
        if not begun and not names <= _EARLY:
            raise ConfigError(
                f"--out {self.path} is not empty and no study's folder: choose another one"
            )

    def write_plan(self, about: Mapping[str, Any], cells: "Sequence[Cell]") -> None:
        """Write study.json; a cell's weight is what it costs in whole runs."""
        from rlplast.study.plan import weights

        costs = weights(cells)
        rows = [cell_row(cell) | {"weight": round(costs[cell.key], 6)} for cell in cells]
        write_json(self.path / "study.json", {"format": FORMAT, **about, "cells": rows})

    def close(self) -> None:
        """Unlock; a folder that nothing was written to is removed."""
        if self.path.is_dir() and [p.name for p in self.path.iterdir()] == [".lock"]:
            (self.path / ".lock").unlink()
            self.path.rmdir()
        self._lock.close()
