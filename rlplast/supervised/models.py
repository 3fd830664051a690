"""Classifiers of images, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, PositiveFloat, PositiveInt
from torch import Tensor, nn

from rlplast.core.errors import ConfigError, check_choice, did_you_mean
from rlplast.core.network.blocks import Block
from rlplast.core.network.factory import checked, factory_of, is_factory, made
from rlplast.core.network.network import torch_default
from rlplast.core.optional import import_optional
from rlplast.core.rng import preserve_global_rng
from rlplast.core.validation import Section, check_section
from rlplast.supervised.chains import ALEXNET, CNN, LENET5, Stages, chain, vgg16_stages
from rlplast.supervised.initialisation import (
    efficientnet_law,
    fire_vit_law,
    he_law,
    normal_law,
    resnet_law,
    timm_law,
    vgg_law,
    vit_law,
    xavier_law,
)
from rlplast.supervised.resnet import ResNet18
from rlplast.supervised.vit import FireViT, ViT

__all__ = ["MODELS", "Model", "ModelConfig", "build_model", "freeze"]

Shape = tuple[int, int, int]
Law = Callable[[Block, torch.Generator], Tensor]

STRIDES = (1, 2, 4, 8, 16, 32)  # of EfficientNetV2-S as a whole


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):  # true equals 1, which is one of the choices
        raise ValueError(f"allowed is one of {', '.join(map(str, STRIDES))}")
    return value


@dataclass
class ModelConfig(Section):
    """Which classifier, and what of it differs from the original.

    null leaves what the model has of its own. A model refuses keys that it does not read.

    Attributes:
        name: mlp, cnn, cnn_bn, lenet5, alexnet, vgg16, resnet18, vit_tiny (timm's), deit_tiny,
            vit_tiny_fire (as FIRE's code builds it), efficientnetv2_s, or timm for any model of
            timm; or a function of yours, as ``package.module:factory``.
        timm: for timm: the model's name there, such as ``swin_base_patch4_window7_224.ms_in22k``. A
            model of one image size is built for that of the data.
        hidden: sizes of the linear layers before the last one. null: mlp [100, 100], cnn and cnn_bn
            [100], lenet5 [120, 84], alexnet [], vgg16 [4096, 4096] (FIRE: [1024, 1024]), resnet18
            [] (FIRE: [512]).
        width: channels of the first conv; the other layers scale with it. null: 16 for cnn and
            cnn_bn, 64 for vgg16 and resnet18. For vision transformers: size of a token, a multiple
            of 3; null: 192.
        depth: for vision transformers: number of blocks; null: 12.
        patch: for vision transformers: side of a patch in pixels. null: 4 for images of up to 64
            pixels, 16 for larger ones.
        stride: for efficientnetv2_s: pixels of the image per entry of the last feature map, along a
            side. A smaller one than the original's 32 leaves out the first of its five strides of
            2; 8 makes 4 by 4 entries of CIFAR's 32 by 32 pixels.
        batch_norm: for vgg16: whether BatchNorm follows each conv.
        activation: for mlp: relu or tanh; null: relu.
        init: initializer, for models without attention that are not timm's. ``torch``: as torch
            initialises its layers, and as FIRE's code does. ``xavier``: weights U(±√(6/(fan_in +
            fan_out))), biases 0. ``he``: weights N(0, 2/fan_in), biases 0. ``normal``: weights and
            biases N(0, init_std²), norm layers as torch's.
        init_std: for init ``normal``: the standard deviation.
        pretrained: for vit_tiny, deit_tiny, efficientnetv2_s and timm: whether to start from timm's
            published weights.
        freeze: names or globs of layers and parameters that do not train, such as ``blocks.*``.
            Frozen layers stay in evaluation mode: no new running statistics, no dropout.
    """

    name: str = "mlp"
    timm: str | None = None
    hidden: list[PositiveInt] | None = None
    width: PositiveInt | None = None
    depth: PositiveInt | None = None
    patch: PositiveInt | None = None
    stride: Annotated[Literal[1, 2, 4, 8, 16, 32], BeforeValidator(_no_bool)] | None = None
    batch_norm: bool = False
    activation: Literal["relu", "tanh"] | None = None
    init: Literal["torch", "xavier", "he", "normal"] | None = None
    init_std: PositiveFloat | None = None
    pretrained: bool = False
    freeze: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Check values, and that the model reads those that were given."""
        if not is_factory(self.name):
            check_choice("model.name", self.name, MODELS)
        for key in (f.name for f in fields(self)[1:] if f.name not in ("freeze", "init_std")):
            value = getattr(self, key)
            readers = [name for name, model in MODELS.items() if key in model.reads]
            if value not in (None, False) and self.name not in readers:
                raise ConfigError(
                    f"model.{key} = {value!r}: {self.name} does not read it, only "
                    f"{', '.join(readers)} do"
                )
        check_section(self, "model")
        if (self.init_std is not None) != (self.init == "normal"):
            raise ConfigError(
                f"model.init_std = {self.init_std}, model.init = {self.init!r}: init normal needs "
                "its standard deviation, and no other reads it"
            )
        if (self.timm is not None) != (self.name == "timm"):
            raise ConfigError(
                f"model.timm = {self.timm!r}, model.name = {self.name!r}: the name timm needs "
                "which of timm's models, such as model.timm = resnet50"
            )
        if self.pretrained and (self.width, self.depth) != (None, None):
            raise ConfigError(
                "model.pretrained: published weights have their own width and depth; leave these "
                "out"
            )


@dataclass(frozen=True)
class Model:
    """One entry of `MODELS`."""

    build: Callable[[ModelConfig, Shape, int], nn.Module]  # the last is the number of classes
    reads: tuple[str, ...]  # keys of `ModelConfig`, its name apart
    initializer: Law = torch_default


def _chain(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    known: dict[str, tuple[Stages, Sequence[int]]] = {
        "mlp": ((), (100, 100)),
        "cnn": (CNN(config.width or 16), (100,)),
        "cnn_bn": (CNN(config.width or 16), (100,)),
        "lenet5": (LENET5(min(shape[1:])), (120, 84)),
        "alexnet": (ALEXNET, ()),
        "vgg16": (vgg16_stages(config.width or 64), (4096, 4096)),
    }
    stages, hidden = known[config.name]
    hidden = hidden if config.hidden is None else config.hidden
    cnn_bn = config.name == "cnn_bn"
    options = {"batch_norm": config.batch_norm or cnn_bn, "conv_bias": not cnn_bn}
    return chain(stages, hidden, shape, classes, activation=config.activation or "relu", **options)


def _resnet18(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return ResNet18(shape[0], classes, config.width or 64, config.hidden or ())


def _vit(config: ModelConfig, shape: Shape, classes: int, build: type[ViT] = ViT) -> nn.Module:
    sides = shape[1:]
    patch = config.patch or (4 if max(sides) <= 64 else 16)
    module = build(shape, classes, patch=patch, width=config.width or 192, depth=config.depth or 12)
    if config.pretrained:
        published = _timm(f"{config.name}_patch16_224", True, shape, classes, patch_size=patch)
        module.load_state_dict(published.state_dict())
    return module


def _efficientnet(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    module = _timm("tf_efficientnetv2_s", config.pretrained, shape, classes)
    strided = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    kept = STRIDES.index(config.stride or STRIDES[-1])
    for conv in strided[: len(strided) - kept]:
        conv.stride = (1, 1)  # it pads as tensorflow's "same", whatever its stride
    return module


def _any_timm(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _timm(str(config.timm), config.pretrained, shape, classes)


def _timm(name: str, pretrained: bool, shape: Shape, classes: int, **options: Any) -> nn.Module:
    timm = import_optional("timm", "vision")
    options |= {"in_chans": shape[0], "num_classes": classes}
    try:
        published = timm.get_pretrained_cfg(name)
        if published is not None and published.fixed_input_size:
            options["img_size"] = shape[1:]
        return timm.create_model(name, pretrained=pretrained, **options)
    except OSError as error:  # as the Hub's client raises; RuntimeError is timm's own
        raise ConfigError(
            f"model.pretrained = {pretrained}: what timm needs of {name} could not be loaded "
            f"({error}); timm fetches it from the Hugging Face Hub: connect to huggingface.co, or "
            "set HF_HOME to a cache that holds it"
        ) from error
    except RuntimeError as error:
        raise ConfigError(f"timm cannot build {name}: {error}") from error


_VIT_KEYS = ("width", "depth", "patch")

MODELS: dict[str, Model] = {
    "mlp": Model(_chain, ("hidden", "activation", "init")),
    "cnn": Model(_chain, ("hidden", "width", "init")),
    "cnn_bn": Model(_chain, ("hidden", "width", "init")),
    "lenet5": Model(_chain, ("hidden", "init")),
    "alexnet": Model(_chain, ("hidden", "init")),
    "vgg16": Model(_chain, ("hidden", "width", "batch_norm", "init"), vgg_law),
    "resnet18": Model(_resnet18, ("hidden", "width", "init"), resnet_law),
    # One architecture; what differs is how the published weights were trained.
    "vit_tiny": Model(_vit, (*_VIT_KEYS, "pretrained"), vit_law),
    "deit_tiny": Model(_vit, (*_VIT_KEYS, "pretrained"), vit_law),
    "vit_tiny_fire": Model(partial(_vit, build=FireViT), _VIT_KEYS, fire_vit_law),
    "efficientnetv2_s": Model(_efficientnet, ("stride", "pretrained"), efficientnet_law),
    "timm": Model(_any_timm, ("timm", "pretrained"), timm_law),
}
INITIALIZERS: dict[str, Law] = {"torch": torch_default, "xavier": xavier_law, "he": he_law}


def build_model(config: ModelConfig, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return a classifier; torch's global generators stay as they are.

    The module carries its initializer as ``init_block``, by which `Network.initialise` draws its
    weights; until then they are what torch happened to draw, or the published ones.

    Raises:
        ConfigError: for a key out of range or not read, for images that are too small, or if the
            library or the published weights of the model cannot be had.
    """
    config.check()
    if is_factory(config.name):
        key, factory = f"model.name = {config.name!r}", factory_of("model.name", config.name)
        spaces = {"input_shape": input_shape, "num_classes": num_classes}
        inputs = (torch.zeros(2, *input_shape),)
        module = made(key, lambda: checked(key, factory(**spaces), inputs, num_classes)[0], 0)
    else:
        model = MODELS[config.name]
        with preserve_global_rng():
            try:
                module = model.build(config, input_shape, num_classes)
            except ConfigError as error:
                raise ConfigError(f"model.name = {config.name!r}: {error}") from error
        law = INITIALIZERS.get(config.init or "", model.initializer)
        if config.init_std is not None:
            law = partial(normal_law, std=config.init_std)
        vars(module)["init_block"] = law
    freeze(module, config.freeze)
    return module


def freeze(module: nn.Module, globs: Sequence[str]) -> None:
    """Stop the training of what is named: parameters, and whole layers, by their modes too.

    Raises:
        ConfigError: for a glob that names nothing, or if no parameter is left to train.
    """
    for glob in globs:
        matches = [p for name, p in module.named_parameters() if _under(name, glob)]
        for parameter in matches:
            parameter.requires_grad_(False)
        if not matches:
            names = [name for name, _ in module.named_parameters()]
            raise ConfigError(
                f"model.freeze: {glob!r} names no parameter: {did_you_mean(glob, names)}"
            )
    for layer in module.modules() if globs else ():
        parameters = list(layer.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            layer.eval()
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"model.freeze = {list(globs)}: nothing is left to train")


def _under(name: str, glob: str) -> bool:
    """Say whether a glob matches a parameter's name, or that of a module it is in."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:i]), glob) for i in range(1, len(parts) + 1))
