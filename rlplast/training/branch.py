"""Branching: a new run's folder that goes on from where another one stopped.

A checkpoint's files are hard links: many arms of one prefix take the disk of one.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.core.clock import Time
from rlplast.core.errors import DamagedFile, RlplastError
from rlplast.training import checkpoint
from rlplast.training.files import fsync, link, whole
from rlplast.training.loop import Stage
from rlplast.training.run_folder import LINES, write_json, write_text

__all__ = ["branch_run"]


def branch_run(
    run: Path,
    out: Path,
    config: str,
    info: Mapping[str, Any],
    parents: Sequence[str] = (),
    until: Sequence[Time] = (),
) -> None:
    """Make `out` a run that `resume` continues from the newest checkpoint of `run`.

    Its lines begin with those of `run`, which nobody writes to. It appears whole or not at all.

    Args:
        run: a run's folder.
        out: the new folder; an empty one, or none yet.
        config: the new run's config.yaml.
        info: the new run's run.json, but for its status and where it comes from.
        parents: ids of the runs whose checkpoints it may go on from.
        until: where `run` was to stop; it may have ended before any of them.

    Raises:
        DamagedFile: if `run` has damaged files, or was trained on beyond where `until` stopped it.
        RlplastError: if the disk is full or not writable.
    """
    found = _newest(run)
    state = json.loads((found / "state.json").read_text())
    passed = not until or any(state["clock"][time.unit] >= time.value for time in until)
    # Else hooks that arms do not share may have fired since.
    if state["stage"] != Stage.STEPPED and passed:
        raise DamagedFile(
            f"{run} was trained on beyond where its arms part, to {found.name}: {_remedy(run)}"
        )
    try:
        with whole(out) as temporary:
            (temporary / "checkpoints").mkdir(parents=True)
            # The best one may be an earlier one.
            for path in checkpoint.complete(run / "checkpoints"):
                _link_tree(path, temporary / "checkpoints" / path.name)
            for name in LINES:
                _copy_lines(run / name, temporary / name, state["lengths"][name])
            for events in run.glob("events.*"):
                shutil.copyfile(events, temporary / events.name)
            write_text(temporary / "config.yaml", config)
            origin = {
                "run": os.path.relpath(run, out),
                "checkpoint": found.name,
                "clock": state["clock"],
                "seconds": state["time/seconds"],
                "ids": list(parents),
            }
            write_json(
                temporary / "run.json", {**info, "branched_from": origin, "status": "interrupted"}
            )
            if out.exists():
                shutil.rmtree(out)  # empty but for a lock
        fsync(out.parent)
    except (OSError, RlplastError) as error:
        if isinstance(error, DamagedFile):
            raise
        raise RlplastError(
            f"{out} could not be branched from {run} ({error}): free space or fix permissions"
        ) from error


def _remedy(run: Path) -> str:
    return f"delete {run} and start the study again: it is trained anew"


def _newest(run: Path) -> Path:
    remedy = _remedy(run)
    try:
        found, problems = checkpoint.newest(run / "checkpoints")
    except DamagedFile as error:
        raise DamagedFile(f"{error}; {remedy}") from error
    if problems:
        raise DamagedFile(f"where {run} stopped is lost: {'; '.join(problems)}; {remedy}")
    return found


def _link_tree(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        into = target / path.relative_to(source)
        if path.is_dir():
            into.mkdir(parents=True, exist_ok=True)
            continue
        into.parent.mkdir(parents=True, exist_ok=True)
        link(path, into)
    for folder in (target, *(p for p in target.rglob("*") if p.is_dir())):
        fsync(folder)


def _copy_lines(source: Path, target: Path, length: int) -> None:
    """Copy the lines of the first `length` bytes."""
    text = source.read_bytes() if source.exists() else b""
    if text[length - 1 : length] != b"\n"[:length]:
        raise DamagedFile(
            f"{source}: its checkpoint counts {length} bytes, at which no line ends: it was "
            f"edited, or lines were lost; {_remedy(source.parent)}"
        )
    target.write_bytes(text[:length])
    fsync(target)
