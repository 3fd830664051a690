"""Classifiers of images, by name.

- `ModelConfig`: a run's section ``model:``.
- `MODELS`: what each name builds, which keys it reads, and how its weights are drawn.
- `build_model`: a model for images of a shape.
- `model_taps`: logits and hidden activations of any of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError, check_choice
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import torch_default
from rlplast.core.optional import import_optional
from rlplast.core.registry import check_fields, check_range, param
from rlplast.core.rng import preserve_global_rng
from rlplast.supervised.chains import ALEXNET, CNN, LENET5, Stages, chain, vgg16_stages
from rlplast.supervised.initialisation import (
    efficientnet_law,
    fire_vit_law,
    resnet_law,
    vgg_law,
    vit_law,
)
from rlplast.supervised.resnet import ResNet18
from rlplast.supervised.vit import FireViT, ViT

__all__ = ["MODELS", "Model", "ModelConfig", "build_model", "model_taps"]

Shape = tuple[int, int, int]

ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU)  # whose outputs are the activations of timm's models


@dataclass
class ModelConfig:
    """Which classifier, and what of it differs from the original.

    null leaves what the model has of its own. A model refuses keys that it does not read.

    Attributes:
        name: mlp, cnn, cnn_bn, lenet5, alexnet, vgg16, resnet18, vit_tiny (timm's), deit_tiny,
            vit_tiny_fire (that of FIRE's code) or efficientnetv2_s.
        hidden: sizes of the linear layers before the last: mlp [100, 100], cnn and cnn_bn [100],
            lenet5 [120, 84], alexnet [], vgg16 [4096, 4096] (FIRE: [1024, 1024]), resnet18 []
            (FIRE: [512]).
        width: channels of the first conv: cnn and cnn_bn 16, vgg16 and resnet18 64, the others
            in proportion; vision transformers: size of a token, 192, a multiple of 3.
        depth: vision transformers: number of blocks, 12.
        patch: vision transformers: side of a patch in pixels; 4 for images of up to 64 pixels,
            16 for larger ones.
        batch_norm: vgg16: whether each conv is followed by BatchNorm.
        init: vgg16, resnet18: ``torch`` for the laws of torch's own layers, as FIRE's code has;
            null for torchvision's.
        pretrained: vit_tiny, deit_tiny, efficientnetv2_s: whether to start from the weights
            timm publishes.
    """

    name: str = "mlp"
    hidden: list[int] | None = None
    width: int | None = param(None, "[1, inf)")
    depth: int | None = param(None, "[1, inf)")
    patch: int | None = param(None, "[1, inf)")
    batch_norm: bool = False
    init: str | None = None
    pretrained: bool = False

    def check(self) -> None:
        """Check values, and that the model reads those that were given.

        Raises:
            ConfigError: naming key, value and what is allowed.
        """
        check_choice("model.name", self.name, MODELS)
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            readers = [name for name, model in MODELS.items() if field.name in model.reads]
            if value not in (None, False) and self.name not in readers:
                raise ConfigError(
                    f"model.{field.name} = {value!r}: {self.name} does not read it, only "
                    f"{', '.join(readers)} do"
                )
        check_fields(self, "model.")
        for i, size in enumerate(self.hidden or ()):
            check_range(f"model.hidden[{i}]", size, 1, "[1, inf)")
        if self.init not in (None, "torch"):
            raise ConfigError(f"model.init = {self.init!r}: allowed is torch, or null")
        if self.pretrained and (self.width, self.depth) != (None, None):
            raise ConfigError(
                "model.pretrained: published weights have their own width and depth; leave these "
                "out"
            )


@dataclass(frozen=True)
class Model:
    """One entry of `MODELS`.

    Attributes:
        build: (config, input shape, number of classes) → module.
        reads: keys of `ModelConfig` it reads, its name apart.
        law: how each Block is drawn.
    """

    build: Callable[[ModelConfig, Shape, int], nn.Module]
    reads: tuple[str, ...]
    law: Callable[[Block, torch.Generator], Tensor] = torch_default


def _chain(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    own: dict[str, tuple[Stages, Sequence[int]]] = {
        "mlp": ((), (100, 100)),
        "cnn": (CNN(config.width or 16), (100,)),
        "cnn_bn": (CNN(config.width or 16), (100,)),
        "lenet5": (LENET5(min(shape[1:])), (120, 84)),
        "alexnet": (ALEXNET, ()),
        "vgg16": (vgg16_stages(config.width or 64), (4096, 4096)),
    }
    stages, hidden = own[config.name]
    hidden = hidden if config.hidden is None else config.hidden
    cnn_bn = config.name == "cnn_bn"
    norm = config.batch_norm or cnn_bn
    return chain(stages, hidden, shape, classes, batch_norm=norm, conv_bias=not cnn_bn)


def _resnet18(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return ResNet18(shape[0], classes, config.width or 64, config.hidden or ())


def _vit(config: ModelConfig, shape: Shape, classes: int, build: type[ViT] = ViT) -> nn.Module:
    sides = shape[1:]
    patch = config.patch or (4 if max(sides) <= 64 else 16)
    module = build(shape, classes, patch=patch, width=config.width or 192, depth=config.depth or 12)
    if config.pretrained:
        options = {"img_size": sides, "patch_size": patch, "in_chans": shape[0]}
        published = _timm(
            f"{config.name}_patch16_224", pretrained=True, num_classes=classes, **options
        )
        module.load_state_dict(published.state_dict())
    return module


def _efficientnet(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    options = {"in_chans": shape[0], "num_classes": classes}
    return _timm("tf_efficientnetv2_s", pretrained=config.pretrained, **options)


def _timm(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
    """Return a model of timm's, the extra ``vision``, by timm's name."""
    timm = import_optional("timm", "vision")
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise ConfigError(
            f"model.pretrained: the weights of {name} could not be loaded ({error}); timm fetches "
            "them from the Hugging Face Hub"
        ) from error


_VIT_KEYS = ("width", "depth", "patch")

MODELS: dict[str, Model] = {
    "mlp": Model(_chain, ("hidden",)),
    "cnn": Model(_chain, ("hidden", "width")),
    "cnn_bn": Model(_chain, ("hidden", "width")),
    "lenet5": Model(_chain, ("hidden",)),
    "alexnet": Model(_chain, ("hidden",)),
    "vgg16": Model(_chain, ("hidden", "width", "batch_norm", "init"), vgg_law),
    "resnet18": Model(_resnet18, ("hidden", "width", "init"), resnet_law),
    # One architecture; what differs is how the published weights were trained.
    "vit_tiny": Model(_vit, (*_VIT_KEYS, "pretrained"), vit_law),
    "deit_tiny": Model(_vit, (*_VIT_KEYS, "pretrained"), vit_law),
    "vit_tiny_fire": Model(partial(_vit, build=FireViT), _VIT_KEYS, fire_vit_law),
    "efficientnetv2_s": Model(_efficientnet, ("pretrained",), efficientnet_law),
}


def build_model(config: ModelConfig, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return a classifier; torch's global generators stay as they are.

    The module carries its law as ``init_block``, so that `Network.initialise` draws its weights;
    until then they are what torch happened to draw, or the published ones.

    Args:
        config: which model.
        input_shape: (channels, height, width) of an image.
        num_classes: outputs.

    Raises:
        ConfigError: for a key out of range or not read, for images that are too small, or if the
            library or the published weights of the model cannot be had.
    """
    config.check()
    model = MODELS[config.name]
    with preserve_global_rng():
        try:
            module = model.build(config, input_shape, num_classes)
        except ConfigError as error:
            raise ConfigError(f"model.name = {config.name!r}: {error}") from error
    vars(module)["init_block"] = torch_default if config.init == "torch" else model.law
    return module


def model_taps(module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits (n, classes) and the activations after each nonlinearity, in forward order.

    The module stays in the mode it is in, train or eval.

    Args:
        module: a model of `build_model`, not compiled.
        x: images, (n, channels, height, width).

    Returns:
        Logits; and activations, by layer in our own models, by activation module in timm's:
        (n, units), or (n, units, ...) with one value per pixel or token.
    """
    own = getattr(module, "forward_taps", None)
    if own is not None:
        return own(x)
    taps: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_hook(partial(_keep, taps, name))
        for name, layer in module.named_modules()
        if isinstance(layer, ACTIVATIONS)
    ]
    try:
        return module(x), taps
    finally:
        for handle in handles:
            handle.remove()


def _keep(taps: dict[str, Tensor], name: str, layer: nn.Module, args: Any, out: Tensor) -> None:
    taps[name] = out.mT if out.ndim == 3 else out  # tokens come as (n, tokens, units)
