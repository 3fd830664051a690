"""Saved state dicts: read from and written to ``.safetensors`` and ``.pt`` files.

- `StateFile`: everything a file holds, and the state dict picked from it.
- `read`: open one; nothing but tensors and plain containers is ever unpickled.
- `check_out`, `write`: write one beside its place, fsync, rename.
"""

import os
import pickle
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlplast.core.errors import BadWeights, ConfigError, DamagedFile, RlplastError, did_you_mean
from rlplast.training.files import fsync

__all__ = ["SUFFIXES", "StateFile", "check_out", "read", "write"]

TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)

# What torch's unpickler, with weights_only, raises on bytes that are no pickle of tensors.
_UNREADABLE = (
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    EOFError,
    OSError,
    struct.error,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class StateFile:
    """A file that holds a state dict.

    Attributes:
        path: where it was read from.
        tree: everything the file holds; shares memory with `tensors`.
        tensors: the state dict's tensors by name, in file order.
        metadata: a safetensors header's metadata; None in a ``.pt``.
        left_out: what `tensors` does not have of `tree`, in words; empty if nothing.
    """

    path: Path
    tree: Any
    tensors: dict[str, Tensor]
    metadata: dict[str, str] | None
    left_out: str


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: allowed is a file that ends with {', '.join(SUFFIXES)}")


def read(path: Path, key: str | None = None, *, key_if_nested: bool = False) -> StateFile:
    """Open a state dict.

    Args:
        path: a ``.safetensors``, ``.pt`` or ``.pth`` file.
        key: dotted path of a state dict nested in a ``.pt``, such as ``model``.
        key_if_nested: ignore `key` where the file itself is a state dict already.

    Raises:
        ConfigError: if the file is absent, of another extension, or lacks `key`.
        DamagedFile: if it is cut or altered, or holds objects that only unpickling restores.
        RlplastError: if it is no state dict, with the keys it has instead.
        BadWeights: if a tensor is sparse, nested, expanded or on the ``meta`` device.
    """
    _check_suffix(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"{path} {what}: name a file that was saved before")
    if path.suffix == ".safetensors":
        tree, metadata = _read_safetensors(path)
    else:
        tree, metadata = _read_torch(path), None
    node: Any = tree
    for part in [] if key is None or (key_if_nested and _is_state_dict(tree)) else key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            keys = [k for k in node if isinstance(k, str)] if isinstance(node, Mapping) else []
            raise ConfigError(f"--key {key}: {path} has no {part!r}: {did_you_mean(part, keys)}")
        node = node[part]
    if not _is_state_dict(node):
        where = str(path) if node is tree else f"{key!r} of {path}"
        raise RlplastError(
            f"{where} is no state dict: {_keys(node)}; --key of a command names one inside it"
        )
    tensors = {name: value.detach() for name, value in node.items() if isinstance(value, Tensor)}
    for name, tensor in tensors.items():
        if problem := _problem(tensor):
            raise BadWeights(f"{path}: {name} is {problem}: save a dense copy of it (clone)")
    left_out = [f"everything beside {key!r}"] if node is not tree else []
    left_out += [name for name in node if name not in tensors]
    return StateFile(path, tree, tensors, metadata, ", ".join(left_out))


def _problem(tensor: Tensor) -> str:
    """Say why a tensor's values cannot be edited in place; empty if they can."""
    if tensor.is_meta:
        return "on the meta device"
    if tensor.is_nested:
        return "nested"
    if tensor.layout != torch.strided:
        return "sparse"
    many = (n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return "an expanded view" if any(many) else ""


def _is_state_dict(node: Any) -> bool:
    if not isinstance(node, Mapping) or not all(isinstance(k, str) for k in node):
        return False
    nested = [v for v in node.values() if isinstance(v, Mapping)]
    return _holds_tensors(node) and not any(map(_holds_tensors, nested))


def _holds_tensors(node: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, Tensor) for value in node.values())


def _keys(node: Any) -> str:
    """Say what keys there are."""
    if not isinstance(node, Mapping):
        return f"it is a {type(node).__name__}"
    keys = [str(k) for k in node]
    more = f" and {len(keys) - 20} more" if len(keys) > 20 else ""
    return f"its keys are {', '.join(keys[:20]) or 'none'}{more}"


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        return safetensors.torch.load_file(path), metadata
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFile(f"{path} is damaged or no safetensors file: {error}") from error


def _read_torch(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:  # torch itself does not check the checksums
                altered = archive.testzip()
            if altered is not None:
                raise DamagedFile(f"{path} is damaged: the checksum of {altered} differs")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they tell how to change torch, not what is wrong
            return torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        if any(word in str(error) for word in ("GLOBAL", "Unsupported operand")):  # of a pickle
            raise DamagedFile(
                f"{path} holds Python objects or code besides tensors, which are never unpickled: "
                "save model.state_dict() instead of the model"
            ) from error
        raise DamagedFile(
            f"{path} is cut, damaged or no file of torch.save ({type(error).__name__}); save or "
            "copy it again"
        ) from error


def check_out(path: Path) -> None:
    """Check that `write` can write there, before any work is done.

    Raises:
        ConfigError: for another extension, a folder, or a missing parent folder.
    """
    _check_suffix(path)
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder: name a file")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"--out {path}: folder {path.parent} does not exist: make it first")


def write(saved: StateFile, path: Path) -> None:
    """Write a state dict in the format of the path's extension; whole or not at all.

    A ``.pt`` gets everything the file held, with tied tensors still tied; a ``.safetensors``
    the tensors of the state dict, each with its own memory. Permissions are those of the
    file read.

    Raises:
        RlplastError: if the disk is full or not writable; what was there stays.
    """
    target = path.resolve()  # a link keeps pointing at what is now the new file
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if path.suffix == ".safetensors":
            own = {name: t.contiguous().clone() for name, t in saved.tensors.items()}
            metadata = {"format": "pt"} if saved.metadata is None else saved.metadata
            safetensors.torch.save_file(own, temporary, metadata=metadata or None)
        else:
            torch.save(saved.tree, temporary)
        shutil.copymode(saved.path, temporary)  # safetensors makes files private
        fsync(temporary)
        temporary.replace(target)
        fsync(target.parent)
    except (OSError, RuntimeError, SafetensorError, KeyError) as error:
        raise RlplastError(
            f"{path} could not be written ({error}); what was there before is unchanged"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
