"""A study tried out: the same arms, each for a moment, and what to look at afterwards.

- `shrunk_study`: one seed, and one run of every arm.
- `faults_of`, `unmeasured`: which hooks of a cell did not fire, which metrics nobody measured.

What becomes of a run's own config is `rlplast.run.shrink`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.run.read import read_lines
from rlplast.study.plan import Cell
from rlplast.study.spec import StudyConfig

__all__ = ["faults_of", "shrunk_study", "unmeasured"]

# Metrics that are there only if an arm has what they measure.
_OF_ROWS = {"awake_fraction": "lifecycle", "unit_age": "cbp"}


def shrunk_study(study: StudyConfig) -> StudyConfig:
    """Return a study with one seed, and the first run of each grid and sample.

    All tasks and all arms stay. Cells run here, one thread each, and are not tried again. Nothing
    published is compared with them.
    """
    arms = {name: _first(arm) if arm else arm for name, arm in study.arms.items()}
    study = study.drawn(1)  # of a search one draw
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


def faults_of(cell: Cell, study: Path) -> list[str]:
    """Return what is wrong with a cell that has run to its end: hooks that did not fire."""
    receipts = read_lines(study / cell.folder / "receipts.jsonl")
    fired = {row["method"] for row in receipts}
    listed = dict.fromkeys(row["method"] for row in cell.config.hooks)
    return [f"{method} did not fire" for method in listed if method not in fired]


def unmeasured(cells: Sequence[Cell], study: Path) -> list[str]:
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
