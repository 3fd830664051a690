"""What a study's folder says: its cells by status, what runs, what failed and why."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlplast.core.clock import Time
from rlplast.run.read import last_line, read_info, unaltered
from rlplast.run.show import disk_used, share_done, status_of
from rlplast.study.folder import log_file
from rlplast.study.state import StudyState

__all__ = ["share_of", "show_study"]


def show_study(folder: Path) -> dict[str, Any]:
    """Return what a study's folder says, as JSON can hold it.

    Returns:
        ``cells``: how many there are by status: those of `rlplast.run.show.show_run`, ``failed``
        also if the run never began, ``skipped`` for want of its prefix, ``waiting`` if nothing has
        happened yet; ``running`` (name, folder, ``share``) and ``failures`` (name, ``reason``,
        ``log``); ``bytes`` on disk; ``files``.

    Raises:
        ConfigError: if it is no study's folder.
        DamagedFile: naming the file that is cut or altered.
    """
    state = StudyState(folder)
    study = state.study
    with unaltered(folder):
        fates = {row["key"]: fate for row, fate in state.fates()}
        counts, running, failures = Counter[str](), [], []
        for cell in study["cells"]:
            path, fate = folder / cell["folder"], fates[cell["key"]]
            status = _status(path, fate)
            counts[status] += 1
            log = folder / log_file(cell["folder"])
            about = {"name": cell["name"], "folder": str(path)}
            about["log"] = str(log) if log.exists() else None
            if status == "running":
                running.append(about | {"share": share_of(path, cell)})
            elif status in ("failed", "skipped"):
                reason = state.claims.reason(cell["key"]) if fate == "failed" else None
                failures.append(about | {"reason": reason})
        report = folder / "report" / "report.html"
        return {
            "what": "study",
            "folder": str(folder),
            "name": study.get("name"),
            "command": study.get("command"),
            "smoke": bool(study.get("smoke")),
            "cells": dict(counts),
            "running": running,
            "failures": failures,
            "bytes": disk_used(folder),
            "files": {"logs": str(folder / "logs")}
            | ({"report": str(report)} if report.exists() else {}),
        }


def _status(run: Path, fate: str) -> str:
    """Return a cell's status: its run's, and where that says nothing what workers say."""
    status = status_of(run, read_info(run)) if run.exists() else "absent"
    if fate in ("failed", "skipped") and status != "done":
        return fate
    return {"absent": "running" if fate == "held" else "waiting"}.get(status, status)


def share_of(run: Path, cell: Mapping[str, Any]) -> float | None:
    """Return how much of a running cell is done; None if that is not known."""
    starts, stops = ([Time.parse(text) for text in cell[key]] for key in ("starts", "stops"))
    row = last_line(run / "metrics.jsonl")
    if not stops:
        length = read_info(run).get("length")
        if length is None:  # run.json is not written yet
            return None
        stops = [Time.parse(length["total"])]
    return share_done(row, starts, stops) if row else None
