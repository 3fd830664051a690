"""A method's functions, and what registering one checks."""

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
from rlplast.core.method.method import FUNCTIONS, Method, State, implements, method
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Edit
from rlplast.core.registry import build, get
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
        assert {f for f in FUNCTIONS if implements(toy, f)} == {own[base] for base in bases}
        assert all(implements(toy(), f) == implements(toy, f) for f in FUNCTIONS)
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
