import math
from pathlib import Path
from typing import Any

import pytest
import torch

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents.test_pictures import SAC, SPOT
from tests.agents.toy_env import advanced
from tests.marks import slow_but
from tests.ppo_runs import small_control, small_ppo
from tests.runs import TINY, check_resumes

NETS = {"dqn": "own_nets", "sac": "own_sac_nets", "ppo": "own_ppo_nets"}
RESET = {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}}
REDO = {"method": "redo", "every": "10 updates", "params": {"threshold": 0.5}}
AGENT = {"batch_size": 8, "buffer_size": 300, "initial_steps": 20}
BASES: dict[str, dict[str, Any]] = {
    "dqn": TINY
    | {
        "env": {"id": "gym/CartPole-v1", "num_envs": 2},
        "agent": AGENT | {"target_every": 20},
        "evaluate": {"every": "50%", "episodes": 1},
        "metrics": {"every": "25%", "names": ["dormant_ratio", "weight_norm"], "batch_size": 8},
    },
    "sac": SAC
    | {
        "env": {"id": "gym/Pendulum-v1", "num_envs": 2},
        "agent": AGENT | {"normalize_obs": True},
    },
    "ppo": small_ppo(),
    "control": small_control(),
}


def config(kind: str, net: str, agent: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    base = BASES[kind]
    own: dict[str, Any] = {"network": f"tests.agents.{NETS[base['kind']]}:{net}"}
    own |= {"hidden": None} if base["kind"] == "ppo" else {}
    return base | {"hooks": []} | keys | {"agent": base["agent"] | own | (agent or {})}


def made(*args: Any, **keys: Any) -> Any:
    return build_trainable(read_config(config(*args, **keys)))


GRID = {"env": TINY["env"]}
SHORT = {"total": "80 env_steps", "evaluate": {"every": None}}
UNUSUAL = SHORT | {"env": BASES["sac"]["env"] | {"num_envs": 1}, "hooks": [RESET]}
RUNS = {
    "dqn, impala": config("dqn", "impala", hooks=[REDO, RESET], **GRID),
    "dqn, transformer": config("dqn", "Transformer", hooks=[RESET], total="100 env_steps", **GRID),
    "dqn, noisy": config("dqn", "Noisy", hooks=[RESET]),
    "dqn, shared": config("dqn", "Shared", hooks=[RESET]),
    "ppo, discrete": config("ppo", "mlp", hooks=[REDO, RESET]),
    "ppo, continuous": config("control", "mlp", hooks=[REDO, RESET]),
    "ppo, batch norm": config("ppo", "batch_norm", hooks=[RESET]),
    "ppo, noisy": config("ppo", "noisy", hooks=[RESET]),
    "sac, pictures": config("sac", "pictures", env=SPOT, hooks=[REDO, RESET]),
    "sac, doubles": config("sac", "doubles", **UNUSUAL),
    "sac, batch norm": config("sac", "batch_norm", **UNUSUAL),
    "sac, numpy": config("sac", "of_numpy", **UNUSUAL),
}
FAST = ["dqn, transformer", "dqn, noisy", "ppo, noisy", "sac, pictures", "sac, batch norm"]


@pytest.mark.parametrize("name", slow_but(FAST, RUNS))
def test_killed_and_resumed_equals(name: str, tmp_path: Path) -> None:
    rows = check_resumes(RUNS[name], tmp_path)["receipts"]
    assert {row["method"] for row in rows} == {row["method"] for row in RUNS[name]["hooks"]}
    networks = {"q"} if name.startswith("dqn") else {"actor", "critic"}
    assert {row["network"] for row in rows if row["method"] == "redo"} <= networks
    assert networks <= {row["network"] for row in rows}


@pytest.mark.parametrize("net", ["frozen_body", "pictures"])
def test_trunks_may_share_what_is_not_trained_and_see_pictures(net: str) -> None:
    agent = made("ppo", net, **({"env": SPOT} if net == "pictures" else {}))
    assert math.isfinite(advanced(agent, 10).metrics()["train/loss"])


# As our networks of the same weights do.


def test_a_dqn_learns_as_ours() -> None:
    base = BASES["dqn"] | {"hooks": []}
    ours = build_trainable(read_config(base | {"agent": base["agent"] | {"hidden": [16, 16]}}))
    own = made("dqn", "mlp")
    tensors = [tensor.clone() for tensor in ours.online.state_dict().values()]
    for agent in (ours, own):
        for network in (agent.online, agent.target):
            network.load_state_dict(dict(zip(network.state_dict(), tensors, strict=True)))
        advanced(agent, 40)
    for a, b in zip(ours.online.parameters(), own.online.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    batch = own.sample(8, 0)
    expected, found = (agent.activations("q", batch) for agent in (ours, own))
    assert len(found) == 2
    for a, b in zip(expected.values(), found.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_sac_learns_as_ours() -> None:
    base = BASES["sac"] | {"hooks": []}
    agent = base["agent"] | {"network": "mlp", "hidden": [16, 16]}
    ours, own = build_trainable(read_config(base | {"agent": agent})), made("sac", "mlp")
    for mine, theirs in ((ours.critic, own.critic), (ours.target, own.target)):
        for i in range(2):
            layers = theirs.nets[i].layers[0], theirs.nets[i].layers[2], theirs.heads[i]
            for stacked, layer in zip((mine.fc1, mine.fc2, mine.head), layers, strict=True):
                state = {key: tensor[i] for key, tensor in stacked.state_dict().items()}
                layer.load_state_dict(state)
    names = {"net.0": "fc1", "net.2": "fc2", "mean": "mean", "log_std": "log_std"}
    for theirs, mine in names.items():
        state = ours.actor.get_submodule(mine).state_dict()
        own.actor.get_submodule(theirs).load_state_dict(state)
    advanced(ours, 20), advanced(own, 20)
    pairs = [
        (ours.actor.get_submodule(mine).weight, own.actor.get_submodule(theirs).weight)
        for theirs, mine in names.items()
    ]
    pairs += [(ours.critic.fc2.weight[i], own.critic.nets[i].layers[2].weight) for i in range(2)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    batch = own.sample(8, 0)
    expected, found = (agent.activations("critic", batch) for agent in (ours, own))
    assert sorted(found) == [f"nets.{i}.layers.{j}" for i in range(2) for j in (0, 2)]
    torch.testing.assert_close(found["nets.1.layers.2"], expected["[1].fc2"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("kind", ["ppo", "control"])
def test_a_ppo_learns_as_ours(kind: str, shared: bool) -> None:
    agent = BASES[kind]["agent"] | {"shared_trunk": shared}
    ours = build_trainable(read_config(BASES[kind] | {"agent": agent}))
    own = made(kind, "one" if shared else "mlp", {"shared_trunk": shared})
    names = {"net.0": "fc1", "net.2": "fc2", "head": "head"}
    names |= {"value": "value"} if shared else {}
    assert own.networks.keys() == ours.networks.keys()
    pairs = []
    for network, handle in own.networks.items():
        mine, theirs = ours.networks[network].module, handle.module
        assert {n for n, _ in theirs.named_parameters()} == {
            *(f"{name}.{role}" for name in names for role in ("weight", "bias")),
            *(["log_std"] if "log_std" in dict(mine.named_parameters()) else []),
        }
        for name, other in names.items():
            theirs.get_submodule(name).load_state_dict(mine.get_submodule(other).state_dict())
            pairs.append((theirs.get_submodule(name), mine.get_submodule(other)))
    advanced(ours, 12), advanced(own, 12)
    for a, b in pairs:
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-5, atol=1e-6)
    batch = own.sample(8, 0)
    for network in own.networks:
        found, expected = own.activations(network, batch), ours.activations(network, batch)
        assert sorted(found) == ["net.0", "net.2"]
        torch.testing.assert_close(found["net.2"], expected["fc2"], rtol=1e-4, atol=1e-5)


# Initial weights.


@pytest.mark.parametrize(
    ("kind", "net"), [("dqn", "mlp"), ("sac", "mlp"), ("sac", "coupled"), ("ppo", "noisy")]
)
def test_weights_and_buffers_follow_the_seed(kind: str, net: str) -> None:
    first, same, other = (made(kind, net, seed=seed) for seed in (1, 1, 2))
    for name, handle in first.networks.items():
        mine = handle.module.state_dict()
        again, others = (agent.networks[name].module.state_dict() for agent in (same, other))
        assert all(torch.equal(mine[key], again[key]) for key in mine)
        drawn = [key for key in mine if key.endswith(("weight", "features")) and "head" not in key]
        assert not any(torch.equal(mine[key], others[key]) for key in drawn)


def test_networks_and_members_are_drawn_apart_and_layers_of_one_module_together() -> None:
    one, other = (net.layers[0].weight for net in made("sac", "mlp").critic.nets)
    assert not torch.equal(one, other)
    agent = made("ppo", "noisy")
    actor, critic = (agent.networks[part].module.net for part in ("actor", "critic"))
    assert not torch.equal(actor.layer.weight, critic.layer.weight)
    agent = made("sac", "coupled")
    network, stream = agent.networks["actor"], torch.Generator().manual_seed(3)
    assert torch.equal(agent.actor.net.a.weight, agent.actor.net.b.weight)
    named = {block.name: block for block in network.blocks}
    a, b = (network.fresh(named[f"net.{x}.weight"], stream) for x in "ab")
    assert torch.equal(a, b)
    assert not torch.equal(a, network.fresh(named["net.a.weight"], stream))


def test_weights_are_drawn_by_the_laws_of_the_modules_and_ppos_heads_by_ours() -> None:
    weight = made("dqn", "mlp").online.net[2].weight
    bound = weight.shape[1] ** -0.5
    assert 0.8 * bound < weight.abs().max() <= bound
    agent = made("control", "noisy")
    for name, gain in (("actor", 0.01), ("critic", 1.0)):
        head = agent.networks[name].module.head
        assert head.weight.shape == (1, 16) and not head.bias.any()
        norm = torch.linalg.matrix_norm(head.weight.detach(), 2)
        torch.testing.assert_close(norm, torch.tensor(gain))
    assert torch.equal(agent.actor.log_std, torch.zeros(1))


@pytest.mark.parametrize(
    ("kind", "net"), [("sac", "mlp"), ("sac", "depends_on_data"), ("control", "noisy")]
)
def test_a_reset_of_heads_reaches_all_of_them_alone(kind: str, net: str) -> None:
    agent = made(kind, net)
    heads = {"actor": ("mean", "log_std"), "critic": ("heads.0", "heads.1")}
    for name in ("actor", "critic"):
        network = agent.networks[name]
        before = {block.name: block.view.clone() for block in network.blocks}
        rlplast.head_reset(network)
        edited = {b.name for b in network.blocks if not torch.equal(b.view, before[b.name])}
        if kind == "control":  # whose biases were and are 0
            assert edited == {"head.weight"}
        else:
            assert edited == {
                f"{head}.{part}" for head in heads[name] for part in ("weight", "bias")
            }


# What is refused.


@pytest.mark.parametrize(
    ("kind", "net", "message"),
    [
        ("dqn", "wrong_shape", r"\(2, 3\)"),
        ("dqn", "no_module", "returned a list"),
        ("dqn", "buffers_only", "no parameters"),
        ("dqn", "fails", "mat1 and mat2"),
        ("dqn", "other_arguments", "'obs_shape'"),
        ("dqn", "absent", "has no function absent"),
        ("sac", "one", "a pair of modules"),
        ("sac", "flat", r"\(32,\)"),
        ("sac", "no_action", "critics' trunk"),
        ("sac", "untrained", "actor's trunk"),
        ("sac", "shared_body", "share body.weight"),
        ("sac", "grows", "different modules"),
        ("sac", "in_place", "writes into its input"),
        ("sac", "unused_lazy", "spare.weight is lazy"),
        ("sac", "no_outputs", r"\(2, 0\)"),
        ("sac", "whole_numbers", "int64"),
        ("ppo", "one", "a pair of modules"),
        ("ppo", "kept_body", "0.weight twice"),
        ("ppo", "shared_body", "agent.shared_trunk"),
    ],
)
def test_what_are_no_networks_is_refused(kind: str, net: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(kind, net)


@pytest.mark.parametrize(
    ("kind", "agent", "message"),
    [
        ("dqn", {"network": "absent.module:net"}, "'absent'"),
        ("dqn", {"network": "a b:net"}, "package.module:factory"),
        ("dqn", {"hidden": [3]}, "agent.hidden"),
        ("dqn", {"init": "torch"}, "agent.init"),
        ("sac", {"hidden": [3]}, "agent.hidden"),
        ("ppo", {"hidden": [3]}, "agent.hidden"),
        ("ppo", {"activation": "relu"}, "agent.activation"),
        ("ppo", {"init": "torch"}, "agent.init"),
    ],
)
def test_keys_of_our_networks_are_refused(kind: str, agent: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(kind, "mlp", agent)
