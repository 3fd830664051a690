"""Small networks with drawn weights, and comparisons of what an edit did to them."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def randomise(module: M, seed: int, std: float = 1.0) -> M:
    """Draw every parameter from N(0, std²) and BatchNorm statistics away from their start."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
        elif name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
        elif name.endswith("num_batches_tracked"):
            buffer.fill_(7)
    return module


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def changed(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    after = module.state_dict()
    return {name for name in after if not torch.equal(after[name], before[name])}


def relative_error(ours: Tensor, theirs: np.ndarray) -> float:
    array = ours.detach().double().numpy()
    assert array.shape == theirs.shape
    return float(np.linalg.norm(array - theirs) / np.linalg.norm(theirs))


class Mlp(nn.Sequential):
    def __init__(self, bias: bool = True) -> None:
        first, second, last = (nn.Linear(*d, bias=bias) for d in ((4, 8), (8, 8), (8, 3)))
        super().__init__(first, nn.ReLU(), second, nn.ReLU(), last)


class ConvNet(nn.Sequential):
    """Two convs and two linear layers on (2, 6, 6) inputs; with BatchNorm if asked."""

    def __init__(self, norm: bool = False) -> None:
        norms = [[nn.BatchNorm2d(4)], [nn.BatchNorm2d(6)]] if norm else [[], []]
        first = [nn.Conv2d(2, 4, 3), *norms[0], nn.ReLU()]
        second = [nn.Conv2d(4, 6, 2), *norms[1], nn.ReLU(), nn.Flatten()]
        super().__init__(*first, *second, nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 3))


class Dueling(nn.Module):
    """Two layers give the outputs, and are registered before the one below them."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(8, 1), nn.Linear(8, 3)
        self.body = nn.Linear(5, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).relu()
        return self.value(hidden) + self.advantage(hidden)


class Untraceable(Dueling):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)
