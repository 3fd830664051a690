"""Kill a run at random moments, resume it each time, and compare it with one that ran through.

    python -m tests.crash.kill_resume --config dqn/minatar_breakout --kills 20

The config is made small, as `rlplast study --smoke` does, and given more hooks. It is run once to
its end, and once more in processes of its own that get SIGKILL: while training and firing, while a
checkpoint is being written (its `.step-*.tmp` folder is there), while loading, or before that.
Three kills of five hit writing or loading.
Metrics and receipts (wall-clock keys aside), and the last checkpoint's tensors, state and replay,
have to be equal bit for bit; otherwise the exit code is 1 and the first difference is named. It is
2 if the run ended before the last kill.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from rlplast.core.errors import DamagedFile
from rlplast.run.config_file import dump_config, merged, read_config
from rlplast.study.smoke import small
from rlplast.training import checkpoint
from rlplast.training.config import RunConfig
from tests.runs import final

# Beside the config's own: they draw, and treat targets and optimizer state in different ways.
HOOKS: list[dict[str, Any]] = [
    {
        "method": "shrink_perturb",
        "at": ["30%", "60%"],
        "followers": "same_edit",
        "optimizer": "parameter",
        "params": {"init": "fresh"},
    },
    {"method": "full_reset", "every": "40%", "params": {"init": "fresh"}},
    {"method": "fire", "every": "15%", "optimizer": "keep", "followers": "leave"},
]
LENGTHS: dict[str, dict[str, Any]] = {  # of some seconds
    "dqn": {"total": "1000 env_steps"},
    "sac": {"total": "1200 env_steps"},
    "ppo": {"total": "3000 env_steps"},
    "supervised": {"stream.epochs": 40},
    "gpt": {"phases.0.updates": 400},
}
OFTEN: dict[str, Any] = {
    "evaluate.every": "15%",
    "log.every": "2%",
    "metrics.every": "10%",
    "checkpoint.every": "2%",
    "checkpoint.keep": 2,
}
CHECKPOINTS = 50
POLL_SECONDS = 0.0005
START_SECONDS = 3.0  # imports and building: nothing of the run is open yet
LOAD_SECONDS = 0.3  # from taking the folder's lock: loading, cutting, the first steps
WRITE_SECONDS = 0.04  # from the moment a checkpoint's temporary folder is seen
KINDS = ("training", "writing", "loading", "starting", "writing")


def main(words: list[str] | None = None) -> int:
    """Run the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="dqn/minatar_breakout", help="file or shipped name")
    parser.add_argument("--kills", type=int, default=20, help="default 20")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, not of the run")
    parser.add_argument("--out", type=Path, help="new folder; default: a temporary one")
    args = parser.parse_args(words)
    out = args.out or Path(tempfile.mkdtemp(prefix="kill-resume-"))
    out.mkdir(parents=True, exist_ok=True)
    config, through, killed = out / "config.yaml", out / "through", out / "killed"
    config.write_text(dump_config(shortened(args.config)))

    started = time.monotonic()
    _finish(config, through)
    seconds = time.monotonic() - started
    print(f"{args.config} ran through in {seconds:.0f} s", flush=True)
    kills = _run_killed(config, killed, args.kills, np.random.default_rng(args.seed), seconds)
    difference = first_difference(through, killed)
    if difference is not None:
        print(f"DIFFERENT after {kills} kills, seed {args.seed}: {difference}; see {out}")
        return 1
    print(f"EQUAL bit for bit after {kills} kills, seed {args.seed}: {_amount(killed)}")
    if kills < args.kills:
        print(f"but only {kills} of {args.kills} kills fell before the run ended; see {out}")
        return 2
    if args.out is None:
        shutil.rmtree(out)
    return 0


def shortened(name: str) -> RunConfig:
    """Return a config, by file or shipped name, whose run takes seconds and has more hooks."""
    config = read_config(name)
    config = read_config(name, {"hooks": [*config.hooks, *HOOKS]})
    changes = merged(name).get("smoke", {}) | LENGTHS[config.kind] | OFTEN
    if getattr(getattr(config, "env", None), "steps_per_task", None) is not None:  # of two tasks
        changes["env.steps_per_task"] = int(changes["total"].split()[0]) // 2
    return small(config, changes)


def _start(config: Path, run: Path) -> subprocess.Popen[bytes]:
    """Train, or resume what there is, in a process group of its own."""
    begun = (run / "config.yaml").exists()
    if not begun:  # killed before there was anything to resume
        shutil.rmtree(run, ignore_errors=True)
    words = ["resume", str(run)] if begun else ["train", str(config), "--out", str(run)]
    return started(words, run.with_suffix(".log"))


def started(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command of rlplast in a process group of its own."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "rlplast.cli.main", *words],
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def _finish(config: Path, run: Path) -> None:
    if _start(config, run).wait() != 0:
        raise SystemExit(f"the run failed: see {run.with_suffix('.log')}")


def _run_killed(
    config: Path, run: Path, kills: int, rng: np.random.Generator, seconds: float
) -> int:
    """Kill and resume, then let the run end; returns how many kills it took."""
    kinds = [KINDS[i % len(KINDS)] for i in range(kills)]
    rng.shuffle(kinds)
    total = read_config(config).total_time().value
    for number, kind in enumerate(kinds, start=1):
        # So many on average that the kills spread over the run; each costs about one more.
        left = CHECKPOINTS * (1 - _newest_step(run) / total) / (kills - number + 2)
        ahead = int(rng.integers(max(0, round(2 * left - 3)) + 1))
        process = _start(config, run)
        try:
            _await_moment(process, run, kind, rng, ahead, seconds)
        except Ended:
            if process.wait() != 0:
                raise SystemExit(f"the run failed: see {run.with_suffix('.log')}") from None
            print(f"the run ended before kill {number}")
            return number - 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        print(f"kill {number:2} while {kind:8}: {_scene(run)}", flush=True)
    _finish(config, run)
    return kills


class Ended(Exception):
    """Raised when the run ended before the moment to kill it had come."""


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    while not condition():
        if process.poll() is not None:
            raise Ended
        time.sleep(POLL_SECONDS)


def _await_moment(
    process: subprocess.Popen[bytes],
    run: Path,
    kind: str,
    rng: np.random.Generator,
    checkpoints: int,
    seconds: float,
) -> None:
    """Return at a random moment of a kind, `checkpoints` checkpoints further on."""
    if kind == "starting":
        time.sleep(rng.uniform(0, START_SECONDS))
        return
    lock, before = run / ".lock", _changed(run / ".lock")
    _wait(process, lambda: _changed(lock) != before)
    if kind == "loading":
        time.sleep(rng.uniform(0, LOAD_SECONDS))
        return
    seen = _checkpoints(run)
    least = len(seen) + checkpoints

    def far_enough() -> bool:
        seen.update(_checkpoints(run))
        return len(seen) >= least

    _wait(process, far_enough)
    if kind == "training":
        time.sleep(rng.uniform(0, seconds / CHECKPOINTS))
        return
    stopped_inside = False
    while not stopped_inside:
        _wait(process, lambda: bool(_unfinished(run)))
        time.sleep(rng.uniform(0, WRITE_SECONDS))
        os.killpg(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        stopped_inside = bool(_unfinished(run))
        if not stopped_inside:
            os.killpg(process.pid, signal.SIGCONT)


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _checkpoints(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("step-*")}


def _newest_step(run: Path) -> int:
    return max((int(name.split("-")[1]) for name in _checkpoints(run)), default=0)


def _unfinished(run: Path) -> list[Path]:
    """Return folders being written, and those being deleted: they have lost their seal."""
    root = run / "checkpoints"
    deleted = [p for p in root.glob("step-*") if not (p / checkpoint.SENTINEL).exists()]
    return [*root.glob(".step-*.tmp"), *deleted]


def _scene(run: Path) -> str:
    """Describe what a kill left behind."""
    words = []
    for path in _unfinished(run):
        files = sum(p.is_file() for p in path.rglob("*"))
        words.append(f"{path.name} has {files} files")
    lines = run / "metrics.jsonl"
    text = lines.read_bytes() if lines.exists() else b""
    if text and not text.endswith(b"\n"):
        words.append("half a line of metrics")
    try:
        path, _ = checkpoint.newest(run / "checkpoints")
    except DamagedFile:
        return ", ".join([*words, "no checkpoint yet: begins anew"])
    state = json.loads((path / "state.json").read_text())
    clock = {unit: count for unit, count in state["clock"].items() if count}
    lost = text.count(b"\n") - text[: state["lengths"]["metrics.jsonl"]].count(b"\n")
    words.append(f"{lost} lines to cut")
    at = ", ".join(f"{count} {unit}" for unit, count in clock.items()) or "the beginning"
    return f"{', '.join(words)}: goes on from {path.name} at {at}"


def first_difference(through: Path, killed: Path) -> str | None:
    """Return where two finished runs differ first, or None."""
    if _unfinished(killed):
        return f"left over: {', '.join(map(str, _unfinished(killed)))}"
    ours, theirs = _left(through), _left(killed)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            return f"{name} is in one of the two only"
        (a, shown), (b, other) = ours[name], theirs[name]
        if a != b:
            return f"{name}:\n  {shown}\n  {other}"
    return None


def _left(run: Path) -> dict[str, tuple[Any, Any]]:
    """Return what a finished run left, by line, key and tensor: to be compared, and to be shown."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, value in final(run).items():
        if isinstance(value, list):
            found |= {f"{name}, line {i:6}": (row, row) for i, row in enumerate(value, start=1)}
        elif isinstance(value, dict):
            found |= {f"{name}, {key}": (part, part) for key, part in value.items()}
        elif name.endswith(".safetensors"):
            tensors = safetensors.numpy.load(value).items()
            found |= {f"{name}, {key}": ((t.dtype, t.tobytes()), t) for key, t in tensors}
        else:
            found[name] = value, f"{len(value)} bytes"
    return found


def _amount(run: Path) -> str:
    left = final(run)
    files = [value for name, value in left.items() if name.endswith(".safetensors")]
    tensors = sum(len(safetensors.numpy.load(file)) for file in files)
    rows = ", ".join(f"{len(left[name])} {name}" for name in ("metrics", "receipts"))
    return f"{rows}, {tensors} tensors, state and files of its last checkpoint"


if __name__ == "__main__":
    sys.exit(main())
