"""Where the activations of units are read when dropout or pooling lies on their way."""

import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rlplast
from rlplast.core.network.network import Network
from tests.methods.nets import normal


class Functional(nn.Module):
    def __init__(self, before: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.before = nn.Linear(4, 6), nn.Linear(6, 2), before

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.before:
            return self.fc2(torch.relu(F.dropout(x, 0.5)))
        return self.fc2(F.dropout(torch.relu(x), 0.5))


NETS: dict[str, Callable[[], nn.Module]] = {
    "after": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2)),
    "before": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 2)),
    "functional, after": lambda: Functional(False),
    "functional, before": lambda: Functional(True),
}


@pytest.mark.parametrize("net", NETS)
def test_activations_are_read_without_dropout_and_draw_nothing(net: str) -> None:
    module = NETS[net]()
    network = Network("net", module)
    [group] = network.units().groups
    assert group.tap is not None
    assert len(group.tap.between) == 1
    assert group.nonlinearity == "relu"
    x = normal(5, 4, dtype=torch.float32)
    torch.random.default_generator.manual_seed(3)
    module(x)
    plain = torch.get_rng_state()
    torch.random.default_generator.manual_seed(3)
    with rlplast.record(network) as found:
        module(x)
    assert torch.equal(plain, torch.get_rng_state())
    layer = module.get_submodule(group.weight.block.path)
    assert torch.equal(found[group.name], torch.relu(layer(x)))


def test_pooling_lies_between_and_what_keeps_values_does_not() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Identity(), nn.ReLU(), nn.Identity(), nn.Conv2d(2, 3, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 2),
    )  # fmt: skip
    first, second = Network("net", module).units().groups
    assert first.tap is not None
    assert second.tap is not None
    assert first.tap.between == ()
    assert len(second.tap.between) == 2


def test_what_a_trace_found_can_be_pickled() -> None:
    for net in NETS.values():
        tap = Network("net", net()).units().groups[0].tap
        assert tap is not None
        x = normal(3, 6, dtype=torch.float32)
        assert torch.equal(pickle.loads(pickle.dumps(tap)).read(x)[0], tap.read(x)[0])
