"""Fingerprints of data, so that a run resumes on what it began with or says that it cannot."""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError

__all__ = ["check_data", "content", "fingerprint"]


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of shapes, types and contents, in hexadecimal."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(content(tensor))
    return found.hexdigest()


def content(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def check_data(saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Compare fingerprints by name; ConfigError names the data that changed."""
    changed = [name for name, value in now.items() if saved.get(name) != value]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)}: the data are not those this run was saved with; resume it with "
            "the same files (embedded corpora: the same Python), or start a new run"
        )
