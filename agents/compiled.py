"""Whole updates through `torch.compile`."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from rlplast.core.device import compile_options, uses_gpu
from rlplast.core.errors import ConfigError
from rlplast.core.fast.linear import compiled_calls
from rlplast.core.method.listing import listed_method, row_implements
from rlplast.core.network.factory import is_factory
from rlplast.training.kinds import get_kind

__all__ = ["CompiledUpdate", "chosen", "compiles_updates"]

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

    It depends on the config and the machine, never on time.
    """
    # What a user wrote may not compile.
    own_network = is_factory(getattr(config.agent, "network", ""))
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
    method = listed_method(row)
    return method is not None and method.__module__.startswith("rlplast.")


def _reads_gradients(row: Any) -> bool:
    return row_implements(row, "plan") and "gradients" in getattr(listed_method(row), "reads", ())


@cache  # comparing versions takes 5% of a small update
def compiles_updates() -> bool:
    """Whether this PyTorch compiles whole updates; older ones compile losses."""
    return torch.__version__ >= NEEDS


class CompiledUpdate:
    """A function that takes gradients and writes weights, as one compiled graph.

    A call checks all that was assumed when it was compiled, and collects weights and the state of
    optimizers. That takes a fifth of a small update, so `again` does neither. `on_compile` is
    called with the seconds of the first call.
    """

    def __init__(
        self, learn: Callable[..., Any], device: torch.device, on_compile: Callable[[float], None]
    ) -> None:
        import torch._dynamo

        torch._dynamo.config.trace_autograd_ops = True
        self.__name__ = learn.__name__
        self._on_compile: Callable[[float], None] | None = on_compile
        self._graph: tuple[Callable[..., Any], Sequence[Any], Sequence[Any]] | None = None
        # On a CPU calling the kernels from C++ saves 3 to 8% of an update.
        options = compile_options(device) | (
            {"cpp_wrapper": True} | compiled_calls() if device.type == "cpu" else {}
        )

        def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
            compiled = _inductor(graph, inputs, options)

            def run(*args: Any) -> Any:
                outputs = compiled(*args)
                self._graph = compiled, args, outputs
                return outputs

            return run

        how: dict[str, Any] = {"dynamic": False, "fullgraph": True, "isolate_recompiles": True}
        self._compiled = torch.compile(learn, backend=backend, **how)

    def __call__(self, batch: Any) -> Any:
        """Update once.

        Raises:
            ConfigError: at the first call, if it cannot be compiled here.
        """
        from torch._dynamo.exc import TorchDynamoException

        started, self._graph = time.perf_counter(), None
        try:
            returned = self._compiled(batch)
        except TorchDynamoException as error:
            cause = " ".join(str(error).strip().splitlines()[:2])
            raise ConfigError(
                f"agent.accelerate = 'compile': the update cannot be compiled here ({cause}): "
                "set it to off (to resume a run, in its config.yaml); on a CPU it needs a C++ "
                "compiler, such as g++"
            ) from error
        if self._on_compile is not None:
            self._on_compile(time.perf_counter() - started)
            self._on_compile = None
        self.again = (self._graph and _again(*self._graph, batch, returned)) or self
        return returned


def _inductor(graph: Any, inputs: Any, options: dict[str, Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, config_patches=options)


def _again(
    compiled: Callable[..., Any],
    args: Sequence[Any],
    outputs: Sequence[Any],
    batch: Any,
    returned: Any,
) -> Callable[[Any], Any] | None:
    """Return a call of the same graph with another batch; None if it has other outputs."""
    places = {id(arg): i for i, arg in enumerate(args)}
    read = [(places[id(leaf)], j) for j, leaf in enumerate(_leaves(batch)) if id(leaf) in places]
    numbers = {id(output): i for i, output in enumerate(outputs)}
    args = list(args)

    def built(like: Any, outputs: Sequence[Any]) -> Any:
        if isinstance(like, tuple):
            return tuple(built(part, outputs) for part in like)
        if isinstance(like, dict):
            return {name: built(part, outputs) for name, part in like.items()}
        return outputs[numbers[id(like)]]

    # A graph with other outputs has tensors that a module puts into its attributes, which only a
    # whole call does.
    if {id(leaf) for leaf in _leaves(returned)} != set(numbers):
        return None

    def again(batch: Any) -> Any:
        leaves = _leaves(batch)
        for place, leaf in read:
            args[place] = leaves[leaf]
        return built(returned, compiled(*args))

    return again


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, tuple | dict):
        parts = tree.values() if isinstance(tree, dict) else tree
        return [leaf for part in parts for leaf in _leaves(part)]
    return [tree]
