"""Balance of layers against the papers' algorithms and laws."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.metrics.balance import balancedness, lipschitz_bound, pairwise_balance
from tests.methods.nets import normal


def layers(*sizes: int, seed: int = 0) -> nn.Sequential:
    torch.default_generator.manual_seed(seed)
    made: list[nn.Module] = []
    for d_in, d_out in itertools.pairwise(sizes):
        made += [nn.Linear(d_in, d_out), nn.ReLU()]
    return nn.Sequential(*made[:-1]).double()


def parts(net: nn.Sequential) -> tuple[list[Tensor], list[Tensor | None]]:
    found = [m for m in net if isinstance(m, nn.Linear | nn.Conv2d)]
    return [m.weight.detach() for m in found], [m.bias.detach() for m in found]


def size(weights: list[Tensor], biases: list[Tensor | None]) -> float:
    return sum(float(t.square().sum()) for t in (*weights, *biases) if t is not None)


def sauls(weights: list[Tensor], biases: list[Tensor | None]) -> float:
    """‖W‖² over its smallest, by Saul 2023, Algorithm 1: one matrix of all units of a network.

    The first row and column are those of a constant input, whose outgoing weights are the biases.
    """
    sizes = [weights[0].shape[1], *(len(w) for w in weights)]
    starts = 1 + np.cumsum([0, *sizes])
    matrix = np.zeros((starts[-1], starts[-1]))
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        rows = slice(starts[i + 1], starts[i + 2])
        matrix[rows, starts[i] : starts[i + 1]] = w
        matrix[rows, 0] = 0 if b is None else b
    powers, hidden = matrix**2, slice(starts[1], starts[-2])
    before = powers.sum()
    for _ in range(2000):
        a = np.ones(len(powers))
        a[hidden] = (powers.sum(0)[hidden] / powers.sum(1)[hidden]) ** (1 / 4)
        powers = powers * a[:, None] / a
    return before / powers.sum()


def test_it_is_what_the_papers_algorithm_finds() -> None:
    weights, biases = parts(layers(4, 7, 5, 3, seed=1))
    biases[1] = None
    weights[1] *= torch.linspace(0.1, 3, 7)  # out of balance
    found = float(balancedness(weights, biases))
    assert found > 1.05
    assert found == pytest.approx(sauls(weights, biases), rel=1e-8)


def test_rescaling_units_changes_the_size_and_not_the_smallest_nor_the_outputs() -> None:
    torch.default_generator.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
    ).double()
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    before, smallest = net(x), size(*parts(net)) / float(balancedness(*parts(net)))
    with torch.no_grad():
        for first, second, spread in ((net[0], net[2], 1), (net[2], net[5], 9)):
            a = torch.rand(len(first.weight), dtype=torch.float64) * 5 + 0.1
            first.weight.mul_(a[:, None, None, None])
            first.bias.mul_(a)
            columns = a.repeat_interleave(spread)
            second.weight.div_(columns.view(1, -1, *[1] * (second.weight.ndim - 2)))
    torch.testing.assert_close(net(x), before)
    again = float(balancedness(*parts(net)))
    assert again > 1.5
    assert size(*parts(net)) / again == pytest.approx(smallest, rel=1e-9)


def test_units_that_nothing_reads_or_that_read_nothing_cost_nothing_at_the_smallest() -> None:
    net = layers(3, 4, 2)
    with torch.no_grad():
        net[0].weight[0], net[0].bias[0] = 0, 0
        net[2].weight[:, 1] = 0
    weights, biases = parts(net)
    kept = [weights[0][2:], weights[1][:, 2:]], [biases[0][2:], biases[1]]
    smallest = size(*kept) / float(balancedness(*kept))
    assert float(balancedness(weights, biases)) == pytest.approx(size(weights, biases) / smallest)
    assert math.isnan(float(balancedness([torch.zeros(2, 2)], [None])))


def test_what_has_no_balance_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[2, 5\]"):
        balancedness([torch.ones(3, 2), torch.ones(2, 5)], [None, None])
    with pytest.raises(ConfigError, match="no weights"):
        lipschitz_bound([])


def test_no_pair_of_inputs_is_driven_further_apart_than_the_bound() -> None:
    torch.default_generator.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    ).double()
    bound = float(lipschitz_bound(parts(net)[0]))
    x, y = torch.randn(2, 200, 2, 6, 6, dtype=torch.float64)
    grown = (net(x) - net(y)).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert float(grown.detach().max()) <= bound
    linear = torch.randn(4, 6, dtype=torch.float64)
    assert float(lipschitz_bound([linear])) == pytest.approx(float(torch.linalg.svdvals(linear)[0]))
    basis = torch.eye(50, dtype=torch.float64).view(50, 2, 5, 5)
    for kernel in ((2, 2), (3, 1)):  # no less than the norm of the conv as a matrix
        conv = nn.Conv2d(2, 3, kernel, padding=1, bias=False).double()
        exact = torch.linalg.svdvals(conv(basis).flatten(1).detach())[0]
        assert float(exact) <= float(lipschitz_bound([conv.weight.detach()]))


def test_pairwise_balance_is_the_change_of_the_larger_norm_over_the_smaller() -> None:
    first, second, a, b = (normal(4, 4, seed=seed) for seed in range(4))
    a = 0.3 * a  # the smaller one at the start
    expected = abs(float(second.norm() / first.norm() - b.norm() / a.norm()))
    assert float(pairwise_balance(first, second, a, b)) == pytest.approx(expected)
    assert float(pairwise_balance(second, first, b, a)) == pytest.approx(expected)
    assert float(pairwise_balance(3 * a, 3 * b, a, b)) == pytest.approx(0, abs=1e-6)
