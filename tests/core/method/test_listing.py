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
every_list = pytest.mark.parametrize("key", ROW_KEYS)


def row(key: str, **keys: Any) -> dict[str, Any]:
    return {"method": LISTED[key]} | keys


def parse(key: str, config: Any) -> Any:
    return parse_row(f"{key}[2]", config, key, NETWORKS)


@every_list
def test_an_entry_of_a_name_alone_is_for_all_networks(key: str) -> None:
    found = parse(key, row(key))
    assert found.label == f"{key}[2] ({LISTED[key]})"
    assert found.method == {"hooks": Fire, "layers": Lifecycle, "penalties": L2}[key]()
    assert (found.networks, found.named) == (("actor", "critic"), False)
    assert parse(key, row(key, params=None)) == found
    named = parse(key, row(key, networks=["critic"]))
    assert (named.networks, named.named) == (("critic",), True)


@pytest.mark.parametrize(
    ("key", "params", "method"),
    [
        ("hooks", {"iterations": 3}, Fire(iterations=3)),
        ("layers", {"life": [2, 5], "layers": ["fc*"]}, Lifecycle(life=(2, 5), layers=("fc*",))),
        ("penalties", {"coef": 1}, L2(coef=1.0)),
    ],
)
def test_parameters_are_checked_and_given_their_types(
    key: str, params: dict[str, Any], method: Any
) -> None:
    assert parse(key, row(key, params=params)).method == method


BAD: dict[str, tuple[Callable[[str], Any], str]] = {
    "mapping": (lambda key: LISTED[key], r"{key}\[2\] = '{name}': allowed is a mapping with a m"),
    "nothing": (lambda key: None, r"{key}\[2\] = None: allowed is a mapping with a method"),
    "no method": (
        lambda key: {},
        r"{key}\[2\] has no 'method': name one, see `rlplast list {shown}`",
    ),
    "key": (
        lambda key: row(key, network=["actor"]),
        r"{key}\[2\] has an unknown key 'network': did you mean 'networks'\?",
    ),
    "key of any kind": (lambda key: row(key) | {3: 4}, r"{key}\[2\] has an unknown key 3: "),
    "no method but a key": (
        lambda key: {"metod": LISTED[key]},
        r"{key}\[2\] has an unknown key 'metod': did you mean 'method'\?",
    ),
    "unknown": (
        lambda key: {"method": LISTED[key] + "x"},
        r"{key}\[2\]\.method = '{name}x': did you mean '{name}'\?",
    ),
    "number": (lambda key: {"method": 3}, r"{key}\[2\]\.method = 3: allowed: "),
    "list": (lambda key: {"method": [LISTED[key]]}, r"{key}\[2\]\.method = \["),
    "params": (lambda key: row(key, params=[1]), r"{key}\[2\] \({name}\)\.params = \[1\]: allowed"),
    "param": (lambda key: row(key, params={"x": 1}), r"{name} has no parameter 'x'"),
    "networks": (
        lambda key: row(key, networks="actor"),
        r"{key}\[2\] \({name}\)\.networks = 'actor': allowed is a list of \['actor', 'critic'\], e",
    ),
    "no networks": (lambda key: row(key, networks=[]), r"networks = \[\]: allowed is a list of"),
    "null networks": (lambda key: row(key, networks=None), r"networks = None: allowed is a list"),
    "twice": (lambda key: row(key, networks=["actor", "actor"]), "each once"),
    "network": (
        lambda key: row(key, networks=["critc"]),
        r"{key}\[2\] \({name}\)\.networks: 'critc': did you mean 'critic'\?",
    ),
}


@every_list
@pytest.mark.parametrize("which", BAD)
def test_what_is_wrong_is_named_with_what_is_allowed(which: str, key: str) -> None:
    config, message = BAD[which]
    names = {"key": key, "name": LISTED[key], "shown": registry.LISTS[key]}
    for name, value in names.items():
        message = message.replace(f"{{{name}}}", value)
    with pytest.raises(ConfigError, match=message):
        parse(key, config(key))


REMEDY = {
    "hooks": "list it under `hooks:`, with a schedule such as `at: 50%`",
    "layers": "list it under `layers:`, where it needs no schedule",
    "penalties": "list it under `penalties:`, where it needs no schedule",
}


@pytest.mark.parametrize(
    ("key", "other"), [(key, other) for key in ROW_KEYS for other in ROW_KEYS if key != other]
)
def test_a_method_under_another_key_is_told_where_it_belongs(key: str, other: str) -> None:
    message = f"{key}[2].method = {LISTED[other]!r}: {REMEDY[other]}"
    own = {"hooks": {"at": "50%"}, "penalties": {"layers": ["a"]}, "layers": {}}[other]
    for config in (row(other), row(other, **own)):  # also with the keys of its own list
        with pytest.raises(ConfigError) as caught:
            parse(key, config)
        assert str(caught.value) == message


@every_list
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("schedule_free", "optimizer: {name: schedule_free}"),
        ("sample_weight_decay", "agent: {sampling: {method: sample_weight_decay}}"),
        ("label_smoothing", "label_smoothing: ..."),
    ],
)
def test_what_is_no_method_is_told_which_key_sets_it(key: str, name: str, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(key, {"method": name})
    assert str(caught.value).endswith(f"set `{setting}`")


def test_the_three_lists_of_a_run_are_read_by_it() -> None:
    network = Network("net", build("mlp"))
    readers: dict[str, Callable[[Any], Any]] = {
        "hooks": lambda rows: Hooks(rows, network, "10 updates"),
        "penalties": lambda rows: Penalties(rows, {"net": network}),
        "layers": lambda rows: install_methods(rows, [], {"net": (network.module,)}, 0),
    }
    for key, read in readers.items():
        for other in ROW_KEYS.keys() - {key}:
            with pytest.raises(ConfigError, match=rf"{key}\[0\]\.method = .*under `{other}:`"):
                read([row(other)])


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
        with pytest.raises(
            ConfigError, match="'target': allowed: net; 'target' follows 'net' as the key `follow"
        ):
            parse_row(f"{key}[0]", row(key, networks=["target"]), key, {"net": network})
