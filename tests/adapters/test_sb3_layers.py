"""Layers in Stable-Baselines3: put into the policy before it trains, into targets too."""

from typing import Any

import pytest
import torch

import rlplast
from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import INSTALLED
from tests.adapters.hosts import RELU, same, sb3_model, state


@pytest.mark.parametrize(
    ("method", "name"),
    [("layer_norm", "SAC"), ("layer_norm", "PPO"), ("lifecycle", "DQN")],
)
def test_optimizers_hold_what_there_is_after_it_and_train_it(method: str, name: str):
    model = sb3_model(name, policy_kwargs=RELU)
    callback = HookCallback([], layers=[{"method": method}], total="96 env_steps")
    model.learn(32, callback=callback)
    networks = find_networks(model)
    for network in networks.values():
        (optimizer,) = network.optimizers
        held = [id(p) for g in optimizer.param_groups for p in g["params"]]
        assert sorted(held) == sorted({id(b.param) for b in network.trainable()})
        for mine, theirs in network.followed():
            assert mine.view.shape == theirs.view.shape
    layers = [type(m) for m in model.policy.modules()]
    model.learn(32, callback=callback, reset_num_timesteps=False)  # they are in already
    assert [type(m) for m in model.policy.modules()] == layers
    moved = [
        not torch.equal(b.view, n.initial[b.name])
        for n in callback.driver.networks.values()
        for b in n.trainable()
        if b.kind == "norm"
    ]
    assert all(moved) and bool(moved) == ("norm" in method)


def test_layers_equal_those_put_in_by_hand():
    """A DQN with layer norms: replaced by hand in both networks, with a new optimizer."""
    by_hand = sb3_model("DQN", policy_kwargs=RELU)
    for net in (by_hand.policy.q_net, by_hand.policy.q_net_target):
        rlplast.replace_layers(net, "layer_norm")
    by_hand.policy.optimizer = torch.optim.Adam(by_hand.policy.q_net.parameters(), lr=1e-4)
    by_hand.learn(60)
    model = sb3_model("DQN", policy_kwargs=RELU)
    model.learn(60, callback=HookCallback([], layers=[{"method": "layer_norm"}]))
    found = [state([m.policy.optimizer], m.policy) for m in (by_hand, model)]
    assert same(*found) and any("norm" in key for key in found[0])


def test_layers_and_modules_of_hooks_reach_the_policy_from_one_part():
    # dropconnect replaces the last layer too, of which the policy has to know.
    own: dict[str, Any] = {"networks": ["critic"]}
    row = {"method": "dropconnect", "params": {"p": 0.5}} | own
    model = sb3_model("PPO", policy_kwargs=RELU)
    model.learn(32, callback=HookCallback([], layers=[row]))
    changed = {n for n, m in model.policy.named_modules() if INSTALLED in vars(m)}
    assert changed == {"mlp_extractor.value_net.2", "value_net"}
    model = sb3_model("PPO", policy_kwargs=RELU)
    callback = HookCallback([{"method": "plasticity_injection", "at": "32 env_steps"} | own])
    model.learn(64, callback=callback)
    assert [(r.method, r.network, r.clock.env_steps) for r in callback.receipts] == [
        ("plasticity_injection", "critic", 32)
    ]
    assert float(model.policy.value_net.gate) == 1


def test_what_does_not_fit_is_refused_by_name():
    inject = {"method": "plasticity_injection", "at": "50%"}
    for name, hooks, layers, words in (
        ("SAC", [inject | {"networks": ["actor"]}], [], "one head, which 'actor'"),
        ("SAC", [inject | {"networks": ["critic"]}], [], "one head, which 'critic'"),
        ("PPO", [inject | {"networks": ["policy"]}], [], "one head, which 'policy'"),
        ("DQN", [], [{"method": "redo"}], "redo"),
        ("DQN", [], [{"method": "stochastic_depth"}], "no residual blocks"),
        ("DQN", [], [{"method": "dropout", "networks": ["p"]}], "networks: 'p'"),
    ):
        with pytest.raises(ConfigError, match=words):
            sb3_model(name).learn(8, callback=HookCallback(hooks, layers=layers))
    model = sb3_model("DQN")
    model.learn(40)
    with pytest.raises(ConfigError, match="Adam has been training without them"):
        model.learn(40, callback=HookCallback([], layers=[{"method": "layer_norm"}]))
    model = sb3_model("DQN")
    groups = [{"params": [p]} for p in model.policy.q_net.parameters()]
    model.policy.optimizer = torch.optim.Adam(groups)
    with pytest.raises(ConfigError, match=f"{len(groups)} groups"):
        model.learn(8, callback=HookCallback([], layers=[{"method": "layer_norm"}]))
