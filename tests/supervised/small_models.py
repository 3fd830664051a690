"""Every model, small, with images it can read."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.optional import import_optional
from rlplast.core.rng import torch_stream
from rlplast.supervised.models import ModelConfig, build_model

CLASSES = 5


# A small version of every model: the images it reads, and the keys of its config.
SMALL: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "mlp": ((1, 8, 8), {"hidden": [12, 9]}),
    "cnn": ((1, 12, 12), {"width": 4, "hidden": [9]}),
    "cnn_bn": ((1, 12, 12), {"width": 4, "hidden": [9]}),
    "lenet5": ((3, 10, 10), {}),
    "alexnet": ((3, 8, 8), {"hidden": [7]}),
    "vgg16": ((3, 32, 32), {"width": 3, "hidden": [11, 9]}),
    "resnet18": ((3, 8, 8), {"width": 3, "hidden": [7]}),
    "vit_tiny": ((3, 8, 8), {"width": 12, "depth": 2}),
    "deit_tiny": ((1, 12, 8), {"width": 6, "depth": 1}),
    "vit_tiny_fire": ((3, 8, 8), {"width": 12, "depth": 2}),
    "efficientnetv2_s": ((3, 16, 16), {}),
    "timm": ((3, 32, 32), {"timm": "resnet10t"}),
}
TIMMS = ("efficientnetv2_s", "timm")  # need the library
OURS = [name for name in SMALL if name not in TIMMS]


def library(name: str) -> Any:
    """Return a library of the extra ``vision``; without a working one skip the test."""
    try:
        return import_optional(name, "vision")
    except (ConfigError, RuntimeError) as error:  # RuntimeError: built for another torch
        pytest.skip(str(error))


def build(name: str, **keys: Any) -> nn.Module:
    """Return a small model, or one with other keys."""
    if name in TIMMS:
        library("timm")
    shape, own = SMALL[name]
    return build_model(ModelConfig(name, **(own | keys)), shape, CLASSES)


def network(module: nn.Module, seed: int = 1) -> rlplast.Network:
    """Return the network of a module, drawn by its law, with an optimizer."""
    made = rlplast.Network("model", module, torch.optim.Adam(module.parameters()))
    made.initialise(torch_stream(seed, "init", "model"))
    return made


def images(name: str, n: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random images for a model."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, *SMALL[name][0], generator=generator).to(dtype)
