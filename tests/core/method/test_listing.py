"""One parser for the lists of a config: hooks, layers and penalties."""

from collections.abc import Callable
from typing import Any

import pytest

from rlplast.core import registry
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.install import install_methods
from rlplast.core.method.listing import ROW_KEYS, method_of, parse_row
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.methods.fire import Fire
from rlplast.methods.l2 import L2
from rlplast.methods.lifecycle import Lifecycle
from tests.models import build

LISTED = {"hooks": "fire", "layers": "lifecycle", "penalties": "l2"}
NETWORKS = {"actor": object(), "critic": object()}


def row(key: str, **keys: Any) -> dict[str, Any]:
    return {"method": LISTED[key]} | keys


def parse(key: str, config: Any) -> Any:
    return parse_row(f"{key}[2]", config, key, NETWORKS)


def test_an_entry_is_for_the_networks_it_names_or_for_all() -> None:
    methods = {"hooks": Fire, "layers": Lifecycle, "penalties": L2}
    for key in ROW_KEYS:
        found = parse(key, row(key))
        assert found.label == f"{key}[2] ({LISTED[key]})"
        assert found.method == methods[key]()
        assert (found.networks, found.named) == (("actor", "critic"), False)
        assert parse(key, row(key, params=None)) == found
        named = parse(key, row(key, networks=["critic"]))
        assert (named.networks, named.named) == (("critic",), True)


def test_what_is_wrong_is_named() -> None:
    for key in ROW_KEYS:
        cases: list[tuple[Any, str]] = [
            (LISTED[key], r"\[2\]"),
            (None, r"\[2\]"),
            ({}, "'method'"),
            (row(key, network=["actor"]), "'network'.*'networks'"),
            (row(key) | {3: 4}, "3"),
            ({"method": LISTED[key] + "x"}, f"'{LISTED[key]}'"),
            ({"method": [LISTED[key]]}, r"\.method"),
            (row(key, params={"x": 1}), "'x'"),
            (row(key, networks="actor"), r"\.networks"),
            (row(key, networks=[]), "networks"),
            (row(key, networks=["actor", "actor"]), "once"),
            (row(key, networks=["critc"]), "'critc'.*'critic'"),
        ]
        for config, named in cases:
            with pytest.raises(ConfigError, match=named):
                parse(key, config)


def test_a_method_under_another_key_is_told_where_it_belongs() -> None:
    network = Network("net", build("mlp"))
    readers: dict[str, Callable[[Any], Any]] = {
        "hooks": lambda rows: Hooks(rows, network, "10 updates"),
        "penalties": lambda rows: Penalties(rows, {"net": network}),
        "layers": lambda rows: install_methods(rows, [], {"net": (network.module,)}, 0),
    }
    own = {"hooks": {"at": "50%"}, "penalties": {"layers": ["a"]}, "layers": {}}
    for key, read in readers.items():
        for other in ROW_KEYS.keys() - {key}:
            for config in (row(other), row(other, **own[other])):  # also with its own list's keys
                with pytest.raises(ConfigError, match=rf"{key}\[0\]\.method = .*`{other}:`"):
                    read([config])


def test_what_is_no_method_is_told_which_key_sets_it() -> None:
    for name, setting in (
        ("schedule_free", "optimizer: {name: schedule_free}"),
        ("sample_weight_decay", "agent: {sampling: {method: sample_weight_decay}}"),
        ("label_smoothing", "label_smoothing: ..."),
    ):
        for key in ROW_KEYS:
            with pytest.raises(ConfigError) as caught:
                parse(key, {"method": name})
            assert str(caught.value).endswith(f"set `{setting}`")


def test_every_method_is_accepted_by_one_list_alone() -> None:
    for info in registry.rows("methods"):
        accepted = []
        for key in ROW_KEYS:
            try:
                accepted.append((key, method_of("x", {"method": info.name}, key)))
            except ConfigError:
                continue
        [(key, name)] = accepted
        assert name == info.name and info.family == registry.LISTS[key]


def test_a_followers_name_says_whose_it_is() -> None:
    network = Network("net", build("mlp"), followers=build("mlp"))
    for key in ROW_KEYS:
        with pytest.raises(ConfigError, match="'target' follows 'net'"):
            parse_row(f"{key}[0]", row(key, networks=["target"]), key, {"net": network})
