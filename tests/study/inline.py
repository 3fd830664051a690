"""Studies of a second or two, run in this process: no time is spent on starting others."""

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from rlplast.study import cell
from rlplast.study.executors import Backend, Executor, Job
from tests.cli.commands import Outcome, command

Fault = Callable[[str, int], int | None]


class InlineBackend(Backend):
    """Runs a cell when it is started, to its end.

    Args:
        fault: called with a cell's name and the number of its attempt; an exit code that it
            returns is the attempt's, and the cell does not run. It may raise KeyboardInterrupt.
    """

    pause = 0.0

    def __init__(self, fault: Fault = lambda name, attempt: None) -> None:
        self.fault = fault
        self.started: list[str] = []

    def start(self, job: Job) -> tuple[int, str]:
        self.started.append(job.name)
        code = self.fault(job.name, self.started.count(job.name))
        if code is not None:
            return code, ""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = cell.main(job.command)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("a") as log:
            log.write(f"=== attempt {len(self.started)}\n{output.getvalue()}")
        return code, ""

    def ended(self, handle: tuple[int, str]) -> tuple[int, str]:
        return handle

    def end(self, handle: Any, force: bool) -> None: ...


@contextlib.contextmanager
def inline(fault: Fault = lambda name, attempt: None) -> Iterator[InlineBackend]:
    """Have studies run their cells in this process; yields what tells which were started."""
    backend = InlineBackend(fault)

    def make(
        kind: str, jobs: int | None, threads: int, options: Any, main: Any, processes: int
    ) -> Executor:
        return Executor(backend, jobs or 1)

    with mock.patch("rlplast.study.api.make_executor", make):
        yield backend


def run_study(
    config: Path, out: Path, *words: object, fault: Fault = lambda name, attempt: None
) -> tuple[Outcome, list[str]]:
    """Run a study here; returns what the command gave, and the names of the cells it started."""
    with inline(fault) as backend:
        outcome = command("study", config, "--out", out, *words)
    return outcome, backend.started


def write_study(folder: Path, base: Any, arms: Any, **keys: Any) -> Path:
    """Write a study's YAML, of seed 3 if nothing else is said."""
    path = folder / "study.yaml"
    path.write_text(
        yaml.safe_dump({"base": base, "seeds": [3], "arms": arms} | keys, sort_keys=False)
    )
    return path


def arm_folders(out: Path) -> dict[str, Path]:
    """Return the folders of a study's arms by ``task/seed/arm``, by its own list."""
    cells = json.loads((out / "study.json").read_text())["cells"]
    return {c["name"]: out / c["folder"] for c in cells if c["kind"] == "arm"}


def journal(out: Path, event: str) -> Iterable[str]:
    """Return the names of the cells something happened to, in order."""
    rows = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    return [row["name"] for row in rows if row["event"] == event]
