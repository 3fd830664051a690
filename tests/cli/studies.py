"""A small study for the tests of the command line, and what it leaves."""

import json
from pathlib import Path
from typing import Any

from tests.cli.runs import SMALL
from tests.runs import final
from tests.study.inline import arm_folders, run_study, write_study

__all__ = ["ALL", "ARMS", "PREFIXES", "TINY", "again", "folder_of", "results"]

TINY: dict[str, Any] = SMALL | {
    "total": "100 env_steps",
    "hooks": [],
    "evaluate": {"every": None},
    "metrics": {"every": None},
}
ARMS: dict[str, Any] = {
    "none": {},
    "fire": {"hooks": [{"method": "fire", "at": "50%"}]},
    "reset": {"hooks": [{"method": "full_reset", "at": "75%"}]},
}
PREFIXES = ["seed-3/prefix to 50 env_steps", "seed-3/prefix to 75 env_steps"]
ALL = [PREFIXES[0], "seed-3/fire", PREFIXES[1], "seed-3/none", "seed-3/reset"]


def again(study: Path, arms: Any = None, **keys: Any) -> list[str]:
    """Start a study once more, maybe changed; returns which cells ran."""
    config = write_study(study.parent, TINY, ARMS if arms is None else arms, **keys)
    outcome, started = run_study(config, study)
    assert outcome.code == 0, outcome
    return started


def folder_of(study: Path, name: str) -> Path:
    cells = json.loads((study / "study.json").read_text())["cells"]
    return study / next(c["folder"] for c in cells if c["name"] == name)


def results(study: Path) -> dict[str, dict[str, Any]]:
    return {name: final(folder) for name, folder in arm_folders(study).items()}
