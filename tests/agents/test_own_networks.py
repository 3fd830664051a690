import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents import own_nets, own_ppo_nets, own_sac_nets
from tests.agents.own_ppo_nets import frozen_body
from tests.agents.own_sac_nets import Joined, layers, mlp
from tests.agents.test_pictures import SAC, SPOT
from tests.agents.toy_env import advanced
from tests.ppo_runs import small_control, small_ppo
from tests.runs import TINY, check_resumes

NETS = {"dqn": "own_nets", "sac": "own_sac_nets", "ppo": "own_ppo_nets"}
RESET = {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}}
AGENT = {"batch_size": 8, "buffer_size": 300, "initial_steps": 20}
POLE = {"env": {"id": "gym/CartPole-v1", "num_envs": 2}, "agent": AGENT | {"target_every": 20}}
QUIET: dict[str, Any] = {"evaluate": {"every": None}, "metrics": SAC["metrics"]}
PENDULUM = {"env": {"id": "gym/Pendulum-v1", "num_envs": 2}}
BASES: dict[str, dict[str, Any]] = {
    "dqn": TINY | POLE | QUIET,
    "sac": SAC | PENDULUM | {"agent": AGENT | {"normalize_obs": True}} | QUIET,
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


def ours(kind: str, **agent: Any) -> Any:
    base = BASES[kind] | {"hooks": []}
    return build_trainable(read_config(base | {"agent": base["agent"] | agent}))


RUNS = {
    "dqn, noisy": config("dqn", "Noisy", hooks=[RESET]),
    "sac, batch norm": config("sac", "batch_norm", total="80 env_steps", hooks=[RESET]),
}


@pytest.mark.filterwarnings("ignore:metrics.names")  # their hidden units are not known
@pytest.mark.parametrize("name", RUNS)
def test_killed_and_resumed_equals(name: str, tmp_path: Path) -> None:
    rows = check_resumes(RUNS[name], tmp_path)["receipts"]
    networks = {"q"} if name.startswith("dqn") else {"actor", "critic"}
    assert networks <= {row["network"] for row in rows}


@pytest.mark.parametrize(
    ("kind", "net"), [("ppo", "frozen_body"), ("ppo", "pictures"), ("sac", "pictures")]
)
def test_trunks_may_share_what_is_not_trained_and_see_pictures(kind: str, net: str) -> None:
    agent = made(kind, net, **({"env": SPOT} if net == "pictures" else {}))
    assert math.isfinite(advanced(agent, 10).metrics()["train/loss"])


# As our networks of the same weights do.


@pytest.mark.parametrize("kind", ["dqn", "sac", "ppo"])
def test_batch_norms_act_in_one_environment(kind: str) -> None:  # by their running statistics
    agent = made(kind, "batch_norm", env=BASES[kind]["env"] | {"num_envs": 1})
    assert math.isfinite(advanced(agent, 10).metrics()["train/loss"])


def near(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def check_equal(own: Any, other: Any, network: str, pairs: list[Any], taps: dict[str, str]) -> None:
    """Compare weights after updates, and activations by the names of the taps of both."""
    for a, b in pairs:
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-5, atol=1e-6)
    batch = own.sample(8, 0)
    found, expected = (agent.activations(network, batch) for agent in (own, other))
    for mine, theirs in taps.items():
        near(found[mine], expected[theirs])


def test_a_dqn_learns_as_ours() -> None:
    other, own = ours("dqn", hidden=[16, 16]), made("dqn", "mlp")
    names = {"0": "fc1", "2": "fc2", "4": "head"}
    pairs = [(own.online.get_submodule(a), other.online.get_submodule(b)) for a, b in names.items()]
    for mine, theirs in pairs:
        mine.load_state_dict(theirs.state_dict())
    own.target.load_state_dict(own.online.state_dict())
    advanced(own, 40), advanced(other, 40)
    check_equal(own, other, "q", pairs, {"0": "fc1", "2": "fc2"})


def test_a_sac_learns_as_ours() -> None:
    other, own = ours("sac", network="mlp", hidden=[16, 16]), made("sac", "mlp")
    for mine, theirs in ((other.critic, own.critic), (other.target, own.target)):
        for i in range(2):
            layers = *theirs.nets[i].net.layers[::2], theirs.nets[i].head
            for stacked, layer in zip((mine.fc1, mine.fc2, mine.head), layers, strict=True):
                state = {key: tensor[i] for key, tensor in stacked.state_dict().items()}
                layer.load_state_dict(state)
    names = {"net.0": "fc1", "net.2": "fc2", "mean": "mean", "log_std": "log_std"}
    pairs = [(own.actor.get_submodule(a), other.actor.get_submodule(b)) for a, b in names.items()]
    for mine, theirs in pairs:
        mine.load_state_dict(theirs.state_dict())
    advanced(own, 20), advanced(other, 20)
    for i in range(2):
        near(own.critic.nets[i].net.layers[2].weight, other.critic.fc2.weight[i])
    taps = {f"nets.{i}.net.layers.{j}": f"[{i}].fc{j // 2 + 1}" for i in range(2) for j in (0, 2)}
    check_equal(own, other, "critic", pairs, taps)


@pytest.mark.parametrize(("kind", "shared"), [("ppo", False), ("control", True)])
def test_a_ppo_learns_as_ours(kind: str, shared: bool) -> None:
    keys = {"shared_trunk": shared}
    other, own = ours(kind, **keys), made(kind, "one" if shared else "mlp", keys)
    names = {"net.0": "fc1", "net.2": "fc2", "head": "head"}
    names |= {"value": "value"} if shared else {}
    assert own.networks.keys() == other.networks.keys()
    pairs = []
    for network, handle in own.networks.items():
        mine, theirs = other.networks[network].module, handle.module
        assert {n for n, _ in theirs.named_parameters()} == {
            *(f"{name}.{role}" for name in names for role in ("weight", "bias")),
            *(["log_std"] if "log_std" in dict(mine.named_parameters()) else []),
        }
        for a, b in names.items():
            theirs.get_submodule(a).load_state_dict(mine.get_submodule(b).state_dict())
            pairs.append((theirs.get_submodule(a), mine.get_submodule(b)))
    advanced(own, 12), advanced(other, 12)
    for network in own.networks:
        check_equal(own, other, network, pairs, {"net.0": "fc1", "net.2": "fc2"})


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


def test_weights_are_drawn_by_the_laws_of_the_modules_and_ppos_heads_by_ours() -> None:
    weight = made("dqn", "mlp").online[2].weight
    bound = weight.shape[1] ** -0.5
    assert 0.8 * bound < weight.abs().max() <= bound
    agent = made("control", "noisy")
    for name, gain in (("actor", 0.01), ("critic", 1.0)):
        head = agent.networks[name].module.head
        assert head.weight.shape == (1, 16) and not head.bias.any()
        norm = torch.linalg.matrix_norm(head.weight.detach(), 2)
        torch.testing.assert_close(norm, torch.tensor(gain))
    assert torch.equal(agent.actor.log_std, torch.zeros(1))
    # Networks and members apart, layers of one module together.
    actor, critic = (agent.networks[part].module.net for part in ("actor", "critic"))
    assert not torch.equal(actor.layer.weight, critic.layer.weight)
    one, other = (net.net.layers[0].weight for net in made("sac", "mlp").critic.nets)
    assert not torch.equal(one, other)
    agent = made("sac", "coupled")
    network, stream = agent.networks["actor"], torch.Generator().manual_seed(3)
    assert torch.equal(agent.actor.net.a.weight, agent.actor.net.b.weight)
    named = {block.name: block for block in network.blocks}
    a, b = (network.fresh(named[f"net.{x}.weight"], stream) for x in "ab")
    assert torch.equal(a, b)
    assert not torch.equal(a, network.fresh(named["net.a.weight"], stream))


@pytest.mark.parametrize(("kind", "net"), [("sac", "depends_on_data"), ("control", "noisy")])
def test_a_reset_of_heads_reaches_all_of_them_alone(kind: str, net: str) -> None:
    agent = made(kind, net)
    heads = {"actor": ("mean", "log_std"), "critic": ("nets.0.head", "nets.1.head")}
    for name in ("actor", "critic"):
        network = agent.networks[name]
        before = {block.name: block.view.clone() for block in network.blocks}
        rlplast.head_reset(network)
        edited = {b.name for b in network.blocks if not torch.equal(b.view, before[b.name])}
        expected = {f"{head}.{part}" for head in heads[name] for part in ("weight", "bias")}
        # The biases of a PPO were and are 0.
        assert edited == ({"head.weight"} if kind == "control" else expected)


def test_layers_that_a_function_keeps_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = nn.Linear(4, 2)
    monkeypatch.setattr(own_nets, "kept", lambda **_: kept, raising=False)
    agent = made("dqn", "kept")
    assert len({id(module.weight) for module in (kept, agent.online, agent.target)}) == 3


# What is refused.


class Last(nn.Module):
    """Makes something of what it reads."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


BODY = nn.Linear(4, 4)


def actor(change: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(layers(3), Last(change))


def over_body(**_: Any) -> tuple[nn.Module, ...]:
    pair = mlp((3,), 1)
    for module in pair:
        module.body = BODY
    return pair


NO_NETWORKS: tuple[tuple[str, Any, str], ...] = (
    ("dqn", lambda **_: nn.Linear(4, 3), r"\(2, 3\)"),
    ("dqn", lambda **_: [2], "returned a list"),
    ("dqn", lambda **_: nn.BatchNorm1d(4, affine=False), "depend on its parameters"),
    ("dqn", lambda **_: nn.Linear(5, 2), "mat1 and mat2"),
    ("dqn", lambda size: nn.Linear(size, size), "'obs_shape'"),
    ("sac", lambda **_: layers(3), "a pair of modules"),
    ("sac", lambda **_: (actor(Tensor.flatten), Joined(4)), r"\(32,\)"),
    ("sac", lambda **_: (actor(lambda x: x[:, :0]), Joined(4)), r"\(2, 0\)"),
    ("sac", lambda **_: (actor(Tensor.long), Joined(4)), "int64"),
    ("sac", lambda **_: (Last(lambda x: x.sub_(0.5)), Joined(4)), "writes into its input"),
    ("sac", lambda **_: (layers(3), layers(3)), "critics' trunk"),
    ("sac", lambda **_: (nn.Identity(), Joined(4)), "actor's trunk"),
    ("sac", over_body, "share body.weight"),
    ("ppo", lambda **_: layers(4), "a pair of modules"),
    ("ppo", partial(frozen_body, trained=True), "agent.shared_trunk"),
)


def test_what_are_no_networks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, function, message in NO_NETWORKS:
        for module in (own_nets, own_sac_nets, own_ppo_nets):
            monkeypatch.setattr(module, "refused", function, raising=False)
        with pytest.raises(ConfigError, match=message):
            made(kind, "refused")
    for kind, net, agent, message in (
        ("dqn", "absent", {}, "has no function absent"),
        ("dqn", "mlp", {"network": "absent.module:net"}, "'absent'"),
        ("dqn", "mlp", {"network": "a b:net"}, "package.module:factory"),
        ("dqn", "mlp", {"hidden": [3]}, "agent.hidden"),
        ("dqn", "mlp", {"init": "torch"}, "agent.init"),
        ("sac", "mlp", {"hidden": [3]}, "agent.hidden"),
        ("ppo", "mlp", {"activation": "relu"}, "agent.activation"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(kind, net, agent)
