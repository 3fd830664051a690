"""A DQN whose network a user's function makes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.marks import slow_but
from tests.runs import TINY, check_resumes

NETS = "tests.agents.own_nets"
CART: dict[str, Any] = TINY | {
    "env": {"id": "gym/CartPole-v1", "num_envs": 2},
    "agent": {"batch_size": 8, "buffer_size": 200, "initial_steps": 20, "target_every": 20},
    "hooks": [
        {"method": "redo", "every": "10 updates", "params": {"threshold": 0.5}},
        {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}},
    ],
    "evaluate": {"every": "50%", "episodes": 1},
    "metrics": {"every": "25%", "names": ["dormant_ratio", "weight_norm"], "batch_size": 8},
}
GRID = {"env": TINY["env"]}


def config(net: str, **keys: Any) -> dict[str, Any]:
    return CART | keys | {"agent": CART["agent"] | {"network": f"{NETS}:{net}"}}


RUNS = {
    "impala": config("impala", **GRID),
    "transformer": config("Transformer", hooks=[CART["hooks"][1]], total="100 env_steps", **GRID),
    "noisy": config("Noisy", hooks=[CART["hooks"][1]]),
    "shared": config("Shared", hooks=[CART["hooks"][1]]),
}


@pytest.mark.parametrize("name", slow_but(["transformer", "noisy"], RUNS))
def test_killed_and_resumed_equals(name: str, tmp_path: Path) -> None:
    check_resumes(RUNS[name], tmp_path)


def test_it_learns_as_our_network_of_the_same_weights_does() -> None:
    ours, _ = build(read_config(CART | {"agent": CART["agent"] | {"hidden": [16, 16]}}))
    own, _ = build(read_config(config("mlp")))
    tensors = [tensor.clone() for tensor in ours.online.state_dict().values()]
    for agent in (ours, own):
        for network in (agent.online, agent.target):
            state = dict(zip(network.state_dict(), tensors, strict=True))
            network.load_state_dict(state)
        while agent.clock.updates < 40:
            agent.step()
    for a, b in zip(ours.online.parameters(), own.online.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    batch = own.sample(8, 0)
    ours_found, own_found = (agent.activations("q", batch) for agent in (ours, own))
    assert len(own_found) == 2
    for a, b in zip(ours_found.values(), own_found.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    ours.close(), own.close()


def test_weights_are_the_modules_own_and_drawn_from_our_stream() -> None:
    state = torch.get_rng_state()
    first, second = (build(read_config(config("mlp")))[0] for _ in range(2))
    for a, b in zip(first.online.parameters(), second.online.parameters(), strict=True):
        assert torch.equal(a, b)
    bound = first.online.net[2].in_features ** -0.5
    weight = first.online.net[2].weight
    assert 0.8 * bound < weight.abs().max() <= bound
    fresh = first.networks["q"].fresh(first.networks["q"].blocks[0], torch.Generator())
    assert not torch.equal(fresh, first.networks["q"].blocks[0].view)
    torch.set_rng_state(state)
    first.close(), second.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_it_compiles_where_asked(tmp_path: Path) -> None:
    keys = config("mlp", hooks=[])
    keys["agent"] |= {"accelerate": "compile"}
    whole = api.train(keys, tmp_path / "compiled")
    keys["agent"] |= {"accelerate": "off"}
    eager = api.train(keys, tmp_path / "eager")
    ends = [run.lines()[-1]["train/loss"] for run in (whole, eager)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("wrong_shape", r"of 2 inputs the module returned \(2, 3\): allowed is .* \(2, 2\)"),
        ("no_module", r"the function returned a list, \[2\]: allowed is a module"),
        ("buffers_only", "the module has no parameters that could be trained"),
        ("fails", r"called with zeros of shape \(2, 4\), raised RuntimeError: mat1 and mat2"),
        ("other_arguments", "raised TypeError: .*unexpected keyword argument 'obs_shape'"),
        ("absent", "tests.agents.own_nets has no function absent"),
    ],
)
def test_what_is_no_q_network_is_refused(net: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(read_config(config(net)))


@pytest.mark.parametrize(
    ("network", "more", "message"),
    [
        ("absent.module:net", {}, "No module named 'absent'; install the module, or put it into"),
        ("a b:net", {}, "allowed is package.module:factory"),
        ("nets", {}, "agent.network = 'nets': allowed"),
        (f"{NETS}:mlp", {"hidden": [3]}, r"agent.hidden = \[3\]: it is of our networks"),
        (f"{NETS}:mlp", {"init": "torch"}, "agent.init = 'torch': it is of our networks"),
    ],
)
def test_names_that_are_not_allowed_are_named(
    network: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(read_config(CART | {"agent": CART["agent"] | {"network": network} | more}))
