"""Work on a GPU as CUDA graphs: all its kernels are launched as one.

- `Graphs`: does a piece of work by its key: eagerly at first, then captured, then replayed.
- `refuse_capture`: says that something cannot be part of a graph.

A graph repeats the kernels of its capture on the same memory, and runs no Python. So what the work
reads of the host, such as a clock, is what it was then. All of it that matters belongs to the key.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch

from rlplast.core.errors import ConfigError, RlplastError, shortened

__all__ = ["EAGER", "Graphs", "NotCaptured", "capturing", "refuse_capture"]

EAGER = 3  # times that a key's work runs before its capture: libraries set themselves up there


class NotCaptured(RlplastError):
    """A piece of work waits for the host, or reads from it what differs each time."""


def capturing() -> bool:
    """Whether the work under way is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def refuse_capture(what: str) -> None:
    """Say that something cannot be part of a graph.

    Raises:
        NotCaptured: during a capture.
    """
    if capturing():
        raise NotCaptured(what)


class Graphs:
    """Pieces of work of one device, which are captured once and then replayed.

    Between replays weights, optimizer state and inputs may change, but not their addresses.

    Attributes:
        reasons: why the work of a key stays eager, by key.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.reasons: dict[Hashable, str] = {}
        self._device = device
        self._runs: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._side = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()  # graphs never run at once, so they share it

    def __call__(self, key: Hashable, work: Callable[[], Any]) -> None:
        """Do the work of a key, whose result is what it writes.

        Raises:
            ConfigError: if its capture fails.
        """
        graph = self._graphs.get(key)
        if graph is None and key not in self.reasons:
            self._runs[key] += 1
            if self._runs[key] > EAGER:
                graph = self._captured(key, work)
        if graph is not None:
            graph.replay()
        elif key in self.reasons:
            work()
        else:
            self._run_aside(work)

    def _run_aside(self, work: Callable[[], Any]) -> None:
        """Do work in a stream of its own, as a capture needs it of what comes before."""
        now = torch.cuda.current_stream(self._device)
        self._side.wait_stream(now)
        with torch.cuda.stream(self._side):
            work()
        now.wait_stream(self._side)

    def _captured(self, key: Hashable, work: Callable[[], Any]) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Checkpoints are written by another thread, which must not end the capture.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        except NotCaptured as reason:
            if str(reason) not in self.reasons.values():
                warnings.warn(
                    f"agent.accelerate = 'graph': {reason}, so updates run eagerly", stacklevel=2
                )
            self.reasons[key] = str(reason)
            return None
        except RuntimeError as error:
            raise ConfigError(
                "agent.accelerate = 'graph': the update cannot be captured here "
                f"({shortened(str(error), 200)}): set it to off (to resume a run, in its "
                "config.yaml)"
            ) from error
        self._graphs[key] = graph
        return graph
