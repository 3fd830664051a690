"""UPGD beside three weights by hand, and beside its algorithm in plain numbers."""

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import DRAWN, shared, zero_all
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.updater import Updater
from rlplast.optimizers.upgd import UPGD
from tests.naive.optimizers import NaiveUPGD


def weights(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def updated(optimizer: UPGD, *gradients: list[float]) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, g in zip(params, gradients, strict=True):
        p.grad = torch.tensor(g, dtype=p.dtype)
    optimizer.step()


def test_three_weights_by_hand():
    # û = −g·θ = 2, 0, −1 and η = 2: gates 1 − σ(1), ½, 1 − σ(−½)
    theta = weights(1.0, 3.0, 1.0)
    updated(UPGD([theta], lr=0.5, beta=0.9, sigma=0.0), [-2.0, 0.0, 1.0])
    expected = [1 + 0.5 * 2 * 0.2689414213699951, 3.0, 1 - 0.5 * 0.6224593312018546]
    assert theta.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_maximum_is_of_all_tensors_and_groups():
    # alone the second weight would be its own maximum, and move at 1 − σ(1)
    first, second = weights(1.0), weights(1.0)
    optimizer = UPGD([{"params": [second]}, {"params": [first]}], lr=1.0, beta=0.0, sigma=0.0)
    updated(optimizer, [-1.0], [-4.0])
    assert first.item() == pytest.approx(1 + 4 * 0.2689414213699951, rel=1e-12)
    assert second.item() == pytest.approx(1 + 1 * (1 - torch.sigmoid(torch.tensor(0.25)).item()))


def test_a_weight_that_is_updated_for_the_first_time_is_as_useful_as_an_old_one():
    first, second = weights(1.0), weights(1.0)
    optimizer = UPGD([first, second], lr=0.0, beta=0.9, sigma=0.0)
    first.grad = torch.full_like(first, -1.0)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 1.0
    updated(optimizer, [-1.0], [-1.0])
    assert [first.item(), second.item()] == pytest.approx([1.2689414213699951] * 2, rel=1e-12)


@pytest.mark.parametrize("theta", [0.0, -1.0])
def test_without_a_useful_weight_all_move_at_a_half(theta):
    # with η < 0 the formula would let the least useful weight move least
    p = weights(theta, 2 * theta)
    updated(UPGD([p], lr=1.0, beta=0.0, sigma=0.0), [-1.0, -1.0])
    assert p.tolist() == [theta + 0.5, 2 * theta + 0.5]


class Noise:
    """What an optimizer draws, read off a twin whose weights are all zero and have no gradient.

    There û = 0, so every weight moves by −lr·ξ/2, and decay has nothing to take.
    """

    def __init__(self, shapes: list[tuple[int, ...]], sigma: float) -> None:
        self.params = [nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes]
        self.optimizer = UPGD(self.params, lr=2.0, sigma=sigma, seed=5)

    def draw(self) -> list[float]:
        for p in self.params:
            p.data.zero_()
            p.grad = torch.zeros_like(p)
        self.optimizer.step()
        return [-x for p in self.params for x in p.flatten().tolist()]


def test_updates_are_the_papers():
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (4,)]
    params = [
        nn.Parameter(torch.randn(s, dtype=torch.float64, generator=generator)) for s in shapes
    ]
    noise = Noise(shapes, sigma=0.3)
    ours = UPGD(params, lr=0.1, beta=0.9, sigma=0.3, weight_decay=0.2, seed=5)
    theirs = NaiveUPGD(beta=0.9, lr=0.1, weight_decay=0.2)
    expected = [x for p in params for x in p.flatten().tolist()]
    for _ in range(6):
        gradients = []
        for p in params:
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator)
            gradients += p.grad.flatten().tolist()
        ours.step()
        expected = theirs.step(expected, gradients, noise.draw())
        found = [x for p in params for x in p.flatten().tolist()]
        assert found == pytest.approx(expected, rel=1e-9)


def test_noise_is_normal_of_its_own_stream_and_new_at_every_update():
    before = torch.get_rng_state()
    noise = Noise([(100, 100)], sigma=0.3)
    first, second = (torch.tensor(noise.draw()) for _ in "ab")
    assert torch.equal(torch.get_rng_state(), before)
    for draw in (first, second):
        assert abs(float(draw.mean())) < 0.01 and float(draw.std()) == pytest.approx(0.3, rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.05


def trained(seed: int = 0) -> tuple[nn.Module, Updater]:
    torch.random.default_generator.manual_seed(0)
    module = nn.Linear(3, 2)
    return module, Updater(OptimizerConfig("upgd", params={"sigma": 0.1}), module, seed)


def update(module: nn.Module, updater: Updater, times: int) -> list[Tensor]:
    for _ in range(times):
        updater.minimise(module(torch.ones(4, 3)).square().sum())
    return [p.detach().clone() for p in module.parameters()]


def test_the_runs_seed_is_that_of_the_noise():
    assert not torch.equal(update(*trained(0), 1)[0], update(*trained(1), 1)[0])
    assert torch.equal(update(*trained(1), 1)[0], update(*trained(1), 1)[0])


def test_a_reset_of_the_network_is_a_new_optimizer_that_repeats_no_noise():
    module, updater = trained()
    update(module, updater, 3)
    zero_all(Network("net", module, updater.optimizers))
    other, new = trained()
    other.load_state_dict(module.state_dict())
    shared(new.optimizers[0])[DRAWN].fill_(3)
    for mine, theirs in zip(update(module, updater, 2), update(other, new, 2), strict=True):
        assert torch.equal(mine, theirs)
