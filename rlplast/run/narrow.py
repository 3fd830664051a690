"""Narrow versions of timm's models, for trials: layers of the same names, far fewer weights.

Each function makes one for images of a shape, so a config names it as ``model.name``.

- `narrow_version`: the function for a model of timm's.
"""

from typing import Any

from torch import nn

from rlplast.core.optional import import_optional

__all__ = [
    "efficientnetv2_m",
    "efficientnetv2_s",
    "mambaout_base_plus",
    "narrow_version",
    "swin_base",
]


def swin_base(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Return a Swin-B of one block a stage."""
    options = {"embed_dim": 8, "depths": (1,) * 4, "num_heads": (1,) * 4}
    options |= {"img_size": input_shape[1:]}
    return _timm("swin_base_patch4_window7_224", input_shape, num_classes, **options)


def mambaout_base_plus(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Return a MambaOut-Base-Plus of one block a stage."""
    options = {"dims": (8,) * 4, "depths": (1,) * 4}
    return _timm("mambaout_base_plus_rw", input_shape, num_classes, **options)


def efficientnetv2_m(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Return an EfficientNetV2-M with an eighth of the channels and a tenth of the blocks."""
    options = {"channel_multiplier": 1 / 8, "depth_multiplier": 0.1}
    return _timm("tf_efficientnetv2_m", input_shape, num_classes, **options)


def efficientnetv2_s(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Return an EfficientNetV2-S with an eighth of the channels and a tenth of the blocks."""
    options = {"channel_multiplier": 1 / 8, "depth_multiplier": 0.1}
    return _timm("tf_efficientnetv2_s", input_shape, num_classes, **options)


def _timm(name: str, shape: tuple[int, int, int], classes: int, **options: Any) -> nn.Module:
    create = import_optional("timm", "vision").create_model
    return create(name, pretrained=False, in_chans=shape[0], num_classes=classes, **options)


def narrow_version(name: str) -> str | None:
    """Return what a config calls the narrow version of a model; None if there is none."""
    for make in (swin_base, mambaout_base_plus, efficientnetv2_m, efficientnetv2_s):
        if make.__name__ in name:
            return f"{__name__}:{make.__name__}"
    return None
