import sys

import gymnasium
import numpy as np
import pytest

from rlplast import envs
from tests.envs.checks import assert_continues_after_restore, generator, random_actions

# Task: the factor from our actions to its own, and the truncations in 1100 random steps.
TASKS = {
    "CartPole-v1": (1, 0),
    "Acrobot-v1": (1, 2),
    "MountainCar-v0": (1, 2),
    "Pendulum-v1": (np.float32(2), 5),
    "MountainCarContinuous-v0": (1, 1),
}


@pytest.mark.parametrize("task", TASKS)
def test_steps_equal_gymnasium_itself(task: str) -> None:
    twin = gymnasium.make(task)
    twin.unwrapped.np_random = generator(7)
    env = envs.make(f"gym/{task}", generator(7))
    np.testing.assert_array_equal(env.reset(), twin.reset()[0])
    factor, min_truncations = TASKS[task]
    truncations = 0
    for action in random_actions(env.spec.id, 1100, seed=1):
        obs, reward, terminated, truncated = env.step(action)
        obs_twin, reward_twin, terminated_twin, truncated_twin, _ = twin.step(action * factor)
        np.testing.assert_array_equal(obs, obs_twin)
        assert (reward, terminated) == (reward_twin, terminated_twin)
        assert truncated == (truncated_twin and not terminated_twin)
        truncations += truncated
        if terminated or truncated:
            np.testing.assert_array_equal(env.reset(), twin.reset()[0])
    assert truncations >= min_truncations


@pytest.mark.parametrize(("before", "used"), [(0, True), (173, False)])
@pytest.mark.parametrize("task", TASKS)
def test_restored_tasks_continue_bit_for_bit(task: str, before: int, used: bool) -> None:
    assert_continues_after_restore(f"gym/{task}", before, 1000, min_ends=1, used=used)


@pytest.mark.parametrize("task", TASKS)
def test_observations_match_their_description(task: str) -> None:
    env = envs.make(f"gym/{task}", generator(0))
    obs = env.reset()
    registered = gymnasium.make(task)
    assert obs.shape == env.spec.obs_shape
    assert str(obs.dtype) == env.spec.obs_dtype == "float32"
    if isinstance(registered.action_space, gymnasium.spaces.Discrete):
        assert (env.spec.num_actions, env.spec.action_dim) == (registered.action_space.n, None)
    else:
        assert (env.spec.num_actions, env.spec.action_dim) == (None, 1)
        assert registered.action_space.shape == (1,)
    assert registered.spec is not None
    assert env.spec.max_episode_steps == registered.spec.max_episode_steps


def test_what_terminates_at_the_limit_has_terminated() -> None:
    def end_with(limit: int | None) -> tuple[int, bool, bool]:
        env = envs.make("gym/CartPole-v1", generator(0), max_episode_steps=limit)
        env.reset()
        for step in range(1, 600):
            _, _, terminated, truncated = env.step(1)
            if terminated or truncated:
                return step, terminated, truncated
        raise AssertionError("no end")

    length, *_ = end_with(None)
    assert end_with(length) == (length, True, False)
    assert end_with(length - 1) == (length - 1, False, True)
    assert end_with(length + 1) == (length, True, False)


def test_a_picture_without_pygame_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = envs.make("gym/CartPole-v1", generator(0))
    env.reset()
    with pytest.raises(envs.MissingPackage, match=r"pip install 'rlplast\[classic\]'"):
        env.render()
