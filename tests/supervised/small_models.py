"""Every model, small, with images it can read."""

from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Small:
    """A small version of a model: the keys of its config, and the images it reads."""

    shape: tuple[int, int, int]
    keys: dict[str, Any] = field(default_factory=dict)


SMALL = {
    "mlp": Small((1, 8, 8), {"hidden": [12, 9]}),
    "cnn": Small((1, 12, 12), {"width": 4, "hidden": [9]}),
    "cnn_bn": Small((1, 12, 12), {"width": 4, "hidden": [9]}),
    "lenet5": Small((3, 10, 10)),
    "alexnet": Small((3, 8, 8), {"hidden": [7]}),
    "vgg16": Small((3, 32, 32), {"width": 3, "hidden": [11, 9]}),
    "resnet18": Small((3, 8, 8), {"width": 3, "hidden": [7]}),
    "vit_tiny": Small((3, 8, 8), {"width": 12, "depth": 2}),
    "deit_tiny": Small((1, 12, 8), {"width": 6, "depth": 1}),
    "vit_tiny_fire": Small((3, 8, 8), {"width": 12, "depth": 2}),
    "efficientnetv2_s": Small((3, 16, 16)),
    "timm": Small((3, 32, 32), {"timm": "resnet10t"}),
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
    config = ModelConfig(name, **{**SMALL[name].keys, **keys})
    return build_model(config, SMALL[name].shape, CLASSES)


def network(module: nn.Module, seed: int = 1) -> rlplast.Network:
    """Return the network of a module, drawn by its law, with an optimizer."""
    made = rlplast.Network("model", module, torch.optim.Adam(module.parameters()))
    made.initialise(torch_stream(seed, "init", "model"))
    return made


def images(name: str, n: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random images for a model."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, *SMALL[name].shape, generator=generator).to(dtype)
