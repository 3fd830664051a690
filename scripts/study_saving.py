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
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import safetensors.torch

from rlplast.core.checkpoint import checkpoint

RLPLAST = [sys.executable, "-m", "rlplast"]


def timed(command: list[str]) -> tuple[float, float]:
    """Return seconds on the wall and of processor time that a command took."""
    timer = "import resource,subprocess,sys;c=subprocess.run(sys.argv[1:]).returncode;"
    timer += (
        "u=resource.getrusage(resource.RUSAGE_CHILDREN);print(u.ru_utime+u.ru_stime);sys.exit(c)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", timer, *command], stdout=subprocess.PIPE, text=True, check=True
    )
    return time.monotonic() - started, float(done.stdout.splitlines()[-1])


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def equal(one: Path, other: Path) -> bool:
    """Whether two runs agree in their lines and in the tensors of their last checkpoints."""
    for name in ("metrics.jsonl", "receipts.jsonl"):
        if lines(one / name) != lines(other / name):
            return False
    files = [
        checkpoint.newest(run / "checkpoints")[0] / "tensors.safetensors" for run in (one, other)
    ]
    a, b = (safetensors.torch.load_file(file) for file in files)
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("out", type=Path)
    parser.add_argument("--whole", nargs="*", help="arms to run whole; default: all")
    parser.add_argument("--beside", action="store_true", help="both sides at once")
    arguments = parser.parse_args()
    out: Path = arguments.out
    command = [*RLPLAST, "study", arguments.study, "--out", str(out / "study"), "--jobs", "1"]
    took: dict[str, tuple[float, float]] = {}

    def study() -> None:
        took["study"] = timed(command)

    beside = threading.Thread(target=study)
    beside.start()
    if not arguments.beside:
        beside.join()
    plan = out / "study" / "study.json"
    while not plan.exists():
        if not beside.is_alive():
            sys.exit("the study did not start")
        time.sleep(0.5)
    cells = [c for c in json.loads(plan.read_text())["cells"] if c["kind"] == "arm"]
    chosen = [c for c in cells if arguments.whole is None or c["arm"] in arguments.whole]
    for cell in chosen:
        config = out / "study" / "configs" / f"{cell['key']}.yaml"
        whole = out / "whole" / f"{cell['arm']}-{cell['seed']}"
        took[cell["key"]] = timed([*RLPLAST, "train", str(config), "--out", str(whole)])
    beside.join()
    for kind, which in (("wall", 0), ("processor", 1)):
        single = [took[c["key"]][which] for c in chosen]
        runs = sum(single) / len(single) * len(cells)
        print(
            f"{kind}: study {took['study'][which]:.0f} s; {len(chosen)} whole runs "
            f"{', '.join(f'{s:.0f}' for s in single)} s; ratio to {len(cells)} whole runs "
            f"{took['study'][which] / runs:.3f}"
        )
    for cell in chosen:
        whole = out / "whole" / f"{cell['arm']}-{cell['seed']}"
        same = equal(out / "study" / cell["folder"], whole)
        print(f"{cell['name']}: {'EQUAL bit for bit' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
