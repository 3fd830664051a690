import sys

import gymnasium
import pytest

from rlplast import envs
from tests.envs.checks import (
    assert_continues_after_restore,
    assert_steps_equal_gymnasium,
    generator,
)

# Truncations in 1100 random steps.
TASKS = {
    "CartPole-v1": 0,
    "Acrobot-v1": 2,
    "MountainCar-v0": 2,
    "Pendulum-v1": 5,
    "MountainCarContinuous-v0": 1,
}


@pytest.mark.parametrize("task", TASKS)
def test_steps_equal_gymnasium_itself(task: str) -> None:
    assert assert_steps_equal_gymnasium(task, 1100)[1] >= TASKS[task]
    registered, spec = gymnasium.make(task), envs.spec(f"gym/{task}")
    number = getattr(registered.action_space, "n", None)
    assert (spec.num_actions, spec.action_dim) == (number, None if number else 1)
    assert registered.spec and spec.max_episode_steps == registered.spec.max_episode_steps


@pytest.mark.parametrize("task", TASKS)
def test_restored_tasks_continue_bit_for_bit(task: str) -> None:
    assert_continues_after_restore(f"gym/{task}", 73, 250, 1, max_episode_steps=150)


def test_what_terminates_at_the_limit_has_terminated() -> None:
    def end_with(limit: int | None) -> tuple[int, bool, bool]:
        env = envs.make("gym/CartPole-v1", generator(0), max_episode_steps=limit)
        env.reset()
        for step in range(1, 600):
            _, _, *ends = env.step(1)
            if any(ends):
                with pytest.raises(RuntimeError, match="no episode running"):
                    env.step(1)
                return step, *ends
        raise AssertionError("no end")

    length, *_ = end_with(None)
    assert end_with(length) == end_with(length + 1) == (length, True, False)
    assert end_with(length - 1) == (length - 1, False, True)


def test_a_picture_without_pygame_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = envs.make("gym/CartPole-v1", generator(0))
    env.reset()
    with pytest.raises(envs.MissingPackage, match=r"rlplast\[classic\]"):
        env.render()
