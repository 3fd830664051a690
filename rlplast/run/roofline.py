"""How long a computation would take on this machine, found without computing it.

- `Machine`: what this machine does in a second; `measured` finds out in about two.
- `Traced`: the work of whatever runs inside; fake tensors suffice.

An operation takes the time of its arithmetic or of its memory traffic, whichever is longer, and a
time of its own. This is the roofline model (Williams et al. 2009).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, register_flop_formula

from rlplast.core.fast.linear import affine

__all__ = ["Machine", "Traced", "measured"]

_SECONDS = 0.25  # of each measurement

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # of `affine`
if _ONEDNN is not None and _ONEDNN not in flop_registry:

    @register_flop_formula(_ONEDNN)
    def _flops(x: Sequence[int], weight: Sequence[int], *args: Any, **kwargs: Any) -> int:
        return 2 * x[0] * x[1] * weight[0]


@dataclass(frozen=True)
class Machine:
    """What a machine does.

    Attributes:
        matmul: FLOP/s of products of matrices, float32.
        conv: FLOP/s of convolutions, forward and backward.
        bandwidth: bytes/s read and written by operations on entries.
        overhead: seconds of an operation that does next to nothing.
    """

    matmul: float
    conv: float
    bandwidth: float
    overhead: float


class Traced(TorchDispatchMode):
    """Counts what the operations inside take.

    Args:
        machine: which machine they would run on.

    Attributes:
        seconds: what they would take there.
        flops: their products and convolutions; a multiplication and an addition are two.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine, self.seconds, self.flops, self.operations = machine, 0.0, 0.0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and add what it takes."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        flops = float(count(*args, **kwargs, out_val=out)) if count is not None else 0.0
        rate = self.machine.conv if "conv" in str(func) else self.machine.matmul
        self.flops += flops
        self.operations += 1
        self.seconds += self.machine.overhead
        returns = func._schema.returns
        if (returns and returns[0].alias_info is None) or func._schema.is_mutable:  # else a view
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            traffic = sum(t.numel() * t.element_size() for t in tensors)
            self.seconds += max(flops / rate, traffic / self.machine.bandwidth)
        return out


def measured(threads: int) -> Machine:
    """Measure this machine with so many threads; takes one or two seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = torch.rand(768, 768), torch.rand(768, 768)
        matmul = 2 * 768**3 / _each(lambda: affine(a, b))  # as in our networks
        return Machine(matmul, _conv(), _bandwidth(), _overhead())
    finally:
        torch.set_num_threads(before)


def _conv() -> float:
    layer = nn.Conv2d(64, 64, 3, padding=1)
    x = torch.rand(16, 64, 16, 16, requires_grad=True)
    flops = 3 * 2 * x.numel() * 64 * 9
    return flops / _each(lambda: layer(x).sum().backward())


def _bandwidth() -> float:
    x, y = torch.rand(4_000_000), torch.rand(4_000_000)
    return 3 * 4 * x.numel() / _each(lambda: x.add_(y))


def _overhead() -> float:
    """Return the seconds of an operation in a forward and a backward pass of a tiny network."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(8)))
    x = torch.rand(4, 4)

    def update() -> None:
        model(x).square().mean().backward()

    with Traced(Machine(1, 1, 1, 1)) as traced:
        update()
    return _each(update) / traced.operations


def _each(work: Callable[[], object]) -> float:
    """Return the seconds that a piece of work takes, best of some: others may be at work too."""
    work()
    best, until = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
