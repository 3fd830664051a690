"""Weights in a file: a ``.safetensors``, or a ``.pt`` that is a flat dict of names and tensors.

Names and shapes are all that is known. A tensor of two dimensions counts as the weight of a linear
layer, also an embedding; one of more as a conv kernel. Layers follow each other in file order.
"""

import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rlplast.core.errors import ConfigError, DamagedFile, RlplastError, did_you_mean
from rlplast.core.method.scope import stands_for
from rlplast.core.network.network import Network
from rlplast.run.file_layers import RUNNING, check_own, is_weight, layer_of, stored_transposed
from rlplast.training.files import fsync, whole

__all__ = ["SUFFIXES", "network_of", "read", "weights_of", "write"]

Tensors = Mapping[str, Tensor]

SUFFIXES = (".safetensors", ".pt")
_REMEDIES = {
    ".pth": ". A .pth is a .pt of another name: rename it, or link it as one",
    ".zip": ". Of a model of Stable-Baselines3: unzip -p MODEL.zip policy.pth > policy.pt",
}


def read(path: Path) -> dict[str, Tensor]:
    """Return a file's tensors by name, in file order; nothing else is ever unpickled.

    Raises:
        ConfigError: if there is no file of weights, or it holds more than a flat dict of them.
        DamagedFile: if it is cut or altered, or holds objects that only unpickling restores.
    """
    if path.suffix not in SUFFIXES or not path.is_file():
        remedy = _REMEDIES.get(path.suffix, "") if path.is_file() else ""
        raise ConfigError(f"{path}: allowed is a .safetensors or .pt that was saved before{remedy}")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        if zipfile.is_zipfile(path) and (altered := zipfile.ZipFile(path).testzip()):
            raise zipfile.BadZipFile(altered)  # its checksum differs: torch checks none
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever bytes make of an unpickler
        raise DamagedFile(
            f"{path} is damaged, or holds Python objects besides tensors, which are never "
            f"unpickled ({type(error).__name__}): save model.state_dict() again"
        ) from error
    return _flat(path, tree)


def _flat(path: Path, tree: Any) -> dict[str, Tensor]:
    """Return what was read if it is a flat dict of tensors; else say how to make one of it."""
    items: dict[Any, Any] = tree if isinstance(tree, dict) else {"all of it": tree}
    dicts = {key: value for key, value in items.items() if isinstance(value, dict)}
    inner = [f"[{k!r}]" for k, v in dicts.items() if any(map(torch.is_tensor, v.values()))]
    part = inner[0] if inner else "[KEY]" if dicts else ""
    for key, value in items.items():
        if not isinstance(value, Tensor) or not isinstance(key, str):
            raise ConfigError(
                f"{path}: {key} is a {type(value).__name__}: allowed is a flat dict of names and "
                f"tensors. In Python: state = torch.load({str(path)!r}, weights_only=True){part}; "
                "torch.save({k: v for k, v in state.items() if torch.is_tensor(v)}, 'flat.pt')"
            )
        if value.layout != torch.strided or value.is_meta or value.is_nested:
            raise ConfigError(f"{path}: {key} is sparse, nested or without values: save it dense")
    return items


def write(tensors: Tensors, source: Path, path: Path) -> None:
    """Write tensors in the format of the path's extension; whole or, with RlplastError, not at all.

    Tied tensors stay tied in a ``.pt``. Permissions, and a ``.safetensors``' metadata, are those of
    the file that they were read from.
    """
    target = path.resolve()  # a link keeps pointing at what is now the new file
    try:
        with whole(target) as temporary:
            _save(tensors, source, temporary, path.suffix)
        fsync(target.parent)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise RlplastError(
            f"{path} could not be written ({error}); what was there before is unchanged"
        ) from error


def _save(tensors: Tensors, source: Path, path: Path, suffix: str) -> None:
    if suffix == ".safetensors":
        metadata: dict[str, str] | None = {"format": "pt"}
        if source.suffix == suffix:
            with safe_open(source, framework="pt") as file:
                metadata = file.metadata()
        own = {name: t.detach().contiguous().clone() for name, t in tensors.items()}
        safetensors.torch.save_file(own, path, metadata)
    else:
        torch.save(tensors, path)
    shutil.copymode(source, path)  # safetensors makes files private


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(stands_for(glob, name) for glob in globs)


def weights_of(tensors: Tensors) -> dict[str, Tensor]:
    """Return all tensors; of a run's checkpoint without optimizers, memories and streams."""
    others = ("state/*", "*:*", "*.memory_*") if any(n[:6] == "state/" for n in tensors) else ()
    return {name: tensor for name, tensor in tensors.items() if not _matches(name, others)}


def _selected(tensors: Tensors, include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    for option, globs in (("--include", include), ("--exclude", exclude)):
        for glob in globs:
            if not any(stands_for(glob, name) for name in tensors):
                near = did_you_mean(glob, tensors)
                raise ConfigError(f"{option} {glob!r} matches no tensor: {near}")
    weights = {name for name, tensor in tensors.items() if is_weight(name, tensor)}
    able = [n for n, t in tensors.items() if n in weights or (t.is_floating_point() and t.numel())]
    chosen = [n for n in able if _matches(n, include)] if include else weights_of(tensors)
    chosen = [n for n in chosen if (include or n in weights) and not _matches(n, exclude)]
    if not chosen:
        raise ConfigError(f"no tensor is left: choose floating ones of {', '.join(tensors)}")
    check_own(tensors, chosen, ", or leave it out by --exclude")
    return chosen


def network_of(
    tensors: Tensors, include: Sequence[str], exclude: Sequence[str], initial: Tensors | None
) -> Network:
    """Return tensors as a `Network`; edits of it are edits of them.

    Globs say what is not frozen; without `include` floating tensors of two or more dimensions.
    θ0 is `initial`, or the weights as they are.

    Raises:
        ConfigError: if a glob matches nothing, nothing is left, or `initial` lacks a tensor.
    """
    selected = set(_selected(tensors, include, exclude))
    check_own(initial or {}, [name for name in initial or {} if name in selected], " (--init)")
    layers: dict[str, dict[str, Tensor]] = {}
    held: dict[Any, Tensor] = {}  # one for all names of a tied tensor
    start: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        buffer, edited = name.endswith(RUNNING), name in selected
        if not tensor.is_floating_point() or not tensor.numel() or (buffer and not edited):
            continue  # buffers cannot be frozen
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        value = tensor.detach()
        own = held.setdefault(key, value if buffer else nn.Parameter(value, requires_grad=edited))
        if own.requires_grad != (edited and not buffer):
            raise ConfigError(f"{name} is tied to another tensor: include or exclude both")
        path, _, attribute = name.rpartition(".")
        weight = name if tensor.ndim >= 2 else re.sub(r"bias(?=[^.]*$)", "weight", name)
        if weight in tensors and tensors[weight].ndim >= 2:  # each is a layer, with its bias
            path = weight.removesuffix(".weight")
            attribute = "weight" if name == weight else "bias"
        layers.setdefault(path, {})[attribute] = own
        before = tensors if initial is None or not edited else initial
        if name in before:  # if not, the network names it
            start[f"{path}.{attribute}".lstrip(".")] = before[name].detach()
    model = nn.Module()
    transposed = stored_transposed(layers)
    model._modules.update(
        {
            path: layer_of(path, own, path in transposed, path in tensors and "weight" not in path)
            for path, own in layers.items()
        }
    )
    return Network("model", model, initial=start, order=list(layers))
