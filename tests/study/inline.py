"""Studies of a second or two, run in this process: no time is spent on starting others."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from rlplast.run.imports import import_modules
from rlplast.run.messages import exit_code
from rlplast.study.cell import run_cell
from rlplast.study.claims import Claim
from rlplast.study.executors import Executor
from rlplast.study.folder import log_file
from rlplast.study.state import Row, StudyState
from rlplast.study.work import reason_of, work
from tests.cli.commands import Outcome, command

Fault = Callable[[str, int], int | None]


class Inline(Executor):
    """One worker in this process, which has run all cells once it is started.

    Args:
        fault: called with a cell's name and the number of its attempt; an exit code that it
            returns is the attempt's, and the cell does not run. It may raise KeyboardInterrupt.
    """

    slots = 1

    def __init__(self, fault: Fault = lambda name, attempt: None) -> None:
        self.fault = fault
        self.started: list[str] = []

    def start(self, root: Path, cells: int) -> None:
        work(root, run=self.run)

    def ended(self) -> str:
        return ""

    def run(self, state: StudyState, row: Row, claim: Claim, over: Any) -> tuple[int, str]:
        self.started.append(row["name"])
        try:
            code = self.fault(row["name"], self.started.count(row["name"]))
        except KeyboardInterrupt:
            claim.finish("stopped")
            raise
        if code is not None:
            return code, f"exit code {code}"
        output = io.StringIO()

        def cell() -> int:
            import_modules(state.study["imports"])
            run_cell(state.root.resolve(), state.cells, row["key"], state.study)
            return 0

        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = exit_code(cell)
        log = state.root / log_file(row["folder"])
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"=== attempt {claim.number}\n{output.getvalue()}")
        return code, reason_of(code, log) if code else ""


@contextlib.contextmanager
def inline(fault: Fault = lambda name, attempt: None) -> Iterator[Inline]:
    """Have studies run their cells in this process; yields what tells which were started."""
    executor = Inline(fault)
    with (
        mock.patch("rlplast.study.api.make_executor", lambda *args: executor),
        mock.patch("rlplast.study.watch._PAUSE", 0.0),
    ):
        yield executor


def run_study(
    config: Path, out: Path, *words: object, fault: Fault = lambda name, attempt: None
) -> tuple[Outcome, list[str]]:
    """Run a study here; returns what the command gave, and the names of the cells it started."""
    with inline(fault) as executor:
        outcome = command("study", config, "--out", out, *words)
    return outcome, executor.started


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


def attempts(out: Path, name: str) -> list[dict[str, Any]]:
    """Return what the attempts at a cell say, in order."""
    cells = json.loads((out / "study.json").read_text())["cells"]
    keys = [cell["key"] for cell in cells if cell["name"] == name]
    paths = [path for key in keys for path in (out / "claims").glob(f"{key}.*")]
    paths.sort(key=lambda path: int(path.suffix[1:]))
    return [json.loads(path.read_bytes()) for path in paths]
