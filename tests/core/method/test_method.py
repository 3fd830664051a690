"""Methods: what registering one checks, and the lists of a config that they are named in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field
from torch import Tensor, nn

import rlplast
from rlplast.core import registry
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Context
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.install import install_methods
from rlplast.core.method.listing import ROW_KEYS, parse_row
from rlplast.core.method.method import Method, State, implements, method
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Edit
from rlplast.core.network.network import Network
from rlplast.core.registry import build, get
from rlplast.methods.fire import Fire
from rlplast.methods.l2 import L2
from rlplast.methods.lifecycle import Lifecycle
from tests.models import build as build_model

pytestmark = pytest.mark.usefixtures("own_methods")


class Installs:
    def install(self, model: nn.Module, seed: int) -> list[str]:
        return []


class Plans:
    def plan(self, context: Context, state: State) -> list[Edit]:
        return []


class Terms:
    def term(self, context: Context, state: State) -> Tensor:
        return torch.zeros(())


def made(*bases: type, name: str = "toy", key: str | None = None, **fields: Any) -> type[Method]:
    """Register a method with the functions of some bases."""
    own = {"__doc__": "Do something.", **fields}
    return method(name, source="a test", key=key)(
        dataclass(frozen=True)(type("Toy", (*bases, Method), own))
    )


def test_a_method_is_listed_by_the_function_that_needs_a_list() -> None:
    own = {Installs: "install", Plans: "plan", Terms: "term"}
    cases: list[tuple[tuple[type, ...], str, str]] = [
        ((Plans,), "hooks", "interventions"),
        ((Terms,), "penalties", "penalties"),
        ((Installs,), "layers", "layers"),
        ((Plans, Terms), "penalties", "penalties"),
        ((Installs, Plans), "hooks", "interventions"),
        ((Installs, Terms), "penalties", "penalties"),
        ((Installs, Plans, Terms), "penalties", "penalties"),
    ]
    for number, (bases, key, family) in enumerate(cases):
        toy = made(*bases, name=f"toy{number}")
        assert (toy.name, toy.key) == (f"toy{number}", key)
        info = get("methods", toy.name)
        assert (info.family, info.source, info.summary) == (family, "a test", "Do something.")
        assert get(family, toy.name) is info
        assert build("methods", toy.name) == toy()
        assert {f for f in own.values() if implements(toy, f)} == {own[base] for base in bases}
        assert all(implements(toy(), f) == implements(toy, f) for f in own.values())
        with pytest.raises(ConfigError, match="'fire'"):
            made(*bases, name="fire")


def test_another_key_may_be_given_if_the_method_has_its_function() -> None:
    assert made(Installs, Plans, key="layers").key == "layers"
    with pytest.raises(ConfigError, match="'penalties'"):
        made(Installs, Plans, name="other", key="penalties")
    with pytest.raises(ConfigError, match="'layers'"):
        made(name="other")
    with pytest.raises(ConfigError, match="'hook'"):
        made(Plans, name="other", key="hook")
    assert all(info.name != "other" for info in registry.rows("methods"))


def test_a_users_method_needs_the_public_names_alone() -> None:
    @rlplast.method("own_decay", source="a test")
    @dataclass(frozen=True)
    class OwnDecay(rlplast.Method):
        """Shrink every weight."""

        factor: Annotated[float, Field(gt=0, lt=1)] = 0.5

        def covers(self, block: Block) -> bool:
            return block.role == "weight"

        def plan(self, context: rlplast.Context, state: dict[str, Tensor]) -> list[Edit]:
            factor = torch.tensor(self.factor)
            return [rlplast.Scale(b, factor) for b in context.blocks if self.covers(b)]

    network = rlplast.Network("net", build_model("mlp"))
    before = network.blocks[0].view.clone()
    row = {"method": "own_decay", "at": "50%", "params": {"factor": 0.25}}
    [receipt] = rlplast.Hooks([row], network, "10 updates").step(updates=5)
    assert torch.equal(network.blocks[0].view, before / 4)
    assert (receipt.method, receipt.optimizer_policy) == ("own_decay", "network")
    assert [info.name for info in registry.rows("interventions")].count("own_decay") == 1


@pytest.mark.parametrize("counter", [torch.zeros(()), torch.zeros(1, dtype=torch.int64)])
def test_a_counter_that_a_receipt_would_round_or_not_hold_is_refused(counter: Tensor) -> None:
    @rlplast.method("counts", source="a test")
    @dataclass(frozen=True)
    class Counts(rlplast.Method):
        """Count."""

        def setup(self, network: Network, blocks: Sequence[Block]) -> State:
            return {"count/fc": counter}

        def plan(self, context: rlplast.Context, state: State) -> list[Edit]:
            return [rlplast.Assign(state["count/fc"], counter + 1)]

    network = rlplast.Network("net", build_model("mlp"))
    with pytest.raises(ConfigError, match=r"'count/fc' has torch.*allowed for a counter is int64"):
        rlplast.Hooks([{"method": "counts", "at": "50%"}], network, "10 updates")


# One parser for the lists of a config: hooks, layers and penalties.


LISTED = {"hooks": "fire", "layers": "lifecycle", "penalties": "l2"}
NETWORKS = {"actor": object(), "critic": object()}


def row(key: str, **keys: Any) -> dict[str, Any]:
    return {"method": LISTED[key]} | keys


def parse(key: str, config: Any) -> Any:
    return parse_row(f"{key}[2]", config, key, NETWORKS)


def test_a_row_is_for_the_networks_it_names_or_for_all_and_what_is_wrong_is_named() -> None:
    methods = {"hooks": Fire, "layers": Lifecycle, "penalties": L2}
    for key in ROW_KEYS:
        found = parse(key, row(key))
        assert (found.label, found.method) == (f"{key}[2] ({LISTED[key]})", methods[key]())
        assert (found.networks, found.named) == (("actor", "critic"), False)
        assert parse(key, row(key, params=None)) == found
        named = parse(key, row(key, networks=["critic"]))
        assert (named.networks, named.named) == (("critic",), True)
        cases: list[tuple[Any, str]] = [
            (LISTED[key], r"\[2\]"),
            (None, r"\[2\]"),
            ({}, "'method'"),
            (row(key, network=["actor"]), "'network'.*'networks'"),
            (row(key) | {3: 4}, "3"),
            ({"method": LISTED[key] + "x"}, f"'{LISTED[key]}'"),
            (row(key, networks=["actor", "actor"]), "once"),
            (row(key, networks=["critc"]), "'critc'.*'critic'"),
        ]
        for config, says in cases:
            with pytest.raises(ConfigError, match=says):
                parse(key, config)


def test_a_method_under_another_key_is_told_where_it_belongs() -> None:
    network = Network("net", build_model("mlp"))
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
        for name, setting in (
            ("schedule_free", "optimizer: {name: schedule_free}"),
            ("sample_weight_decay", "agent: {sampling: {method: sample_weight_decay}}"),
            ("label_smoothing", "label_smoothing: ..."),
        ):
            with pytest.raises(ConfigError) as caught:
                parse(key, {"method": name})
            assert str(caught.value).endswith(f"set `{setting}`")
