"""Work on a GPU as CUDA graphs: all its kernels are launched as one.

A graph runs no Python: all that the work reads of the host, such as a clock, is in its key.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlplast.core.device import NotCaptured
from rlplast.core.errors import ConfigError, shortened

__all__ = ["EAGER", "Graphs", "graphs_of"]

EAGER = 3  # times that a key's work runs before its capture: libraries set themselves up there


def graphs_of(accelerate: str, device: torch.device, key: str) -> "Graphs | None":
    """Return the graphs of a trainer if its config's `key` says graph; a CPU is refused."""
    if accelerate != "graph":
        return None
    if device.type != "cuda":
        raise ConfigError(
            f"{key} = 'graph' on device {device}: CUDA graphs need a GPU; allowed here are off and "
            "compile"
        )
    return Graphs(device, key)


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Any


class Graphs:
    """Pieces of work of one CUDA device: run eagerly at first, then captured by key, then replayed.

    Between replays weights and optimizer state may change, but not their addresses. Inputs are
    copied to where they were at the capture. `asked` is the config's key, for messages.

    Attributes:
        reasons: why the work of a key stays eager, by key.
    """

    def __init__(self, device: torch.device, asked: str) -> None:
        self.reasons: dict[Hashable, str] = {}
        self._device, self._asked = device, asked
        self._runs: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, _Captured] = {}
        self._side = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()  # graphs never run at once, so they share it

    def __call__(self, key: Hashable, work: Callable[..., Any], *inputs: Tensor) -> Any:
        """Do the work of a key and of its inputs' shapes; its next run may overwrite the result."""
        key = (key, *(tensor.shape for tensor in inputs))
        if key in self.reasons:
            return work(*inputs)
        if key not in self._graphs:
            self._runs[key] += 1
            if self._runs[key] <= EAGER or not self._capture(key, work, inputs):
                return self._run_aside(partial(work, *inputs))
        captured = self._graphs[key]
        if inputs:
            torch._foreach_copy_(captured.inputs, list(inputs))
        captured.graph.replay()
        return captured.result

    def _run_aside(self, work: Callable[[], Any]) -> Any:
        """Do work in a side stream, as has to be done before a capture."""
        now = torch.cuda.current_stream(self._device)
        self._side.wait_stream(now)
        with torch.cuda.stream(self._side):
            result = work()
        now.wait_stream(self._side)
        return result

    def _capture(self, key: Hashable, work: Callable[..., Any], inputs: Sequence[Tensor]) -> bool:
        graph, static = torch.cuda.CUDAGraph(), [i.clone() for i in inputs]
        try:
            # Checkpoints are written by another thread, which must not end the capture.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = work(*static)
        except NotCaptured as reason:
            if str(reason) not in self.reasons.values():
                message = f"{self._asked} = 'graph': {reason}, so updates run eagerly"
                warnings.warn(message, stacklevel=2)
            self.reasons[key] = str(reason)
            return False
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ConfigError(
                f"{self._asked} = 'graph': the update cannot be captured here "
                f"({shortened(str(error), 200)}): set it to off (to resume a run, in its "
                "config.yaml)"
            ) from error
        self._graphs[key] = _Captured(graph, static, result)
        return True
