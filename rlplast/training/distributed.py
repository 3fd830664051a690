"""Several processes that train one network together, as ``torchrun`` or a study starts them.

Every process (rank) takes the same steps, each on its own rows of a batch, and gradients are
averaged. Weights are never sent: hooks fire in every rank, from the same streams, on equal weights.
So a plan that reads what only one rank has seen (activations or gradients of its own rows) must
average it over all ranks before it decides; `check_in_step` finds out whoever breaks the rule.
"""

import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rlplast.core.errors import RlplastError
from rlplast.core.network.network import Network
from rlplast.training.run_folder import RunFolder

__all__ = [
    "accumulating",
    "average",
    "averaging",
    "barrier",
    "check_in_step",
    "gather",
    "highest",
    "join",
    "leave",
    "open_folder",
    "rank",
    "shared",
    "total",
    "world",
]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def world() -> int:
    """Return how many processes train together: 1 unless ``torchrun`` or a study started them."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """Return this process's number, from 0; rank 0 writes, prints and draws for all."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def join(device: torch.device) -> torch.device:
    """Enter the process group, if there is one, and return the device of this process."""
    if world() == 1:
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        # Signals and random states are exchanged from the CPU, so that no update waits for them.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    return device


def leave() -> None:
    """Leave the process group; not while an error ends this process, as torchrun then stops all."""
    if world() > 1 and dist.is_initialized() and sys.exc_info()[0] is None:
        # Threads of the group need the interpreter's lock to drop their last tensors. What is freed
        # next may hold it and wait for them, for ever, so they get the time first (pytorch #56297).
        time.sleep(0.2)
        dist.destroy_process_group()


def averaging(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a wrapper whose backward pass averages gradients over ranks; alone, the module."""
    if world() == 1:
        return module
    devices = [device] if device.type == "cuda" else None
    return DistributedDataParallel(module, devices)


def accumulating(module: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which what `averaging` returned adds up gradients of its own rank."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


def average(tensor: Tensor) -> Tensor:
    """Replace a tensor by its mean over ranks, in place, and return it."""
    if world() > 1:
        total(tensor).div_(world())
    return tensor


def total(tensor: Tensor) -> Tensor:
    """Replace a tensor by its sum over ranks, in place, and return it."""
    if world() > 1:
        dist.all_reduce(tensor)
    return tensor


def highest(value: int) -> int:
    """Return the largest of the ranks' values."""
    if world() == 1:
        return value
    tensor = torch.tensor(value)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def gather(tensor: Tensor) -> list[Tensor]:
    """Return the ranks' tensors in order; a tensor on the CPU, of one shape everywhere."""
    if world() == 1:
        return [tensor]
    found = [torch.empty_like(tensor) for _ in range(world())]
    dist.all_gather(found, tensor)
    return found


def barrier() -> None:
    """Wait until every rank is here."""
    highest(0)


@torch.no_grad()
def shared(values: Mapping[str, float], keys: Sequence[str]) -> Mapping[str, float]:
    """Return what rank 0, which alone measures metrics, has of `keys`; alone, `values`."""
    if world() == 1:
        return values
    mine = torch.tensor([values.get(key, math.nan) for key in keys], dtype=torch.float64)
    return dict(zip(keys, gather(mine)[0].tolist(), strict=True))


def check_in_step(networks: Iterable[Network], buffers: bool = True) -> None:
    """Check that all ranks hold the same weights, bit for bit, and the same buffers.

    Not so `buffers` in other people's trainers, which let the statistics of a BatchNorm differ
    until the next forward pass.

    Raises:
        RlplastError: in every rank, naming the first tensors that differ.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    for network in networks:
        blocks = network.blocks if buffers else network.trainable()
        if not blocks:
            continue
        low = torch.stack([_checksum(block.view) for block in blocks])  # where gradients meet too
        high = low.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        differing = (low != high).nonzero().flatten().tolist()
        if differing:
            names = ", ".join(network.qualified(blocks[i]) for i in differing[:3])
            raise RlplastError(
                f"{names}: {len(differing)} of {len(low)} tensors differ between the "
                f"{dist.get_world_size()} processes: a hook decided by what only one of them has "
                "seen; the last checkpoint is kept"
            )


def _checksum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's entries read as whole numbers: exact, whatever the order."""
    return tensor.contiguous().view(_BITS[tensor.element_size()]).sum(dtype=torch.int64)


def open_folder(path: Path) -> RunFolder:
    """Return the run's folder: one that writes in rank 0, and one that does not elsewhere."""
    return RunFolder(path) if rank() == 0 else _SilentFolder(path)


class _SilentFolder(RunFolder):
    """A run's folder that another process writes."""

    def __init__(self, path: Path) -> None:
        self.path, self._files, self._lock = path, {}, None
        self.lost, self.listener, self._unheard = {}, None, []

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        pass

    def cut(self, lengths: Mapping[str, int]) -> None:
        pass
