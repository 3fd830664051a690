"""What a study costs beside whole runs, and whether its arms equal them.

    python -m benchmarks.study STUDY OUT [--whole none fire] [--beside]

Runs the study one cell at a time, then whole runs of arms with `rlplast train`, each from the
config the study resolved. Printed: seconds on the wall and of processor time, both with all that
starting processes, branching, checkpoints and evaluations take; their ratio to whole runs of all
arms (those not run count as the mean of those that were); and what `rlplast compare` says of each
pair. `--beside` runs the two sides at the same time, for machines with cores to spare.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RLPLAST = [sys.executable, "-m", "rlplast"]


def timed(command: list[str]) -> tuple[float, float]:
    """Return seconds on the wall and of processor time that a command took."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)  # with what it started and waited for
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("out", type=Path)
    parser.add_argument("--whole", nargs="*", help="arms to run whole; default: all")
    parser.add_argument("--beside", action="store_true", help="both sides at once")
    arguments: Any = parser.parse_args()
    out = arguments.out
    command = [*RLPLAST, "study", arguments.study, "--out", str(out / "study"), "--jobs", "1"]
    pool = ThreadPoolExecutor(1)
    study = pool.submit(timed, command)
    plan = out / "study" / "study.json"
    while not study.done() and not (arguments.beside and plan.exists()):
        time.sleep(0.5)
    if not plan.exists():
        sys.exit("the study did not start")
    cells = [c for c in json.loads(plan.read_text())["cells"] if c["kind"] == "arm"]
    chosen = [c for c in cells if arguments.whole is None or c["arm"] in arguments.whole]
    took = []
    for cell in chosen:
        config = out / "study" / "configs" / f"{cell['key']}.yaml"
        cell["whole"] = out / "whole" / f"{cell['arm']}-{cell['seed']}"
        took.append(timed([*RLPLAST, "train", str(config), "--out", str(cell["whole"])]))
    kinds = ("wall", "processor")
    for kind, whole, single in zip(kinds, study.result(), zip(*took, strict=True), strict=True):
        runs = sum(single) / len(single) * len(cells)
        print(
            f"{kind}: study {whole:.0f} s; {len(chosen)} whole runs "
            f"{', '.join(f'{s:.0f}' for s in single)} s; ratio to {len(cells)} whole runs "
            f"{whole / runs:.3f}"
        )
    for cell in chosen:
        pair = [out / "study" / cell["folder"], cell["whole"]]
        subprocess.run([*RLPLAST, "compare", *map(str, pair)], check=True)


if __name__ == "__main__":
    main()
