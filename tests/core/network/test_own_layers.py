"""Units and scales of modules whose layers do more than torch's, or are called elsewhere."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network


class Branches(nn.Module):
    """A trunk of which the second head is read in another method, or without an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.pi = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)
        self.values = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        y = self.pi(self.trunk(x))
        return y + self.value(x) if noise is None else y + noise

    def value(self, x: Tensor) -> Tensor:
        return self.values(self.trunk(x))


def refused(module: nn.Module) -> dict[str, str]:
    return dict(Network("net", module).units().refused)


def test_units_that_a_layer_not_seen_may_read_are_refused() -> None:
    assert refused(Branches())["trunk.0"].startswith("values.0 may read it, which was not called")
    apart = Branches()  # the other head reads something else, and has units of its own
    apart.values = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    assert [group.name for group in rlplast.units(apart)] == ["trunk.0"]


class Normalised(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight / self.weight.norm(), self.bias)


class Residual(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


class Squashed(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).tanh()


class Causal(nn.Conv1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.pad(input, (2, 0)))


def _chain(kind: type[nn.Linear]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), kind(8, 8), nn.ReLU(), nn.Linear(8, 3))


CASES: list[tuple[Callable[[], nn.Module], tuple[int, ...], bool, bool]] = [
    (lambda: _chain(nn.Linear), (16, 6), True, True),
    (lambda: _chain(Normalised), (16, 6), False, False),
    (lambda: _chain(Residual), (16, 6), False, False),
    (lambda: _chain(Squashed), (16, 6), True, False),
    (lambda: nn.Sequential(Causal(6, 4, 3), nn.ReLU(), Causal(4, 2, 3)), (5, 6, 9), True, True),
]


@pytest.mark.parametrize(("make", "shape", "units", "scales"), CASES)
def test_a_layer_of_a_users_class_is_judged_by_what_it_computes(
    make: Callable[[], nn.Module], shape: tuple[int, ...], units: bool, scales: bool
) -> None:
    torch.manual_seed(3)
    module, x = make().double(), torch.randn(shape).double()
    layer = "2" if len(module) > 3 else "0"  # type: ignore[arg-type]
    assert ("torch's own layer" in refused(module).get(layer, "")) is not units
    network = Network("net", module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3)
        before = module(x)
        if not scales:
            with pytest.raises(ConfigError, match=r"net\.2, a .* does not give"):
                rlplast.swr(network, coef=0.3)
            return
        rlplast.swr(network, coef=0.3)
        after = module(x)
    factor = (before * after).sum() / before.square().sum()
    assert torch.allclose(after, factor * before, rtol=1e-9)
