"""A worker takes a cell that is ready, runs it, and looks again, until nothing is left.

A worker imports torch once and forks a process for each cell. Importing takes longer than many a
run of a small network. The worker itself computes nothing, so its threads stay few and forks safe.
"""

import argparse
import contextlib
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from rlplast.core.errors import Interrupted
from rlplast.run.imports import import_modules
from rlplast.run.messages import exit_code, say
from rlplast.study.cell import GRACE, die_with, run_cell
from rlplast.study.claims import Claim
from rlplast.study.folder import check_versions, lines_of, log_file
from rlplast.study.state import Row, StudyState
from rlplast.training.signals import heard, noted_signals

__all__ = ["crew", "main", "reason_of", "work"]

_MESSAGE = "rlplast: "  # begins the last line of a cell that names what was wrong
_HEAD = "=== attempt "
_POLL = 0.02  # seconds between two looks at a cell's process
_IDLE = (0.1, 2.0)  # seconds between two looks at a study in which nothing is ready
_FORK = multiprocessing.get_context("fork")

# Runs a cell; returns exit code and reason.
Run = Callable[[StudyState, Row, Claim, Callable[[], bool]], tuple[int, str]]


def work(
    root: Path,
    *,
    cells: int | None = None,
    seconds: float | None = None,
    waits: bool = True,
    gpus: str | None = None,
    run: Run | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> int:
    """Be a worker of a study; returns how many cells came to their end.

    Args:
        root: the study's folder.
        cells: after so many it ends.
        seconds: after so long its cell saves, and it ends.
        waits: whether it waits for cells that others hold, to take them over from workers that
            die; else it ends when nothing is left but those, once it has seen that they live.
        gpus: what its cells see, as CUDA_VISIBLE_DEVICES says it; None: what this process sees.
        run: runs a cell; default: in a process of its own.
        tell: called with a line for each cell that is taken, and how that ended.

    Raises:
        ConfigError: if it is no study's folder, or a study of other versions.
        Interrupted: after a signal, once its cell has saved.
        OSError: if a claim cannot be written.
    """
    state = StudyState(root)
    check_versions(root, state.study)
    run = run or _in_a_process(gpus)
    until = float("inf") if seconds is None else time.monotonic() + seconds
    done, taken, pause = 0, 0, _IDLE[0]
    with noted_signals() as asked:

        def over() -> bool:
            return bool(asked) or time.monotonic() >= until

        while not over() and (cells is None or taken < cells):
            found = _claim(state, waits)
            if found is None:
                break
            row, claim = found
            if claim is None:  # nothing is ready
                time.sleep(pause)
                pause = min(_IDLE[1], 1.5 * pause)
                state.look()
                continue
            taken, pause = taken + 1, _IDLE[0]
            tell(f"takes {row['name']}, attempt {claim.number}")
            code, reason = run(state, row, claim, over)
            if claim.lost:
                claim.leave()
                tell(f"lost {row['name']}: its claim stood still, or is another's")
            else:
                end = "done" if code == 0 else "stopped" if over() else "failed"
                claim.finish(end, code, reason)
                tell(f"{end}: {row['name']}" + (f" ({reason})" if end == "failed" else ""))
                done += end == "done"
            state.look()
        if asked:
            raise Interrupted(f"a worker of {root} stopped")
    return done


def _claim(state: StudyState, waits: bool) -> tuple[Row, Claim | None] | None:
    """Claim the first cell that is free; no claim if there may be one later, None if not."""
    later = False
    for row, fate in state.fates(state.open):
        if fate == "free":
            claim = state.claims.claim(row["key"])
            if claim is not None:
                return row, claim
        later |= fate in ("free", "waiting")
        later |= fate == "held" and (waits or not state.claims.attempts[row["key"]][-1].is_seen())
    return ({}, None) if later else None


def _in_a_process(gpus: str | None) -> Run:
    def run(state: StudyState, row: Row, claim: Claim, over: Callable[[], bool]) -> tuple[int, str]:
        log = state.root / log_file(row["folder"])
        log.parent.mkdir(exist_ok=True)
        with log.open("a") as file:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            file.write(f"{_HEAD}{claim.number}, {now}, {platform.node()}\n")
        process = _forked(_be_cell, state, row, log, gpus)
        until = float("inf")
        try:
            while process.exitcode is None:
                if not claim.beat():
                    _kill(process)
                elif over() and until == float("inf"):
                    process.terminate()
                    until = time.monotonic() + GRACE
                elif time.monotonic() > until:
                    _kill(process)
                time.sleep(_POLL)
        finally:  # a second SIGINT ends the worker at once, and its cell
            _kill(process)
        code, reason = _exit(process.exitcode)
        return code, reason or (reason_of(code, log) if code else "")

    return run


def _kill(process: BaseProcess) -> None:
    """Kill a cell that runs, and what it started; once it has ended, others may get its id."""
    if process.exitcode is None and process.pid is not None:
        with contextlib.suppress(ProcessLookupError):  # it has no session of its own yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def _forked(target: Callable[..., None], *args: object) -> BaseProcess:
    """Start a process that ends with this one; a signal that meets it at once is not lost."""
    asking = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, asking)
    try:
        process = _FORK.Process(target=_begin, args=(target, args, os.getpid(), before))
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _begin(
    target: Callable[..., None], args: tuple[object, ...], parent: int, mask: Iterable[int]
) -> None:
    """Be such a process: without the handlers of the one that forked it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    die_with(parent)
    target(*args)


def _be_cell(state: StudyState, row: Row, log: Path, gpus: str | None) -> None:
    """Be the process of a cell, in a session of its own: Ctrl-C is the worker's affair."""
    os.setsid()
    with open(os.devnull) as nothing, log.open("a") as file:
        for stream, target in ((0, nothing), (1, file), (2, file)):
            os.dup2(target.fileno(), stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")  # if it is killed
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    root = state.root.resolve()
    with contextlib.suppress(OSError):  # another machine may not have it
        os.chdir(state.study.get("folder") or ".")

    def run() -> int:
        import_modules(state.study.get("imports", ()))
        run_cell(root, state.cells, row["key"], state.study)
        return 0

    sys.exit(exit_code(run))


def _exit(code: int | None) -> tuple[int, str]:
    """Return the exit code as a shell would, and why if a signal did it."""
    if code is None or code >= 0:
        return code or 0, ""
    names = {s.value: s.name for s in signal.Signals}
    return 128 - code, f"killed by {names.get(-code, f'signal {-code}')}"


def reason_of(code: int, log: Path) -> str:
    """Return why a cell failed: its own message, or its exit code and the last line of its log."""
    last = (lines_of(log) or [""])[-1]
    if last.startswith(_MESSAGE):
        return last.removeprefix(_MESSAGE)
    return f"exit code {code}" + ("" if not last or last.startswith(_HEAD) else f", after {last!r}")


def crew(
    root: Path,
    jobs: int,
    *,
    cells: int | None = None,
    seconds: float | None = None,
    waits: bool = True,
) -> int:
    """Be so many workers, each a process, spread over the GPUs that this process sees.

    Other arguments are as of `work`; after `seconds` all end. Returns 0, or the exit code of a
    worker that failed.

    Raises:
        Interrupted: after a signal, once their cells have saved.
    """
    processes = StudyState(root).study.get("processes", 1)
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    gpus = seen or [str(i) for i in range(torch.cuda.device_count())]
    until = None if seconds is None else time.monotonic() + seconds

    def start(number: int) -> BaseProcess:
        own = gpus_of_worker(gpus, number, processes)
        left = None if until is None else max(0.0, until - time.monotonic())
        options = {"cells": cells, "waits": waits, "seconds": left, "gpus": own}
        return _forked(_be_worker, root, options)

    codes, workers, asked = {0}, dict[int, BaseProcess](), list[int]()
    for signum in heard():  # a dying parent may ask several times
        signal.signal(signum, lambda number, frame: asked.append(number))
    try:
        workers |= enumerate(map(start, range(jobs)))
        while workers and not asked:
            time.sleep(_POLL)
            for number, process in list(workers.items()):
                if process.exitcode is not None:
                    del workers[number]
                    codes.add(max(0, process.exitcode))
                    if process.exitcode < 0:  # it was killed
                        workers[number] = start(number)
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join()
    if asked:
        raise Interrupted(f"stopped: what was held of {root} goes on from its newest checkpoints")
    return max(codes)


def gpus_of_worker(gpus: Sequence[str], number: int, processes: int) -> str | None:
    """Return the GPUs that a worker's cells see, with commas; None without any.

    Examples:
        >>> [gpus_of_worker(["4", "7"], number, 1) for number in range(3)]
        ['4', '7', '4']
        >>> [gpus_of_worker(["0", "1", "2", "3"], number, 2) for number in range(2)]
        ['0,1', '2,3']
    """
    places = range(number * processes, (number + 1) * processes)
    return ",".join(gpus[place % len(gpus)] for place in places) if gpus else None


def _be_worker(root: Path, options: dict[str, object]) -> None:
    os.setpgid(0, 0)  # Ctrl-C is told by the crew

    def run() -> int:
        work(root, tell=say, **options)  # type: ignore[arg-type]
        return 0

    sys.exit(exit_code(run))


def main(argv: Sequence[str] | None = None) -> int:
    """Be the workers that an executor starts; returns an exit code."""
    parser = argparse.ArgumentParser(prog="rlplast.study.work")
    parser.add_argument("study", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-wait", action="store_true")
    parser.add_argument("--parent", type=int)
    given = parser.parse_args(argv)
    if given.parent is not None:
        die_with(given.parent)
    return exit_code(lambda: crew(given.study, given.jobs, waits=not given.no_wait))


if __name__ == "__main__":
    sys.exit(main())
