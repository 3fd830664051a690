"""schedule_free beside the package's class; its average; edits of weights."""

import copy

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.edits import Assign, swapped
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import averages
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.schedule_free import ScheduleFree
from rlplast.optimizers.updater import Updater
from rlplast.run import api
from rlplast.supervised.trainer import Supervised
from tests.firing import apply
from tests.optimizers.drives import drive, give_gradients, linear, weights
from tests.runs import lines
from tests.supervised_runs import small_supervised


def evaluated(network: Network) -> Tensor:
    with swapped(averages(network)):
        return weights(network.module)


def test_weights_and_average_are_the_packages():
    package = pytest.importorskip("schedulefree")
    options = {"betas": (0.8, 0.99), "weight_decay": 0.1}
    module, generator = linear(), torch.Generator().manual_seed(1)
    other = copy.deepcopy(module)
    ours = ScheduleFree(module.parameters(), lr=0.01, **options)
    network = Network("net", module, ours)
    theirs = package.AdamWScheduleFree(other.parameters(), lr=0.01, foreach=False, **options)
    for update in range(12):
        for optimizer in (ours, theirs):  # a warm-up and a fall
            optimizer.param_groups[0]["lr"] = 0.01 * min(update + 1, 5, 13 - update)
        give_gradients(module, generator)
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            assert p.grad is not None
            q.grad = p.grad.clone()
        theirs.train()
        ours.step()
        theirs.step()
        torch.testing.assert_close(weights(module), weights(other), rtol=1e-12, atol=1e-14)
        theirs.eval()
        torch.testing.assert_close(evaluated(network), weights(other), rtol=1e-12, atol=1e-14)
    assert (evaluated(network) - weights(module)).abs().min() > 1e-4


@pytest.mark.parametrize("policy", ["keep", "touched", "parameter", "network"])
def test_an_edit_moves_the_average_too(policy):
    # the package's z and x would go on from the old weight and draw y back to it
    module = linear()
    optimizer = ScheduleFree(module.parameters(), lr=0.01)
    network = Network("net", module, optimizer)
    drive(module, optimizer, updates=20)
    average, y = evaluated(network)[:12], weights(module)[:12]
    mask = torch.zeros(4, 3, dtype=torch.bool)
    mask[0] = True
    value = torch.full((4, 3), 7.0, dtype=torch.float64)
    apply(network, [Assign(network.blocks[0], value, mask)], method="toy", optimizer=policy)
    found = evaluated(network)[:12]
    if policy == "keep":
        torch.testing.assert_close(found[:3], 7 + (average - y)[:3])
    else:
        assert found[:3].tolist() == [7.0] * 3
    if policy in ("keep", "touched"):
        assert torch.equal(found[3:], average[3:])


def test_a_first_beta_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"optimizer\.betas"):
        Updater(OptimizerConfig("schedule_free", betas=[0.0, 0.9]), nn.Linear(2, 1))


def test_evaluations_of_a_run_and_a_loaded_run_use_the_average(tmp_path, monkeypatch):
    optimizer = {"name": "schedule_free", "lr": 0.05}
    config = small_supervised(optimizer=optimizer, hooks=[], total="2 epochs")
    held, trained = [], []
    evaluate = Supervised.evaluate

    def watched(self, *args):
        held.append(weights(self.networks["model"].module))
        return evaluate(self, *args)

    monkeypatch.setattr(Supervised, "evaluate", watched)
    keep = lambda loop: trained.append(loop.trainable)  # noqa: E731
    run = api.train(config, tmp_path / "run", observer=keep)
    (network,) = trained[-1].networks.values()
    average = evaluated(network)
    assert torch.equal(held[-1], average)
    assert not torch.equal(weights(network.module), average)
    (loaded,) = run.agent().networks.values()
    assert torch.equal(weights(loaded.module), average)
    last = [r for r in lines(tmp_path / "run", "metrics") if "eval/accuracy" in r][-1]
    scores = api.load(tmp_path / "run").evaluate()
    assert scores == {key: last[f"eval/{key}"] for key in scores}
