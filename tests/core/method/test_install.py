"""Modules that methods bring: from a config, by hand, and found again by a network."""

import copy
from typing import Any

import pytest
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.install import install_methods
from rlplast.core.network.network import Network
from rlplast.methods.lifecycle_modules import LifecycleLinear
from tests.core.method.networks import Temperature, modules
from tests.models import assert_same, build

LIFECYCLE: dict[str, Any] = {"method": "lifecycle"}


def test_layers_go_into_every_network_that_has_some_and_into_followers() -> None:
    built = modules()
    assert install_methods([LIFECYCLE], [], built, seed=1) == {
        "actor": ["0", "2"],
        "critic": ["fc1", "fc2"],
    }
    found = [len(Network("net", m).installed) for ms in built.values() for m in ms]
    assert found == [1, 1, 1, 0]
    online, target = built["critic"]
    assert_same(dict(online.state_dict()), dict(target.state_dict()))

    built = modules()
    config = LIFECYCLE | {"networks": ["critic"], "params": {"warmup": 3, "layers": ["fc2"]}}
    assert install_methods([config], [], built, 0) == {"critic": ["fc2"]}
    layer: Any = built["critic"][1].get_submodule("fc2")
    assert layer.lifecycle == rlplast.Lifecycle(warmup=3, layers=("fc2",))
    assert not Network("net", built["actor"][0]).installed
    unnamed = {"method": "lifecycle", "params": {"layers": ["fc*"]}}  # the actor has none of these
    assert install_methods([unnamed], [], modules(), 0) == {"critic": ["fc1", "fc2"]}
    assert install_methods([], [], built, 0) == {}


def test_draws_depend_on_seed_network_layer_and_member() -> None:
    def draws(seed: int) -> list[list[int]]:
        networks = {name: (build("stacked"),) for name in ("a", "b")}
        install_methods([LIFECYCLE], [], networks, seed)
        lives = [
            m.state_dict()[f"{fc}.life"] for (m,) in networks.values() for fc in ("fc1", "fc2")
        ]
        return [row.tolist() for life in lives for row in life]

    first = draws(1)
    assert first == draws(1)
    assert len({tuple(row) for row in first + draws(2)}) == 16


def test_layers_that_fit_no_network_or_are_listed_twice_are_refused() -> None:
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([LIFECYCLE | {"networks": ["temperature"]}], "'temperature'"),
        ([LIFECYCLE | {"params": {"layers": ["fc9"]}}], "'fc9'"),
        ([LIFECYCLE, LIFECYCLE], "already"),
    ]
    for rows, message in cases:
        with pytest.raises(ConfigError, match=message):
            install_methods(rows, [], modules(), 0)
    with pytest.raises(NothingToEdit):
        install_methods([LIFECYCLE], [], {"temperature": (Temperature(),)}, 0)
    for name, key in (("redo", "hooks"), ("l2_init", "penalties")):
        with pytest.raises(ConfigError, match=f"'{name}' .*'{key}'"):
            rlplast.replace_layers(build("mlp"), name)
    with pytest.raises(ConfigError, match="Linear"):
        rlplast.replace_layers(nn.Linear(4, 2), "plasticity_injection")
    online, target = build("mlp"), build("mlp")
    rlplast.replace_layers(online)
    with pytest.raises(ConfigError, match="other layers"):
        Network("net", online, followers=target)


def ticks(network: Network) -> list[int]:
    """Return how far the first lives are after one update, layer by layer."""
    layers = [m for m in network.module.modules() if isinstance(m, LifecycleLinear)]
    before = [int(layer.life[0]) for layer in layers]
    Hooks([], network, "10 updates").step(updates=1)
    return [old - int(layer.life[0]) for old, layer in zip(before, layers, strict=True)]


def test_layers_tick_once_in_the_whole_in_a_part_and_when_made_by_hand() -> None:
    params: dict[str, Any] = {"life": [50, 60]}
    whole = nn.ModuleDict({"body": build("mlp"), "head": build("mlp")})
    rlplast.replace_layers(whole["body"], **params)
    assert ticks(Network("net", whole)) == [1, 1]
    whole = nn.ModuleDict({"body": build("mlp"), "head": build("mlp")})
    rlplast.replace_layers(whole, layers=["body.0", "head.2"], **params)
    assert ticks(Network("net", whole["body"])) == [1]
    assert ticks(Network("net", copy.deepcopy(whole))) == [1, 1]
    made = LifecycleLinear.of(nn.Linear(3, 4), rlplast.Lifecycle(life=(50, 60)), 0)
    assert ticks(Network("net", nn.Sequential(made))) == [1]
    assert Network("net", build("mlp")).installed == ()


def test_hooks_with_modules_are_installed_and_others_passed_over() -> None:
    rows = [{"method": m, "at": "50%"} for m in ("fire", "plasticity_injection")]
    built = modules()
    assert install_methods([], rows, built, 0).keys() == {"actor", "critic"}
    network = Network("actor", built["actor"][0])
    assert [m.name for m in network.installed] == ["plasticity_injection"]
    hooks = Hooks([rows[1]], network, "10 updates")  # such a method fires when its hook says
    assert [h.key for h in hooks.hooks] == ["plasticity_injection at=50%"]
    assert [h.key for h in Hooks([], network, "10 updates").hooks] == []
    with pytest.raises(NothingToEdit, match=r"hooks\[1\].*'temperature'"):
        install_methods([], [rows[0], rows[1] | {"networks": ["temperature"]}], modules(), 0)
    with pytest.raises(ConfigError, match=r"hooks\[0\] \(plasticity_inj.*\)\.networks: 'actr'"):
        install_methods([], [rows[1] | {"networks": ["actr"]}], modules(), 0)


def test_layers_of_two_calls_tick_once_each() -> None:
    module = build("mlp")
    rlplast.replace_layers(module, layers=["0"], life=[50, 60], warmup=3)
    rlplast.replace_layers(module, layers=["2"], life=[50, 60], warmup=5)
    network = Network("net", module)
    assert [m.warmup for m in network.installed] == [3, 5]
    assert ticks(network) == [1, 1]
    rlplast.tick(network)
    layers: Any = [module.get_submodule(path) for path in ("0", "2")]
    assert [int(m.life_max[0] - m.life[0]) for m in layers] == [2, 2]
