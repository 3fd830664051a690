"""What a study of many cells costs by itself: cells that end at once, of 100 arms.

    python -m benchmarks.many_cells 10000

Prints seconds to plan, to write the plan, to find what is left, and to run all cells through the
scheduler, with peak memory. Nothing is trained.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from rlplast.run.info import versions
from rlplast.study.api import read_study_config, study_cells, write_study
from rlplast.study.executors import Backend, Executor, Job
from rlplast.study.folder import StudyFolder
from rlplast.study.scheduler import pending, run_cells

ARMS = 100
SLOTS = 256  # at once


class Nothing(Backend):
    """A backend whose jobs have ended when they begin."""

    pause = 0.0

    def start(self, job: Job) -> Job:
        """Start nothing."""
        return job

    def ended(self, handle: Job) -> tuple[int, str]:
        """Say that it ended well."""
        return 0, ""

    def end(self, handle: Job, force: bool) -> None:
        """End nothing."""


def main(cells: int) -> None:
    """Print a line per step."""
    rates = [{"optimizer": {"lr": 1e-5 * (i + 1)}} for i in range(ARMS)]
    arms: dict[str, Any] = {f"lr-{i}": {"overrides": rate} for i, rate in enumerate(rates)}
    study = {"base": "dqn/minatar_breakout", "baseline": "lr-0", "seeds": cells // ARMS}
    with tempfile.TemporaryDirectory() as name:
        config, root = Path(name, "study.yaml"), Path(name, "out")
        config.write_text(yaml.safe_dump(study | {"arms": arms}))
        started = time.perf_counter()

        def log(what: str) -> None:
            nonlocal started
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{what}: {time.perf_counter() - started:.1f} s, at most {memory:.0f} MiB")
            started = time.perf_counter()

        parsed = read_study_config(str(config))
        found = study_cells(parsed)
        log(f"plan of {len(found)} cells")
        folder = StudyFolder(root)
        folder.open_for(versions())
        write_study(folder, parsed, found, str(config))
        log("plan written")
        left = pending(found, root)
        log(f"{len(left)} cells found to be left")
        failures = run_cells(found, folder, Executor(Nothing(), SLOTS), lambda cell: ("true",))
        log(f"scheduled, {len(failures)} failed")
        folder.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
