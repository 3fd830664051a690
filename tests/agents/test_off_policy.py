import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplast.agents.off_policy_config import EnvConfig
from rlplast.agents.sequence import TaskSequence
from rlplast.agents.update_plan import UpdatePlan, ratios_of
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents.toy_env import same
from tests.ppo_runs import small_ppo
from tests.runs import TINY
from tests.sac_runs import small_sac

ONE = TaskSequence.parse(EnvConfig())
Rows = list[tuple[int, Fraction]]
Make = Callable[..., Any]
RATIOS = [Fraction(1, 8), Fraction(1, 2), Fraction(1), Fraction(3), Fraction(16)]


def owed_twin(rows: Rows, initial_steps: int, initial_updates: int, env_steps: int) -> int:
    """Updates owed, one env_step after the other, in exact fractions."""
    owed = Fraction(0)
    for step in range(1, env_steps + 1):  # the step that makes the count `step`
        if step > initial_steps:
            owed += next(ratio for start, ratio in reversed(rows) if step > start)
        if step == initial_steps:
            owed += initial_updates
    return math.floor(owed)


@st.composite
def plans(draw: Callable[..., Any]) -> tuple[Rows, int, int]:
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


def check_counts(agent: Any, rows: Rows, first: int, extra: int, end: int) -> None:
    """Count updates without making them."""

    def update() -> None:
        agent.experience.credit -= 1
        agent.clock = agent.clock.advance(updates=1)

    agent.update, num_envs = update, agent.config.env.num_envs
    began_at = -(-first // num_envs) * num_envs
    while agent.clock.env_steps < end or agent.owes():
        before = agent.clock
        agent.step()
        stepped = agent.clock.env_steps - before.env_steps
        updated = agent.clock.updates - before.updates
        assert (stepped, updated) in ((num_envs, 0), (0, 1))  # one thing at a time
        if not agent.owes():  # so no burst follows
            expected = owed_twin(rows, first, extra, agent.clock.env_steps)
            assert agent.clock.updates == expected == agent.config.updates_at(agent.clock.env_steps)
        if 0 < agent.clock.updates < extra:
            assert agent.clock.env_steps == began_at  # before the next env_step
    assert agent.clock.frames == 2 * agent.clock.env_steps


CHANGES = [{"value": 0.25}, {"from": "40 env_steps", "value": 3}, {"from": "50%", "value": 1}]


@pytest.mark.parametrize(
    ("ratio", "num_envs", "extra"),
    [(0.1, 1, 0), (0.25, 4, 0), (2.5, 4, 0), (32, 2, 0), (0.5, 3, 40), (CHANGES, 3, 0)],
)
def test_updates_are_those_of_the_ratio(ratio: Any, num_envs: int, extra: int, make: Make):
    agent = make(num_envs, ratio, initial_steps=25, initial_updates=extra)
    changing = [(0, Fraction(1, 4)), (40, Fraction(3)), (200, Fraction(1))]
    rows = changing if ratio is CHANGES else [(0, Fraction(str(ratio)))]
    check_counts(agent, rows, 25, extra, 330 if ratio is CHANGES else 90)


def test_rows_that_do_not_go_together_are_named():
    total = Time(100, "env_steps")
    assert ratios_of([{"value": 4}], total) == ratios_of(4, total) == ((0, 4.0),)
    for rows, keys in (
        ([], {}),
        ([{"from": "50%", "value": 1}], {}),
        ([{"value": 1}, {"value": 2}], {}),
        ([{"value": 1}, {"from": "60 env_steps", "value": 2}, {"from": "50%", "value": 3}], {}),
        ([{"value": 1}, {"from": "50 updates", "value": 2}], {}),
        ([{"value": 1}, {"from": "120 env_steps", "value": 2}], {}),
        ([{"value": 1}, {"from": "50%", "value": 2}], {"total": "100 updates"}),
    ):
        last = rf"replay_ratio\[{len(rows) - 1}\].from" if rows else "replay_ratio"
        with pytest.raises(ConfigError, match=last):
            read_config(TINY | keys | {"replay_ratio": rows})


# Agents with a replay.


def test_evaluations_repeat_by_number_and_probe_batches_need_data(make: Make):
    agent = make()
    one, two, three = (agent.play(number, 20).returns for number in (0, 0, 1))
    assert same(one, two)
    assert not same(one, three)
    assert agent.sample(4, 0) is None
    agent.step()
    batch = agent.sample(4, 0)
    assert batch is not None
    assert len(getattr(batch, "transitions", batch).obs) == 4


@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 4), (3, 1)])
def test_smallest_buffer_has_something_to_sample(n_step: int, num_envs: int, make: Make):
    least = num_envs * (1 + n_step + 1)
    with pytest.raises(ConfigError, match=rf"agent\.buffer_size = {least - 1}: .*= {least}"):
        make(num_envs, n_step=n_step, buffer_size=least - 1)
    agent = make(num_envs, n_step=n_step, buffer_size=least)
    rng = np.random.default_rng(0)
    while agent.clock.env_steps < 150:
        agent.experience.credit = 0.0
        agent.step()
        if agent.clock.env_steps >= num_envs * (n_step + 1):
            assert agent.experience.replay.size > 0
            agent.experience.replay.sample_from(8, rng)


# Optimizers of agents.

KINDS: dict[str, dict[str, Any]] = {"dqn": TINY, "sac": small_sac(), "ppo": small_ppo()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_learning_rate_falls_over_the_updates_that_were_planned(kind: str) -> None:
    for key, value in (("optimizer.renew", True), ("optimizer.stepped", "epoch")):
        with pytest.raises(ConfigError, match=f"{kind} run has no epochs"):
            read_config(KINDS[kind], {key: value})
    keys = {"optimizer.schedule": "linear", "optimizer.lr": 0.01, "total": "40 updates"}
    if kind == "sac":
        keys["agent.lr_critic"] = 0.02
    trainable: Any = build_trainable(read_config(KINDS[kind], keys))
    network, largest = {"dqn": ("q", 0.01), "sac": ("critic", 0.02), "ppo": ("actor", 0.01)}[kind]
    found = []
    while trainable.clock.updates < 50:  # ten more than planned, as after `resume --total`
        updates = trainable.clock.updates
        trainable.step()
        if trainable.clock.updates > updates:
            found.append(trainable.networks[network].optimizers[0].param_groups[0]["lr"])
    falling = [largest * (1 - i / 40) for i in range(40)]
    assert found == pytest.approx(falling + [0.0] * 10, abs=1e-12)


def test_weight_decay_spares_the_temperature_and_rates_may_differ() -> None:
    keys = {"agent.lr_critic": 3e-3, "agent.lr_temperature": 5e-3, "optimizer.weight_decay": 0.1}
    trainable = build_trainable(read_config(KINDS["sac"], keys | {"optimizer.lr": 1e-3}))
    optimizers = {name: network.optimizers[0] for name, network in trainable.networks.items()}
    groups = {name: made.param_groups[0] for name, made in optimizers.items()}
    found = {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()}
    assert found == {"actor": (1e-3, 0.1), "critic": (3e-3, 0.1), "temperature": (5e-3, 0.0)}
    assert all(isinstance(optimizer, torch.optim.AdamW) for optimizer in optimizers.values())
