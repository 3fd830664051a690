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
from rlplast.core.network.network import Network
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


@pytest.mark.parametrize(
    ("bases", "key", "family"),
    [
        ((Plans,), "hooks", "interventions"),
        ((Terms,), "penalties", "penalties"),
        ((Installs,), "layers", "layers"),
        ((Plans, Terms), "penalties", "penalties"),
        ((Installs, Plans), "hooks", "interventions"),
        ((Installs, Terms), "penalties", "penalties"),
        ((Installs, Plans, Terms), "penalties", "penalties"),
    ],
)
def test_a_method_is_listed_by_the_function_that_needs_a_list(
    bases: tuple[type, ...], key: str, family: str
) -> None:
    toy = made(*bases)
    assert (toy.name, toy.key) == ("toy", key)
    info = get("methods", "toy")
    assert (info.family, info.source, info.summary) == (family, "a test", "Do something.")
    assert get(family, "toy") is info
    assert build("methods", "toy") == toy()
    own = {Installs: "install", Plans: "plan", Terms: "term"}
    assert {f for f in FUNCTIONS if implements(toy, f)} == {own[base] for base in bases}
    assert all(implements(toy(), f) == implements(toy, f) for f in FUNCTIONS)


def test_another_key_may_be_given_if_the_method_has_its_function() -> None:
    assert made(Installs, Plans, key="layers").key == "layers"
    with pytest.raises(
        ConfigError, match=r"'other' is listed under 'penalties' and has no term\(\)"
    ):
        made(Installs, Plans, name="other", key="penalties")
    with pytest.raises(
        ConfigError, match=r"under 'layers' and has no install\(\): implement it, or"
    ):
        made(name="other")
    with pytest.raises(ConfigError, match="method 'other': key 'hook': did you mean 'hooks'"):
        made(Plans, name="other", key="hook")
    assert all(info.name != "other" for info in registry.rows("methods"))


def test_names_are_shared_by_all_lists() -> None:
    for bases in ((Plans,), (Terms,), (Installs,)):
        with pytest.raises(ConfigError, match="methods already has a 'fire', from rlplast: choose"):
            made(*bases, name="fire")
    assert get("methods", "fire").target.__name__ == "Fire"


def test_the_base_plans_nothing_and_needs_nothing() -> None:
    network = Network("net", build_model("mlp"))
    base = Method()
    assert base.setup(network, network.blocks) == {}
    assert base.covers(network.blocks[0]) and not base.uses_initial
    assert (base.reads, base.policies, base.fires_once) == ((), ("network", "copy"), False)
    context = Context(network, network.blocks)
    for call in (
        lambda: base.plan(context, {}),
        lambda: base.term(context, {}),
        lambda: base.install(network.module, 0),
    ):
        with pytest.raises(NotImplementedError):
            call()


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


def test_every_registered_method_is_of_the_base_and_has_the_face_of_its_list() -> None:
    needed = {"hooks": "plan", "layers": "install", "penalties": "term"}
    for info in registry.rows("methods"):
        kind: Any = info.target
        assert issubclass(kind, Method) and kind.name == info.name
        assert registry.LISTS[kind.key] == info.family
        assert implements(kind, needed[kind.key])
