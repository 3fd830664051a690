"""What the adapter knows of Stable-Baselines3's networks: parts, laws, forward orders."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from tests.adapters import wide_env
from tests.adapters.hosts import sb3_model
from tests.models import observed

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


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_hold_what_their_optimizers_train(name: str):
    found = find_networks(sb3_model(name))
    assert {k: list(n.followers) for k, n in found.items()} == NETWORKS[name]
    for network in found.values():
        trained = [p for o in network.optimizers for g in o.param_groups for p in g["params"]]
        assert {id(b.param) for b in network.trainable()} == set(map(id, trained))


def test_fixed_temperature_is_no_network():
    assert "temperature" not in find_networks(sb3_model("SAC", ent_coef=0.1))


def test_temperature_goes_back_to_its_start():
    model = sb3_model("SAC", ent_coef="auto_0.5", learning_rate=1e-2)
    hook = {"method": "full_reset", "at": "20 updates", "networks": ["temperature"]}
    callback = HookCallback([hook], total="60 env_steps")
    model.learn(60, callback=callback)
    (receipt,) = callback.receipts
    assert receipt.norm_before != pytest.approx(-torch.tensor(0.5).log().item(), abs=0.01)
    assert receipt.norm_after == pytest.approx(-torch.tensor(0.5).log().item())


def fresh(network: Network) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {b.name: network.fresh(b, generator) for b in network.blocks}


def test_ppo_is_drawn_by_its_own_law():
    values = fresh(find_networks(sb3_model("PPO", policy_kwargs={"net_arch": [16, 16]}))["policy"])
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
    plain = sb3_model("PPO", policy_kwargs={"net_arch": [16, 16], "ortho_init": False})
    assert fresh(find_networks(plain)["policy"])["action_net.weight"].abs().max() > 0.1


def test_law_is_the_one_the_library_starts_from():
    model = sb3_model("PPO", policy_kwargs={"net_arch": [32, 32]})
    network = find_networks(model)["policy"]
    for block in network.blocks:
        value = float(fresh(network)[block.name].norm())
        assert value == pytest.approx(float(network.initial[block.name].norm()), rel=1e-4)


def test_lstm_is_reset_by_its_own_law():
    layers = {"net_arch": [4], "lstm_hidden_size": 16}
    model = sb3_model("RecurrentPPO", policy="MlpLstmPolicy", policy_kwargs=layers, n_epochs=1)
    callback = HookCallback([{"method": "full_reset", "at": "50%"}])
    model.learn(16, callback=callback)
    assert len(callback.receipts) == 1
    values = fresh(callback.driver.networks["policy"])
    drawn = {k: v for k, v in values.items() if k.startswith("lstm_actor.")}
    start = torch.nn.LSTM(64, 16).state_dict()
    assert {k.removeprefix("lstm_actor."): v.shape for k, v in drawn.items()} == {
        k: v.shape for k, v in start.items()
    }
    for value in drawn.values():
        assert 0.2 < value.abs().max() <= 0.25  # 1/√16


@pytest.mark.parametrize("use_sde", [False, True])
def test_gaussian_policies_start_from_their_log_std(use_sde: bool):
    layers = {"net_arch": [4], "log_std_init": -0.5}
    for name, part in (("PPO", "policy"), ("SAC", "actor"))[: 1 + use_sde]:
        env = wide_env.WideControl()
        network = find_networks(sb3_model(name, env, use_sde=use_sde, policy_kwargs=layers))[part]
        assert (fresh(network)["log_std"] == -0.5).all()


@pytest.mark.parametrize("name", ["DQN", "SAC", "TQC", "TD3", "PPO"])
def test_swr_scales_each_chain_of_relu_layers_as_a_whole(name: str):
    """SWR, Theorem 1: the output of a chain without norms is multiplied by one number."""
    policy = {"net_arch": [16, 16], "activation_fn": torch.nn.ReLU}
    model = sb3_model(name, policy_kwargs=policy)
    chains = {
        "DQN": lambda p, x: [p.q_net.q_net(x[:, :64])],
        "SAC": lambda p, x: [p.critic.qf0(x), p.critic.qf1(x)],
        "TQC": lambda p, x: [p.critic.qf0(x), p.critic.qf1(x)],
        "TD3": lambda p, x: [p.critic.qf0(x), p.critic.qf1(x)],
        "PPO": lambda p, x: [
            p.action_net(p.mlp_extractor.policy_net(x[:, :64])),
            p.value_net(p.mlp_extractor.value_net(x[:, :64])),
        ],
    }[name]
    x = torch.randn(6, 67, generator=torch.Generator().manual_seed(1))
    networks = find_networks(model)
    with torch.no_grad():
        for number, parameter in enumerate(model.policy.parameters()):
            parameter.mul_(1 + 0.1 * number).add_(0.01)
        before = chains(model.policy, x)
        Hooks([{"method": "swr", "at": "0%", "params": {"coef": 0.5}}], networks, "9 updates").step(
            updates=0
        )
        after = chains(model.policy, x)
    for one, other in zip(before, after, strict=True):
        ratio = other / one
        assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-3)
        assert 0.01 < ratio[0, 0] < 0.95


UNITS = {
    "DQN": {"q": ["q_net.0 relu q_net.2", "q_net.2 relu q_net.4"]},
    "SAC": {
        "actor": ["latent_pi.0 relu latent_pi.2", "latent_pi.2 relu mu log_std"],
        "critic": [f"qf{i}.{n} relu qf{i}.{n + 2}" for i in (0, 1) for n in (0, 2)],
    },
    "TD3": {
        "actor": ["mu.0 relu mu.2", "mu.2 relu mu.4"],
        "critic": [f"qf{i}.{n} relu qf{i}.{n + 2}" for i in (0, 1) for n in (0, 2)],
    },
    "PPO": {
        "policy": [
            f"mlp_extractor.{part}_net.{n} tanh {reader}"
            for part, head in (("policy", "action_net"), ("value", "value_net"))
            for n, reader in ((0, f"mlp_extractor.{part}_net.2"), (2, head))
        ]
    },
}


def units(network: Network) -> list[str]:
    """Each group as its layer, its nonlinearity and the layers that read it."""
    groups = network.units().groups
    readers = [" ".join(part.block.path for part in g.outgoing) for g in groups]
    return [f"{g.name} {g.nonlinearity} {r}" for g, r in zip(groups, readers, strict=True)]


@pytest.mark.parametrize("name", UNITS)
def test_every_hidden_unit_of_a_plain_policy_is_known(name: str):
    networks = find_networks(sb3_model(name, policy_kwargs={"net_arch": [16, 16]}))
    found = {k: units(n) for k, n in networks.items() if k != "temperature"}
    assert found == UNITS[name]
    for network in networks.values():
        for follower in network.followers.values():
            assert units(follower) == units(network)


def test_hidden_layer_that_exploration_reads_has_no_units():
    model = sb3_model("SAC", use_sde=True, policy_kwargs={"net_arch": [4, 4]})
    assert units(find_networks(model)["actor"]) == ["latent_pi.0 relu latent_pi.2"]


@pytest.mark.parametrize("share", [True, False])
def test_trunk_on_pictures_is_read_by_every_head(share: bool):
    layers = {"net_arch": [4], "share_features_extractor": share}
    model = sb3_model("PPO", Pixels(), "CnnPolicy", policy_kwargs=layers)
    network = find_networks(model)["policy"]
    heads = [f"mlp_extractor.{part}_net.0" for part in ("policy", "value")]
    trunk = "features_extractor"
    readers = " ".join(heads) if share else heads[0]
    assert units(network)[:4] == [
        f"{trunk}.cnn.0 relu {trunk}.cnn.2",
        f"{trunk}.cnn.2 relu {trunk}.cnn.4",
        f"{trunk}.cnn.4 relu {trunk}.linear.0",
        f"{trunk}.linear.0 relu {readers}",
    ]
    assert len(units(network)) == (6 if share else 10)


def test_actor_scales_mean_and_log_std_as_heads_side_by_side():
    model = sb3_model("SAC", policy_kwargs={"net_arch": [16, 16]})
    network = find_networks(model)["actor"]
    assert network.order == ["latent_pi.0", "latent_pi.2", ("mu", "log_std")]


def test_method_that_needs_an_order_says_so_where_there_is_none():
    hooks = [{"method": "swr", "every": "1 updates"}]
    with pytest.raises(ConfigError, match=r"actor could not be traced .*declare the forward"):
        sb3_model("CrossQ").learn(8, callback=HookCallback(hooks))


class Pixels(wide_env.Wide):
    """Pictures instead of numbers."""

    observation_space: Any = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def _obs(self) -> Any:
        return self.np_random.integers(0, 256, (36, 36, 1), np.uint8)


class PixelControl(Pixels):
    """The same with three numbers as an action."""

    action_space = wide_env.WideControl.action_space


@pytest.mark.parametrize(
    ("name", "share", "chosen"),
    [
        ("DQN", None, None),
        ("PPO", False, None),
        ("SAC", None, ["actor"]),
        ("TD3", None, ["actor"]),
        ("PPO", True, None),
        ("SAC", None, None),
        ("TD3", None, ["critic"]),
    ],
)
def test_swr_on_pictures_is_as_the_how_to_says(name: str, share: bool | None, chosen: Any):
    layers: dict[str, Any] = {"net_arch": [4], "activation_fn": torch.nn.ReLU}
    layers |= {} if share is None else {"share_features_extractor": share}
    env = PixelControl() if name in ("SAC", "TD3") else Pixels()
    model = sb3_model(name, env, "CnnPolicy", policy_kwargs=layers)
    hook = {"method": "swr", "every": "1 updates"} | ({"networks": chosen} if chosen else {})
    works = share is not True and chosen != ["critic"] and (name, chosen) != ("SAC", None)
    with nullcontext() if works else pytest.raises(ConfigError, match="the order branches there"):
        Hooks([hook], find_networks(model), "9 updates")


@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_swr_of_tanh_policies_is_approximate_only(name: str):
    networks = find_networks(sb3_model(name))
    with pytest.raises(ConfigError, match=r"swr: tanh, after policy\..*set approximate: true"):
        Hooks([{"method": "swr", "every": "1 updates"}], networks, "9 updates")


CROSSQ = {"net_arch": [16, 16]}


def test_hidden_units_of_crossq_are_read_before_batch_renormalisation():
    networks = find_networks(sb3_model("CrossQ", policy_kwargs=CROSSQ))
    assert units(networks["actor"]) == [
        "latent_pi.1 relu latent_pi.4",
        "latent_pi.4 relu mu log_std",
    ]
    assert units(networks["critic"]) == [
        f"qf{i}.{n} relu qf{i}.{n + 3}" for i in (0, 1) for n in (1, 4)
    ]
    groups = networks["actor"].units().groups
    assert [[part.block.name for part in g.norms] for g in groups] == [
        [f"latent_pi.{n}.{tensor}" for tensor in ("scale", "bias", "ra_mean", "ra_var")]
        for n in (3, 6)
    ]


def test_activations_of_crossq_are_those_after_relu():
    model = sb3_model("CrossQ", policy_kwargs=CROSSQ)
    network, x = find_networks(model)["critic"], torch.randn(5, 64)
    actions = torch.rand(5, 3)
    found = observed(network, x, actions)
    net = model.critic.qf1.eval()
    with torch.no_grad():
        inputs = torch.cat([x, actions], 1)
        assert torch.equal(found["qf1.1"], net[:3](inputs))
        assert torch.equal(found["qf1.4"], net[:6](inputs))


def test_reset_unit_of_crossq_begins_anew_in_its_renormalisation():
    """ReDo: outgoing weights 0, and in the norm in between 1, 0 and as its statistics begin."""
    model = sb3_model("CrossQ", policy_kwargs=CROSSQ)
    model.learn(40)
    network = find_networks(model)["actor"]
    norm, x = model.actor.latent_pi[3], torch.randn(64, 64)
    with torch.no_grad():
        model.actor.latent_pi[1].weight[:2] = 0
        model.actor.latent_pi[1].bias[:2] = -1
        norm.scale.fill_(3.0)
        norm.bias.fill_(2.0)
    assert not torch.equal(norm.ra_mean, torch.zeros(16))
    hooks = Hooks(
        [{"method": "redo", "at": "1 updates", "params": {"threshold": 0.0}}],
        network,
        "9 updates",
        probe=x,
    )
    (receipt,) = hooks.step(updates=1)
    assert receipt.units is not None and receipt.units["latent_pi.1"] >= 2
    for tensor, new in (("scale", 1), ("bias", 0), ("ra_mean", 0), ("ra_var", 1)):
        assert (getattr(norm, tensor)[:2] == new).all(), tensor
    assert (model.actor.latent_pi[4].weight[:, :2] == 0).all()


@pytest.mark.parametrize("every", ["1 updates", "20 env_steps"])
def test_unit_methods_work_in_crossq(every: str):
    method = "cbp" if every == "1 updates" else "redo"
    callback = HookCallback(
        [{"method": method, "every": every}],
        metrics={"every": "20 env_steps", "names": ["dormant_ratio"]},
    )
    sb3_model("CrossQ", policy_kwargs=CROSSQ).learn(60, callback=callback)
    assert callback.receipts
    assert "metric/dormant_ratio/critic" in callback.metrics[-1]


def test_fresh_renormalisation_begins_as_the_library_begins():
    network = find_networks(sb3_model("CrossQ", policy_kwargs=CROSSQ))["critic"]
    norms = [b.name for b in network.blocks if b.kind == "norm"]
    assert len(norms) == 24
    for name in norms:
        assert torch.equal(fresh(network)[name], network.initial[name])
