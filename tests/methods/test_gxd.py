"""GXD: gradient × (activation − reference), as `cbp` and `redo` use it, beside plain autograd."""

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.network.network import Network
from rlplast.methods.redo import redo
from tests.methods.unit_nets import Trained, normal, probe
from tests.naive.gxd import costs


class Tapped(nn.Module):
    """Two layers of units, conv and linear, whose activations can be asked for."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.fc = nn.Linear(4 * 16, 5, bias=bias)
        self.head = nn.Linear(5, 3, bias=bias)

    def parts(self, x: Tensor) -> dict[str, Tensor]:
        read = {"conv": torch.relu(self.conv(x))}
        read["fc"] = torch.relu(self.fc(read["conv"].flatten(1)))
        return read | {"out": self.head(read["fc"])}

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)["out"]


def autograd(net: Tapped, x: Tensor, reference: dict[str, Tensor] | None = None) -> dict[str, Any]:
    """Σ g·(h − r) of each unit, from gradients with respect to activations."""
    read = net.parts(x)
    loss = read.pop("out").square().mean()
    slopes = torch.autograd.grad(loss, list(read.values()))
    return {
        name: costs(h.detach(), g, None if reference is None else reference[name])
        for (name, h), g in zip(read.items(), slopes, strict=True)
    }


def specs() -> list[rlplast.UnitSpec]:
    return [rlplast.UnitSpec("conv", ("fc",)), rlplast.UnitSpec("fc", ("head",))]


def test_first_utility_of_cbp_is_gradient_times_difference() -> None:
    for transfer, bias in product((False, True), (True, False)):
        torch.manual_seed(0)
        net, x = Tapped(bias), normal(16, 2, 6, 6)
        network = Network("net", net, torch.optim.SGD(net.parameters(), lr=0.0), units=specs())
        params = {"utility": "gxd", "bias_transfer": transfer, "replacement_rate": 0.0}
        row = {"method": "cbp", "every": "1 updates", "params": params}
        hooks = rlplast.Hooks([row], network, "10 updates")
        with rlplast.record(network) as found:
            net(x).square().mean().backward()
        hooks.step(updates=1, activations=found)
        means = {n: h.detach().transpose(0, 1).flatten(1).mean(1) for n, h in net.parts(x).items()}
        expected = autograd(net, x, means if transfer and bias else None)  # no bias takes a mean
        state = hooks.hooks[0].states["net"]
        for name, values in expected.items():
            corrected = state[f"util/{name}"].double() / (1 - 0.99)
            wanted = torch.tensor(values).double()
            torch.testing.assert_close(corrected, wanted, rtol=1e-3, atol=1e-6, msg=name)


def test_redo_resets_the_units_of_least_cost() -> None:
    torch.manual_seed(0)
    net, x = Tapped(), normal(16, 2, 6, 6)
    network = Network("net", net, units=specs())
    loss = lambda batch: net(batch).square().mean()  # noqa: E731
    found = autograd(net, x)
    masks = {n: [v <= 0.5 * sum(u) / len(u) for v in u] for n, u in found.items()}
    assert all(0 < sum(mask) < len(mask) for mask in masks.values())
    before = net.head.weight.detach().clone()
    receipt = redo(network, inputs=x, loss=loss, threshold=0.5, score="gxd")
    assert receipt.units == {name: sum(mask) for name, mask in masks.items()}
    assert (net.head.weight == 0).all(0).tolist() == masks["fc"]
    kept = ~torch.tensor(masks["fc"])
    assert torch.equal(net.head.weight[:, kept], before[:, kept])


def test_members_of_a_stack_have_costs_of_their_own() -> None:
    made, x = Trained("stacked").train(3), probe("stacked")
    with torch.no_grad():  # unit 1 of the second member's first layer has no weights that leave it
        made.module.get_parameter("fc2.weight")[1, :, 1] = 0
    loss = lambda batch: made.module(batch).square().mean()  # noqa: E731
    receipt = redo(made.network, inputs=x, loss=loss, threshold=0, score="gxd")
    silent = redo(Trained("stacked").train(3).network, inputs=x, threshold=0).units
    first = [receipt.units[f"[{member}].fc1"] - silent[f"[{member}].fc1"] for member in range(2)]
    assert first == [0, 1]
