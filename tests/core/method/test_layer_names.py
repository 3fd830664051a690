"""The key ``layers``: what names and globs mean, in hooks as in penalties, and what is refused."""

from typing import Any

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.method.scope import stands_for
from tests.core.method.networks import networks
from tests.models import subject


def test_a_name_or_glob_stands_for() -> None:
    for glob, name, expected in (
        ("fc1", "fc1", True),
        ("fc1", "fc10", False),
        ("fc*", "FC1", False),
        ("blocks.*.fc1", "blocks.0.inner.fc1", True),
        ("blocks", "blocks.0.fc1", False),
        ("[0].fc1", "[0].fc1", True),
        ("[0].fc?", "[0].fc1", True),
        ("[0].fc?", "[1].fc1", False),
        ("[?].fc1", "[1].fc1", True),
        ("*.fc1", "[1].fc1", True),
        ("[[]1].*", "[1].fc1", True),
        ("[02]", "2", True),  # a set of characters, as in every glob
        ("[02]", "1", False),
        ("[02].fc", "2.fc", True),
    ):
        assert stands_for(glob, name) is expected, (glob, name)


def hook(**keys: Any) -> dict[str, Any]:
    return {"method": "full_reset", "at": "50%"} | keys


def edited(**keys: Any) -> dict[str, set[str]]:
    """The names of the Blocks that a hook edits, by network."""
    (found,) = Hooks([hook(**keys)], networks(), "10 updates").hooks
    return {
        network.name: {b.name for b in found.edited[network.name]} for network in found.networks
    }


def test_layers_narrow_a_hook() -> None:
    cases: list[tuple[dict[str, Any], dict[str, list[str]]]] = [
        ({"layers": ["4"]}, {"actor": ["4"]}),  # the critic has none and is left out
        ({"layers": ["4", "head"]}, {"actor": ["4"], "critic": ["[0].head", "[1].head"]}),
        ({"layers": ["[1].*"]}, {"critic": ["[1].fc1", "[1].fc2", "[1].head"]}),
        (
            {"layers": ["fc?"], "networks": ["critic"]},
            {"critic": [f"[{i}].fc{j}" for i in (0, 1) for j in (1, 2)]},
        ),
        ({"layers": None, "networks": ["actor"]}, {"actor": ["0", "2", "4"]}),
    ]
    for keys, expected in cases:
        names = {
            n: {f"{x}.{r}" for x in ls for r in ("weight", "bias")} for n, ls in expected.items()
        }
        assert edited(**keys, optimizer="touched") == names


def test_layers_narrow_what_a_scope_edits_and_what_it_restores() -> None:
    made = subject("conv")
    start = {name: t.clone() for name, t in made.network.initial.items()}
    before = made.snapshot()
    row = hook(method="shrink_perturb", at="1 updates", scope="dqn", params={"coef": 0.25})
    with torch.no_grad():
        made.follower.get_parameter("5.weight").mul_(2)
    row |= {"followers": "same_edit", "layers": ["2", "5"]}
    Hooks([row], made.network, "9 updates").step(updates=1)
    weight = made.module.get_parameter
    assert torch.equal(weight("0.weight"), before["0.weight"])
    expected = 0.75 * before["2.weight"] + 0.25 * start["2.weight"]
    torch.testing.assert_close(weight("2.weight").detach(), expected)
    for module in (made.module, made.follower):
        assert torch.equal(module.get_parameter("5.weight"), start["5.weight"])


BAD: list[tuple[dict[str, Any], str]] = [
    (hook(layers=[]), r"hooks\[0\] \(full_reset\)\.layers"),
    (hook(layers=["4", "haed"]), "'haed' .*'head'"),
    (hook(layers=["head"], scope="dqn", networks=["actor"]), "'head' .*0, 2, 4"),
    (hook(layers=["critic.*.fc1"]), r"networks: \[critic\]"),
    (hook(layers=["critic[0].fc1"]), r"networks: \[critic\]"),
    (hook(layers=["head"], networks=["actor", "critic"]), "'actor'"),
    (hook(method="redo", layers=["4"], networks=["actor"]), r"\(redo\)\.layers"),
    (hook(method="plasticity_injection", layers=["4"]), "plasticity_injection"),
]


def test_layers_that_fit_no_hook_are_refused_by_name() -> None:
    for config, message in BAD:
        with pytest.raises(ConfigError, match=message):
            Hooks([config], networks(), "10 updates", probe=torch.zeros(4, 5))
    row = {"method": "swr", "at": "1 updates", "layers": ["0"]}  # statistics would follow
    made = subject("conv_batchnorm")
    Hooks([row], made.network, "9 updates")
    with pytest.raises(ConfigError, match=r"net\.1\.running_mean"):
        Hooks([row | {"params": {"rescale_running_stats": True}}], made.network, "9 updates")


def test_hooks_and_penalties_read_one_name_alike() -> None:
    for layers in (["[0].fc1"], ["*.fc?", "2"], ["head"]):
        run = networks()
        [term] = Penalties([{"method": "l2", "layers": layers}], run).terms
        penalised = {n.name: {b.name for b in term.termed[n.name]} for n in term.networks}
        assert edited(layers=layers, optimizer="touched") == penalised


def test_what_persistent_adds_to_the_loss_is_of_its_layers() -> None:
    made = subject("mlp")
    penalties = Penalties([], made.network)
    row = {"method": "persistent", "at": "1 updates", "layers": ["2"]}
    Hooks([row], made.network, "9 updates", penalties=penalties).step(updates=1)
    penalties.clock = Clock(updates=1)
    term = penalties.of("net")
    assert term is not None
    made.optimizer.zero_grad(set_to_none=True)
    term.backward()
    reached = {n for n, p in made.module.named_parameters() if p.grad is not None}
    assert reached == {"2.weight", "2.bias"}


def chain(*layers: nn.Module) -> rlplast.Network:
    model = nn.Sequential(*layers).double()
    return rlplast.Network("net", model, torch.optim.SGD(model.parameters(), lr=0.1))


def plain() -> rlplast.Network:
    return chain(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_bias_that_would_have_to_follow_is_not_left_out() -> None:
    def hooks(network: rlplast.Network, *layers: str) -> Hooks:
        row = {"method": method, "at": "1 updates", "layers": list(layers)}
        return Hooks([row], network, "9 updates")

    for method in ("swr", "scale_weights"):
        for layers, bias in ((["0"], "2"), (["0", "2"], "4"), (["0", "4"], "2")):
            with pytest.raises(ConfigError, match=rf"{method}: net\.{bias}\.bias"):
                hooks(plain(), *layers)
        hooks(plain(), "2", "4")
        hooks(chain(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "0")  # which takes it out
        hooks(chain(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)), "0")


@torch.no_grad()
def test_swr_of_the_last_layers_keeps_the_outputs_proportion() -> None:
    network = plain()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    for parameter in network.module.parameters():
        parameter.mul_(3)
    before = network.module(x)
    row = {"method": "swr", "at": "1 updates", "layers": ["2", "4"], "params": {"coef": 0.5}}
    Hooks([row], network, "9 updates").step(updates=1)
    ratio = network.module(x) / before
    torch.testing.assert_close(ratio, ratio[:1, :1].expand_as(ratio))
    assert float(ratio[0, 0]) == pytest.approx((2 / 3) ** 2)  # (0.5·1 + 0.5·3)/3, twice
