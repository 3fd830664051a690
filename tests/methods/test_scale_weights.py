"""scale_weights without proportion; with it tests/methods/test_proportion.py has every chain."""

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import NothingToEdit
from tests.methods.nets import Mlp, randomise, snapshot
from tests.models import Residual


def test_without_proportion_weights_alone_are_scaled_in_a_network_that_branches_too() -> None:
    with pytest.raises(rlplast.ConfigError, match=r"model .*add"):
        rlplast.apply("scale_weights", Residual())
    for module in (Mlp(), Residual()):
        before = snapshot(randomise(module, 3))
        rlplast.apply("scale_weights", module, factor=0.25, proportional=False)
        for name, value in snapshot(module).items():
            factor = 1 if name.endswith("bias") else 0.25
            assert torch.equal(value, before[name] * factor), name
    for proportional in (True, False):
        with pytest.raises(NothingToEdit):
            rlplast.apply("scale_weights", nn.Embedding(4, 2), proportional=proportional)
