"""What a study costs beside whole runs, and whether its arms equal them.

    python scripts/study_saving.py STUDY OUT [--whole none fire] [--beside]

Runs the study one cell at a time, then whole runs of arms with `rlplast train`, each from the
config the study resolved. Printed: seconds on the wall and of processor time, both with all that
starting processes, branching, checkpoints and evaluations take; their ratio to whole runs of all
arms (those not run count as the mean of those that were); and whether every line of metrics (but
time/…), every receipt and every tensor of the last checkpoint agree. `--beside` runs the two sides
at the same time, for machines with cores to spare.
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

import safetensors.torch

from rlplast.training import checkpoint

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


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def equal(one: Path, other: Path) -> bool:
    """Whether two runs agree in their lines and in the tensors of their last checkpoints."""
    for name in ("metrics.jsonl", "receipts.jsonl"):
        if lines(one / name) != lines(other / name):
            return False
    newest = (checkpoint.newest(run / "checkpoints")[0] for run in (one, other))
    a, b = (safetensors.torch.load_file(folder / "tensors.safetensors") for folder in newest)
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


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
        same = equal(out / "study" / cell["folder"], cell["whole"])
        print(f"{cell['name']}: {'EQUAL bit for bit' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
