"""Networks that the tests of optimizers share, and updates along drawn gradients."""

import torch
from torch import Tensor, nn

from rlplast.core.network.stacked import StackedLinear


class Mixed(nn.Module):
    """Tensors of zero to four dimensions; the kernel is in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        torch.random.default_generator.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 2)
        self.stacked = StackedLinear(2, 4, 5)
        self.linear, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.head.is_head = True  # pyright: ignore
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.conv.to(memory_format=torch.channels_last)  # pyright: ignore


def linear() -> nn.Sequential:
    torch.random.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def give_gradients(module: nn.Module, generator: torch.Generator, mean: float = 1.0) -> None:
    """Gradients that do not depend on the weights, and have a direction if the mean is not 0."""
    for p in module.parameters():
        drawn = mean + torch.randn(p.shape, dtype=p.dtype, generator=generator)
        p.grad = torch.empty_like(p).copy_(drawn)


def drive(
    module: nn.Module,
    *optimizers: torch.optim.Optimizer,
    updates: int,
    seed: int = 1,
    mean: float = 1.0,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        give_gradients(module, generator, mean)
        for optimizer in optimizers:
            optimizer.step()


def orthogonalised(matrix: Tensor) -> Tensor:
    """U Vᵀ of a matrix, as nearly as five of Muon's steps come to it, by singular values."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return u @ s.diag() @ vt
