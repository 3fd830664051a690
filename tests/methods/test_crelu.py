"""CReLU against slow twins: what it computes, its sizes, what it refuses."""

from typing import Any

import pytest
import torch
from torch import nn

import rlplast
from rlplast.agents.networks import Architecture, QNetwork
from rlplast.agents.sac_networks import Critic, TrunkSpec
from rlplast.core.rng import torch_stream
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import recorded
from tests.naive import joining as naive

# Of each network whose hidden layers can be halved: the layers.
HALVED = {
    "mlp": ["0", "2"],
    "residual": ["one.fc1", "two.fc1"],
    "stacked": ["fc1", "fc2"],
}
WIDTHS = [*(("halve", net) for net in HALVED), *(("double", net) for net in NETS)]


def made(net: str, width: str = "halve") -> Trained:
    return Trained(net, install=lambda m: rlplast.replace_layers(m, "crelu", width=width))


def even_conv() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(6, 3))


@pytest.mark.parametrize(("width", "net"), WIDTHS)
def test_outputs_are_the_twins_and_only_rows_or_only_columns_change(width: str, net: str) -> None:
    plain, trained = NETS[net].module(), made(net, width)
    before, after = dict(plain.named_parameters()), dict(trained.module.named_parameters())
    assert list(before) == list(after)
    for name, old in before.items():
        new = after[name]
        halves = [o / n for o, n in zip(old.shape, new.shape, strict=True) if o != n]
        assert halves in ([], [2.0] if width == "halve" else [0.5]), name
        if width == "halve":  # of the layer's rows the first
            assert torch.equal(old[tuple(slice(n) for n in new.shape)], new)
        elif old.shape == new.shape:
            assert torch.equal(old, new)
    layers: Any = [m for m in trained.module.modules() if isinstance(m, nn.Linear)]
    assert all(m.weight.shape == (m.out_features, m.in_features) for m in layers)
    start = trained.state()
    trained.train(3)
    assert all((p != start[n]).any() for n, p in trained.module.named_parameters())
    x, _ = trained.batch()
    expected = naive.forward(net, trained.state(), x, naive.crelu)
    torch.testing.assert_close(trained.module.eval()(x), expected, rtol=1e-4, atol=1e-5)


def test_wider_layers_are_drawn_by_torchs_law() -> None:
    net = nn.Sequential(nn.Linear(3, 400), nn.ReLU(), nn.Linear(400, 300))
    rlplast.replace_layers(net, "crelu", width="double")
    weight = net.get_parameter("2.weight")
    bound = 800**-0.5
    assert weight.shape == (300, 800)
    assert 0.999 * bound < float(weight.detach().abs().max()) <= bound
    assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.01)
    assert abs(float(weight.detach().mean())) < 4 * bound / (3 * weight.numel()) ** 0.5


@pytest.mark.parametrize("width", ["halve", "double"])
def test_networks_of_agents_compute_it_and_are_drawn_anew(width: str) -> None:
    q = QNetwork(Architecture(((4, 3, 1),), (6,)), (2, 6, 6), 3)
    q.to(memory_format=torch.channels_last)
    critic = Critic(5, 2, TrunkSpec("simba", 4, 2))
    for module, paths in ((q, ["conv1", "fc1"]), (critic, ["blocks.0.fc1", "blocks.1.fc1"])):
        assert rlplast.replace_layers(module, "crelu", width=width) == paths
        network = rlplast.Network("net", module, torch.optim.Adam(module.parameters()))
        network.initialise(torch_stream(0, "init"))
    assert q.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    obs = normal(5, 2, 6, 6)
    values, taps = recorded(q, obs)
    w = dict(q.named_parameters())
    h = naive.crelu(nn.functional.conv2d(obs, w["conv1.weight"], w["conv1.bias"]), 1)
    torch.testing.assert_close(taps["conv1"], h)
    h = naive.crelu(h.flatten(1) @ w["fc1.weight"].T + w["fc1.bias"], 1)
    torch.testing.assert_close(taps["fc1"], h)
    torch.testing.assert_close(values, h @ w["head.weight"].T + w["head.bias"])
    law = (6 / (w["fc1.weight"].shape[1] + len(w["fc1.weight"]))) ** 0.5
    assert 0.97 * law < float(w["fc1.weight"].detach().abs().max()) <= law
    assert critic(normal(5, 5), normal(5, 2)).shape == (2, 5)
