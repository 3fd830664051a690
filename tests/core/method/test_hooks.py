"""Hooks in a hand-written loop: when and on what they fire, what they add up and tell."""

import copy
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile, NothingToEdit
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from rlplast.core.registry import get
from rlplast.core.rng import torch_stream
from rlplast.methods import recycling
from tests.cases import CASES
from tests.core.method.networks import networks
from tests.models import assert_same, build, subject
from tests.syncs import host_reads

RESET = {"method": "full_reset"}


def network_of(module: nn.Module | None = None, name: str = "net") -> Network:
    module = nn.Linear(3, 2) if module is None else module
    return Network(name, module, torch.optim.SGD(module.parameters(), lr=0.1))


pytestmark = pytest.mark.usefixtures("own_methods")


def fired_at(config: dict[str, Any], steps: range, unit: str = "updates") -> list[tuple[int, int]]:
    hooks = Hooks([RESET | config], network_of(), f"100 {unit}")
    found = [r for count in steps for r in hooks.step(**{unit: count})]
    return [(r.clock[unit], r.crossings) for r in found]


def test_a_hook_fires_where_its_schedule_says_and_not_at_the_end_or_after_it() -> None:
    whole = range(1, 121)
    between = {"every": "10 updates", "from": "25 updates", "until": "40 updates"}
    for config, steps, expected in (
        ({"at": ["25%", "50 updates"]}, whole, [(25, 1), (50, 1)]),
        ({"at": "0%"}, range(0, 5), [(0, 1)]),  # the first clock
        ({"at": "0%"}, range(1, 5), [(1, 1)]),
        ({"every": "30 updates"}, whole, [(30, 1), (60, 1), (90, 1)]),
        (between, whole, [(30, 1), (40, 1)]),
        ({"every": "50%"}, whole, [(50, 1)]),
    ):
        assert fired_at(config, steps) == expected, config
    jumps = fired_at({"every": "10 env_steps"}, range(0, 101, 25), "env_steps")
    assert jumps == [(25, 2), (50, 3), (75, 2), (100, 2)]


def test_step_refuses_counters_that_go_back_or_were_never_given() -> None:
    hooks = Hooks([{"method": "fire", "at": "50%"}], network_of(), "100 updates")
    hooks.step(updates=10)
    with pytest.raises(ConfigError, match=r"updates=9"):
        hooks.step(updates=9)
    with pytest.raises(ConfigError, match="'updates'"):
        hooks.step(update=9)
    never = Hooks([{"method": "fire", "at": "50 env_steps"}], network_of(), "100 updates")
    with pytest.raises(ConfigError, match="env_steps"):
        never.step(updates=10)
    # A unit given once keeps its value when it is left out.
    never.step(updates=10, env_steps=40)
    assert [r.clock.env_steps for r in never.step(env_steps=60)] == [60]
    assert never.clock is not None and never.clock.updates == 10


def test_firings_happen_in_list_order_and_on_the_networks_named() -> None:
    networks = {"actor": network_of(name="actor"), "critic": network_of(name="critic")}
    configs = [
        {"method": "fire", "at": "50%", "networks": ["critic"]},
        {"method": "full_reset", "at": "50%"},
    ]
    receipts = Hooks(configs, networks, "10 updates").step(updates=5)
    assert [(r.method, r.network) for r in receipts] == [
        ("fire", "critic"),
        ("full_reset", "actor"),
        ("full_reset", "critic"),
    ]


def test_every_update_hook_acts_at_every_update_and_reports_once() -> None:
    made = subject("mlp")
    config = {"method": "swr", "every": "1 updates", "params": {"coef": 1.0}}
    hooks = Hooks([config], made.network, "100 updates")
    before = copy.deepcopy(made.module.state_dict())
    assert hooks.step(updates=3) == []  # three updates in one call
    anchors = {n: t.norm() for n, t in made.network.initial.items() if "weight" in n}
    for name, norm in anchors.items():
        torch.testing.assert_close(made.module.get_parameter(name).detach().norm(), norm)
    [receipt] = hooks.flush(Clock(updates=3))
    assert (receipt.firings, receipt.crossings, receipt.clock.updates) == (3, 3, 3)
    assert receipt.entries_touched == sum(p.numel() for p in made.module.parameters())
    assert receipt.sfe == pytest.approx(
        sum(float((t - before[n]).square().sum()) for n, t in made.module.state_dict().items()),
        rel=1e-4,
    )
    assert receipt.log_factor is not None
    assert (receipt.optimizer_policy, receipt.followers) == ("keep", {"target": "leave"})
    assert hooks.flush(Clock(updates=3)) == []
    hooks = Hooks([config | {"from": "3 updates"}], made.network, "100 updates")
    hooks.step(updates=5)  # of which three are in its window
    assert [r.firings for r in hooks.flush()] == [3]


def test_an_optimizer_that_may_undo_what_hooks_write_is_named_in_a_warning() -> None:
    package = pytest.importorskip("schedulefree")
    shrink = {"method": "shrink_perturb", "every": "1 updates"}
    rows = [shrink | {"params": {"shrink": 0.9, "noise": 0.0}}]

    def share_left(make: Callable[[Any], Any]) -> float:
        layer = nn.Linear(4, 4, bias=False)
        start, optimizer = layer.weight.detach().norm(), make(layer.parameters())
        getattr(optimizer, "train", lambda: None)()
        hooks = Hooks(rows, Network("net", layer, optimizer), "100 updates")
        for update in range(1, 21):
            layer(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            hooks.step(updates=update)
        return float(layer.weight.detach().norm() / start)

    assert share_left(partial(torch.optim.Adam, lr=1e-7)) == pytest.approx(0.9**20, rel=1e-3)
    with pytest.warns(UserWarning, match=r"hooks\[0\] \(shrink_perturb\) .* AdamWScheduleFree"):
        left = share_left(lambda p: package.AdamWScheduleFree(p, lr=1e-7))
    assert left > 2 * 0.9**20


def draws(rows: list[dict[str, Any]], seed: int = 0, until: int = 4) -> list[torch.Tensor]:
    """The first weights after each update of a run of 10."""
    network = network_of()
    hooks = Hooks([RESET | row for row in rows], network, "10 updates", seed)
    weights = []
    for update in range(1, until + 1):
        hooks.step(updates=update)
        weights.append(network.blocks[0].view.clone())
    return weights


def test_each_firing_draws_anew_from_seed_and_number_whatever_other_rows_there_are() -> None:
    for period in (1, 2):
        row = {"every": f"{period} updates"}
        first, again = draws([row]), draws([row])
        assert not torch.equal(first[1], first[3])
        assert all(torch.equal(first[u], again[u]) for u in (1, 2, 3))
        assert not torch.equal(first[3], draws([row], 1)[3])
        key = f"full_reset every={period} updates"
        generator = torch_stream(0, "hook", key, "net", 4 // period)
        law = network_of()
        assert torch.equal(first[3], law.fresh(law.blocks[0], generator))
    never = {"every": "3 updates", "from": "90%"}
    assert torch.equal(
        draws([never, {"at": "50%"}], until=6)[5], draws([{"at": "50%"}], until=6)[5]
    )


def test_next_due_is_the_nearest_scheduled_hook() -> None:
    configs = [
        RESET | {"at": ["20%", "80%"]},
        {"method": "fire", "every": "30 updates"},
        {"method": "swr", "every": "1 updates"},
        RESET | {"when": {"metric": "train/loss", "above": 1}},  # nobody knows when that is
    ]
    hooks = Hooks(configs, network_of(), "100 updates")
    due = [hooks.next_due(Clock(updates=u)) for u in (0, 20, 59, 79)]
    assert [(name, t.value) for name, t in (d for d in due if d)] == [
        ("full_reset", 20),
        ("fire", 30),
        ("fire", 60),
        ("full_reset", 80),
    ]
    assert Hooks([], network_of(), "100 updates").next_due(Clock()) is None


BAD_CONFIGS: list[tuple[dict[str, str], str]] = [
    ({"att": "50%"}, r"hooks\[0\].*'att'"),
    ({"at": "50%", "scope": "dqm"}, r"hooks\[0\] \(fire\)\.scope"),
    ({"at": "50%", "scope": "vit"}, r"fire\) .*'net'"),
    ({"at": "50%", "optimizer": "touch"}, "'touch'"),
    ({"every": "1 updates", "optimizer": "network"}, "'network'"),
    ({"at": "50%", "every": "5 updates"}, "at and every"),
    ({"at": "5 tokens"}, r"hooks\[0\] \(fire\) counts tokens"),
    ({"at": "100%"}, "end"),
]


def test_hooks_that_fit_no_run_are_refused_by_key() -> None:
    for keys, message in BAD_CONFIGS:
        with pytest.raises(ConfigError, match=message):
            Hooks([{"method": "fire", **keys}], network_of(), "100 updates", units=("updates",))
    for method, key in (("lifecycle", "replace_layers"), ("l2", "Penalties")):
        with pytest.raises(ConfigError, match=key):
            rlplast.apply(method, nn.Linear(3, 2))
    hooks = Hooks([{"method": "fire", "at": "50%"}], network_of(), "9 updates")
    calls: list[Callable[[], Any]] = [
        lambda: Hooks([], network_of(), "50%"),
        lambda: hooks.step(updates=math.inf),
        lambda: hooks.step(updates=-1),
        lambda: hooks.observe({"a": "x"}),  # type: ignore[dict-item]
        lambda: hooks.load_state_dict({"clock": {"a": 1}}),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="allowed"):
            call()


def test_keys_name_the_method_and_its_schedule() -> None:
    configs = [
        {"method": "fire", "every": "1 updates"},
        {"method": "swr", "at": "50%"},
        {"method": "swr", "at": "50%", "optimizer": "touched"},
        {"method": "fire", "on": "phase_start", "from": "phase 1"},
        {"method": "swr", "every": "5 updates", "from": "20%", "until": "50%", "when": None},
    ]
    assert [h.key for h in Hooks(configs, network_of(), "100 updates").hooks] == [
        "fire every=1 updates",
        "swr at=50%",
        "swr at=50% #2",
        "fire on=phase_start from=phase 1",
        "swr every=5 updates from=20% until=50%",
    ]


def test_apply_needs_initial_weights_where_the_method_returns_to_them() -> None:
    module = nn.Linear(3, 2)
    for method, scope in (("shrink_perturb", "all"), ("fire", "dqn")):
        with pytest.raises(ConfigError, match=method):
            rlplast.apply(method, module, scope=scope)
    initial = copy.deepcopy(module.state_dict())
    with torch.no_grad():
        module.weight.mul_(3)
    rlplast.apply("shrink_perturb", module, initial=initial, coef=1.0)
    assert_same(dict(initial), dict(module.state_dict()))


PLAIN = ("dash", "fire", "full_reset", "head_reset", "redo", "regrama", "shrink_perturb", "swr")


def test_a_plain_function_is_apply_and_shows_the_parameters_of_its_method() -> None:
    for method in PLAIN:
        plain, case = getattr(rlplast, method), CASES[method]
        signature = inspect.signature(plain).parameters
        for name, row in get("methods", method).params.items():
            assert signature[name].default == row["default"]
        assert list(signature)[:2] == ["model", "optimizer"]
        assert {"scope", "target", "initial", "seed", "inputs", "loss"} < set(signature)
        one, two = subject("mlp"), subject("mlp")
        options = {"inputs": one.x[:4], "seed": 3, **case.params}
        for function, made in ((plain, one), (partial(rlplast.apply, method), two)):
            function(made.network, loss=lambda x, m=made: m.module(x).square().mean(), **options)
        assert_same(one.snapshot(), two.snapshot())


def test_plain_functions_treat_optimizer_and_target() -> None:
    made = subject("mlp")
    target = copy.deepcopy(made.follower)
    receipt = rlplast.fire(made.module, made.optimizer, target=target, iterations=5)
    assert_same(dict(made.module.state_dict()), dict(target.state_dict()))
    assert not any(t.any() for n, t in made.state().items() if ":" in n)
    assert (receipt.network, receipt.followers) == ("model", {"target": "copy"})


def test_state_of_a_hook_on_other_networks_is_refused_before_anything_is_copied() -> None:
    def hooks(name: str) -> Hooks:
        networks = {key: network_of(name=key) for key in ("a", "b")}
        return Hooks([{**RESET, "every": "2 updates", "networks": [name]}], networks, "10 updates")

    with pytest.raises(DamagedFile, match="hook list"):
        hooks("b").load_state_dict(hooks("a").state_dict())


def test_networks_with_nothing_to_edit_are_left_out_unless_named() -> None:
    config = {"method": "head_reset", "every": "1 updates"}
    hooks = Hooks([config], networks(), "10 updates")
    hooks.step(updates=1)
    assert [n.name for n in hooks.hooks[0].networks] == ["actor", "critic"]
    assert [r.network for r in hooks.flush()] == ["actor", "critic"]
    for named in (["temperature"], ["actor", "temperature"]):
        with pytest.raises(NothingToEdit, match=r"head_reset .*'temperature'"):
            Hooks([config | {"networks": named}], networks(), "10 updates")
    with pytest.raises(NothingToEdit, match="'temperature'"):
        Hooks([config], {"temperature": networks()["temperature"]}, "10 updates")
    row = {"method": "fire", "at": "50%", "scope": "dqn"}  # of an MLP it would be a reset alone
    with pytest.raises(NothingToEdit, match="scope selects no trainable layer"):
        Hooks([row], Network("net", build("mlp")), "10 updates")
    with pytest.raises(ConfigError, match=r"head_reset\.layers.*actor"):  # nor other mistakes
        Hooks([config | {"params": {"layers": 4}}], networks(), "10 updates")


def test_receipts_tell_the_counters_of_a_firing_or_of_all_updates_since_the_last() -> None:
    made, h = subject("mlp"), {"0": torch.ones(4, 6), "2": torch.ones(4, 6)}
    rows = [
        {"method": "redo", "every": "2 updates", "params": {"threshold": 1e9}},
        {"method": "cbp", "every": "1 updates", "params": {"replacement_rate": 1, "maturity": 0}},
    ]
    hooks = Hooks(rows, made.network, "10 updates", probe=made.x)
    receipts = [r for update in range(1, 5) for r in hooks.step(updates=update, activations=h)]
    assert [r.units for r in receipts] == [{"0": 6, "2": 6}] * 2
    for update, firings in ((4, 4), (5, 1)):
        hooks.step(updates=update, activations=h)
        [receipt] = hooks.flush(Clock(updates=update))
        assert receipt.units == {"0": 6 * firings, "2": 6 * firings}


def test_an_update_with_hooks_and_ticks_waits_for_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recycling, "by_rows", lambda mask: False)  # which is asked on a CPU only
    made = subject("mlp")
    rlplast.replace_layers(made.module, life=[2, 3], recovery=[2, 3], clear_moments=True)
    network = Network("net", made.module, made.optimizer)
    rows = [{"method": m, "every": "1 updates"} for m in ("weight_clip", "swr")]
    hooks = Hooks(rows, network, "100 updates")
    with host_reads() as found:
        for update in range(1, 9):
            hooks.step(updates=update)
    assert found == []


def test_a_network_of_which_nothing_trains_may_tick() -> None:
    module = build("mlp").requires_grad_(False)
    rlplast.replace_layers(module, life=[5, 5])
    network = Network("net", module)
    Hooks([], network, "10 updates").step(updates=2)
    layer: Any = module.get_submodule("0")
    assert (layer.life == 3).all()


def test_ticks_come_before_all_hooks_and_leave_no_receipt() -> None:
    module = build("mlp")
    rlplast.replace_layers(module, life=[5, 5], recovery=[2, 2])
    network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    rows = [{"method": "swr", "every": "1 updates"}, {"method": "fire", "at": "50%"}]
    hooks = Hooks(rows, network, "20 updates")
    keys = ["layers/0 lifecycle", "swr every=1 updates", "fire at=50%"]
    assert [h.key for h in hooks.hooks] == keys
    assert [h.key for h in hooks.every_update] == keys[:2]
    receipts = [r for update in range(1, 20) for r in hooks.step(updates=update)] + hooks.flush()
    assert [r.method for r in receipts] == ["fire", "swr"]
    with host_reads() as found:
        assert hooks.flush() == []
    assert found == ["tolist"] * 2  # one per hook and network
