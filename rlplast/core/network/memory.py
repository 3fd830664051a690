"""Tensors that cannot be edited without editing others, or not entry by entry."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block

__all__ = ["check_memory", "check_module"]


def check_module(name: str, module: Any, optimizers: Sequence[Any]) -> None:
    """Refuse a module without dense weights of its own, and anything else than an optimizer."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name} is a {type(module).__name__}: allowed is a torch.nn.Module")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"the optimizer of {name} is {optimizer!r}: allowed are torch.optim.Optimizers"
            )
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            where = ".".join(p for p in (name, path) if p)
            raise ConfigError(f"{where} is scripted: pass the module that it was made from")
    for path, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ConfigError(f"{name}.{path} has no shape yet: call the module on a batch first")
        if tensor.layout != torch.strided:
            raise ConfigError(f"{name}.{path} is {tensor.layout}: hooks edit dense tensors only")
        if tensor.device.type == "mps":
            raise ConfigError(
                f"{name}.{path} is on {tensor.device}, which has no float64 for the sums of hooks: "
                "allowed are cpu and cuda; move the model by model.to('cpu')"
            )


def check_memory(name: str, module: nn.Module, blocks: Sequence[Block]) -> None:
    """Refuse weights that are computed from others, and tensors without a memory of their own."""
    for path, part in module.named_modules():
        if _is_computed(part):
            raise ConfigError(
                f"{'.'.join(p for p in (name, path) if p)} is parametrised (weight_norm, "
                "spectral_norm, pruning and the like): its weight is computed from others, which "
                "an edit would not reach; remove the parametrisation first "
                "(torch.nn.utils.parametrize.remove_parametrizations)"
            )
    held = {id(b.param): b for b in blocks}
    for block in held.values():
        problem = _unwritable(block.param)
        if problem:
            raise ConfigError(f"{name}.{block.name} {problem}")
    shared = _overlap({b.name: b.param for b in held.values()})
    if shared is not None:
        raise ConfigError(
            f"{name}.{shared[1]} and {name}.{shared[0]} are two tensors over the same memory: tie "
            "weights by giving both layers one Parameter (a.weight = b.weight), or copy it "
            "(.clone())"
        )


def _is_computed(part: nn.Module) -> bool:
    """Whether a module computes one of its tensors from others, in torch's new or old way."""
    kept = [n.removesuffix("_orig") for n in part._parameters if n.endswith("_orig")]
    kept += [
        n[:-2] for n in part._parameters if n.endswith("_g") and n[:-1] + "v" in part._parameters
    ]
    return any(n in vars(part) for n in kept) or parametrize.is_parametrized(part)


def _unwritable(tensor: Tensor) -> str:
    """Say why a tensor cannot be edited entry by entry; nothing if it can."""
    if tensor.is_complex():
        return f"is complex ({tensor.dtype}): hooks edit real tensors only"
    reach = 0  # of the dimensions with smaller strides, which a next one has to step over
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1 and stride <= reach:
            how = "is expanded" if stride == 0 else "overlaps itself"
            return (
                f"{how}: several entries are one number in memory; copy it (.clone()) into the "
                "parameter"
            )
        reach += (n - 1) * stride
    return ""


def _overlap(tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Return the names of two tensors whose memory overlaps, or None."""
    spans = []
    for name, tensor in tensors.items():
        size = tensor.element_size()
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        start = int(tensor.storage_offset()) * size
        storage = str(tensor.device), tensor.untyped_storage().data_ptr()
        spans.append((storage, start, start + (last + 1) * size, name))
    for (storage, _, end, one), (other, start, _, two) in itertools.pairwise(sorted(spans)):
        if storage == other and start < end:
            return one, two
    return None
