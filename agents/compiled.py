"""Whole updates through `torch.compile`."""

from collections.abc import Callable
from typing import Any

import torch

from rlplast.core.errors import ConfigError

__all__ = ["compiled_update", "compiles_updates"]

NEEDS = "2.13"  # which compiles functions that ask for gradients, and code once per agent


def compiles_updates() -> bool:
    """Whether this PyTorch compiles whole updates; older ones compile losses."""
    return torch.__version__ >= NEEDS


def compiled_update(learn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes gradients and writes weights as one compiled graph.

    Raises:
        ConfigError: at its first call, if it cannot be compiled here.
    """
    import torch._dynamo

    torch._dynamo.config.trace_autograd_ops = True
    compiled = torch.compile(learn, dynamic=False, fullgraph=True, isolate_recompiles=True)

    def call(batch: Any) -> Any:
        try:
            return compiled(batch)
        except torch._dynamo.exc.TorchDynamoException as error:
            cause = " ".join(str(error).strip().splitlines()[:2])
            raise ConfigError(
                f"agent.accelerate = 'compile': the update cannot be compiled here ({cause}): "
                "set it to off; on a CPU it needs a C++ compiler, such as g++"
            ) from error

    return call
