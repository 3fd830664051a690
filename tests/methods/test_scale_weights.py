"""scale_weights beside its closed form and Theorem 1 of the SWR paper."""

import math
from itertools import product

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from tests.cases import about
from tests.methods.chains import ALL, inputs_for, make
from tests.methods.nets import Mlp, randomise, snapshot


@torch.no_grad()
def test_in_proportion_outputs_are_one_multiple_of_what_they_were() -> None:
    for net, factor in product(ALL, (0.2, 3.0)):
        network = make(ALL[net])
        network.module.train()  # BatchNorm by the statistics of the batch
        x = inputs_for(network)
        before = network.module(x)
        rlplast.apply("scale_weights", network, factor=factor)
        after = network.module(x)
        multiple = float((after * before).sum() / before.square().sum())
        power = math.log(multiple) / math.log(factor)  # the layers after the last norm
        with about(net, factor):
            assert power == pytest.approx(round(power)) and power > 0.5
            torch.testing.assert_close(after, multiple * before, rtol=1e-9, atol=1e-9 * multiple)


def test_without_proportion_weights_alone_are_scaled_and_classes_change() -> None:
    model = randomise(Mlp(), 3)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    before, classes = snapshot(model), model(x).argmax(1)
    rlplast.apply("scale_weights", model, factor=0.25, proportional=False)
    for name, value in snapshot(model).items():
        factor = 1 if name.endswith("bias") else 0.25
        assert torch.equal(value, before[name] * factor), name
    assert not torch.equal(model(x).argmax(1), classes)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(x)


def test_a_network_that_branches_has_no_proportion() -> None:
    with pytest.raises(ConfigError, match=r"model .*add"):
        rlplast.apply("scale_weights", Residual())
    model = randomise(Residual(), 1)
    before = model.fc.weight.detach().clone()
    rlplast.apply("scale_weights", model, factor=2.0, proportional=False)
    assert torch.equal(model.fc.weight, 2 * before)
    for proportional in (True, False):
        with pytest.raises(NothingToEdit):
            rlplast.apply("scale_weights", nn.Embedding(4, 2), proportional=proportional)
