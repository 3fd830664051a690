"""The rate of scheduled dropout; what it shares with dropout is in test_dropout.py."""

import torch
from torch import nn

import rlplast
from rlplast.methods.scheduled_drop import ScheduledDrop


def test_the_rate_grows_linearly_from_zero_and_stays_at_p() -> None:
    method = ScheduledDrop(p=0.4, updates=8)
    found = [float(method.rate(torch.tensor(t))) for t in (0, 2, 4, 8, 100)]
    torch.testing.assert_close(found, [0.0, 0.1, 0.2, 0.4, 0.4])


def test_a_rate_next_to_one_gives_finite_outputs() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    rlplast.replace_layers(net, "scheduled_drop", p=0.99999999, updates=1)
    network = rlplast.Network("net", net, torch.optim.SGD(net.parameters()))
    for _ in range(3):
        rlplast.tick(network)
    assert net(torch.randn(64, 4)).isfinite().all()
