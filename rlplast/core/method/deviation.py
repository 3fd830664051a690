"""Deviation: how far a plan moves what a network computes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.method.readings import Source
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Edit, put_back, write
from rlplast.core.network.network import Network
from rlplast.core.network.order import last_layers
from rlplast.core.rng import preserve_global_rng

__all__ = ["deviation"]


@torch.no_grad()
def deviation(
    network: Network, edits: Sequence[Edit], source: Source, size: int, number: int
) -> float | None:
    """Return ‖y' − c·y‖/‖c·y‖, the largest over the network's outputs, in evaluation mode.

    y and y' are an output on a probe before and after the plan, c the factor that fits best. Every
    tensor gets its bits back. It is 0 for outputs that stay or become zero, infinity for those that
    are zero no more; None while there are no data, or if the outputs are not seen.
    """
    with preserve_global_rng():
        batch = source.sample(size, number)
        if batch is None:
            return None
        before = _outputs(network, source, batch)
        blocks = dict.fromkeys(e.target for e in edits if isinstance(e.target, Block))
        with put_back(t for b in blocks for t in (b.view, b.memory) if t is not None):
            write([e for e in edits if isinstance(e.target, Block)])
            after = _outputs(network, source, batch)
    rests = [_rest(x.double(), y.double()) for x, y in zip(before, after, strict=True)]
    return max(rests) if rests else None


def _rest(before: Tensor, after: Tensor) -> float:
    size = before.square().sum()
    fitted = before * ((before * after).sum() / size) if size > 0 else before
    rest = (after - fitted).norm()
    return 0.0 if rest == 0 else float(rest / fitted.norm())


def _outputs(network: Network, source: Source, batch: Any) -> list[Tensor]:
    """Return a network's outputs on a batch; its layers' outputs if only these are called."""
    modules = dict(network.module.named_modules())
    last = [path for path in modules if path in last_layers(network)]
    outputs: dict[str, list[Tensor]] = {path: [] for path in ("", *last)}
    handles = [
        modules[path].register_forward_hook(
            lambda module, args, output, path=path: outputs[path].extend(_tensors(module, output))
        )
        for path in outputs
    ]
    try:
        if any(group.point is not None for group in network.units().groups):
            source.activations(network.name, batch)
        else:
            source.outputs(network.name, batch)
    finally:
        for handle in handles:
            handle.remove()
    return outputs[""] or [tensor for path in last for tensor in outputs[path]]


def _tensors(module: nn.Module, output: Any) -> list[Tensor]:
    """Return the tensors of an output, each member's of a stacked layer."""
    if isinstance(output, Tensor):
        return list(output) if hasattr(module, "members") else [output]
    values = output.values() if isinstance(output, dict) else output
    values = values if isinstance(output, dict | list | tuple) else ()
    return [t for t in values if isinstance(t, Tensor) and t.is_floating_point()]
