"""A SAC whose trunks a user's function makes."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.agents.test_pictures import SAC, SPOT
from tests.agents.tracing import trace_alone
from tests.runs import check_resumes

NETS = "tests.agents.own_sac_nets"
AGENT = {"batch_size": 8, "buffer_size": 300, "initial_steps": 20, "normalize_obs": True}
PENDULUM = SAC | {"env": {"id": "gym/Pendulum-v1", "num_envs": 2}, "agent": AGENT}


def config(net: str, **keys: Any) -> dict[str, Any]:
    return PENDULUM | {"hooks": []} | keys | {"agent": AGENT | {"network": f"{NETS}:{net}"}}


HOOKS = [
    {"method": "redo", "every": "10 updates", "params": {"threshold": 0.5}},
    {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}},
]


SHORT = {"total": "80 env_steps", "evaluate": {"every": None}}
UNUSUAL = SHORT | {"env": PENDULUM["env"] | {"num_envs": 1}, "hooks": HOOKS[1:]}


@pytest.mark.parametrize(
    "keys",
    [
        config("pictures", env=SPOT, hooks=HOOKS),
        *(config(net, **UNUSUAL) for net in ("doubles", "batch_norm", "of_numpy")),
    ],
    ids=["pictures", "doubles", "batch_norm", "of_numpy"],
)
def test_killed_and_resumed_equals(keys: dict[str, Any], tmp_path: Path) -> None:
    rows = check_resumes(keys, tmp_path)["receipts"]
    networks = {row["network"] for row in rows if row["method"] == "redo"}
    assert networks == ({"actor", "critic"} if len(keys["hooks"]) == 2 else set())


def test_it_learns_as_our_networks_of_the_same_weights_do() -> None:
    ours, _ = build(
        read_config(
            PENDULUM | {"hooks": [], "agent": AGENT | {"network": "mlp", "hidden": [16, 16]}}
        )
    )
    own, _ = build(read_config(config("mlp")))
    for mine, theirs in ((ours.critic, own.critic), (ours.target, own.target)):
        with torch.no_grad():
            for member in range(2):
                pairs = [(mine.fc1, theirs.nets[member].layers[0])]
                pairs += [
                    (mine.fc2, theirs.nets[member].layers[2]),
                    (mine.head, theirs.heads[member]),
                ]
                for stacked, layer in pairs:
                    layer.weight.copy_(stacked.weight[member])
                    layer.bias.copy_(stacked.bias[member])
    names = {"net.0": "fc1", "net.2": "fc2", "mean": "mean", "log_std": "log_std"}
    for theirs, mine in names.items():
        state = ours.actor.get_submodule(mine).state_dict()
        own.actor.get_submodule(theirs).load_state_dict(state)
    for agent in (ours, own):
        while agent.clock.updates < 20:
            agent.step()
    for theirs, mine in names.items():
        a, b = ours.actor.get_submodule(mine).weight, own.actor.get_submodule(theirs).weight
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for member in range(2):
        a, b = ours.critic.fc2.weight[member], own.critic.nets[member].layers[2].weight
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    batch = own.sample(8, 0)
    found = own.activations("critic", batch)
    assert sorted(found) == [f"nets.{i}.layers.{j}" for i in range(2) for j in (0, 2)]
    expected = ours.activations("critic", batch)
    torch.testing.assert_close(found["nets.1.layers.2"], expected["[1].fc2"], rtol=1e-4, atol=1e-5)
    ours.close(), own.close()


def test_weights_of_one_module_stay_together_and_buffers_follow_the_seed(tmp_path: Path) -> None:
    agents = [build(read_config(config("coupled", seed=seed)))[0] for seed in (1, 1, 2)]
    for agent in agents:
        network = agent.networks["actor"]
        assert torch.equal(agent.actor.net.a.weight, agent.actor.net.b.weight)
        named, stream = {b.name: b for b in network.blocks}, torch.Generator().manual_seed(3)
        a, b = (network.fresh(named[f"net.{x}.weight"], stream) for x in "ab")
        again = network.fresh(named["net.a.weight"], stream)
        assert torch.equal(a, b) and not torch.equal(a, again)
        agent.close()
    first, same, other = (agent.actor.net.features for agent in agents)
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_members_are_drawn_apart_and_from_our_stream() -> None:
    first, second = (build(read_config(config("mlp")))[0] for _ in range(2))
    for a, b in zip(first.critic.parameters(), second.critic.parameters(), strict=True):
        assert torch.equal(a, b)
    one, other = (net.layers[0].weight for net in first.critic.nets)
    assert not torch.equal(one, other)
    first.close(), second.close()


@pytest.mark.slow
def test_it_compiles_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)
    keys = config("mlp", total="40 env_steps")
    keys["agent"] |= {"accelerate": "compile"}
    whole = api.train(keys, tmp_path / "compiled")
    keys["agent"] |= {"accelerate": "off"}
    eager = api.train(keys, tmp_path / "eager")
    ends = [run.lines()[-1]["train/loss"] for run in (whole, eager)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("one", "the function returned a Sequential: allowed is a pair of modules, the trunk of"),
        ("flat", r"of 2 inputs the module returned \(32,\): allowed is .* \(2, any number\)"),
        ("no_action", "critics' trunk: the function, .* zeros of shape .2, 3. and .2, 1., raised"),
        ("untrained", "the actor's trunk: the module has no parameters that could be trained"),
        ("shared_body", "actor and critic share body.weight: give each layers of its own"),
        ("grows", "called twice with the same seed, the function returned different modules"),
        ("in_place", "the module writes into its input, which others read too"),
        ("unused_lazy", "spare.weight is lazy, and no forward pass has given it a shape"),
        ("no_outputs", r"returned \(2, 0\): allowed is a tensor of shape \(2, any number\)"),
        ("whole_numbers", "returned torch.int64 without a gradient: allowed are floats that"),
        ("absent", "own_sac_nets has no function absent"),
    ],
)
def test_what_are_no_trunks_is_refused(net: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(read_config(config(net)))


def test_layers_of_our_networks_are_refused() -> None:
    keys = config("mlp")
    keys["agent"] |= {"hidden": [3]}
    with pytest.raises(ConfigError, match=r"agent.hidden = \[3\]: .* this one is 'tests.agents"):
        read_config(keys)


@pytest.mark.parametrize("net", ["mlp", "depends_on_data"])
def test_a_reset_of_heads_reaches_all_of_them(net: str) -> None:
    agent, _ = build(read_config(config(net)))
    edited = {}
    for name in ("actor", "critic"):
        network = agent.networks[name]
        before = {block.name: block.view.clone() for block in network.blocks}
        rlplast.head_reset(network)
        edited[name] = {b.name for b in network.blocks if not torch.equal(b.view, before[b.name])}
    heads = {"actor": ("mean", "log_std"), "critic": ("heads.0", "heads.1")}
    assert edited == {
        name: {f"{layer}.{role}" for layer in layers for role in ("weight", "bias")}
        for name, layers in heads.items()
    }
