"""Penalties: which tensors and updates they reach, what is refused, and what is counted."""

import copy
from typing import Any

import pytest
import torch

from rlplast.agents.sac_networks import Actor, Critic, Temperature, TrunkSpec
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from rlplast.run import api
from rlplast.run.build import build
from tests.methods.penalty_cases import CASES, TWINS, moved, penalties, row
from tests.models import assert_same, loss_of, subject
from tests.supervised_runs import small_supervised


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
    ]
    for keys, expected in cases:
        assert reached([keys]) == expected, keys
    run = networks()
    term: Any = Penalties([{"method": "l2", "layers": ["[1].fc1"]}], run).of("critic")
    term.backward()
    grad: Any = run["critic"].module.get_parameter("fc1.weight").grad
    assert grad[1].any() and not grad[0].any()


def test_frozen_parameters_and_followers_are_left_alone_and_a_tied_layer_has_two_names() -> None:
    made = subject("mlp", updates=0)
    made.module.get_parameter("0.weight").requires_grad_(False)
    network = Network("net", made.module, made.optimizer, {"target": made.follower})
    term: Any = penalties("l2", network).of("net")
    term.backward()
    assert made.module.get_parameter("0.weight").grad is None
    assert all(p.grad is None for p in made.follower.parameters())
    trained = [p.detach() for n, p in made.module.named_parameters() if n != "0.weight"]
    assert float(term.detach()) == pytest.approx(
        0.15 * sum(float(p.square().sum()) for p in trained)
    )
    network, _ = moved("tied")
    weight = network.module.get_parameter("embed.weight").detach()
    for layer in ("embed", "head"):
        term = penalties("l2", network, layers=[layer]).of("net")
        assert float(term.detach()) == pytest.approx(0.15 * float(weight.square().sum()))


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


def test_a_network_goes_by_its_own_name_alone() -> None:
    (q, _), (other, _) = moved("mlp"), moved("mlp")
    both = {}
    for name, network in (("q", q), ("aux/q", other)):
        both[name] = Network(name, network.module, network.optimizers)
    found = Penalties([row("l2", networks=["aux/q"])], both)
    assert found.of("q") is None and found.of("aux/q") is not None
    for make in (lambda n: Penalties([row("l2")], n), lambda n: Hooks([], n, "10 updates")):
        with pytest.raises(ConfigError, match=r"'q'.*'net'"):
            make({"q": q})


def test_without_penalties_or_strength_the_loss_is_as_it_is() -> None:
    loss = torch.ones((), requires_grad=True)
    none = Penalties([], networks())
    assert none.sum is None
    assert none.metrics(3) == none.state_dict() == {}
    for found in (none, Penalties([row("parseval")], networks())):
        assert found.add("temperature", loss) is loss
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
    (row("l2", layers=[]), r"\(l2\)\.layers"),
    (row("parseval", layers=["fc1", "hed"]), "'hed' .*'head'"),
    (row("parseval", networks=["critic", "temperature"]), r"\(parseval\) .*'temperature'"),
    (row("parseval", networks=["actor", "critic"], layers=["head"]), "'actor'"),
]


def test_rows_that_fit_no_network_are_refused_by_name() -> None:
    for config, message in BAD:
        with pytest.raises(ConfigError, match=message):
            Penalties([config], networks())
    with pytest.raises(NothingToEdit):
        Penalties([row("parseval")], {"temperature": networks()["temperature"]})


def test_a_penalty_plans_at_every_update_with_the_state_and_the_blocks_of_its_term() -> None:
    made = subject("mlp", updates=0)
    rows = [{"method": "spectral", "layers": ["0", "4"]}]
    found, again = (Penalties(rows, {"net": made.network}) for _ in range(2))
    hooks = Hooks([], made.network, "10 updates", penalties=found)
    [hook] = hooks.every_update
    [term] = found.terms
    assert hook.key == "penalties[0] spectral"
    assert hook is term
    start = {name: t.clone() for name, t in term.states["net"].items()}
    made.update()
    before = made.snapshot()
    assert hooks.step(updates=1) == [] and hooks.flush() == []
    assert_same(before, made.snapshot())  # its plan writes its own state alone
    assert not any(torch.equal(t, start[name]) for name, t in term.states["net"].items())
    addresses = {name: t.data_ptr() for name, t in again.terms[0].states["net"].items()}
    again.load_state_dict(copy.deepcopy(found.state_dict()))
    assert_same(again.terms[0].states["net"], term.states["net"])
    assert {name: t.data_ptr() for name, t in again.terms[0].states["net"].items()} == addresses


# Windows: `from` and `until`.


# Twelve updates: three epochs of two in phase 0, then three in phase 1.
CLOCKS = [Clock(updates=n, epochs=n // 2, phase=int(n > 6)) for n in range(1, 13)]


END = Clock(updates=12, epochs=6, phase=2)


def windowed(network: Any, method: str = "l2", **window: str) -> Penalties:
    rows = [row(method) | window]
    units = ("updates", "epochs", "phase")
    run = {"total": "12 updates", "units": units, "horizon": END}
    return Penalties(rows, {network.name: network}, **run)


WINDOWS: list[tuple[dict[str, str], range]] = [
    ({"from": "3 updates"}, range(3, 13)),
    ({"until": "3 updates"}, range(1, 4)),
    ({"from": "25%", "until": "50%"}, range(3, 7)),
    ({"from": "phase 1"}, range(7, 13)),
    ({"until": "phase 0"}, range(1, 7)),
    ({"from": "phase 1", "until": "9 updates"}, range(7, 10)),
    ({"from": "1 epochs", "until": "2 epochs"}, range(2, 6)),  # while the counter is 1 or 2
    ({"from": "0%"}, range(1, 13)),
    ({"until": "100%"}, range(1, 13)),
]


def test_term_is_in_the_updates_that_an_every_update_hook_fires_in() -> None:
    for window, updates in WINDOWS:
        network, _ = moved("mlp")
        found = windowed(network, **window)
        open_at = [c.updates for c in CLOCKS if found.of("net", clock=c) is not None]
        assert open_at == list(updates), window
        hook = {"method": "swr", "every": "1 updates"} | window
        hooks = Hooks([hook], network, "12 updates", horizon=END)
        fired = []
        for clock in CLOCKS:
            hooks.after_update(clock)
            fired += [clock.updates] * len(hooks.flush(clock))
        assert fired == list(updates), window


def test_outside_its_window_a_term_is_no_part_of_the_loss_and_counts_as_zero() -> None:
    network, _ = moved("mlp")
    found, always = windowed(network, until="1 updates"), windowed(network)
    loss = torch.ones((), requires_grad=True)
    inside = found.add("net", loss, clock=CLOCKS[0])
    assert torch.equal(inside, always.add("net", loss))
    assert found.add("net", loss, clock=CLOCKS[1]) is loss
    assert found.metrics(2)["train/penalty"] == pytest.approx(float(inside.detach() - 1) / 2)
    assert found.add("net", loss, clock=CLOCKS[2]) is loss
    assert found.metrics(1) == {"train/penalty": 0.0}
    later = windowed(network, **{"from": "2 updates"})
    for clock, logged in ((CLOCKS[0], False), (CLOCKS[1], True)):  # not before it begins
        later.add("net", loss, clock=clock)
        assert bool(later.metrics(1)) is logged
    rows = [row("l2") | {"from": "2 updates"}, row("parseval")]  # the closed one leaves the other
    found = Penalties(rows, {"net": network}, total="12 updates")
    for clock, expected in zip(CLOCKS, (rows[1:], [row("l2"), row("parseval")]), strict=False):
        term: Any = Penalties(expected, {"net": network}).of("net")
        assert torch.equal(found.of("net", clock=clock), term)  # type: ignore[arg-type]


def test_the_plan_of_a_penalty_runs_outside_its_window_too() -> None:
    made = subject("mlp", updates=0)
    window = {"from": "3 updates", "until": "4 updates"}
    found = Penalties([row("spectral") | window], {"net": made.network}, total="6 updates")
    hooks = Hooks([], made.network, "6 updates", penalties=found)
    moves = []
    for update in range(1, 7):
        made.update()
        before = copy.deepcopy(found.terms[0].states["net"])
        hooks.step(updates=update)
        if any(not torch.equal(before[n], t) for n, t in found.terms[0].states["net"].items()):
            moves.append(update)
    assert moves == list(range(1, 7))


def test_windows_that_can_never_be_open_or_of_a_run_of_no_length_are_refused() -> None:
    network, _ = moved("mlp")
    for window, message in (
        ({"from": "12 updates"}, r"\(l2\)\.from"),
        ({"from": "phase 2"}, r"\(l2\)\.from"),
        ({"from": "5 updates", "until": "4 updates"}, "until = 4 .*from = 5"),
        ({"until": "0%"}, "never"),
        ({"from": "3 tokens"}, "tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            windowed(network, **window)
    rows = [row("l2") | {"until": "0 env_steps"}]
    with pytest.raises(ConfigError, match=r"\(l2\)\.until"):
        Penalties(rows, {"net": network}, total="100 env_steps")
    rows = [row("l2") | {"from": "3 updates"}]
    with pytest.raises(ConfigError, match="from and until"):
        Penalties(rows, {"net": network})
    found = Penalties(rows, {"net": network}, total="12 updates")
    with pytest.raises(ConfigError, match=r"\(l2\).*clock"):
        found.add("net", torch.ones(()))


SECOND_STAGE = [
    {"method": "parseval", "from": "phase 1", "params": {"coef": 1e-2}},
    {"method": "spectral", "from": "phase 1", "until": "20 updates"},
]


def weights_after(*steps: int, **changes: Any) -> list[dict[str, torch.Tensor]]:
    """Return the weights of a run after some of its steps."""
    trainer: Any = build(api.read_config(small_supervised(**changes)))[0]
    found = []
    for step in range(1, max(steps) + 1):
        trainer.step()
        if step in steps:
            found.append(copy.deepcopy(trainer.model.state_dict()))
    return found


def test_a_penalty_from_phase_1_leaves_phase_0_as_it_is_without() -> None:
    # Phase 0 has 12 updates; the start of phase 1 is a step of its own.
    runs = (weights_after(13, 14, penalties=rows) for rows in (SECOND_STAGE, []))
    equal = [
        all(torch.equal(tensor, other[name]) for name, tensor in one.items())
        for one, other in zip(*runs, strict=True)
    ]
    assert equal == [True, False]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_a_windowed_penalty_trains_compiled_as_it_does_eager() -> None:
    [eager], [compiled] = (
        weights_after(16, penalties=SECOND_STAGE, accelerate=how) for how in ("off", "compile")
    )
    for name, tensor in eager.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-3, atol=1e-4)
