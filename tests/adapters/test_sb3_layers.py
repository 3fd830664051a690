"""Layers in Stable-Baselines3: put into the policy before it trains, into targets too."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rlplast
from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import INSTALLED
from tests.adapters.hosts import same, sb3_model, state

RELU = {"net_arch": [16, 16], "activation_fn": nn.ReLU}
ADDING = ("layer_norm", "crelu", "deep_fourier", "normalize_project")
KEEPING = ("dropout", "dropconnect", "scheduled_drop", "lifecycle")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *zip([*ADDING, *KEEPING], cycle(["DQN", "SAC", "PPO"]), strict=False),
        ("layer_norm", "SAC"),
        ("layer_norm", "PPO"),
    ],
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


def test_layers_of_one_part_reach_the_policy():
    """dropconnect replaces the last layer too, of which the policy has to know."""
    model = sb3_model("PPO", policy_kwargs=RELU)
    row = {"method": "dropconnect", "networks": ["critic"], "params": {"p": 0.5}}
    model.learn(64, callback=HookCallback([], layers=[row]))
    changed = {n for n, m in model.policy.named_modules() if INSTALLED in vars(m)}
    assert changed == {"mlp_extractor.value_net.2", "value_net"}


def test_hook_that_brings_modules_works():
    hook = {"method": "plasticity_injection", "at": "32 env_steps", "networks": ["critic"]}
    model = sb3_model("PPO", policy_kwargs=RELU)
    callback = HookCallback([hook])
    model.learn(64, callback=callback)
    assert [(r.method, r.network, r.clock.env_steps) for r in callback.receipts] == [
        ("plasticity_injection", "critic", 32)
    ]
    assert float(model.policy.value_net.gate) == 1


@pytest.mark.parametrize(
    ("name", "networks"), [("SAC", "actor"), ("SAC", "critic"), ("PPO", "policy")]
)
def test_hook_that_would_reach_one_head_of_several_is_refused(name: str, networks: str):
    hook = {"method": "plasticity_injection", "at": "50%", "networks": [networks]}
    with pytest.raises(ConfigError, match=f"ends in one head, which '{networks}'"):
        sb3_model(name, policy_kwargs=RELU).learn(32, callback=HookCallback([hook]))


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"method": "redo"}, "list it under `hooks:`"),
        ({"method": "stochastic_depth"}, "finds no residual blocks"),
        ({"method": "dropout", "networks": ["p"]}, "networks: 'p'"),
    ],
)
def test_layer_that_does_not_fit_is_refused_by_name(row: Any, match: str):
    with pytest.raises(ConfigError, match=match):
        sb3_model("DQN").learn(8, callback=HookCallback([], layers=[row]))


def test_new_parameters_in_a_trained_model_are_refused(tmp_path: Path):
    model = sb3_model("DQN")
    model.learn(40)
    with pytest.raises(ConfigError, match="the Adam has been training without them"):
        model.learn(40, callback=HookCallback([], layers=[{"method": "layer_norm"}]))
