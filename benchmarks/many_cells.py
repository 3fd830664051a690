"""What a study of many cells costs by itself: cells that end at once, of 100 arms.

    python -m benchmarks.many_cells 10000

Prints seconds to plan, to write the plan and to read it, the milliseconds of a worker's look, and
those of each claim with 2 and with 50 workers, with peak memory. Nothing is trained.
"""

import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from rlplast.study.api import read_study_config, study_cells, write_study
from rlplast.study.folder import StudyFolder
from rlplast.study.state import StudyState
from rlplast.study.work import work

ARMS = 100
WORKERS = (2, 50)


def _nothing(*about: Any) -> tuple[int, str]:
    return 0, ""


def _work(root: Path) -> None:
    work(root, run=_nothing)


def main(cells: int) -> None:
    """Print a line per step."""
    rates = [{"optimizer": {"lr": 1e-5 * (i + 1)}} for i in range(ARMS)]
    arms: dict[str, Any] = {f"lr-{i}": {"overrides": rate} for i, rate in enumerate(rates)}
    study = {"base": "dqn/minatar_breakout", "baseline": "lr-0", "seeds": cells // ARMS}
    with tempfile.TemporaryDirectory() as name:
        config, root = Path(name, "study.yaml"), Path(name, "out")
        config.write_text(yaml.safe_dump(study | {"arms": arms}))
        started = time.perf_counter()

        def log(what: str, who: int = resource.RUSAGE_SELF) -> None:
            nonlocal started
            memory = resource.getrusage(who).ru_maxrss / 1024
            print(f"{what}: {time.perf_counter() - started:.1f} s, at most {memory:.0f} MiB")
            started = time.perf_counter()

        parsed = read_study_config(str(config))
        found = study_cells(parsed)
        log(f"plan of {len(found)} cells")
        folder = StudyFolder(root)
        write_study(folder, parsed, found, str(config))
        folder.close()
        log("plan written")
        state = StudyState(root)
        log("plan read")
        fork = multiprocessing.get_context("fork")
        for count in WORKERS:
            shutil.rmtree(root / "claims", ignore_errors=True)
            started = time.perf_counter()
            workers = [fork.Process(target=_work, args=(root,)) for _ in range(count)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            each = 1000 * (time.perf_counter() - started) / len(found)
            log(f"{count} workers, {each:.1f} ms a cell", resource.RUSAGE_CHILDREN)
            ends = len(list((root / "claims").iterdir()))
            if ends != len(found):
                raise SystemExit(f"{ends} claims of {len(found)} cells")
        state = StudyState(root)
        log("claims read")
        times = []
        for _ in range(20):
            began = time.perf_counter()
            state.look()
            next((row for row, fate in state.fates() if fate == "free"), None)
            times.append(1000 * (time.perf_counter() - began))
        print(f"a look when all is done: {sorted(times)[10]:.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
