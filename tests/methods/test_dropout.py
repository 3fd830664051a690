"""Dropout, constant and scheduled, and of weights, against a slow twin and the plain network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import rlplast
from rlplast.agents.sac_networks import Actor, TrunkSpec
from rlplast.core.rng import derive_seed
from tests.agents.toy_env import advanced, dqn
from tests.methods.unit_nets import NETS, Trained, normal
from tests.naive import dropping as naive

# Of each network: a layer that reads hidden units → the layer whose units it reads.
READERS = {
    "mlp": {"2": "0", "4": "2"},
    "conv": {"4": "0", "8": "4", "10": "8"},
    "conv_batchnorm": {"4": "0", "8": "4", "10": "8"},
    "residual": {"one.fc2": "one.fc1", "two.fc2": "two.fc1"},
    "stacked": {"fc2": "fc1", "head": "fc2"},
}
METHODS: dict[str, dict[str, Any]] = {
    "dropout": {"p": 0.4},
    "scheduled_drop": {"p": 0.4, "updates": 4},
    "dropconnect": {"p": 0.4},
}


def made(net: str, method: str, **params: Any) -> Trained:
    params = METHODS[method] | params
    return Trained(net, install=lambda m: rlplast.replace_layers(m, method, **params))


def plain(trained: Trained) -> nn.Module:
    module = trained.net.module()
    module.load_state_dict(trained.module.state_dict())
    return module


def rate(method: str, t: int) -> float:
    return 0.4 * min(1.0, t / 4) if method == "scheduled_drop" else 0.4


class Masked(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("net", NETS)
def test_layers_that_read_hidden_units_drop_what_the_twin_drops(net: str, method: str) -> None:
    trained = made(net, method)
    hooks = trained.ticking()
    seed = derive_seed(0, "layers", method, "model")
    for updates in range(6):
        twin = plain(trained)
        for path, units in READERS[net].items():
            p, own = rate(method, updates), derive_seed(seed, units)
            layer: Any = twin.get_submodule(path)
            if method == "dropconnect":
                mask = naive.mask(layer.weight.shape, p, updates, own)
                parametrize.register_parametrization(layer, "weight", Masked(mask))
                continue

            def drop(layer: nn.Module, args: Any, p: float = p, own: int = own) -> Tensor:
                return args[0] * naive.mask(args[0].shape, p, updates, own)  # noqa: B023

            layer.register_forward_pre_hook(drop)
        x, _ = trained.batch()
        with torch.no_grad():  # here nothing drops
            assert torch.equal(trained.module(x), plain(trained)(x))
        expected = twin(x)
        for _ in range(2):  # alike within an update
            torch.testing.assert_close(trained.module(x), expected, rtol=1e-5, atol=1e-6)
        trained.update()
        hooks.step(updates=updates + 1)
    twin, (x, _) = plain(trained), trained.batch()
    assert torch.equal(trained.module.eval()(x), twin.eval()(x))


def test_layers_that_are_named_drop_what_they_read_and_no_other_does() -> None:
    for layers, path in ((["0"], "0"), (["4"], "4"), (["[!02]"], "4")):
        trained = made("mlp", "dropout", layers=layers)
        seed = derive_seed(derive_seed(0, "layers", "dropout", "model"), path)
        twin, (x, _) = plain(trained), trained.batch()
        before = twin[: int(path)](x)
        mask = naive.mask(before.shape, 0.4, 0, seed)
        expected = twin[int(path) :](before * mask)
        torch.testing.assert_close(trained.module(x), expected, rtol=1e-5, atol=1e-6)


def test_layers_that_read_the_same_units_drop_the_same() -> None:
    actor = Actor(5, 3, TrunkSpec("mlp", 64, 1), log_std="clamp", log_std_min=-1e9, log_std_max=1e9)
    rlplast.replace_layers(actor, "dropout", p=0.5)
    with torch.no_grad():
        actor.log_std.weight.copy_(actor.mean.weight)
        actor.log_std.bias.copy_(actor.mean.bias)
    mean, log_std = actor(normal(4, 5))
    assert torch.equal(mean, log_std)


def test_a_dqn_drops_in_its_loss_and_not_when_it_acts_chooses_or_is_measured() -> None:
    row = [{"method": "dropout", "params": {"p": 0.5}}]
    agent = advanced(dqn(2, env="gym/CartPole-v1", double=True, layers=row), 4)
    plain = advanced(dqn(2, env="gym/CartPole-v1", double=True), 4)
    plain.online.load_state_dict(agent.online.state_dict())
    plain.target.load_state_dict(agent.target.state_dict())
    batch = agent.experience.replay.sample()
    assert torch.equal(agent.loss("q", batch), plain.loss("q", batch))
    assert not torch.equal(agent.td_loss(batch)[0], plain.td_loss(batch)[0])
    with torch.no_grad():
        assert torch.equal(agent.td_loss(batch)[0], plain.td_loss(batch)[0])
    obs = batch.obs.numpy()
    assert (agent._act_greedily(obs) == plain._act_greedily(obs)).all()


def test_a_rate_next_to_one_gives_finite_outputs() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    rlplast.replace_layers(net, "scheduled_drop", p=0.99999999, updates=1)
    network = rlplast.Network("net", net, torch.optim.SGD(net.parameters()))
    for _ in range(3):
        rlplast.tick(network)
    assert net(torch.randn(64, 4)).isfinite().all()
