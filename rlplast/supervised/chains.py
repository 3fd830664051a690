"""Models whose layers follow one another, and the stages that describe their convs."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from rlplast.core.errors import ConfigError

__all__ = ["ALEXNET", "CNN", "LENET5", "POOL", "Chain", "Conv", "Stages", "chain", "vgg16_stages"]

# Activations, by what the name of one adds to its layer's.
_ACTIVATIONS = {"_relu": lambda: nn.ReLU(inplace=True), "_tanh": nn.Tanh}


@dataclass(frozen=True)
class Conv:
    """A convolution, followed by BatchNorm if the chain has any, and an activation; in pixels."""

    channels: int
    kernel: int
    padding: int = 0
    stride: int = 1

    def side(self, side: int) -> int:
        """Return the output's side; below 1 if the kernel does not fit."""
        return (side + 2 * self.padding - self.kernel) // self.stride + 1


POOL = "pool"  # max pooling, 2×2; left out where a side is 1 already
Stages = Sequence[Conv | str]


def CNN(width: int) -> Stages:
    """Return the stages of SWR's CNN (appendix D.1; padding 1 is its code's)."""
    return [Conv(width, 5, padding=1), POOL] * 2


def LENET5(side: int) -> Stages:
    """Return LeNet-5's (LeCun et al. 1998), with max pooling; below 32 pixels padded by 2."""
    return [Conv(6, 5, padding=0 if side >= 32 else 2), POOL, Conv(16, 5), POOL]


# The convs of Krizhevsky 2014 (torchvision's), the first padded by 5 and pooling 2×2, as is usual
# for CIFAR: 32 pixels become 8, 4, 2, 1.
ALEXNET: Stages = (
    *(Conv(64, 11, padding=5, stride=4), POOL, Conv(192, 5, padding=2), POOL),
    *(Conv(384, 3, padding=1), Conv(256, 3, padding=1), Conv(256, 3, padding=1), POOL),
)


def vgg16_stages(width: int) -> Stages:
    """Return VGG-16's stages (Simonyan & Zisserman 2014, table 1, D); `width` is 64 there."""
    stages: list[Conv | str] = []
    for factor, convs in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        stages += [Conv(factor * width, 3, padding=1)] * convs + [POOL]
    return stages


class Chain(nn.Sequential):
    """Layers by name; ``<layer>_relu`` and ``<layer>_tanh`` are activations of ``<layer>``."""

    def forward_order(self) -> list[str]:
        """Return the names of the layers with parameters, in forward order."""
        children = self.named_children()
        return [name for name, m in children if next(m.parameters(), None) is not None]


def chain(
    stages: Stages,
    hidden: Sequence[int],
    input_shape: tuple[int, int, int],
    num_classes: int,
    *,
    batch_norm: bool = False,
    conv_bias: bool = True,
    activation: str = "relu",
) -> Chain:
    """Return convs by `stages`, then linear layers: ``conv1``, ``bn1``, …, ``fc1``, …, ``head``.

    `hidden` are the sizes of the linear layers before the head; `activation` is relu or tanh.

    Raises:
        ConfigError: if images are too small for a kernel, with the smallest size.
    """
    channels, *sides = input_shape
    if not _fits(stages, sides):
        least = next(s for s in itertools.count(1) if _fits(stages, [s, s]))
        raise ConfigError(
            f"images of {sides[0]}x{sides[1]} pixels are too small for this model: the smallest "
            f"are {least}x{least}; choose another, such as mlp"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    mark = f"_{activation}"
    convs, last = 0, ""
    for stage in stages:
        if isinstance(stage, Conv):
            convs += 1
            last = f"conv{convs}"
            shape = (channels, stage.channels, stage.kernel, stage.stride, stage.padding)
            layers[last] = nn.Conv2d(*shape, bias=conv_bias)
            if batch_norm:
                layers[f"bn{convs}"] = nn.BatchNorm2d(stage.channels)
            layers[last + mark] = _ACTIVATIONS[mark]()
            channels = stage.channels
        elif min(sides) > 1:
            layers[f"{last}_pool"] = nn.MaxPool2d(2)
        sides = _sides(stage, sides)
    layers["flatten"] = nn.Flatten()
    size = channels * sides[0] * sides[1]
    for i, units in enumerate(hidden, 1):
        layers[f"fc{i}"] = nn.Linear(size, units)
        layers[f"fc{i}{mark}"] = _ACTIVATIONS[mark]()
        size = units
    layers["head"] = nn.Linear(size, num_classes)
    return Chain(layers)


def _sides(stage: Conv | str, sides: list[int]) -> list[int]:
    if isinstance(stage, Conv):
        return [stage.side(side) for side in sides]
    return [side // 2 for side in sides] if min(sides) > 1 else sides


def _fits(stages: Stages, sides: list[int]) -> bool:
    for stage in stages:
        sides = _sides(stage, sides)
        if min(sides) < 1:
            return False
    return True
