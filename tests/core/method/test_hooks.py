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
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from rlplast.core.registry import get
from rlplast.core.rng import torch_stream
from tests.cases import CASES
from tests.models import assert_same, subject

RESET = {"method": "full_reset"}


def network_of(module: nn.Module | None = None, name: str = "net") -> Network:
    module = nn.Linear(3, 2) if module is None else module
    return Network(name, module, torch.optim.SGD(module.parameters(), lr=0.1))


def fired_at(config: dict[str, Any], steps: range, unit: str = "updates") -> list[tuple[int, int]]:
    hooks = Hooks([RESET | config], network_of(), f"100 {unit}")
    found = []
    for count in steps:
        found += [(r.clock[unit], r.crossings) for r in hooks.step(**{unit: count})]
    return found


def test_hook_fires_at_its_update_in_a_hand_written_loop() -> None:
    assert fired_at({"at": "50%"}, range(1, 101)) == [(50, 1)]
    assert fired_at({"at": ["25%", "50 updates"]}, range(1, 101)) == [(25, 1), (50, 1)]
    assert fired_at({"at": "0%"}, range(0, 5)) == [(0, 1)]  # the first clock
    assert fired_at({"at": "0%"}, range(1, 5)) == [(1, 1)]
    assert fired_at({"every": "30 updates"}, range(1, 101)) == [(30, 1), (60, 1), (90, 1)]
    between = {"every": "10 updates", "from": "25 updates", "until": "40 updates"}
    assert fired_at(between, range(1, 101)) == [(30, 1), (40, 1)]


def test_jumps_count_the_points_they_cross_and_nothing_fires_at_the_end_or_after_it() -> None:
    every = {"every": "10 env_steps"}
    assert fired_at(every, range(0, 101, 25), "env_steps") == [(25, 2), (50, 3), (75, 2), (100, 2)]
    assert fired_at({"every": "50%"}, range(0, 121)) == [(50, 1)]
    gated = {"every": "20 updates", "from": "30%"}
    assert fired_at(gated, range(0, 121)) == [(40, 1), (60, 1), (80, 1)]


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


def test_summary_receipt_sums_logs_of_factors() -> None:
    module = nn.Sequential(nn.Linear(3, 3, bias=False))
    network = network_of(module)
    with torch.no_grad():
        module.get_parameter("0.weight").mul_(2)
    half = {"method": "swr", "every": "1 updates", "params": {"coef": 0.5}}
    hooks = Hooks([half], network, "10 updates")
    hooks.step(updates=2)
    [receipt] = hooks.flush(Clock(updates=2))
    # norms 2 → 1.5 → 1.25 of the initial one
    assert receipt.log_factor == pytest.approx(torch.tensor(1.25 / 2).log().item(), rel=1e-5)
    norm = float(network.initial["0.weight"].norm())
    assert receipt.sfe == pytest.approx(norm**2 * (0.5**2 + 0.25**2), rel=1e-5)


def test_each_firing_draws_anew_from_seed_and_number() -> None:
    def draws(period: int, seed: int) -> list[torch.Tensor]:
        network = network_of()
        hooks = Hooks([RESET | {"every": f"{period} updates"}], network, "10 updates", seed)
        weights = []
        for update in range(1, 5):
            hooks.step(updates=update)
            weights.append(network.blocks[0].view.clone())
        return weights

    for period in (1, 2):
        first, again = draws(period, 0), draws(period, 0)
        assert not torch.equal(first[1], first[3])
        assert all(torch.equal(first[u], again[u]) for u in (1, 2, 3))
        assert not torch.equal(first[3], draws(period, 1)[3])
        key = f"full_reset every={period} updates"
        generator = torch_stream(0, "hook", key, "net", 4 // period)
        law = network_of()
        assert torch.equal(first[3], law.fresh(law.blocks[0], generator))


def test_loop_goes_on_after_a_restart_where_it_was() -> None:
    def run(restart: int | None) -> tuple[list[Any], dict[str, torch.Tensor]]:
        made = subject("mlp", updates=0)
        configs = [
            {"method": "shrink_perturb", "every": "3 updates", "params": {"init": "fresh"}},
            {"method": "swr", "every": "1 updates", "params": {"coef": 0.1}},
        ]
        hooks = Hooks(configs, made.network, "100 updates", seed=4)
        receipts: list[Any] = []
        for update in range(1, 11):
            made.update()
            receipts += hooks.step(updates=update)
            if update == restart:
                saved = copy.deepcopy(hooks.state_dict())
                hooks = Hooks(configs, made.network, "100 updates", seed=4)
                hooks.load_state_dict(saved)
        receipts += hooks.flush(Clock(updates=10))
        return [(r.method, r.sfe, r.firings, r.clock) for r in receipts], made.snapshot()

    whole, weights = run(None)
    for restart in (1, 3, 7):
        again, same = run(restart)
        assert again == whole
        assert_same(weights, same)


def test_methods_state_is_restored_into_its_own_tensors() -> None:
    params = {"coef": 0.5, "reanchor_on_lr_decay": True}
    config = {"method": "swr", "every": "1 updates", "params": params}
    made = subject("mlp")
    hooks = Hooks([config], made.network, "100 updates")
    hooks.step(updates=1)
    made.optimizer.param_groups[0]["lr"] /= 10
    hooks.step(updates=2)  # anchors are now the norms of update 2
    saved = copy.deepcopy(hooks.state_dict())
    again = Hooks([config], made.network, "100 updates")
    tensors = again.hooks[0].states["net"]
    addresses = {n: t.data_ptr() for n, t in tensors.items()}
    again.load_state_dict(saved)
    assert_same(hooks.hooks[0].states["net"], again.hooks[0].states["net"])
    assert {n: t.data_ptr() for n, t in again.hooks[0].states["net"].items()} == addresses
    start = torch.stack([made.network.initial[f"{i}.weight"].norm() for i in (0, 2, 4)])
    assert not torch.allclose(tensors["anchor"], start)


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
    ({"at": "50%", "scope": "vit"}, "fire .*'net'"),
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


def test_another_row_of_the_same_method_moves_no_draw() -> None:
    def drawn(rows: list[dict[str, Any]]) -> torch.Tensor:
        network = network_of()
        hooks = Hooks([RESET | row for row in rows], network, "100 updates")
        hooks.step(updates=60)
        return network.blocks[0].view.clone()

    never = {"every": "5 updates", "from": "90%"}
    assert torch.equal(drawn([never, {"at": "50%"}]), drawn([{"at": "50%"}]))


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
