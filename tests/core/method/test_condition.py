from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.condition import Condition, Measured
from rlplast.core.method.schedule import Schedule

TOTAL = Time(200, "updates")


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


def test_bare_name_is_read_for_each_network_and_a_key_for_all() -> None:
    bare = parse(metric="dormant_ratio", above=0.3)
    assert [bare.key(n) for n in ("q", "critic")] == [
        "metric/dormant_ratio/q",
        "metric/dormant_ratio/critic",
    ]
    key = parse(metric="metric/weight_norm/q/fc1.weight", above=0.3)
    assert {key.key(n) for n in ("q", "critic")} == {"metric/weight_norm/q/fc1.weight"}


def test_cooldown_is_counted_on_the_clock_and_percentages_on_the_total() -> None:
    condition = parse(metric="train/loss", above=0, cooldown="5%")
    assert condition.cooldown == Time(10, "updates")
    last = Clock(updates=7, env_steps=100)
    assert condition.rested(None, last)
    rested = [u for u in range(7, 40) if condition.rested(last, Clock(updates=u, env_steps=999))]
    assert rested == list(range(17, 40))
    assert parse(metric="train/loss", above=0).rested(last, last)


def test_text_is_the_same_however_the_condition_was_written() -> None:
    mapping = {"cooldown": "5%", "above": 1, "metric": "train/loss", "below": None}
    assert str(Condition.parse(mapping, TOTAL)) == (
        "{metric: train/loss, above: 1.0, cooldown: 10 updates}"
    )
    assert str(parse(metric="srank", below=3.5)) == "{metric: srank, below: 3.5}"


LOSS = {"metric": "train/loss"}


def test_conditions_that_are_wrong_are_refused() -> None:
    cases: list[tuple[Any, str]] = [
        ("dormant_ratio > 0.3", r"s\.when"),
        ({"above": 1}, "metric"),
        (LOSS, "threshold"),
        (LOSS | {"above": None}, "threshold"),
        (LOSS | {"above": 1, "below": 2}, "above and below"),
        (LOSS | {"above": "1"}, r"s\.when\.above"),
        (LOSS | {"above": True}, r"s\.when\.above"),
        (LOSS | {"below": float("nan")}, r"s\.when\.below"),
        (LOSS | {"below": float("-inf")}, r"s\.when\.below"),
        (LOSS | {"above": 1, "cooldown": "201 updates"}, r"s\.when\.cooldown"),
        ({"metric": "dormant_ration", "above": 1}, "'dormant_ration' .*'dormant_ratio'"),
        ({"metric": "time/seconds", "above": 1}, "'time/seconds'"),
    ]
    for when, message in cases:
        with pytest.raises(ConfigError, match=message):
            Schedule.parse({"when": when}, TOTAL, "s")


def test_condition_is_a_rule_that_goes_with_from_and_until() -> None:
    when = LOSS | {"above": 1, "cooldown": "100%"}
    gated = Schedule.parse({"when": when, "from": "10%", "until": "1k env_steps"}, TOTAL)
    assert gated.units() == {"updates", "env_steps"}
    assert Schedule.parse({"when": LOSS | {"above": 1, "cooldown": "3 epochs"}}, TOTAL).units() == {
        "epochs"
    }
    with pytest.raises(ConfigError, match="has every and when: exactly one"):
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
        ("dfi", ["metric/dfi/q/fc1.weight", "metric/dfi/q/fc2.weight"], r"q/fc1\.weight'"),
        ("srank", ["metric/srank/actor"], "metric/srank/actor"),
        ("metric/dfi/q/fc3.weight", ["metric/dfi/q/fc1.weight"], r"q/fc1\.weight'"),
        ("eval/acuracy", ["eval/loss", "eval/accuracy"], "'eval/accuracy'"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(metric=metric, above=0).check_found(dict.fromkeys(values, 1.0), networks, "w")
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
