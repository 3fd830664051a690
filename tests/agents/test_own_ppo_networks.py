"""A PPO whose trunks a user's function makes."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.agents.test_pictures import SPOT
from tests.agents.tracing import trace_alone
from tests.ppo_runs import AGENT, small_control, small_ppo
from tests.runs import check_resumes

NETS = "tests.agents.own_ppo_nets"
HOOKS = [
    {"method": "redo", "every": "20 updates", "params": {"threshold": 0.5}},
    {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}},
]


def config(net: str, base: Any = small_ppo, **keys: Any) -> dict[str, Any]:
    agent = {"network": f"{NETS}:{net}", "hidden": None} | keys.pop("agent", {})
    return base(agent=agent, **keys)


@pytest.mark.parametrize(
    "keys",
    [
        config("mlp", hooks=HOOKS),
        config("mlp", small_control, hooks=HOOKS),
        config("batch_norm", hooks=HOOKS[1:]),
        config("noisy", hooks=HOOKS[1:]),
    ],
    ids=["discrete", "continuous", "batch_norm", "noisy"],
)
def test_killed_and_resumed_equals(keys: dict[str, Any], tmp_path: Path) -> None:
    rows = check_resumes(keys, tmp_path)["receipts"]
    networks = {row["network"] for row in rows if row["method"] == "redo"}
    assert networks == ({"actor", "critic"} if len(keys["hooks"]) == 2 else set())


def test_trunks_may_share_what_is_not_trained(tmp_path: Path) -> None:
    run = api.train(config("frozen_body"), tmp_path / "run")
    assert run.info["status"] == "done"


def test_it_learns_from_pictures(tmp_path: Path) -> None:
    run = api.train(config("pictures", env=SPOT), tmp_path / "run")
    assert run.info["status"] == "done"


@pytest.mark.parametrize("base", [small_ppo, small_control])
def test_it_learns_as_our_networks_of_the_same_weights_do(base: Any) -> None:
    metrics = {"metrics": {"every": None}}
    ours, _ = build(read_config(base(agent=AGENT, **metrics)))
    own, _ = build(read_config(config("mlp", base, **metrics)))
    names = {"net.0": "fc1", "net.2": "fc2", "head": "head"}
    for network in ("actor", "critic"):
        mine, theirs = (agent.networks[network].module for agent in (ours, own))
        assert set(dict(theirs.named_parameters())) == {
            *(f"{name}.{role}" for name in names for role in ("weight", "bias")),
            *(["log_std"] if "log_std" in dict(mine.named_parameters()) else []),
        }
        for name, other in names.items():
            theirs.get_submodule(name).load_state_dict(mine.get_submodule(other).state_dict())
    for agent in (ours, own):
        while agent.clock.updates < 12:
            agent.step()
    for network in ("actor", "critic"):
        mine, theirs = (agent.networks[network].module for agent in (ours, own))
        for name, other in names.items():
            a, b = theirs.get_submodule(name).weight, mine.get_submodule(other).weight
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        batch = own.sample(8, 0)
        found, expected = own.activations(network, batch), ours.activations(network, batch)
        assert sorted(found) == ["net.0", "net.2"]
        torch.testing.assert_close(found["net.2"], expected["fc2"], rtol=1e-4, atol=1e-5)
    ours.close(), own.close()


def test_heads_begin_as_ours_do_and_a_reset_of_heads_reaches_them() -> None:
    agent, _ = build(read_config(config("noisy", small_control)))
    for name, gain, outputs in (("actor", 0.01, 1), ("critic", 1.0, 1)):
        network = agent.networks[name]
        weight, bias = network.module.head.weight, network.module.head.bias
        norms = torch.linalg.matrix_norm(weight.detach(), 2)
        assert weight.shape == (outputs, 16) and not bias.any()
        torch.testing.assert_close(norms, torch.tensor(gain))
        before = {block.name: block.view.clone() for block in network.blocks}
        rlplast.head_reset(network)
        edited = {b.name for b in network.blocks if not torch.equal(b.view, before[b.name])}
        assert edited == {"head.weight"}  # biases were and are 0
    assert torch.equal(agent.actor.log_std, torch.zeros(1))
    agent.close()


def test_modules_and_buffers_follow_the_seed() -> None:
    agents = [build(read_config(config("noisy", seed=seed)))[0] for seed in (1, 1, 2)]
    for part in ("actor", "critic"):
        first, same, other = (agent.networks[part].module.state_dict() for agent in agents)
        assert all(torch.equal(first[name], same[name]) for name in first)
        assert not torch.equal(first["net.features"], other["net.features"])
        assert not torch.equal(first["net.layer.weight"], other["net.layer.weight"])
    actor, critic = (agents[0].networks[part].module.net for part in ("actor", "critic"))
    assert not torch.equal(actor.layer.weight, critic.layer.weight)
    [agent.close() for agent in agents]


@pytest.mark.slow
def test_it_compiles_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)
    ends = []
    for how in ("compile", "off"):
        run = api.train(config("mlp", agent={"accelerate": how}), tmp_path / how)
        ends.append(run.lines()[-1]["train/loss"])
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("one", "the function returned a Sequential: allowed is a pair of modules, the trunk of"),
        ("flat", r"of 2 inputs the module returned \(32,\): allowed is .* \(2, any number\)"),
        ("untrained", "the actor's trunk: the module has no parameters that could be trained"),
        ("kept_body", "the function returned 0.weight twice: allowed are new layers at each"),
        ("shared_body", "actor and critic share 0.weight: .* set agent.shared_trunk: true"),
        ("with_actions", "raised TypeError: with_actions.. missing 1 .* 'num_actions'"),
        ("absent", "own_ppo_nets has no function absent"),
    ],
)
def test_what_are_no_trunks_is_refused(net: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(read_config(config(net)))


@pytest.mark.parametrize(
    ("key", "value"), [("hidden", [3]), ("activation", "relu"), ("init", "torch")]
)
def test_keys_of_our_networks_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"agent.{key} = .* is your own; leave it out"):
        read_config(config("mlp", agent={key: value}))
