import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplast.agents.off_policy_config import EnvConfig
from rlplast.agents.sequence import TaskSequence
from rlplast.agents.update_plan import UpdatePlan, ratios_of
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError
from rlplast.run.config_file import read_config
from tests.runs import TINY

ONE = TaskSequence.parse(EnvConfig())
RATIOS = [Fraction(1, 8), Fraction(1, 2), Fraction(1), Fraction(3), Fraction(16)]


def owed_twin(
    rows: list[tuple[int, Fraction]], initial_steps: int, initial_updates: int, env_steps: int
) -> int:
    """Updates owed, one env_step after the other, in exact fractions."""
    owed = Fraction(0)
    for step in range(1, env_steps + 1):  # the step that makes the count `step`
        if step > initial_steps:
            owed += next(ratio for start, ratio in reversed(rows) if step > start)
        if step == initial_steps:
            owed += initial_updates
    return math.floor(owed)


@st.composite
def plans(draw: Callable[..., Any]) -> tuple[list[tuple[int, Fraction]], int, int]:
    starts = draw(st.lists(st.integers(1, 60), unique=True, max_size=4).map(sorted))
    rows = [(start, draw(st.sampled_from(RATIOS))) for start in (0, *starts)]
    return rows, draw(st.integers(1, 40)), draw(st.sampled_from([0, 0, 1, 50]))


@given(plans(), st.integers(1, 90), st.integers(1, 5))
def test_updates_are_those_counted_step_by_step(plan: Any, end: int, num_envs: int):
    rows, first, extra = plan
    ours = UpdatePlan(tuple((s, float(r)) for s, r in rows), first, extra, ONE)
    assert ours.updates_at(end) == owed_twin(rows, first, extra, end)
    credit = 0.0  # however many environments step at once
    for before in range(0, end, num_envs):
        credit += ours.owed(before, before + num_envs)
    after = -(-end // num_envs) * num_envs
    assert math.floor(credit + 1e-9) == owed_twin(rows, first, extra, after)


@given(plans(), st.integers(1, 300))
def test_env_steps_of_updates_are_the_fewest_that_owe_them(plan: Any, updates: int):
    rows, first, extra = plan
    ours = UpdatePlan(tuple((s, float(r)) for s, r in rows), first, extra, ONE)
    env_steps = ours.env_steps_of(updates)
    assert owed_twin(rows, first, extra, env_steps) >= updates
    assert owed_twin(rows, first, extra, env_steps - 1) < updates


def counting(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def update() -> None:
        agent.experience.paid()
        agent.clock = agent.clock.advance(updates=1)

    monkeypatch.setattr(agent, "update", update)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_initial_updates_come_before_the_next_env_step(
    num_envs: int, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    agent = make(num_envs, 0.5, initial_steps=25, initial_updates=40)
    counting(agent, monkeypatch)
    while agent.clock.updates < 1:
        agent.step()
    began_at = agent.clock.env_steps
    assert 25 <= began_at < 25 + num_envs
    while agent.clock.env_steps < 90 or agent.owes():
        agent.step()
        if not agent.owes():
            expected = owed_twin([(0, Fraction(1, 2))], 25, 40, agent.clock.env_steps)
            assert agent.clock.updates == expected
        assert agent.clock.updates >= 40 or agent.clock.env_steps == began_at


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_changed_ratio_holds_for_the_env_steps_after_its_time(
    num_envs: int, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    ratios = [{"value": 0.25}, {"from": "40 env_steps", "value": 3}, {"from": "50%", "value": 1}]
    rows = [(0, Fraction(1, 4)), (40, Fraction(3)), (200, Fraction(1))]
    agent = make(num_envs, ratios, initial_steps=25)
    counting(agent, monkeypatch)
    while agent.clock.env_steps < 330 or agent.owes():
        agent.step()
        if not agent.owes():
            expected = owed_twin(rows, 25, 0, agent.clock.env_steps)
            assert agent.clock.updates == expected == agent.config.updates_at(agent.clock.env_steps)


def test_a_list_of_one_ratio_is_that_ratio():
    total = Time(100, "env_steps")
    assert ratios_of([{"value": 4}], total) == ratios_of(4, total) == ((0, 4.0),)


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ([], {}),
        ([{"from": "50%", "value": 1}], {}),
        ([{"value": 1}, {"value": 2}], {}),
        ([{"value": 1}, {"from": "60 env_steps", "value": 2}, {"from": "50%", "value": 3}], {}),
        ([{"value": 1}, {"from": "50 updates", "value": 2}], {}),
        ([{"value": 1}, {"from": "120 env_steps", "value": 2}], {}),
        ([{"value": 1}, {"from": "50%", "value": 2}], {"total": "100 updates"}),
    ],
)
def test_rows_that_do_not_go_together_are_named(rows: list[Any], keys: dict[str, Any]):
    last = rf"replay_ratio\[{len(rows) - 1}\].from" if rows else "replay_ratio"
    with pytest.raises(ConfigError, match=last):
        read_config(TINY | keys | {"replay_ratio": rows})
