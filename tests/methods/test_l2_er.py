"""l2_er beside a slow twin and closed forms."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.agents.sac_networks import Critic, TrunkSpec
from rlplast.core.network.network import Network
from rlplast.methods.features import readers
from rlplast.methods.l2_er import lost_rank
from rlplast.metrics.ranks import effective_rank
from tests.methods.driven import Driven
from tests.models import FAMILIES
from tests.naive import features as naive

# Of each family, the layers that read hidden units, and the head.
READERS = {
    "mlp": ["2", "4"],
    "conv": ["2", "5"],
    "conv_batchnorm": ["3", "7"],
    "residual": ["head"],
    "tied": ["head"],
    "stacked": ["fc2", "head"],
}


def made(of: Any, x: Tensor | None = None) -> Driven:
    row = {"method": "l2_er", "params": {"coef": 0.3, "rank_coef": 0.7}}
    return Driven(of, x, penalty=row).move()


@pytest.mark.parametrize("family", FAMILIES)
def test_value_is_the_twins(family: str) -> None:
    termed = made(family)
    found = naive.read_by(termed.module, READERS[family], termed.x)
    if family == "stacked":
        lost = [sum(map(naive.lost_rank, both)) for both in found]
    else:
        lost = [naive.lost_rank(features) for features in found]
    squares = sum(float(p.detach().double().square().sum()) for p in termed.module.parameters())
    expected = 0.3 / 2 * squares + 0.7 * sum(lost) / len(lost)
    assert float(termed.term().detach()) == pytest.approx(expected, rel=1e-4)


def test_lost_rank_has_closed_forms() -> None:
    for sizes, expected in (((2, 2, 2, 2), 0), ((5, 0, 0, 0), 3), ((1, 1, 0), 1), ((0, 0), 1)):
        found = lost_rank(torch.diag(torch.tensor(sizes, dtype=torch.float64)))
        assert float(found) == pytest.approx(expected, abs=1e-6)
    wide = torch.randn(2, 5, 9, dtype=torch.float64)
    torch.testing.assert_close(lost_rank(3 * wide), lost_rank(wide))
    torch.testing.assert_close(lost_rank(wide.mT), lost_rank(wide))
    torch.testing.assert_close(lost_rank(wide)[0], lost_rank(wide[0]))
    exact = 5 - float(effective_rank(wide[0]))
    assert float(lost_rank(wide[0])) == pytest.approx(exact, abs=1e-6)
    assert torch.autograd.gradcheck(lost_rank, (wide.requires_grad_(),))
    zeros = torch.zeros(4, 3, requires_grad=True)
    assert torch.autograd.grad(lost_rank(zeros), zeros)[0].isfinite().all()


def test_of_simba_the_inner_units_of_all_blocks_count_and_what_the_head_reads() -> None:
    critic = Critic(5, 2, TrunkSpec("simba", 4, 2))
    found = readers(Network("critic", critic), "l2_er")
    names = [n for n, m in critic.named_modules() if m in found]
    assert names == ["blocks.0.fc2", "blocks.1.fc2", "head"]
