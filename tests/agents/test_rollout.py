import copy

import numpy as np
import pytest
import torch

from rlplast.agents.rollout import Rollout, advantages
from rlplast.core.errors import ConfigError
from tests.agents.toy_env import same

STEPS, ENVS = 13, 3


def rollout(action_dim: int | None = 2) -> Rollout:
    return Rollout(STEPS, ENVS, (4,), "float32", action_dim, torch.device("cpu"))


def played(made: Rollout, steps: int, seed: int = 0) -> Rollout:
    """Store so many steps, whose observations number transitions through."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        first = 100 * seed + made.position * ENVS
        obs = np.full((ENVS, 4), first) + np.arange(ENVS)[:, None]
        numbers = rng.standard_normal((2, ENVS))
        made.add(obs, numbers.T, *numbers, rng.random(ENVS) < 0.2)
    return made


def finished(made: Rollout, seed: int = 1) -> Rollout:
    value = np.random.default_rng(seed).standard_normal((STEPS + 1, ENVS)).astype(np.float32)
    made.finish(value[:-1], value[-1], 0.9, 0.99)
    return made


def test_data_are_the_transitions_step_by_step_and_stay_while_the_next_are_played():
    made = played(rollout(), STEPS)
    assert made.full
    action, log_prob, reward, ended = copy.deepcopy(
        (made.action, made.log_prob, made.reward, made.ended)
    )
    finished(made)
    value = np.random.default_rng(1).standard_normal((STEPS + 1, ENVS)).astype(np.float32)
    expected = advantages(reward, value[:-1], value[-1], ended, 0.9, 0.99)
    found = [data.numpy() for data in made.data]
    arrays = (action.reshape(-1, 2), log_prob, expected, expected + value[:-1])
    names = ("action", "log_prob", "advantage", "returns")
    for name, array in zip(names, arrays, strict=True):
        data = getattr(made.data, name).numpy()
        assert same(data, array.reshape(data.shape)), name
    assert same(made.data.obs[:, 0].numpy(), np.arange(STEPS * ENVS, dtype=np.float32))
    assert (made.position, made.filled) == (0, True)
    before = copy.deepcopy(found)
    played(made, STEPS - 1, seed=2)
    assert same(found, before)
    finished(played(made, 1, seed=2))
    assert [data.numpy().ctypes.data for data in made.data] == [x.ctypes.data for x in found]
    assert not same(found, before)


def test_cut_ends_episodes_with_the_newest_step():
    made = rollout(None)
    obs, zeros = np.zeros((ENVS, 4)), np.zeros(ENVS)
    made.cut(np.arange(ENVS), obs)  # nothing is open yet
    made.add(obs, zeros, zeros, zeros, np.zeros(ENVS, bool))
    made.add(obs, zeros, zeros, zeros, np.array([False, True, False]))
    made.cut(np.array([0]), obs[:1])
    assert made.ended[:2].tolist() == [[False] * 3, [True, True, False]]
    assert [t for t, *_ in made.cuts] == [1]
    made.restart()
    assert not made.cuts


def test_a_pass_has_every_transition_once_and_draws_repeat_by_their_stream():
    made = finished(played(rollout(), STEPS))
    with pytest.raises(ConfigError, match="4 of 13 steps"):
        next(played(rollout(), 4).batches(1, 4, np.random.default_rng(0)))
    whole = list(made.batches(None, 10, np.random.default_rng(0)))
    assert [len(batch.obs) for batch in whole] == [10, 10, 10, 9]
    numbers = torch.cat([batch.obs[:, 0] for batch in whole])
    assert numbers.tolist() != sorted(numbers.tolist())
    assert sorted(numbers.tolist()) == list(range(STEPS * ENVS))
    one, two = (list(made.batches(2, 5, np.random.default_rng(0))) for _ in range(2))
    assert same([list(batch) for batch in one], [list(batch) for batch in two])
    for batch in one:
        rows = batch.obs[:, 0].long()
        assert same([data[rows] for data in made.data], list(batch))
