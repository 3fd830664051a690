"""What names, shapes and types in a file of weights tell of their layers."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import BlockSpec
from rlplast.core.network.packing import UNKNOWN, packed_rows

__all__ = ["RUNNING", "check_own", "is_weight", "layer_of", "stored_transposed"]

Tensors = Mapping[str, Tensor]

RUNNING = ("running_mean", "running_var")
NORM_ROLES = {"weight": "scale", "bias": "shift", **dict.fromkeys(RUNNING, "buffer")}
WRITABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CONV1D = ("c_attn", "q_attn", "c_proj", "c_fc")  # what GPT-2 of transformers stores transposed
RECURRENT = re.compile(r"weight_[ih]h(_l\d+(_reverse)?)?")  # the gates of torch's LSTM and GRU
SPREADS = re.compile(r".*(log_?std|sigma|epsilon)")  # of a policy's actions, of noisy layers


def is_weight(name: str, tensor: Tensor) -> bool:
    """Say whether a tensor is a matrix or kernel: floats, or numbers that stand for floats."""
    numbers = tensor.is_floating_point() or tensor.is_complex()
    return tensor.ndim >= 2 and tensor.numel() > 0 and (numbers or _is_quantised(name, tensor))


def _is_quantised(name: str, tensor: Tensor) -> bool:
    """Say whether a tensor is a weight of integers, which a scale beside it turns into floats."""
    real = tensor.dtype in WRITABLE or tensor.is_complex() or tensor.dtype == torch.bool
    return tensor.ndim >= 2 and not real and "weight" in name.rpartition(".")[2]


def check_own(tensors: Tensors, names: Iterable[str], remedy: str = "") -> None:
    """Refuse tensors from which, or by which, a layer computes its weight.

    Of all `tensors` of a file only `names` are checked; messages end with `remedy`.

    Raises:
        ConfigError: naming the first: of a parametrisation, or of a type that no edit can write.
    """
    quantised = {n.rpartition(".")[0]: n for n, t in tensors.items() if _is_quantised(n, t)}
    for name in names:
        tensor = tensors[name]
        stem = re.sub(r"_(orig|mask|[uvg])$", "", name)
        pair = f"{stem}_g" in tensors and f"{stem}_v" in tensors
        computed = stem != name and (pair or f"{stem}_orig" in tensors)
        mask = re.search(r"(^|[._])mask$", name)
        if computed or mask or "parametrizations" in name.split("."):
            raise ConfigError(
                f"{name} is part of a parametrised weight (weight_norm, spectral_norm, pruning and "
                "the like), which is computed from it: remove the parametrisation and save again "
                "(torch.nn.utils.parametrize.remove_parametrizations; of pruned layers "
                f"torch.nn.utils.prune.remove){remedy}"
            )
        beside = quantised.get(name.rpartition(".")[0])
        if tensor.dtype not in WRITABLE or (beside is not None and tensor.ndim >= 2):
            what = f"{name} is {tensor.dtype}"
            if beside not in (None, name):
                what += f", beside {beside}, which is {tensors[beside].dtype}"
            raise ConfigError(
                f"{what}: allowed are float16, bfloat16, float32 and float64, of weights that are "
                f"not quantised; convert the model to one of them and save again{remedy}"
            )


def _lies_transposed(path: str, own: Tensors) -> bool:
    """Say whether a layer's bias, or what its name says of its shape, is of the other dimension."""
    weight = next((t for t in own.values() if t.ndim == 2), None)
    if weight is None:
        return False
    rows, columns = weight.shape
    biases = [len(t) for name, t in own.items() if t.ndim == 1 and "bias" in name]
    packed = path.rpartition(".")[2] == "c_attn" and columns == 3 * rows
    return packed or (biases == [columns] and rows != columns)


def stored_transposed(layers: Mapping[str, Tensors]) -> set[str]:
    """Return the paths of layers that are stored (d_in, d_out); square weights do not tell."""
    found = {path for path, own in layers.items() if _lies_transposed(path, own)}
    gpt2 = {path for path in layers if path.rpartition(".")[2] in CONV1D}
    return found | gpt2 if found & gpt2 else found


def layer_of(path: str, tensors: Tensors, transposed: bool, bare: bool) -> nn.Module:
    """Return a module of one layer's tensors."""
    layer, specs = nn.Module(), []
    for name, tensor in tensors.items():  # names from a file need not be fit for attributes
        kept: Any = layer._parameters if isinstance(tensor, nn.Parameter) else layer._buffers
        kept[name] = tensor
    weights = [name for name, tensor in tensors.items() if tensor.ndim >= 2]
    if weights:
        specs = _specs(path, weights[0], tensors, transposed, bare)
    elif tensors.keys() <= NORM_ROLES.keys() and tensors.keys() != {"bias"}:
        specs = [BlockSpec(name, NORM_ROLES[name], "norm") for name in tensors]
    vars(layer)["block_specs"] = lambda: specs
    return layer


def _specs(
    path: str, weight: str, tensors: Tensors, transposed: bool, bare: bool
) -> list[BlockSpec]:
    shape, own = tensors[weight].shape, path.rpartition(".")[2]
    d_out, d_in, *kernel = (shape[1], shape[0]) if transposed else shape
    biases = {n: t for n, t in tensors.items() if n != weight and "bias" in n}
    turned = kernel and [len(t) for t in biases.values()] == [d_in] and d_in != d_out
    unknown = RECURRENT.fullmatch(own) or SPREADS.fullmatch(own)
    if turned or (bare and kernel) or unknown:  # a transposed conv, or gates
        return [BlockSpec(weight, "other", "other", UNKNOWN)]
    kind, area = "conv" if kernel else "linear", math.prod(kernel)
    # Torch's own attention has one tensor of that name; its parts follow one another.
    rows = packed_rows("qkv" if own == "in_proj_weight" else own, d_out, d_in)
    parts = [(part, (index,)) for part, index in rows.items()] or [("", ())]
    fans = (d_in * area, d_out * area // len(parts))
    specs = []
    for name in tensors:
        if name == weight:  # else it is not known what it is
            lies = [(p, (slice(None), *i) if i and transposed else i) for p, i in parts]
            specs += [
                BlockSpec(name, "weight", kind, p, None, i, *fans, transposed) for p, i in lies
            ]
        elif name in biases:
            specs += [BlockSpec(name, "bias", kind, part, None, i, *fans) for part, i in parts]
    return specs
