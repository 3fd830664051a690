"""DASH against its slow twin, on four networks; closed forms, modes, policies."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.stacked import StackedLinear
from rlplast.methods.dash import dash, shrink_factors
from tests.methods.unit_nets import BATCH, NETS, Trained, normal
from tests.naive import dash as naive

Batch = tuple[Tensor, Tensor]


class Data:
    """Batches of a network's inputs and targets, drawn from the firing's stream and kept."""

    def __init__(self, net: str) -> None:
        self.net, self.drawn = NETS[net], list[Batch]()

    def __call__(self, size: int, generator: torch.Generator) -> Batch:
        x = torch.randn(size, *self.net.sample, generator=generator)
        shape = [size if d == BATCH else d for d in self.net.out]
        x = x.to(memory_format=torch.channels_last) if x.ndim == 4 else x
        self.drawn.append((x, torch.randn(shape, generator=generator)))
        return self.drawn[-1]


def loss_of(module: nn.Module) -> Callable[[Batch], Tensor]:
    return lambda batch: (module(batch[0]) - batch[1]).square().mean()


def neurons(module: nn.Module, read: Callable[[Tensor], Any] = lambda p: p) -> dict[str, Tensor]:
    """What is shrunk: weights and biases of linear and conv layers, per member; or their grads."""
    found = {}
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            found |= {f"{path}.{n}": read(p) for n, p in layer.named_parameters()}
        elif isinstance(layer, StackedLinear):
            for name, p in layer.named_parameters():
                found |= {f"{path}.{name}[{member}]": read(p)[member] for member in range(len(p))}
    return found


def gradients(module: nn.Module, batches: list[Batch], train: bool) -> list[list[Tensor]]:
    """Gradients of each batch by a copy of the network, in the order of `neurons`."""
    result = []
    for batch in batches:
        shadow = copy.deepcopy(module).train(train)
        shadow.zero_grad()
        loss_of(shadow)(batch).backward()
        result.append(list(neurons(shadow, lambda p: p.grad).values()))
    return result


@pytest.mark.parametrize("net", NETS)
def test_every_neuron_is_the_twins(net: str) -> None:
    for mode, alpha, coef in (("train", 0.3, 0.3), ("eval", 1.0, 0.0), ("eval", 0.5, 0.9)):
        made, data = Trained(net).train(5), Data(net)
        twin = copy.deepcopy(made.module)
        options: dict[str, Any] = {"alpha": alpha, "coef": coef, "mode": mode}
        loss = loss_of(made.module)
        receipt = dash(made.network, inputs=data, loss=loss, batches=3, batch=12, **options)
        assert [len(x) for x, _ in data.drawn] == [12, 12, 12]
        before, after = neurons(twin), neurons(made.module)
        found = gradients(twin, data.drawn, mode == "train")
        shrunk = naive.dash(list(before.values()), found, alpha, coef)
        for name, tensor in zip(before, shrunk, strict=True):
            torch.testing.assert_close(after[name].detach(), tensor, rtol=1e-4, atol=1e-7, msg=name)
        edited = {name.partition("[")[0] for name in before}
        for name, tensor in twin.state_dict().items():
            assert name in edited or torch.equal(tensor, made.state()[name]), name
        assert receipt.entries_touched == sum(t.numel() for t in shrunk)
        assert any(not torch.equal(before[n], after[n]) for n in before)


def test_factors_by_hand_and_those_of_short_gradients() -> None:
    weight = normal(3, 5, seed=1)  # along the fall, against it, and neither
    direction = torch.stack([2.5 * weight[0], -weight[1], torch.zeros(5)])
    factors = shrink_factors(weight, direction, 0.3)
    torch.testing.assert_close(factors.flatten(), torch.tensor([1.0, 0.3, 0.3]))
    weight = normal(6, 5, seed=1)
    for length in (1.0, 1e-7, 1e-9, 0.0):  # torch's cosine, however short the gradient is
        direction = length * (weight + 0.3 * normal(6, 5, seed=2))
        cosine = nn.functional.cosine_similarity(weight, direction, dim=1).clamp(0.05, 1)
        torch.testing.assert_close(shrink_factors(weight, direction, 0.05)[:, 0], cosine)


def test_a_float64_network_loses_no_digit_and_what_it_needs_is_named() -> None:
    module = NETS["mlp"].module().double()
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1 / 3)
    x, y = normal(8, 5).double(), normal(8, 3, seed=1).double()
    grads = torch.autograd.grad(loss_of(module)((x, y)), list(module.parameters()))
    wanted = naive.dash(list(module.parameters()), [list(grads)], 1.0, 0.1)
    dash(module, inputs=(x, y), loss=loss_of(module), batches=1, alpha=1.0, coef=0.1)
    for p, new in zip(module.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.detach(), new, rtol=1e-13, atol=0)
    with pytest.raises(NothingToEdit, match="no linear or conv layer"):
        dash(nn.LayerNorm(3), inputs=torch.zeros(2, 3), loss=torch.sum, batches=1)
    with pytest.raises(ConfigError, match="loss"):
        rlplast.apply("dash", module, inputs=(x, y), batches=1)
    with pytest.raises(ConfigError, match="batches = None"):
        dash(module, inputs=(x, y), loss=loss_of(module))
