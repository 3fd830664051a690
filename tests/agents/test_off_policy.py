from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.core.errors import ConfigError
from tests.agents.toy_env import advanced, dqn, everything, same
from tests.naive.dqn import updates_twin

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("ratio", "num_envs"), [(0.1, 1), (0.25, 4), (0.5, 3), (1, 3), (2.5, 4), (32, 2)]
)
def test_updates_are_the_ratio_of_transitions_after_the_initial_ones(
    ratio: float, num_envs: int, make: Make, monkeypatch: pytest.MonkeyPatch
):
    agent = make(num_envs, ratio, initial_steps=25)

    def update():
        agent.experience.paid()
        agent.clock = agent.clock.advance(updates=1)

    monkeypatch.setattr(agent, "update", update)
    while agent.clock.env_steps < 90 or agent.owes():
        before = agent.clock
        agent.step()
        stepped = agent.clock.env_steps - before.env_steps
        updated = agent.clock.updates - before.updates
        assert (stepped, updated) in ((num_envs, 0), (0, 1))  # one thing at a time
        if not agent.owes():  # so no burst follows
            assert agent.clock.updates == updates_twin(ratio, agent.clock.env_steps, 25)
    assert agent.clock.updates >= int(ratio * 65)
    assert agent.clock.frames == 2 * agent.clock.env_steps


def test_target_begins_as_a_copy_that_is_not_trained(make: Make):
    agent = make()
    online = agent.networks["q" if "q" in agent.networks else "critic"]
    pairs = [*zip(online.module.parameters(), agent.target.parameters(), strict=True)]
    assert all(same(mine, theirs) and not theirs.requires_grad for mine, theirs in pairs)
    assert all(mine.data_ptr() != theirs.data_ptr() for mine, theirs in pairs)


def test_evaluation_repeats_by_number_and_differs_between_numbers(make: Make):
    agent = advanced(make(), 5)
    one, two, three = (agent.play(number, 20).returns for number in (0, 0, 1))
    assert same(one, two)
    assert not same(one, three)


def test_probe_batch_is_none_before_there_is_data(make: Make):
    agent = make()
    assert agent.sample(4, 0) is None
    agent.step()
    batch = agent.sample(4, 0)
    assert batch is not None
    assert len(getattr(batch, "transitions", batch).obs) == 4


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "minatar/breakout"])
def test_evaluation_probes_and_acting_leave_training_bit_identical(env: str):
    plain, watched = dqn(2, env=env), dqn(2, env=env)
    for i in range(45):
        plain.step()
        watched.step()
        if i % 7 == 0:
            with torch.random.fork_rng():
                watched.evaluate(i, 2)
            batch = watched.sample(16, i)
            if batch is not None:
                watched.activations("q", batch)
                watched.loss("q", batch)
            watched.act(watched.experience.stack.obs())
    assert plain.clock.updates > 10
    assert same(everything(plain), everything(watched))


@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 4), (3, 1)])
def test_smallest_buffer_that_is_allowed_always_has_something_to_sample(
    n_step: int, num_envs: int, make: Make
):
    least = num_envs * (1 + n_step + 1)
    with pytest.raises(ConfigError, match=rf"agent\.buffer_size = {least - 1}: .*= {least}"):
        make(num_envs, n_step=n_step, buffer_size=least - 1)
    agent = make(num_envs, n_step=n_step, buffer_size=least)
    rng = np.random.default_rng(0)
    while agent.clock.env_steps < 300:
        agent.experience.credit = 0.0
        agent.step()
        if agent.clock.env_steps >= num_envs * (n_step + 1):
            assert agent.experience.replay.size > 0
            agent.experience.replay.sample_from(8, rng)
