"""Norms whose entries are steps of time, as many as there are units: sizes do not tell."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.methods.nets import changed, randomise, snapshot


class Series(nn.Module):
    """Reads (batch, 6), or (batch, 5 steps, 6); five units, of which one is dead."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.mix, self.norm, self.out = nn.Linear(6, 5), norm, nn.Linear(5, 2)
        randomise(self, 1)
        with torch.no_grad():
            self.mix.weight[2] = 0
            self.mix.bias[2] = -100

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.mix(x).relu()))


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(5),
    "sync": lambda: nn.SyncBatchNorm(5).eval(),
    "group": lambda: nn.GroupNorm(5, 5),
}


def fire(method: str, module: Series, x: Tensor) -> rlplast.Receipt:
    network = rlplast.Network("net", module, torch.optim.Adam(module.parameters()))
    loss = lambda inputs: module(inputs).square().mean()  # noqa: E731
    return rlplast.apply(method, network, inputs=x, loss=loss, threshold=0.0)


@pytest.mark.parametrize(
    ("norm", "method"), [("batch", "redo"), ("sync", "regrama"), ("group", "redo")]
)
def test_a_norm_over_time_is_refused_and_one_over_units_is_reset(norm: str, method: str) -> None:
    module, x = Series(NORMS[norm]()).eval(), torch.randn(64, 5, 6)
    before = snapshot(module)
    with pytest.raises(rlplast.ConfigError, match=r"net\.norm .*\(64, 5, 5\)"):
        fire(method, module, x)
    assert not changed(before, module)
    assert fire(method, module, x[:, 0]).units == {"mix": 1}
    weight = module.norm.get_parameter("weight")
    assert (weight == 1).tolist() == [False, False, True, False, False]


def test_a_pass_of_a_users_loop_is_checked_too() -> None:
    module = Series(nn.BatchNorm1d(5))
    network = rlplast.Network("net", module)
    with pytest.raises(rlplast.ConfigError, match=r"net\.norm"):
        with rlplast.record(network):
            module(torch.randn(64, 5, 6))
    assert not module.norm._forward_hooks
    module(torch.randn(64, 5, 6))
