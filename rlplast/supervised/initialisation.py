"""How the weights of each family of models are drawn, Block by Block.

Each is a `Network`'s ``init``: (block, generator) → a new value, drawn on the CPU in float32.
What an initializer does not mention follows torch's own (`torch_default`).
"""

import math

import torch
from torch import Tensor, nn

from rlplast.core.network.blocks import Block
from rlplast.core.network.network import torch_default

__all__ = [
    "efficientnet_law",
    "fire_vit_law",
    "he_law",
    "normal_law",
    "resnet_law",
    "timm_law",
    "vgg_law",
    "vit_law",
    "xavier_law",
]


def _normal(block: Block, std: float, generator: torch.Generator) -> Tensor:
    return torch.empty(block.view.shape).normal_(0.0, std, generator=generator)


def _he_fan_out(block: Block, generator: torch.Generator) -> Tensor:
    """Draw a conv's weight by N(0, 2/fan_out), its bias 0 (He et al. 2015)."""
    if block.role == "bias":
        return torch.zeros(block.view.shape)
    return _normal(block, math.sqrt(2 / block.spec.fan_out), generator)


def resnet_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw as torchvision's ResNet: convs N(0, 2/fan_out), linear layers torch's initializer."""
    return (_he_fan_out if block.kind == "conv" else torch_default)(block, generator)


def vgg_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw as torchvision's VGG: convs N(0, 2/fan_out), linear N(0, 0.01²), biases 0."""
    if block.kind == "linear" and block.role == "weight":
        return _normal(block, 0.01, generator)
    return (_he_fan_out if block.kind in ("conv", "linear") else torch_default)(block, generator)


def vit_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw as timm's vision transformer: class token N(0, 1e-6²), biases of linear layers 0.

    Linear weights and position embeddings are N(0, 0.02²), cut at ±2.
    """
    if block.name == "cls_token":
        return _normal(block, 1e-6, generator)
    if block.kind == "linear" and block.role == "bias":
        return torch.zeros(block.view.shape)
    if block.kind == "linear" or block.name == "pos_embed":
        value = torch.empty(block.view.shape)
        return nn.init.trunc_normal_(value, std=0.02, generator=generator)
    return torch_default(block, generator)


def fire_vit_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw as FIRE's vision transformer: class token and positions N(0, 1), else as torch."""
    if block.name in ("cls_token", "pos_embed"):
        return _normal(block, 1.0, generator)
    return torch_default(block, generator)


def efficientnet_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw convs N(0, 2/fan_out), linear U(±1/√fan_out), biases 0, as timm's EfficientNet."""
    if block.kind == "linear" and block.role == "weight":
        bound = 1 / math.sqrt(block.spec.fan_out)
        return torch.empty(block.view.shape).uniform_(-bound, bound, generator=generator)
    return (_he_fan_out if block.kind in ("conv", "linear") else torch_default)(block, generator)


def timm_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw what torch has no layer for as timm does in most of its models.

    Tables of positions and tokens N(0, 0.02²), cut at ±2; scales of layers the module's
    ``init_values``.
    """
    value = torch.empty(block.view.shape)
    constant = getattr(block.module, "init_values", None)
    if block.role == "other" and constant is not None:
        return value.fill_(constant)
    if block.role == "other" and value.ndim > 1:
        return nn.init.trunc_normal_(value, std=0.02, generator=generator)
    return torch_default(block, generator)


def xavier_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw linear and conv weights U(±√(6/(fan_in + fan_out))), biases 0 (Glorot & Bengio 2010)."""
    if block.kind not in ("linear", "conv"):
        return torch_default(block, generator)
    if block.role == "bias":
        return torch.zeros(block.view.shape)
    bound = math.sqrt(6 / (block.spec.fan_in + block.spec.fan_out))
    return torch.empty(block.view.shape).uniform_(-bound, bound, generator=generator)


def he_law(block: Block, generator: torch.Generator) -> Tensor:
    """Draw linear and conv weights N(0, 2/fan_in), biases 0 (He et al. 2015)."""
    if block.kind not in ("linear", "conv"):
        return torch_default(block, generator)
    if block.role == "bias":
        return torch.zeros(block.view.shape)
    return _normal(block, math.sqrt(2 / block.spec.fan_in), generator)


def normal_law(block: Block, generator: torch.Generator, std: float) -> Tensor:
    """Draw weights and biases of linear and conv layers N(0, std²)."""
    if block.kind not in ("linear", "conv"):
        return torch_default(block, generator)
    return _normal(block, std, generator)
