"""Kill a study and its cells at random moments, go on each time, and compare the results.

    python -m tests.crash.kill_study study/minatar_when --kills 10 --seed 1

The study is made small, as `--smoke` does it, and run once to its end in this process. It is run
once more in processes that get SIGKILL at random moments: the study alone, whose workers and cells
have to end by themselves, or a worker or a cell, in whose place another one has to come. A study
that was killed is started anew, half of the times at once, while its cells may still be saving.
Metrics and receipts of every arm (wall-clock keys aside), and the last checkpoint's tensors, state
and replay, have to be equal bit for bit; otherwise the exit code is 1 and the first difference is
named. It is 2 if no kill hit a cell that had begun. Four kills of five wait until a cell is there.
Reads Linux's /proc.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

from rlplast.study.api import read_study_config
from rlplast.study.smoke import smoke_study
from tests.crash.kill_resume import LENGTHS, OFTEN, first_difference, started
from tests.study.inline import run_study

START_SECONDS = 8.0  # imports, plan and building, before the first cell trains
GRACE = 60.0  # seconds that cells may take to save when their study is gone


def main(words: list[str] | None = None) -> int:
    """Run the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", help="file or shipped name")
    parser.add_argument("--kills", type=int, default=10, help="default 10")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, not of the runs")
    parser.add_argument(
        "--cells", type=float, default=0.5, help="share of kills that hit a cell, default 0.5"
    )
    parser.add_argument("--total", help="length of each run; default: kill_resume's")
    parser.add_argument("--jobs", type=int, default=2, help="cells at once, default 2")
    parser.add_argument("--out", type=Path, help="new folder; default: a temporary one")
    args = parser.parse_args(words)
    out = args.out or Path(tempfile.mkdtemp(prefix="kill-study-"))
    out.mkdir(parents=True, exist_ok=True)
    config = out / "study.yaml"
    config.write_text(_shortened(args.study, args.total))

    started = time.monotonic()
    outcome, _ = run_study(config, out / "through")
    seconds = time.monotonic() - started
    if outcome.code != 0:
        print(f"the study failed: {outcome.err}")
        return 1
    print(f"{args.study} ran through in {seconds:.0f} s", flush=True)
    rng = np.random.default_rng(args.seed)
    kills, hits = _run_killed(
        config, out / "killed", args.kills, rng, seconds, args.jobs, args.cells
    )
    difference = _first_difference(out / "through", out / "killed")
    if difference is not None:
        print(f"DIFFERENT after {kills} kills, seed {args.seed}: {difference}; see {out}")
        return 1
    count = len(_arms(out / "killed"))
    print(f"EQUAL bit for bit after {kills} kills, seed {args.seed}: {count} arms")
    if hits == 0:
        print(f"but none of them hit a cell that had begun; see {out}")
        return 2
    if args.out is None:
        shutil.rmtree(out)
    return 0


def _shortened(name: str, total: str | None) -> str:
    """Return the YAML of a study whose runs take seconds."""
    keys, _, _ = smoke_study(read_study_config(name))
    for arm in keys["arms"].values():
        for own in filter(None, arm["tasks"].values()):
            own |= LENGTHS[own["kind"]] | OFTEN | ({"total": total} if total else {})
    return yaml.safe_dump(keys | {"retries": 1000}, sort_keys=False)  # however often one is killed


def _start(config: Path, study: Path, jobs: int) -> subprocess.Popen[bytes]:
    words = ["study", str(config), "--out", str(study), "--jobs", str(jobs)]
    return started(words, study.with_suffix(".log"))


def _run_killed(
    config: Path,
    study: Path,
    kills: int,
    rng: np.random.Generator,
    seconds: float,
    jobs: int,
    share: float,
) -> tuple[int, int]:
    """Kill and go on, then let the study end.

    Of the kills, `share` hit a cell and the others the study.

    Returns:
        How many kills there were, and how many of them came while a run was there.
    """
    process = _start(config, study, jobs)
    done = hits = 0
    try:
        while done < kills:
            if rng.random() < 0.8:
                _wait_for_a_cell(process, study)
            # The work lasts as long as it did, and every start of a cell delays it.
            time.sleep(rng.uniform(0, 2 * seconds / kills + START_SECONDS))
            if process.poll() is not None:
                print(f"the study ended before kill {done + 1}")
                break
            cells = _cells(study)
            done += 1
            hits += any(study.glob("cells/**/run.json"))
            if cells and rng.random() < share:
                victim = cells[int(rng.integers(len(cells)))]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                print(f"kill {done:2} of a worker or cell: {_scene(study)}", flush=True)
                continue
            process.kill()
            process.wait()
            print(f"kill {done:2} of the study: {_scene(study)}", flush=True)
            if rng.random() < 0.5:
                print(f"          cells were gone after {_wait_for_cells(study):.1f} s", flush=True)
            process = _start(config, study, jobs)
        if process.wait() != 0:
            raise SystemExit(f"the study failed: see {study.with_suffix('.log')}")
    finally:
        process.kill()
        process.wait()
        _wait_for_cells(study)
    return done, hits


def _cells(study: Path) -> list[int]:
    """Return the process ids of workers and cells: what they print goes to the study's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "fd" / "1").readlink().is_relative_to(study.resolve()):
                found.append(int(path.name))
    return found


def _wait_for_a_cell(process: subprocess.Popen[bytes], study: Path) -> None:
    """Wait until a study has a cell, or has ended."""
    while process.poll() is None and not _cells(study):
        time.sleep(0.05)


def _wait_for_cells(study: Path) -> float:
    """Wait for the end of cells whose study is gone; returns the seconds it took."""
    started = time.monotonic()
    while _cells(study):
        if time.monotonic() - started > GRACE:
            raise SystemExit(f"cells {_cells(study)} outlived their study by {GRACE:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - started


def _scene(study: Path) -> str:
    """Describe what a kill left behind."""
    statuses = []
    for path in study.glob("cells/**/run.json"):
        with contextlib.suppress(ValueError):
            statuses.append(json.loads(path.read_text())["status"])
    words = [f"{statuses.count(s)} {s}" for s in sorted(set(statuses))]
    halves = sum(1 for p in study.glob("cells/**/.*.tmp"))
    words += [f"{halves} half-written"] if halves else []
    return ", ".join(words) or "nothing begun"


def _arms(study: Path) -> dict[str, Path]:
    cells = json.loads((study / "study.json").read_text())["cells"]
    return {c["name"]: study / c["folder"] for c in cells if c["kind"] == "arm"}


def _first_difference(through: Path, killed: Path) -> str | None:
    ours, theirs = _arms(through), _arms(killed)
    if ours.keys() != theirs.keys():
        return f"arms {sorted(ours)} and {sorted(theirs)}"
    for name, run in ours.items():
        difference = first_difference(run, theirs[name])
        if difference is not None:
            return f"{name}: {difference}"
    return None


if __name__ == "__main__":
    sys.exit(main())
