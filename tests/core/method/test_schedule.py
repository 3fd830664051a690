import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.schedule import Schedule

TOTAL = 60


LOSS = {"metric": "train/loss", "above": 1}


def parse(config: dict[str, Any], total: str = f"{TOTAL} updates") -> Schedule:
    return Schedule.parse(config, Time.parse(total))


def naive_due(config: dict[str, Any], tick: int) -> int:
    """Return how many points of a schedule lie exactly at one tick; the slow twin."""
    at = config.get("at")
    if at is not None:
        return at.count(f"{tick} updates")
    period = int(config["every"].split()[0])
    start = int(config.get("from", "0 updates").split()[0])
    until = int(config.get("until", f"{TOTAL} updates").split()[0])
    first = int(config.get("first", config["every"]).split()[0])
    points = range(first, TOTAL + 1, period)
    return int(tick in points and start <= tick <= until)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    ticks = st.integers(0, TOTAL - 1)
    if draw(st.booleans()):
        return {"at": [f"{t} updates" for t in draw(st.lists(ticks, min_size=1, max_size=4))]}
    period = draw(st.integers(1, TOTAL))
    config = {"every": f"{period} updates"}
    if draw(st.booleans()):
        config["first"] = f"{draw(st.integers(1, period))} updates"
    if draw(st.booleans()):
        config["from"] = f"{draw(ticks)} updates"
    if draw(st.booleans()):
        start = int(config.get("from", "0").split()[0])
        config["until"] = f"{draw(st.integers(start, 2 * TOTAL))} updates"
    return config


def is_ever_due(config: dict[str, Any]) -> bool:
    return any(naive_due(config, tick) for tick in range(TOTAL + 1))


@settings(max_examples=50)
@given(configs(), st.sets(st.integers(1, TOTAL - 1)))
def test_crossings_and_due_points_are_those_of_the_naive_count(
    config: dict[str, Any], cuts: set[int]
) -> None:
    if not is_ever_due(config):
        with pytest.raises(ConfigError, match="it would never be due"):
            parse(config)
        return
    schedule = parse(config)
    # a run starts at clock 0, where `at 0%` is due, and jumps from cut to cut
    clocks = [None, *(Clock(updates=u) for u in (0, *sorted(cuts), TOTAL))]
    crossed = [schedule.crossings(a, b) for a, b in itertools.pairwise(clocks)]
    due = [naive_due(config, tick) for tick in range(TOTAL + 1)]
    expected = []
    for a, b in itertools.pairwise(clocks):
        assert b is not None
        expected.append(sum(due[0 if a is None else a.updates + 1 : b.updates + 1]))
    assert crossed == expected
    assert sum(crossed) == schedule.count(Clock(updates=TOTAL))
    assert schedule.crossings(clocks[1], clocks[1]) == 0
    for now in range(TOTAL):
        ahead = [t for t in range(now + 1, TOTAL + 1) if due[t]]
        found = schedule.next_due(Clock(updates=now))
        assert ahead == [] or found == Time(ahead[0], "updates")
        following = schedule.next_update(Clock(updates=now))
        assert following == (None if found is None else found.value)
        assert ahead != [] or found is None or found.value > TOTAL


def test_points_may_be_in_several_units() -> None:
    schedule = parse({"at": ["25%", "50%"]}, "200k env_steps")
    assert schedule.at == (Time(50_000, "env_steps"), Time(100_000, "env_steps"))
    schedule = parse({"at": ["5 epochs", "10 updates"]})
    assert schedule.units() == {"epochs", "updates"}
    assert schedule.crossings(Clock(updates=9, epochs=4), Clock(updates=10, epochs=4)) == 1
    assert schedule.crossings(Clock(updates=9, epochs=4), Clock(updates=10, epochs=5)) == 2
    schedule = parse({"at": ["3 episodes", "20 updates", "30 updates"]})  # which need no waiting
    assert [schedule.next_update(Clock(updates=n)) for n in (0, 19, 20, 30)] == [20, 20, 30, None]
    assert parse({"every": "4 episodes"}).next_update(Clock()) is None


def at(updates: int, **other: int) -> Clock:
    return Clock(updates=updates, **other)


def test_gate_in_another_unit_is_read_at_the_later_clock() -> None:
    schedule = parse({"every": "10 updates", "from": "phase 1", "until": "phase 2"})
    assert schedule.crossings(at(9), at(10)) == 0
    assert schedule.crossings(at(19, phase=1), at(20, phase=1)) == 1
    assert schedule.crossings(at(29, phase=2), at(30, phase=2)) == 1
    assert schedule.crossings(at(39, phase=3), at(40, phase=3)) == 0


def test_phase_start_fires_at_every_new_phase_and_not_at_the_first() -> None:
    schedule = parse({"on": "phase_start"})
    assert schedule.crossings(None, Clock()) == 0
    assert schedule.crossings(Clock(phase=0), Clock(phase=1)) == 1
    assert schedule.crossings(Clock(phase=1), Clock(phase=1, updates=50)) == 0
    assert schedule.crossings(Clock(phase=1), Clock(phase=3)) == 2
    late = parse({"on": "phase_start", "from": "30 updates"})
    assert late.crossings(Clock(phase=0, updates=20), Clock(phase=1, updates=21)) == 0
    assert late.crossings(Clock(phase=1, updates=30), Clock(phase=2, updates=31)) == 1


def test_every_update_is_a_period_of_one_update() -> None:
    for every in ("1 updates", "1 update", "2 updates", "1 env_steps"):
        assert parse({"every": every}).every_update is (every in ("1 updates", "1 update"))
    assert parse({"every": "50%"}, "2 updates").every_update
    assert not parse({"at": "1 updates"}).every_update


EARLIEST = [
    ({"at": ["50%", "25%"]}, ["15 updates"]),
    ({"at": ["3 epochs", "50%", "2 epochs"]}, ["2 epochs", "30 updates"]),
    ({"every": "20 updates"}, ["20 updates"]),
    ({"every": "20 updates", "first": "1 updates"}, ["1 updates"]),
    ({"every": "20 updates", "first": "1 updates", "from": "2 updates"}, ["21 updates"]),
    ({"every": "1 updates", "first": "1 updates"}, ["0 updates"]),
    ({"every": "20 updates", "from": "21 updates"}, ["40 updates"]),
    ({"every": "20 updates", "from": "3 epochs"}, ["3 epochs"]),
    ({"on": "phase_start"}, ["1 phase"]),
    ({"on": "phase_start", "from": "phase 2"}, ["2 phase"]),
    ({"when": LOSS}, ["0 updates"]),
    ({"when": LOSS, "from": "2 epochs"}, ["2 epochs"]),
    # inside the update that counts them
    ({"every": "1 updates"}, ["0 updates"]),
    ({"every": "1 updates", "from": "50%"}, ["29 updates"]),
    ({"every": "1 updates", "from": "2 epochs"}, ["1 epochs"]),
    ({"every": "1 updates", "from": "500 tokens"}, ["0 updates"]),
    ({"every": "1 updates", "from": "50 env_steps"}, ["50 env_steps"]),
    ({"every": "1 updates", "from": "phase 1"}, ["1 phase"]),
]


def test_earliest_is_the_first_time_of_each_unit() -> None:
    for config, expected in EARLIEST:
        found = parse(config).earliest()
        assert sorted(map(str, found)) == sorted(expected), config
        assert len({time.unit for time in found}) == len(found)


@settings(max_examples=50)
@given(
    configs().filter(is_ever_due), st.sampled_from(["", "2 epochs", "30 tokens"]), st.integers(1, 7)
)
def test_nothing_is_due_before_one_of_the_earliest_times_is_reached(
    config: dict[str, Any], gate: str, pace: int
) -> None:
    if gate and "every" in config:
        kept = {key: config[key] for key in ("every", "first") if key in config}
        config = kept | {"from": gate}
    schedule = parse(config)
    clocks = [Clock(updates=u, epochs=u // (5 * pace), tokens=u * pace) for u in range(TOTAL)]
    reached = [any(c[t.unit] >= t.value for t in schedule.earliest()) for c in clocks]
    for earlier, previous, clock in zip(reached, clocks, clocks[1:], strict=False):
        if schedule.crossings(previous, clock):
            inside = schedule.every_update  # then a run has to have stopped one step earlier
            assert earlier if inside else any(clock[t.unit] >= t.value for t in schedule.earliest())


def test_condition_has_no_due_points_and_from_and_until_are_its_gate() -> None:
    schedule = parse({"when": LOSS, "from": "20%", "until": "50%"})
    assert schedule.crossings(None, at(0)) == schedule.crossings(at(0), at(60)) == 0
    assert schedule.next_due(at(0)) is None
    assert [u for u in range(61) if schedule.is_open(at(u))] == list(range(12, 31))
    phase = parse({"when": LOSS, "until": "phase 0"})
    assert phase.is_open(at(50)) and not phase.is_open(at(50, phase=1))


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "at, every, on, when"),
    ({"at": None}, "no rule"),
    ({"at": []}, r"s\.at"),
    ({"at": "50%", "every": "10%"}, "at and every"),
    ({"at": "50%", "first": "1 updates"}, r"s\.first.* at .*every"),
    ({"when": LOSS, "first": "1 updates"}, r"s\.first.* when .*every"),
    ({"every": "2 epochs", "first": "1 updates"}, r"s\.first.*epochs"),
    ({"every": "9 updates", "first": "0%"}, r"s\.first.*1 to every"),
    ({"every": "9 updates", "first": "10 updates"}, r"s\.first.*1 to every"),
    ({"at": ["10%", "100%"]}, r"s\.at = 60"),
    ({"at": "-1 updates"}, r"s\.at = '-1 updates'"),
    ({"every": "0 updates"}, r"s\.every = 0"),
    ({"every": "61 updates"}, r"s\.every = 61"),
    ({"every": "10%", "from": "100%"}, r"s\.from = 60"),
    ({"every": "10%", "from": "50%", "until": "20%"}, r"until = 12 .* from = 30"),
    ({"every": "40%", "from": "90%"}, "every = 24"),
    ({"every": "10%", "until": "0%"}, "never"),
    ({"at": "50%", "until": "60%"}, "until.* not with at"),
]


def test_schedules_that_are_wrong_or_never_due_are_refused() -> None:
    for config, message in BAD:
        with pytest.raises(ConfigError, match=message):
            Schedule.parse(config, Time(TOTAL, "updates"), "s")
    total, horizon = Time(100, "env_steps"), Clock(env_steps=100, updates=50)
    with pytest.raises(ConfigError, match="at = 50 updates"):
        Schedule.parse({"at": "50 updates"}, total, horizon=horizon)
    assert Schedule.parse({"at": "49 updates"}, total, horizon=horizon).at
    assert Schedule.parse({"at": "70 frames"}, total, horizon=horizon).at  # not known in advance
