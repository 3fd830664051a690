"""Objects that live in worker processes and are called over pipes.

Processes are spawned, so that they inherit no threads and no locks. They ignore SIGINT,
SIGTERM and SIGHUP: the parent, which gets the same signals, first saves its state through them.
They end when the parent closes its pipes, which dying in any way does.
"""

import multiprocessing
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from rlplast.envs.base import EnvFailed, MissingPackage, NotFinite, UnknownEnv

__all__ = ["TIMEOUT", "WorkerDied", "WorkerGroups", "check_portable"]

TIMEOUT = 300.0  # seconds a worker may take to answer

# Rebuilt in the parent as themselves; every other type becomes an EnvFailed.
_RERAISED = {
    kind.__name__: kind for kind in (ValueError, UnknownEnv, MissingPackage, NotFinite, EnvFailed)
}

_JOIN_SECONDS = 5.0
_SLICE = 1.0  # seconds of a wait


class WorkerDied(RuntimeError):
    """Raised when a worker process ended on its own, killed or crashed, or does not answer."""


def check_portable(env_id: str, make: Callable[..., Any]) -> None:
    """Check that what builds an environment can be sent to a worker process.

    Raises:
        ValueError: when some of it has no importable name.
    """
    try:
        pickle.dumps(make)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ValueError(
            f"env '{env_id}' cannot run in worker processes ({error}): register it with an entry "
            "point 'module:Class', or by a function or class of a module"
        ) from error


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return (None, result), or ((type, message, traceback), None) when the call failed."""
    try:
        return None, function(*arguments)
    except BaseException as error:  # signals are ignored here: it is the environment's own
        return (type(error).__name__, " ".join(str(error).split()), traceback.format_exc()), None


def _serve(pipe: Connection, build: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Build the object and answer calls until the pipe closes."""
    for own in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(own, signal.SIG_IGN)
    failure, target = _attempt(build, arguments)
    try:
        pipe.send((failure, None))
        while failure is None:
            method, call_arguments = pipe.recv()
            pipe.send(_attempt(getattr(target, method), call_arguments))
    except (EOFError, OSError):
        return  # the parent closed its end or died


def _answers_within(pipe: Connection, seconds: float) -> bool:
    """Wait for an answer; say whether there is one."""
    # In slices: a signal that the system gives to another thread ends no wait of this one, and its
    # handler runs only after it.
    end = time.monotonic() + seconds
    while not pipe.poll(min(_SLICE, max(0.0, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


def _end(pipes: list[Connection], processes: list[BaseProcess]) -> None:
    """Close the pipes, which ends the workers; kill one that does not end."""
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(_JOIN_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


class WorkerGroups:
    """One object per worker process."""

    def __init__(
        self,
        build: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        timeout: float = TIMEOUT,
    ) -> None:
        """Start a process per argument tuple and build `build(*arguments)` in each.

        Raises:
            WorkerDied: for one that ends, or does not answer for `timeout` seconds.
            ValueError, MissingPackage, NotFinite: as the object's constructor does.
            EnvFailed: for any other failure in a worker, with its traceback as a note.
        """
        context = multiprocessing.get_context("spawn")
        self._timeout = timeout
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        # Runs at the latest when the interpreter exits, before it waits for its children.
        self._finalizer = util.Finalize(
            self, _end, args=(self._pipes, self._processes), exitpriority=10
        )
        for group_arguments in arguments:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, build, group_arguments), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
            theirs.close()  # so that the worker's death closes the pipe for us
        with ExitStack() as cleanup:
            cleanup.callback(self.close)
            self._receive_all()
            cleanup.pop_all()  # all of them answered: they stay

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every object at once, with an argument tuple each."""
        for index, (pipe, call_arguments) in enumerate(zip(self._pipes, arguments, strict=True)):
            try:
                pipe.send((method, call_arguments))
            except OSError as error:
                raise self._died(index) from error
        return self._receive_all()

    def _receive_all(self) -> list[Any]:
        answers, first_error = [], None
        for index, pipe in enumerate(self._pipes):
            try:
                if not _answers_within(pipe, self._timeout):
                    raise self._silent(index)
                failure, answer = pipe.recv()
            except (EOFError, OSError) as error:
                raise self._died(index) from error
            answers.append(answer)
            if failure is not None and first_error is None:
                name, message, trace = failure
                known = _RERAISED.get(name)
                first_error = known(message) if known else EnvFailed(f"{name}: {message}")
                first_error.add_note(f"in environment worker {index}:\n{trace}")
        if first_error is not None:
            raise first_error  # only now: every pipe is ready for the next call
        return answers

    def _silent(self, index: int) -> WorkerDied:
        self._processes[index].kill()
        return WorkerDied(
            f"environment worker {index} (process {self._processes[index].pid}) has not answered "
            f"for {self._timeout:g} s and was ended: mend its environment, or raise env.timeout"
        )

    def _died(self, index: int) -> WorkerDied:
        process = self._processes[index]
        process.join(_JOIN_SECONDS)
        return WorkerDied(
            f"environment worker {index} (process {process.pid}) ended with exit code "
            f"{process.exitcode}"
        )

    def close(self) -> None:
        """End the workers; harmless when repeated."""
        self._finalizer()
