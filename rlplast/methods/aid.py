"""AID, activation by interval-wise dropout: Park et al. 2025 (arXiv:2502.01342)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from rlplast.core.method.method import method
from rlplast.core.rng import derive_seed
from rlplast.methods.dropping import Dropping, stays
from rlplast.methods.replacing import replace_nonlinearity, replaceable

__all__ = ["Aid"]


class IntervalDrop(nn.Module):
    """Positive inputs stay for a share p of entries, negative ones for the others."""

    acts_alone = True

    def __init__(self, method: "Aid", seed: int) -> None:
        super().__init__()
        self.method, self.seed = method, seed

    def forward(self, x: Tensor) -> Tensor:
        p, updates = self.method.p, self.method.seen(self)
        if updates is None:
            return x * torch.where(x > 0, p, 1 - p).to(x.dtype)
        rectified = stays(x.shape, 1 - p, updates, self.seed)
        return torch.where(rectified == (x > 0), x, 0.0)


@method("aid", key="layers", source="Park et al. 2025, AID (arXiv:2502.01342), Algorithm 2")
@dataclass(frozen=True)
class Aid(Dropping):
    """Replace nonlinearities by dropout whose rate depends on the sign of the input: AID.

    In training each entry is max(x, 0) with probability `p` and min(x, 0) otherwise. Where
    `dropout` would drop nothing it is the mean: p·x above 0, (1 − p)·x below. With p = 1 it is
    ReLU, with p = ½ a linear network.

    Attributes:
        p: how often an entry is max(x, 0).
    """

    p: Annotated[float, Field(ge=0.5, le=1)] = 0.9

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Replace the nonlinearities in place; return the paths of their layers."""
        groups = replaceable(model, self.name)
        for path, group in groups.items():
            new = IntervalDrop(self, derive_seed(seed, path))
            device = model.get_submodule(path).get_parameter("weight").device
            zero = torch.zeros((), dtype=torch.int64, device=device)
            new.register_buffer(self._counter, zero, persistent=False)  # the state has it
            replace_nonlinearity(model, group, new, self.name)
        return list(groups)
