"""Which tensors the penalties of a run reach, what configs are refused, and what is counted."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.agents.sac_networks import Actor, Critic, Temperature, TrunkSpec
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.context import Context
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.method import Method, State, method
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from tests.methods.penalty_cases import CASES, TWINS, moved, penalties, row
from tests.models import assert_same, loss_of, masters_of, subject


def networks() -> dict[str, Network]:
    trunk = TrunkSpec("mlp", 4, 2)
    modules = {"actor": Actor(3, 2, trunk), "critic": Critic(3, 2, trunk)}
    modules["temperature"] = Temperature(0.5)
    made = {
        name: Network(name, module, torch.optim.SGD(module.parameters(), lr=0.1))
        for name, module in modules.items()
    }
    for name, network in made.items():
        network.initialise(torch_stream(0, name))
        with torch.no_grad():
            for param in network.module.parameters():
                param.mul_(1.5).add_(0.1)
    return made


def reached(rows: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Return the names of the parameters that get a gradient, by network that has any."""
    run = networks()
    found = Penalties(rows, run)
    names = {}
    for name, network in run.items():
        term = found.of(name)
        if term is not None:
            term.backward()
            named = network.module.named_parameters()
            names[name] = {n for n, p in named if p.grad is not None and bool(p.grad.any())}
    return names


WEIGHTS = {"fc1.weight", "fc2.weight"}
HEADS = {"mean.weight", "log_std.weight"}


def biases(names: set[str]) -> set[str]:
    return names | {name.replace("weight", "bias") for name in names}


def test_networks_and_layers_choose_tensors() -> None:
    actor, critic = WEIGHTS | HEADS, WEIGHTS | {"head.weight"}
    cases: list[tuple[dict[str, Any], dict[str, set[str]]]] = [
        (
            {"method": "l2"},
            {"actor": biases(actor), "critic": biases(critic), "temperature": {"log_alpha"}},
        ),
        ({"method": "parseval"}, {"actor": actor, "critic": critic}),
        ({"method": "parseval", "networks": ["actor"]}, {"actor": actor}),
        (
            {"method": "l2_init", "layers": ["fc*"]},
            {"actor": biases(WEIGHTS), "critic": biases(WEIGHTS)},
        ),
        (
            {"method": "parseval", "layers": ["fc2", "mean"]},
            {"actor": {"fc2.weight", "mean.weight"}, "critic": {"fc2.weight"}},
        ),
        ({"method": "l2", "networks": ["temperature"]}, {"temperature": {"log_alpha"}}),
        ({"method": "parseval", "layers": ["[[]0].fc?"]}, {"critic": WEIGHTS}),
    ]
    for keys, expected in cases:
        assert reached([keys]) == expected, keys


def test_one_member_of_a_stack_is_named_as_it_is() -> None:
    run = networks()
    term = Penalties([{"method": "l2", "layers": ["[1].fc1"]}], run).of("critic")
    assert term is not None
    term.backward()
    grad = run["critic"].module.get_parameter("fc1.weight").grad
    assert grad is not None
    assert grad[1].any()
    assert not grad[0].any()


def test_frozen_parameters_and_followers_are_left_alone() -> None:
    made = subject("mlp", updates=0)
    made.module.get_parameter("0.weight").requires_grad_(False)
    network = Network("net", made.module, made.optimizer, {"target": made.follower})
    term = penalties("l2", network).of("net")
    assert term is not None
    term.backward()
    assert made.module.get_parameter("0.weight").grad is None
    assert all(p.grad is None for p in made.follower.parameters())
    whole = sum(
        float(p.detach().square().sum()) for n, p in made.module.named_parameters() if n[0] != "0"
    ) + float(made.module.get_parameter("0.bias").detach().square().sum())
    assert float(term.detach()) == pytest.approx(0.15 * whole)


def test_a_tied_layer_goes_by_either_name() -> None:
    network, _ = moved("tied")
    for layer in ("embed", "head"):
        term = penalties("l2", network, layers=[layer]).of("net")
        weight = network.module.get_parameter("embed.weight").detach()
        assert term is not None
        assert float(term.detach()) == pytest.approx(0.15 * float(weight.square().sum()))


def test_a_network_under_another_name_is_refused() -> None:
    network, _ = moved("mlp")
    for make in (lambda n: Penalties([row("l2")], n), lambda n: Hooks([], n, "10 updates")):
        with pytest.raises(ConfigError, match=r"'q'.*'net'"):
            make({"q": network})


def test_networks_that_share_a_layer_are_refused() -> None:
    trunk = torch.nn.Linear(6, 4)
    modules = {name: torch.nn.Sequential(trunk, torch.nn.Linear(4, 2)) for name in ("pi", "v")}
    held = {p for module in modules.values() for p in module.parameters()}
    optimizer = torch.optim.Adam(held)
    networks = {name: Network(name, module, optimizer) for name, module in modules.items()}
    with pytest.raises(ConfigError, match=r"'pi' and 'v' share pi\.0\.weight"):
        Hooks([{"method": "fire", "at": "50%"}], networks, "10 updates")
    trunk.requires_grad_(False)  # what is frozen is edited by nobody
    networks = {name: Network(name, module, optimizer) for name, module in modules.items()}
    Hooks([{"method": "fire", "at": "50%"}], networks, "10 updates")


def test_a_network_gets_no_terms_of_one_whose_name_ends_like_its_own() -> None:
    (q, _), (other, _) = moved("mlp"), moved("mlp")
    both = {}
    for name, network in (("q", q), ("aux/q", other)):
        both[name] = Network(name, network.module, network.optimizers)
    found = Penalties([row("l2", networks=["aux/q"])], both)
    assert found.of("q") is None
    assert found.of("aux/q") is not None


def test_without_penalties_the_loss_is_returned_as_it_is() -> None:
    network, _ = moved("mlp")
    for found in (Penalties([], {"net": network}), Penalties([], {})):
        assert found.sum is None
        assert found.metrics(3) == found.state_dict() == {}
    loss = torch.ones((), requires_grad=True)
    assert Penalties([], {"net": network}).add("net", loss) is loss
    others = networks()
    assert Penalties([row("parseval")], others).add("temperature", loss) is loss


def test_strength_zero_equals_no_penalty() -> None:
    plain = subject("residual", updates=0)
    plain.update(5)
    state = plain.state()
    for which in TWINS:
        penalised = subject("residual", updates=0)
        params = dict(CASES[which].params) | {"coef": 0}
        found = Penalties([row(which, params=params)], {"net": penalised.network})
        for _ in range(5):
            penalised.optimizer.zero_grad(set_to_none=True)
            loss = loss_of(penalised.module, penalised.x, penalised.y)
            found.add("net", loss).backward()
            penalised.optimizer.step()
        assert all(torch.equal(state[n], t) for n, t in penalised.state().items()), which


def test_coef_is_the_strength_and_rows_add_up() -> None:
    network, _ = moved("conv")

    def term(*rows: dict[str, Any]) -> Tensor:
        found = Penalties(list(rows), network).of("net")  # one network stands for its mapping
        assert found is not None
        return found

    for which in TWINS:
        weak, strong = ({"method": which, "params": {"coef": c}} for c in (0.1, 0.3))
        torch.testing.assert_close(term(strong), 3 * term(weak), msg=which)
        torch.testing.assert_close(term(weak, row("l2")), term(weak) + term(row("l2")))


def test_metrics_are_means_over_updates_and_saved_between() -> None:
    run = networks()
    found = Penalties([row("l2")], run)
    loss = torch.ones((), requires_grad=True)
    values = [float(found.add(name, loss).detach() - 1) for name in ("actor", "critic")]
    restored = Penalties([row("l2")], run)
    assert restored.sum is not None
    address = restored.sum.data_ptr()
    restored.load_state_dict(copy.deepcopy(found.state_dict()))
    assert restored.sum.data_ptr() == address
    for made in (found, restored):
        made.add("actor", loss)
        mean = made.metrics(2)["train/penalty"]
        assert mean == pytest.approx((2 * values[0] + values[1]) / 2)
        assert made.metrics(2) == {"train/penalty": 0.0}
        assert made.metrics(0) == {}
        made.add("actor", loss)
        made.load_state_dict(Penalties([], run).state_dict())  # of a prefix without penalties
        assert made.metrics(1) == {"train/penalty": 0.0}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"method": "l2", "at": "50%"}, r"penalties\[0\].*'at'"),
    (row("l2", params={"coef": float("inf")}), r"l2\.coef"),
    (row("parseval", params={"scale": 0}), r"parseval\.scale"),
    (row("l2", layers="fc1"), r"\(l2\)\.layers"),
    (row("l2", layers=[]), r"\(l2\)\.layers"),
    (row("parseval", layers=["fc1", "hed"]), "'hed' .*'head'"),
    (row("parseval", networks=["critic", "temperature"]), r"\(parseval\) .*'temperature'"),
    (row("parseval", networks=["actor", "critic"], layers=["head"]), "'actor'"),
]


def test_rows_that_fit_no_network_are_refused_by_key() -> None:
    for config, message in BAD:
        with pytest.raises(ConfigError, match=message):
            Penalties([config], networks())
    with pytest.raises(NothingToEdit):
        Penalties([row("parseval")], {"temperature": networks()["temperature"]})


def test_masters_are_refused_by_name() -> None:
    low = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).bfloat16()
    masters = masters_of(low)
    network = Network("net", low, torch.optim.SGD(masters.values(), lr=0.1), masters=masters)
    for which in CASES:
        with pytest.raises(ConfigError, match=r"net\.0\.weight"):
            penalties(which, network)


@pytest.fixture
def averaging(own_methods: None) -> None:
    @method("averaging", source="a test")
    @dataclass(frozen=True)
    class Averaging(Method):
        """Pull weights towards a mean of theirs, which a plan moves at every update."""

        def covers(self, block: Block) -> bool:
            return block.role == "weight"

        def setup(self, network: Network, blocks: Sequence[Block]) -> State:
            return {b.name: b.view.clone() for b in blocks}

        def plan(self, context: Context, state: State) -> list[Edit]:
            assert [b.name for b in context.blocks] == list(state)
            return [Assign(state[b.name], (state[b.name] + b.view) / 2) for b in context.blocks]

        def term(self, context: Context, state: State) -> Tensor:
            return torch.stack([(b.live() - state[b.name]).sum() for b in context.blocks]).sum()


@pytest.mark.usefixtures("averaging")
def test_a_penalty_may_plan_at_every_update_with_the_state_and_the_blocks_of_its_term() -> None:
    made = subject("mlp", updates=0)
    rows = [{"method": "averaging", "layers": ["0", "4"]}]
    found = Penalties(rows, {"net": made.network})
    hooks = Hooks([], made.network, "10 updates", penalties=found)
    [hook] = hooks.every_update
    [term] = found.terms
    assert hook.key == "penalties[0]/net averaging"
    assert hook.states["net"] is term.state
    assert list(term.state) == ["0.weight", "4.weight"]
    start = term.state["0.weight"].clone()
    assert found.of("net") == 0
    made.update()
    before = made.snapshot()
    assert hooks.step(updates=1) == []
    assert_same(before, made.snapshot())  # its plan writes its own state alone
    weight = made.module.get_parameter("0.weight").detach()
    assert torch.equal(term.state["0.weight"], (start + weight) / 2)
    assert found.of("net") != 0
    assert hooks.flush() == []
    saved = copy.deepcopy(found.state_dict())
    again = Penalties(rows, {"net": made.network})
    address = again.terms[0].state["4.weight"].data_ptr()
    again.load_state_dict(saved)
    assert_same(again.terms[0].state, term.state)
    assert again.terms[0].state["4.weight"].data_ptr() == address
