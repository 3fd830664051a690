from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rlplast
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.condition import Condition, Measured
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream

TOTAL = Time(200, "updates")


LOSS = {"metric": "train/loss"}


def parse(**config: Any) -> Condition:
    return Condition.parse(config, TOTAL)


@given(st.floats() | st.none(), st.floats(allow_nan=False, allow_infinity=False))
def test_holds_is_a_strict_comparison_that_nothing_and_not_a_number_fail(
    value: float | None, threshold: float
) -> None:
    above, below = (
        parse(metric="train/loss", above=threshold),
        parse(metric="train/loss", below=threshold),
    )
    number = value is not None and value == value
    assert above.holds(value) == (number and value > threshold)  # type: ignore[operator]
    assert below.holds(value) == (number and value < threshold)  # type: ignore[operator]


def test_cooldown_is_counted_on_the_clock_and_percentages_on_the_total() -> None:
    condition = parse(metric="train/loss", above=0, cooldown="5%")
    assert condition.cooldown == Time(10, "updates")
    last = Clock(updates=7, env_steps=100)
    assert condition.rested(None, last)
    rested = [u for u in range(7, 40) if condition.rested(last, Clock(updates=u, env_steps=999))]
    assert rested == list(range(17, 40))
    assert parse(metric="train/loss", above=0).rested(last, last)
    assert str(condition) == "{metric: train/loss, above: 0.0, cooldown: 10 updates}"


def test_conditions_that_are_wrong_are_refused() -> None:
    cases: list[tuple[Any, str]] = [
        ("dormant_ratio > 0.3", r"s\.when"),
        ({"above": 1}, "metric"),
        (LOSS, "threshold"),
        (LOSS | {"above": None}, "threshold"),
        (LOSS | {"above": 1, "below": 2}, "threshold"),
        (LOSS | {"below": float("nan")}, r"s\.when\.below"),
        (LOSS | {"above": 1, "cooldown": "201 updates"}, r"s\.when\.cooldown"),
        ({"metric": "dormant_ration", "above": 1}, "'dormant_ration' .*'dormant_ratio'"),
        ({"metric": "time/seconds", "above": 1}, "'time/seconds'"),
    ]
    for when, message in cases:
        with pytest.raises(ConfigError, match=message):
            Schedule.parse({"when": when}, TOTAL, "s")
    when = LOSS | {"above": 1, "cooldown": "3 epochs"}
    gated = Schedule.parse({"when": when, "from": "10%", "until": "1k env_steps"}, TOTAL)
    assert gated.units() == {"updates", "env_steps", "epochs"}
    with pytest.raises(ConfigError, match="every and when"):
        Schedule.parse({"when": when, "every": "10%"}, TOTAL)


SOME = Measured(metrics=("dormant_ratio", "srank"), evaluate=True)


def test_what_the_run_never_measures_is_refused_with_what_to_add() -> None:
    ours = "dormant_ratio", "metric/srank/q", "metric/srank/critic/[0]", "eval/accuracy", "train/x"
    for metric in ours:
        parse(metric=metric, above=0).check(SOME, ["q", "critic"])
    for metric, measured, message in (
        ("weight_norm", SOME, r"add 'weight_norm' to metrics\.names"),
        ("dormant_ratio", Measured(None, True), r"metrics\.every"),
        ("metric/srank/q", Measured(None, True), r"metrics\.every"),
        ("metric/weight_norm/q", SOME, r"add 'weight_norm' to metrics\.names"),
        ("metric/srank/p", SOME, "'metric/srank/p' .*metric/srank/q"),
        ("metric/srank", SOME, "'metric/srank' .*metric/srank/q"),
        ("eval/accuracy", Measured(None, False), r"evaluate\.every"),
        ("evla/accuracy", SOME, "'eval/accuracy'"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(metric=metric, above=0).check(measured, ["q"], "w")


def test_value_whose_like_is_measured_and_it_is_not_is_an_error() -> None:
    networks = ["q", "temperature"]
    for metric, values, message in (
        ("dfi", ["metric/dfi/q/fc1.weight", "metric/dfi/q/fc2.weight"], r"q/fc[12]\.weight'"),
        ("srank", ["metric/srank/actor"], "metric/srank/actor"),
        ("metric/dfi/q/fc3.weight", ["metric/dfi/q/fc1.weight"], r"q/fc1\.weight'"),
        ("eval/acuracy", ["eval/loss", "eval/accuracy"], "'eval/accuracy'"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(metric=metric, above=0).check_found(dict.fromkeys(values, 1.0), networks, "w")
    parse(metric="dfi", above=0).check_found({"metric/dfi/q": 1.0}, [], "w")  # all of it is frozen
    later: list[tuple[str, list[str]]] = [
        ("srank", ["metric/srank/q", "metric/srank/q/fc1"]),  # and nothing of the temperature
        ("srank", ["metric/weight_norm/q"]),  # no data to probe with yet
        ("metric/srank/q/x", ["metric/weight_norm/q"]),
        ("eval/accuracy", ["train/loss", "metric/srank/q"]),  # no evaluation was due
        ("train/return", ["train/loss"]),  # no episode has ended
        ("train/return", []),
    ]
    for metric, values in later:
        parse(metric=metric, above=0).check_found(dict.fromkeys(values, 1.0), networks, "w")


# Hooks with a condition, in a hand-written loop.


RESET = {"method": "full_reset"}
HIGH = LOSS | {"above": 1}


def network_of(name: str = "net") -> Network:
    module = nn.Linear(3, 2)
    return Network(name, module, torch.optim.SGD(module.parameters(), lr=0.1))


def fired_at(hook: dict[str, Any], losses: dict[int, float]) -> list[int]:
    """Return the updates at which a hook fires if these losses are measured there."""
    hooks = Hooks([RESET | hook], network_of(), "100 updates")
    found = []
    for update in range(1, 101):
        assert hooks.step(updates=update) == []
        if update in losses:
            found += hooks.observe({"train/loss": losses[update]})
    return [r.clock.updates for r in found]


def test_cooldown_from_until_and_the_end_of_the_run_bound_the_firings() -> None:
    always = dict.fromkeys(range(3, 100, 3), 2.0)
    for when, losses, expected in (
        ({"when": HIGH | {"cooldown": "25%"}}, always, [3, 30, 57, 84]),
        # It does not fire there: nothing rests from then.
        ({"when": HIGH | {"cooldown": "25%"}}, always | {30: 0.0, 33: 0.0}, [3, 36, 63, 90]),
        ({"when": HIGH | {"cooldown": "100%"}}, always, [3]),
        ({"when": HIGH, "from": "21%", "until": "30%"}, always, [21, 24, 27, 30]),
        ({"when": HIGH, "from": "92%"}, always, [93, 96, 99]),
    ):
        assert fired_at(when, losses) == expected
    hooks = Hooks([RESET | {"when": HIGH}], network_of(), "100 updates")
    [receipt] = hooks.observe({"train/loss": 2.0}, Clock(updates=1))
    assert (receipt.crossings, receipt.clock) == (1, Clock(updates=1))
    assert hooks.observe({"eval/loss": 2.0}, Clock(updates=2)) == []  # the value fired once
    assert hooks.step(updates=3) == hooks.observe({"train/loss": 2.0}, Clock(updates=101)) == []


def test_a_bare_name_is_each_networks_own_value_and_a_key_that_of_all() -> None:
    networks = {name: network_of(name) for name in ("actor", "critic")}
    when = {"metric": "dormant_ratio", "above": 0.5, "cooldown": "10 updates"}
    hooks = Hooks([RESET | {"when": when}], networks, "100 updates")
    key = {"metric": "metric/dormant_ratio/actor", "above": 0.5}
    by_key = Hooks([RESET | {"when": key, "networks": ["critic"]}], networks, "100 updates")

    for update, actor, critic, expected in (
        (5, 0.1, 0.6, ["critic"]),
        (10, 0.6, 0.6, ["actor"]),  # the critic rests by itself
        (15, 0.6, 0.6, ["critic"]),
        (20, 0.6, 0.6, ["actor"]),
        (40, 0.6, 0.6, ["actor", "critic"]),
        (60, 0.5, 0.5, []),
    ):
        values = {"metric/dormant_ratio/actor": actor, "metric/dormant_ratio/critic": critic}
        clock = Clock(updates=update)
        assert [r.network for r in hooks.observe(values, clock)] == expected
        fired = [r.network for r in by_key.observe(values, clock)]
        assert fired == (["critic"] if actor > 0.5 else [])


def draws(seed: int, updates: list[int]) -> list[torch.Tensor]:
    network, found = network_of(), []
    hooks = Hooks([RESET | {"when": HIGH}], network, "100 updates", seed)
    for update in updates:
        assert hooks.observe({"train/loss": 2.0}, Clock(updates=update))
        found.append(network.blocks[0].view.clone())
    return found


def test_firings_draw_from_a_stream_named_by_their_number() -> None:
    early, late = draws(4, [1, 2, 3]), draws(4, [10, 40, 90])
    assert all(map(torch.equal, early, late))
    network = network_of()
    for number, drawn in enumerate(early, 1):
        key = "full_reset when={metric: train/loss, above: 1.0}"
        generator = torch_stream(4, "hook", key, "net", number)
        assert torch.equal(drawn, network.fresh(network.blocks[0], generator))
    both, drawn = {name: network_of(name) for name in ("actor", "critic")}, []
    when = {"metric": "dormant_ratio", "above": 0}
    for names in (("critic",), ("actor", "critic")):  # of its own firings, not of another network's
        hooks = Hooks([RESET | {"when": when}], {name: both[name] for name in names}, "9 updates")
        for update, name in enumerate(names, 1):
            hooks.observe({f"metric/dormant_ratio/{name}": 1.0}, Clock(updates=update))
        drawn.append(both["critic"].blocks[0].view.clone())
    assert torch.equal(*drawn)


def test_units_of_a_cooldown_have_to_be_counted_and_messages_count_the_rows_of_the_config() -> None:
    cool = RESET | {"when": HIGH | {"cooldown": "3 epochs"}}
    with pytest.raises(ConfigError, match=r"hooks\[0\].*epochs"):
        Hooks([cool], network_of(), "100 updates", units=("updates",))
    with pytest.raises(ConfigError, match="epochs"):
        Hooks([cool], network_of(), "100 updates").step(updates=1)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    rlplast.replace_layers(module)  # its ticks are hooks too, and come first
    network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    hook = {"method": "fire", "when": {"metric": "eval/acuracy", "above": 1}}
    hooks = Hooks([{"method": "fire", "at": "50%"}, hook], network, "10 updates")
    with pytest.raises(ConfigError, match=r"^hooks\[1\] \(fire\)\.when\.metric = 'eval/acuracy'"):
        hooks.check_found({"eval/accuracy": 1.0})
