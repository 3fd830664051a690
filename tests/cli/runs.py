"""Small runs for the tests of the command line, and how to read what they leave."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.cli.commands import Outcome, command

__all__ = ["SMALL", "files", "jsonl", "refused", "small_config", "trained", "untimed"]

SMALL: dict[str, Any] = {
    "kind": "dqn",
    "seed": 3,
    "total": "200 env_steps",
    "env": {"id": "gym/CartPole-v1", "num_envs": 2},
    "replay_ratio": 0.5,
    "optimizer": {"lr": 1e-3},
    "agent": {"batch_size": 8, "initial_steps": 40, "target_every": 50},
    "hooks": [{"method": "fire", "at": "50%", "params": {"iterations": 3}}],
    "log": {"every": "10%", "to": []},
    "evaluate": {"every": "50%", "episodes": 3},
    "metrics": {"every": "50%", "batch_size": 16},
    "checkpoint": {"every": "25%", "keep": 2},
}


def small_config(folder: Path, **changes: Any) -> Path:
    """Write `SMALL` with some top-level keys replaced; returns the file."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | changes))
    return path


def trained(folder: Path, *words: object, **changes: Any) -> Path:
    """Train to the end; returns the run's folder."""
    run = folder / "run"
    outcome = command("train", small_config(folder, **changes), "--out", run, *words)
    assert outcome.code == 0, outcome
    return run


def jsonl(path: Path) -> list[dict[str, Any]]:
    """Read strict JSON lines."""

    def refuse(constant: str):
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def files(folder: Path) -> dict[str, bytes]:
    """Relative path and content of every file."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


PROGRESS = re.compile(r"(starting|training|evaluating|measuring|saving|compiling)\b.*")


def refused(outcome: Outcome, code: int = 2) -> str:
    """Check the form of a refusal; returns its message."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    # a run of more than 4 s, on a busy machine, has said its progress before
    lines = [line for line in outcome.err.splitlines() if not PROGRESS.match(line)]
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("rlplast: ")
    return lines[0].removeprefix("rlplast: ")
