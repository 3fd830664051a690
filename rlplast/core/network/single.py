"""Whether a network can learn from one input alone: BatchNorm finds no variance in one."""

import copy

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.rng import preserve_global_rng

__all__ = ["check_single"]


def check_single(keys: str, module: nn.Module, *inputs: Tensor) -> None:
    """Refuse a network of which a copy fails, in training, on one input, `[1, ...]`."""
    try:
        with torch.no_grad(), preserve_global_rng():
            copy.deepcopy(module).train()(*inputs)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{keys}: a forward pass in training would have one input, and the network fails on "
            f"one ({error}); allowed is 2 or more, or a network without BatchNorm"
        ) from error
