"""A PPO whose actor and critic share a trunk; its updates: test_ppo_parity.py."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlplast
from rlplast.agents.ppo_config import PPOAgentConfig
from rlplast.agents.ppo_networks import SharedNetwork, networks_of
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order
from rlplast.methods.features import Reading, head_layers
from rlplast.metrics.output_probe import measure_outputs, weights_of
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.agents.toy_env import advanced, hooked, ppo, same
from tests.marks import slow
from tests.ppo_runs import AGENT, small_control, small_ppo
from tests.runs import check_resumes

SHARED = {"shared_trunk": True}
OWN = {"network": "tests.agents.own_ppo_nets:one", "hidden": None}


def both(base: Any, own: bool = False, **keys: Any) -> dict[str, Any]:
    agent = (AGENT if base is small_ppo else {}) | SHARED | (OWN if own else {})
    return base(agent=agent | keys.pop("agent", {}), **keys)


def network(shape: tuple[int, ...] = (4,), **keys: Any) -> SharedNetwork:
    made = networks_of(PPOAgentConfig(**SHARED, **keys), shape, 3)
    assert list(made) == ["actor_critic"]
    return made["actor_critic"]


def test_policy_and_value_are_two_layers_on_one_trunk() -> None:
    module, obs = network(hidden=[8, 6]), torch.randn(5, 4)
    x = obs
    for layer in (module.fc1, module.fc2):  # type: ignore[attr-defined]
        x = torch.tanh(x @ layer.weight.T + layer.bias)
    policy, value = (x @ h.weight.T + h.bias for h in (module.head, module.value))
    torch.testing.assert_close(module(obs), torch.cat([policy, value], 1))
    _, activations = module.forward_activations(obs)
    torch.testing.assert_close(activations["fc2"], x)
    handle = Network("actor_critic", module)
    assert [group.name for group in handle.units().groups] == ["fc1", "fc2"]
    readers = {
        part.block.path for part in handle.units().groups[1].parts if part.block.path != "fc2"
    }
    assert readers == {"head", "value"}


@pytest.mark.parametrize("init", ["orthogonal", "torch", "xavier_uniform"])
def test_heads_begin_as_those_of_networks_apart(init: Any) -> None:
    module = network(hidden=[8], init=init)
    Network("actor_critic", module).initialise(torch.Generator().manual_seed(0))
    for layer, gain in ((module.head, 0.01), (module.value, 1.0)):
        if init == "orthogonal":
            norms = torch.linalg.svdvals(layer.weight.detach())
            torch.testing.assert_close(norms, torch.full_like(norms, gain))
        bound = math.sqrt(6 / (8 + len(layer.weight))) if init == "xavier_uniform" else 8**-0.5
        assert layer.weight.abs().max() <= max(bound, gain)
        assert init == "torch" or not layer.bias.any()


def test_it_reads_pictures_and_has_a_trunk_without_hidden_layers() -> None:
    pictures = torch.randint(2, (5, 4, 10, 10), dtype=torch.uint8)
    assert network((4, 10, 10))(pictures).shape == (5, 4)
    bare = network(hidden=[])
    assert bare(torch.zeros(2, 4)).shape == (2, 4)
    assert not Network("actor_critic", bare).units().groups


@pytest.mark.parametrize(
    ("base", "own"),
    [(small_ppo, False), (small_control, True), slow(small_ppo, True), slow(small_control, False)],
)
def test_killed_and_resumed_equals(base: Any, own: bool, tmp_path: Path) -> None:
    hooks: list[dict[str, Any]] = [
        {"method": "redo", "every": "20 updates", "params": {"threshold": 0.5}},
        {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}},
        {"method": "pfo", "every": "20 env_steps", "params": {"batch": 8}},
    ]
    rows = check_resumes(both(base, own, hooks=hooks), tmp_path)["receipts"]
    assert {row["network"] for row in rows} == {"actor_critic"}


def test_the_loss_is_the_sum_of_those_of_networks_apart(slide: None) -> None:
    shared, apart = ppo(**SHARED), ppo()
    module = shared.networks["actor_critic"].module
    for name, head in (("actor", "head"), ("critic", "value")):
        own = apart.networks[name].module
        for layer, other in (("fc1", "fc1"), ("fc2", "fc2"), ("head", head)):
            own.get_submodule(layer).load_state_dict(module.get_submodule(other).state_dict())
    while not apart.owes():
        apart.step()
    batch = apart._batch()
    expected = apart.loss("actor", batch) + apart.loss("critic", batch)
    torch.testing.assert_close(shared.loss("actor_critic", batch), expected)
    np.testing.assert_allclose(shared._value(batch.obs.numpy()), apart._value(batch.obs.numpy()))


def test_a_reset_of_heads_reaches_both_and_one_of_the_network_all(slide: None) -> None:
    agent = advanced(ppo(**SHARED), 15)
    handle = agent.networks["actor_critic"]
    before = {block.name: block.view.clone() for block in handle.blocks}
    rlplast.head_reset(handle)
    changed = {b.name.split(".")[0] for b in handle.blocks if not same(b.view, before[b.name])}
    assert changed == {"head", "value"}
    row = {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}}
    (receipt,) = hooked(agent, row).fire(agent.clock, agent.clock.advance(env_steps=300))
    assert receipt.network == "actor_critic"
    assert agent.actor.log_std.tolist() == [0, 0]
    advanced(agent, 30)


def test_the_value_is_no_action_whose_rank_could_change(toy: str) -> None:
    agent = advanced(ppo(**SHARED), 1)
    handle, batch = agent.networks["actor_critic"], agent.sample(32, 0)
    with torch.no_grad():
        agent.critic.value.bias.fill_(20)
        agent.actor.head.bias.zero_()
        before = weights_of(handle.module)
        agent.actor.head.weight.neg_()
    found = measure_outputs(agent, handle, batch, ["churn_argmax", "churn"], 0, before)
    assert found["churn_argmax"] == 1
    assert found["churn"] > 0


def test_last_features_count_once_though_each_head_scales_them(slide: None) -> None:
    agent = advanced(ppo(**SHARED, layers=[{"method": "unit_features"}]), 1)
    handle, batch = agent.networks["actor_critic"], agent.sample(8, 0)
    reading = Reading(handle.module, head_layers(handle, "infer"))
    agent.outputs("actor_critic", batch, reading)
    ((layer, features),) = reading.found
    assert layer is agent.actor.head
    torch.testing.assert_close(features.norm(dim=1), torch.ones(8))


def test_methods_that_walk_the_layers_find_a_users_trunk_below_two_heads() -> None:
    agent, _ = build(read_config(both(small_control, own=True)))
    handle = agent.networks["actor_critic"]
    assert forward_order(handle) == ["net.0", "net.2", "head", "value"]
    with pytest.raises(ConfigError, match=r"tanh, after actor_critic\.net\.0"):
        rlplast.apply("scale_weights", handle)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (both(small_ppo, agent=OWN | {"network": "tests.agents.own_ppo_nets:mlp"}), "shared_trunk"),
        (
            both(small_ppo, hooks=[{"method": "full_reset", "at": "50%", "networks": ["critic"]}]),
            "one network, actor_critic",
        ),
        (
            small_ppo(penalties=[{"method": "l2_init", "networks": ["actor_critic"]}]),
            "two networks",
        ),
    ],
    ids=["pair", "critic", "apart"],
)
def test_what_it_has_not_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(read_config(config))
