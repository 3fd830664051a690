import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplast.core.clock import UNITS, Clock, Time
from rlplast.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("250k env_steps", 250_000, "env_steps"),
        ("1M updates", 1_000_000, "updates"),
        ("2B tokens", 2_000_000_000, "tokens"),
        ("1.5k updates", 1500, "updates"),
        ("1.001k updates", 1001, "updates"),  # 1.001 * 1000 is 1000.9999999999999
        ("1e6 frames", 1_000_000, "frames"),
        ("2.5e-1k updates", 250, "updates"),
        ("1_000 updates", 1000, "updates"),
        ("1 update", 1, "updates"),
        ("1 epoch", 1, "epochs"),
        ("phase 1", 1, "phase"),
        ("1 phase", 1, "phase"),
        ("0 updates", 0, "updates"),
        ("  50updates ", 50, "updates"),
        ("50%", 50.0, "%"),
        ("12.5 %", 12.5, "%"),
        ("0%", 0.0, "%"),
    ],
)
def test_times_are_read_exactly(text: str, value: float, unit: str) -> None:
    time = Time.parse(text)
    assert (time.value, time.unit) == (value, unit)
    assert unit == "%" or isinstance(time.value, int)


NO_TIMES = (
    *("", "50", "updates", "-5 updates", "0.5 updates", "1.0001k updates", "1_ updates"),
    *("1__0 updates", "1e400 updates", "1e-400 updates", "five updates", "50 % of updates"),
    *(f"{10**400} updates", f"{10**400}%", f"{10**400} upd", "2e18 updates"),
    *("1,000 updates", "1 000 updates", "0x10 updates", "10 K updates", "nan%", "inf%"),
    *(5, None, [], True, 10**4000),
)


def test_what_is_no_time_is_refused_by_name() -> None:
    for text in NO_TIMES:
        with pytest.raises(ConfigError, match=r"hooks\[0\]\.at = ") as refusal:
            Time.parse(text, "hooks[0].at")  # type: ignore[arg-type]
        assert len(str(refusal.value)) < 250


def test_refusal_names_the_nearest_unit() -> None:
    with pytest.raises(ConfigError, match="unit 'env_step_': did you mean 'env_steps'"):
        Time.parse("5 env_step_")
    with pytest.raises(ConfigError, match=r"units: %, updates, env_steps, frames, episodes"):
        Time.parse("250k")


@given(st.integers(0, 10**12), st.sampled_from(["", "k", "M", "B"]), st.sampled_from(UNITS))
def test_every_whole_number_is_read_back_from_any_multiplier(
    count: int, multiplier: str, unit: str
) -> None:
    power = {"": 0, "k": 3, "M": 6, "B": 9}[multiplier]
    digits = str(count).rjust(power + 1, "0")
    text = f"{digits[: len(digits) - power]}.{digits[len(digits) - power :]}".rstrip(".")
    assert Time.parse(f"{text}{multiplier} {unit}") == Time(count, unit)


@given(st.integers(0, 10**12), st.sampled_from(UNITS))
def test_text_of_a_time_is_read_back(count: int, unit: str) -> None:
    time = Time(count, unit)
    assert Time.parse(str(time)) == time
    assert Time.parse(time) is time


@pytest.mark.parametrize("percent", [0.0, 12.5, 33.3333333, 0.0001234, 100.0])
def test_text_of_a_percentage_is_read_back(percent: float) -> None:
    assert Time.parse(str(Time(percent, "%"))) == Time(percent, "%")


def test_percentages_resolve_against_the_total_once() -> None:
    total = Time(200_000, "env_steps")
    assert Time.parse("50%").resolve(total) == Time(100_000, "env_steps")
    assert Time.parse("33.333%").resolve(total) == Time(66_666, "env_steps")
    assert Time.parse("7 updates").resolve(total) == Time(7, "updates")
    assert isinstance(Time.parse("33.333%").resolve(total).value, int)
    with pytest.raises(ConfigError, match="total = 50%: allowed is a number with a unit"):
        Time.parse("10%").resolve(Time(50, "%"))


def test_clock_only_grows_by_what_it_is_given() -> None:
    clock = Clock(updates=3, env_steps=10)
    later = clock.advance(updates=1, frames=4)
    assert later == Clock(updates=4, env_steps=10, frames=4)
    assert clock == Clock(updates=3, env_steps=10)
    assert {unit: later[unit] for unit in UNITS} == dataclasses.asdict(later)
    with pytest.raises(AttributeError):
        clock.advance(steps=1)


@pytest.mark.parametrize("count", [None, "3", 1.0, -1, True])
def test_saved_count_that_is_no_whole_number_is_refused_by_its_unit(count: Any) -> None:
    assert Clock.saved({"updates": 3, "phase": 0}) == Clock(updates=3)
    with pytest.raises(ValueError, match="the clock's frames = "):
        Clock.saved({"updates": 3, "frames": count})
