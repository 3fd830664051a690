"""What the adapter knows of Stable-Baselines3's networks: parts, laws, forward orders, units."""

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from tests.adapters.hosts import RELU, PixelControl, Pixels, WideControl, sb3_model

TARGET = ["target"]
NETWORKS = {
    "DQN": {"q": TARGET},
    "QRDQN": {"q": TARGET},
    "PPO": {"policy": []},
    "SAC": {"actor": [], "critic": TARGET, "temperature": []},
    "TQC": {"actor": [], "critic": TARGET, "temperature": []},
    "CrossQ": {"actor": [], "critic": [], "temperature": []},
    "TD3": {"actor": TARGET, "critic": TARGET},
    "DDPG": {"actor": TARGET, "critic": TARGET},
}
SWR = {"method": "swr", "every": "1 updates"}
TWO = {"net_arch": [16, 16]}


def test_networks_hold_what_their_optimizers_train():
    for name, expected in NETWORKS.items():
        found = find_networks(sb3_model(name))
        assert {k: list(n.followers) for k, n in found.items()} == expected, name
        for network in found.values():
            trained = [p for o in network.optimizers for g in o.param_groups for p in g["params"]]
            assert {id(b.param) for b in network.trainable()} == set(map(id, trained)), name
    assert "temperature" not in find_networks(sb3_model("SAC", ent_coef=0.1))


def test_temperature_goes_back_to_its_start():
    model = sb3_model("SAC", ent_coef="auto_0.5", learning_rate=1e-2)
    hook = {"method": "full_reset", "at": "8 updates", "networks": ["temperature"]}
    callback = HookCallback([hook])
    model.learn(32, callback=callback)
    (receipt,) = callback.receipts
    assert receipt.norm_before != pytest.approx(-torch.tensor(0.5).log().item(), abs=0.01)
    assert receipt.norm_after == pytest.approx(-torch.tensor(0.5).log().item())


def fresh(network: Network) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {b.name: network.fresh(b, generator) for b in network.blocks}


def test_ppo_is_drawn_by_its_own_law():
    network = find_networks(sb3_model("PPO", policy_kwargs=TWO))["policy"]
    values = fresh(network)
    for name, gain in {
        "mlp_extractor.policy_net.2": 2**0.5,
        "mlp_extractor.value_net.2": 2**0.5,
        "action_net": 0.01,
        "value_net": 1.0,
    }.items():
        weight = values[f"{name}.weight"]
        identity = torch.eye(len(weight))
        assert torch.allclose(weight @ weight.T / gain**2, identity, atol=1e-5)
        assert not values[f"{name}.bias"].any()
    for name, value in values.items():
        assert float(value.norm()) == pytest.approx(float(network.initial[name].norm()), rel=1e-4)
    plain = find_networks(sb3_model("PPO", policy_kwargs=TWO | {"ortho_init": False}))["policy"]
    assert fresh(plain)["action_net.weight"].abs().max() > 0.1


def test_a_head_that_a_user_made_zero_begins_at_zero_again():
    for name in ("PPO", "SAC"):
        model = sb3_model(name)
        head = model.policy.action_net if name == "PPO" else model.policy.actor.mu
        torch.nn.init.zeros_(head.weight)
        network = next(iter(find_networks(model).values()))
        (block,) = [b for b in network.blocks if b.param is head.weight]
        assert not fresh(network)[block.name].any()


def test_lstm_is_reset_by_its_own_law():
    model = sb3_model("RecurrentPPO", policy_kwargs={"net_arch": [4], "lstm_hidden_size": 16})
    callback = HookCallback([{"method": "full_reset", "at": "50%"}])
    model.learn(16, callback=callback)
    assert len(callback.receipts) == 1
    values, key = fresh(callback.driver.networks["policy"]), "lstm_actor."
    drawn = {k.removeprefix(key): v for k, v in values.items() if k.startswith(key)}
    start = torch.nn.LSTM(64, 16).state_dict()
    assert {k: v.shape for k, v in drawn.items()} == {k: v.shape for k, v in start.items()}
    assert all(0.2 < value.abs().max() <= 0.25 for value in drawn.values())  # 1/√16


def test_gaussian_policies_start_from_their_log_std():
    layers = {"net_arch": [4], "log_std_init": -0.5}
    for name, part, use_sde in (
        ("PPO", "policy", False),
        ("PPO", "policy", True),
        ("SAC", "actor", True),
    ):
        model = sb3_model(name, WideControl(), use_sde=use_sde, policy_kwargs=layers)
        assert (fresh(find_networks(model)[part])["log_std"] == -0.5).all()


@pytest.mark.parametrize("name", ["DQN", "SAC", "PPO"])
def test_swr_scales_each_chain_of_relu_layers_as_a_whole(name: str):
    """SWR, Theorem 1: the output of a chain without norms is multiplied by one number."""
    model = sb3_model(name, policy_kwargs=RELU)
    critics = lambda p, x: [p.critic.qf0(x), p.critic.qf1(x)]  # noqa: E731
    chains = {
        "DQN": lambda p, x: [p.q_net.q_net(x[:, :64])],
        "PPO": lambda p, x: [
            p.action_net(p.mlp_extractor.policy_net(x[:, :64])),
            p.value_net(p.mlp_extractor.value_net(x[:, :64])),
        ],
    }.get(name, critics)
    x = torch.randn(6, 67, generator=torch.Generator().manual_seed(1))
    networks = find_networks(model)
    with torch.no_grad():
        for number, parameter in enumerate(model.policy.parameters()):
            parameter.mul_(1 + 0.1 * number).add_(0.01)
        before = chains(model.policy, x)
        hook = {"method": "swr", "at": "0%", "params": {"coef": 0.5}}
        Hooks([hook], networks, "9 updates").step(updates=0)
        after = chains(model.policy, x)
    for one, other in zip(before, after, strict=True):
        ratio = other / one
        assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-3)
        assert 0.01 < ratio[0, 0] < 0.95


CRITICS = [f"qf{i}.{n} relu qf{i}.{n + 2}" for i in (0, 1) for n in (0, 2)]
UNITS = {
    "DQN": {"q": ["q_net.0 relu q_net.2", "q_net.2 relu q_net.4"]},
    "SAC": {
        "actor": ["latent_pi.0 relu latent_pi.2", "latent_pi.2 relu mu log_std"],
        "critic": CRITICS,
    },
    "TD3": {"actor": ["mu.0 relu mu.2", "mu.2 relu mu.4"], "critic": CRITICS},
    "PPO": {
        "policy": [
            f"mlp_extractor.{part}_net.{n} tanh {reader}"
            for part, head in (("policy", "action_net"), ("value", "value_net"))
            for n, reader in ((0, f"mlp_extractor.{part}_net.2"), (2, head))
        ]
    },
    "CrossQ": {  # read before batch renormalisation
        "actor": ["latent_pi.1 relu latent_pi.4", "latent_pi.4 relu mu log_std"],
        "critic": [f"qf{i}.{n} relu qf{i}.{n + 3}" for i in (0, 1) for n in (1, 4)],
    },
}


def units(network: Network) -> list[str]:
    """Each group as its layer, its nonlinearity and the layers that read it."""
    groups = network.units().groups
    readers = [" ".join(part.block.path for part in g.outgoing) for g in groups]
    return [f"{g.name} {g.nonlinearity} {r}" for g, r in zip(groups, readers, strict=True)]


def test_every_hidden_unit_of_a_plain_policy_is_known():
    for name, expected in UNITS.items():
        networks = find_networks(sb3_model(name, policy_kwargs=TWO))
        found = {k: units(n) for k, n in networks.items() if k != "temperature"}
        assert found == expected, name
        for network in networks.values():
            for follower in network.followers.values():
                assert units(follower) == units(network), name
    actor = find_networks(sb3_model("SAC", policy_kwargs=TWO))["actor"]
    assert actor.order == ["latent_pi.0", "latent_pi.2", ("mu", "log_std")]
    explores = sb3_model("SAC", use_sde=True, policy_kwargs=TWO)  # reads the last hidden layer
    assert units(find_networks(explores)["actor"]) == ["latent_pi.0 relu latent_pi.2"]


def test_trunk_on_pictures_is_read_by_every_head():
    heads = [f"mlp_extractor.{part}_net.0" for part in ("policy", "value")]
    trunk = "features_extractor"
    for share, readers, count in ((True, " ".join(heads), 6), (False, heads[0], 10)):
        layers = {"net_arch": [4], "share_features_extractor": share}
        model = sb3_model("PPO", Pixels(), "CnnPolicy", policy_kwargs=layers)
        found = units(find_networks(model)["policy"])
        ends = ["cnn.0", "cnn.2", "cnn.4", "linear.0"]
        chain = [f"{trunk}.{a} relu {trunk}.{b}" for a, b in pairwise(ends)]
        assert found[:4] == [*chain, f"{trunk}.linear.0 relu {readers}"]
        assert len(found) == count


def test_swr_works_where_there_is_one_order_of_homogeneous_layers():
    branches = "the order branches there"
    for name, share, chosen, refusal in (
        ("DQN", None, None, None),
        ("PPO", False, None, None),
        ("SAC", None, ["actor"], None),
        ("TD3", None, ["actor"], None),
        ("PPO", True, None, branches),
        ("SAC", None, None, branches),
        ("TD3", None, ["critic"], branches),
    ):
        layers: dict[str, Any] = {"net_arch": [4], "activation_fn": torch.nn.ReLU}
        layers |= {} if share is None else {"share_features_extractor": share}
        env = PixelControl() if name in ("SAC", "TD3") else Pixels()
        model = sb3_model(name, env, "CnnPolicy", policy_kwargs=layers)
        hook = SWR | ({"networks": chosen} if chosen else {})
        with pytest.raises(ConfigError, match=refusal) if refusal else nullcontext():
            Hooks([hook], find_networks(model), "9 updates")
    for name, refusal in (("PPO", r"tanh, after policy\..*approximate"), ("CrossQ", "actor")):
        with pytest.raises(ConfigError, match=refusal):
            Hooks([SWR], find_networks(sb3_model(name)), "9 updates")


def test_reset_unit_of_crossq_begins_anew_in_its_renormalisation():
    """ReDo: outgoing weights 0, and in the norm in between 1, 0 and as its statistics begin."""
    model = sb3_model("CrossQ", policy_kwargs=TWO)
    network = find_networks(model)["actor"]
    norm, x = model.actor.latent_pi[3], torch.randn(64, 64)
    with torch.no_grad():
        model.actor.latent_pi[1].weight[:2] = 0
        model.actor.latent_pi[1].bias[:2] = -1
        norm.scale.fill_(3.0)
        norm.bias.fill_(2.0)
        norm.ra_mean.fill_(0.5)
    hook = {"method": "redo", "at": "1 updates", "params": {"threshold": 0.0}}
    (receipt,) = Hooks([hook], network, "9 updates", probe=x).step(updates=1)
    assert receipt.units is not None and receipt.units["latent_pi.1"] >= 2
    for tensor, new in (("scale", 1), ("bias", 0), ("ra_mean", 0), ("ra_var", 1)):
        assert (getattr(norm, tensor)[:2] == new).all(), tensor
    assert (model.actor.latent_pi[4].weight[:, :2] == 0).all()


class Residual(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.act = torch.nn.Linear(width, width), torch.nn.ReLU()
        self.b = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(self.act(self.a(x)))


def test_layers_inside_modules_of_a_user_are_not_taken_for_a_chain():
    model = sb3_model("DQN", policy_kwargs={"net_arch": [16]})
    for net in (model.policy.q_net, model.policy.q_net_target):
        net.q_net = torch.nn.Sequential(net.q_net[0], Residual(16), net.q_net[2])
    model.policy.optimizer = torch.optim.Adam(model.policy.q_net.parameters())
    network = find_networks(model)["q"]
    parts = [[str(p) for p in group.parts] for group in network.units().groups]
    assert parts == [["q_net.1.a.weight[i]", "q_net.1.a.bias[i]", "q_net.1.b.weight[:, i]"]]
    with pytest.raises(ConfigError, match=r"swr|traced"):
        Hooks([SWR], network, "10 updates")
