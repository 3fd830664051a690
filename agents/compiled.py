"""Whole updates through `torch.compile`.

- `chosen`: what ``accelerate: auto`` stands for.
- `compiled_update`: an update as one compiled graph.
"""

import os
import shutil
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from rlplast.core.device import compile_options, uses_gpu
from rlplast.core.errors import ConfigError
from rlplast.core.method.listing import listed_method, row_implements
from rlplast.core.network.own import is_factory
from rlplast.training.kinds import get_kind

__all__ = ["chosen", "compiled_update", "compiles_updates"]

NEEDS = "2.13"  # which compiles functions that ask for gradients, and code once per agent
# Compiling takes 10 to 25 s, and saves from 0.4 ms an update on (docs/explanation/benchmarks.md).
LEAST_UPDATES = 15_000


def chosen(config: Any) -> str:
    """Return what ``accelerate: auto`` stands for in an `AgentConfig`.

    On a GPU it is graph, which has the bits of off, if the optimizer can be captured, and kind of
    run, network and methods are ours: what a user wrote may wait for the GPU.

    On a CPU it is compile for runs of at least `LEAST_UPDATES` planned updates, if all of an update
    compiles: with adam or adamw, a network of ours, and without penalties and layers that read
    gradients. Hooks do not count, so that arms of a study that differ in hooks share their prefix.

    It depends on the config and the machine, never on time: the same run has the same bits at any
    hour.
    """
    own_network = is_factory(config.agent.network)  # what a user wrote may not compile
    if uses_gpu(config.device):
        rows = (*config.hooks, *config.layers, *config.penalties)
        ours = get_kind(config.kind).origin == "rlplast" and all(map(_is_ours, rows))
        return "graph" if ours and not own_network and config.optimizer.captures else "off"
    worthwhile = (
        config.updates_planned() >= LEAST_UPDATES
        and config.optimizer.compiles
        and not config.penalties
        and not own_network
        and not any(_reads_gradients(row) for row in config.layers)
    )
    able = compiles_updates() and shutil.which(os.environ.get("CXX", "g++")) is not None
    return "compile" if worthwhile and able else "off"


def _is_ours(row: Any) -> bool:
    found = listed_method(row)
    return found is not None and found.__module__.startswith("rlplast.")


def _reads_gradients(row: Any) -> bool:
    return row_implements(row, "plan") and "gradients" in getattr(listed_method(row), "reads", ())


@cache  # comparing versions takes 5% of a small update
def compiles_updates() -> bool:
    """Whether this PyTorch compiles whole updates; older ones compile losses."""
    return torch.__version__ >= NEEDS


def compiled_update(
    learn: Callable[..., Any], device: torch.device, on_compile: Callable[[float], None]
) -> Callable[..., Any]:
    """Return a function that takes gradients and writes weights as one compiled graph.

    Args:
        learn: the function.
        device: where it runs.
        on_compile: called with the seconds of the first call, which compiles.

    Raises:
        ConfigError: at its first call, if it cannot be compiled here.
    """
    import torch._dynamo
    from torch._dynamo.exc import TorchDynamoException

    torch._dynamo.config.trace_autograd_ops = True
    how: dict[str, Any] = {"dynamic": False, "fullgraph": True, "isolate_recompiles": True}
    # On a CPU calling the kernels from C++ saves 3 to 8% of an update.
    from_cpp = {"cpp_wrapper": True} if device.type == "cpu" else {}
    how["options"] = compile_options(device) | from_cpp
    compiled = torch.compile(learn, **how)
    first = True

    def call(batch: Any) -> Any:
        nonlocal first
        started = time.perf_counter()
        try:
            found = compiled(batch)
        except TorchDynamoException as error:
            cause = " ".join(str(error).strip().splitlines()[:2])
            raise ConfigError(
                f"agent.accelerate = 'compile': the update cannot be compiled here ({cause}): "
                "set it to off (to resume a run, in its config.yaml); on a CPU it needs a C++ "
                "compiler, such as g++"
            ) from error
        if first:
            first = False
            on_compile(time.perf_counter() - started)
        return found

    return call
