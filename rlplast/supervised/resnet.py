"""ResNet-18 for small images."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.network.units import ActivationPoint, UnitSpec, activated

__all__ = ["ResNet18"]

_STRIDES = (1, 2, 2, 2)  # of the four layers; their channels are 1, 2, 4, 8 times the width


class _Block(nn.Module):
    """Two 3×3 convs and what goes around them (He et al. 2015, figure 2)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        inside = activated(self.conv1, self.bn1(self.conv1(x)), torch.relu_)
        around = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(inside)) + around, inplace=True)


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2015) with a 3×3 stem of stride 1 and no max pooling.

    Its layers are called as in torchvision, but for the linear ones: ``fc1`` and so on, of the
    sizes `hidden` (FIRE's has one of 512), the last ``head``. The stem has `width` channels, 64 in
    the original. It branches, so it has no forward order.
    """

    def __init__(
        self, channels: int, num_classes: int, width: int = 64, hidden: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        size = width
        for i, stride in enumerate(_STRIDES):
            blocks = _Block(size, width << i, stride), _Block(width << i, width << i, 1)
            self.add_module(f"layer{i + 1}", nn.ModuleList(blocks))
            size = width << i
        self.hidden = [f"fc{i}" for i in range(1, len(hidden) + 1)]
        for name, units in zip(self.hidden, hidden, strict=True):
            self.add_module(name, nn.Linear(size, units))
            size = units
        self.head = nn.Linear(size, num_classes)
        vars(self.head)["is_head"] = True

    def unit_specs(self) -> list[UnitSpec]:
        """Return the channels inside blocks and the hidden linear units; the stream has none."""
        blocks = [n for n, module in self.named_modules() if isinstance(module, _Block)]
        specs = [UnitSpec(f"{b}.conv1", (f"{b}.conv2",), (f"{b}.bn1",)) for b in blocks]
        after = [*self.hidden[1:], "head"]
        specs += [UnitSpec(n, (a,)) for n, a in zip(self.hidden, after, strict=False)]
        return [replace(spec, replaceable=True) for spec in specs]

    def stream_activations(self) -> dict[str, ActivationPoint]:
        """Return where the stream, which has no units, is read after each ReLU."""
        blocks = [n for n, module in self.named_modules() if isinstance(module, _Block)]
        after = {f"{b}.conv2": ActivationPoint(b, (), self.conv1.out_channels) for b in blocks}
        return {"conv1": ActivationPoint("bn1", (F.relu,), self.conv1.out_channels)} | after

    def residual_branches(self) -> list[list[str]]:
        """Return the layer whose output each block adds to the stream."""
        return [[f"{n}.bn2"] for n, module in self.named_modules() if isinstance(module, _Block)]

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, channels, height, width)."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        for i in range(1, len(_STRIDES) + 1):
            for block in self.get_submodule(f"layer{i}").children():
                x = block(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        for name in self.hidden:
            layer = self.get_submodule(name)
            x = activated(layer, layer(x), torch.relu_)
        return self.head(x)
