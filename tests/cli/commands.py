"""Runs the command line in this process, and builds the files it is given."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import nn

from rlplast.cli.main import main

__all__ = ["Outcome", "command", "network", "printed", "save", "trained_pair"]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def command(*words: object) -> Outcome:
    """Run `rlplast WORDS…`; usage errors of the parser give their exit code too."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as error:
            code = int(error.code or 0)
    assert "Traceback" not in err.getvalue()
    return Outcome(code, out.getvalue(), err.getvalue())


def printed(*words: object) -> Any:
    """Return what a command prints with `--json`, which must be strict JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    outcome = command(*words, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out, parse_constant=refuse)


def network(seed: int) -> nn.Sequential:
    """A small conv net with a norm layer; its names are in file order in either format."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 4),
        )


def trained_pair(folder: Path, suffix: str = ".pt") -> tuple[Path, Path]:
    """Write (weights, initial weights) of `network`, which differ."""
    files = (folder / f"trained{suffix}", folder / f"initial{suffix}")
    for seed, path in enumerate(files):
        save(network(seed).state_dict(), path)
    return files


def save(state: dict[str, torch.Tensor], path: Path) -> None:
    """Write a state dict in the format of the path's extension."""
    if path.suffix == ".pt":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
