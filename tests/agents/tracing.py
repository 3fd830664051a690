from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo import lookup_backend

__all__ = ["trace_alone"]


def trace_alone(monkeypatch: pytest.MonkeyPatch, backend: Any = "aot_eager") -> None:
    """Let `torch.compile`, and whole updates, trace; what they traced runs by a backend."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    run = lookup_backend(backend) if isinstance(backend, str) else backend
    own = "rlplast.agents.compiled._inductor"
    monkeypatch.setattr(own, lambda graph, inputs, options: run(graph, inputs))
