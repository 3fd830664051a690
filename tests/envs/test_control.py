from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rlplast import envs
from rlplast.envs.base import checked_actions
from rlplast.envs.control import ControlSimulator
from tests.envs import own_envs
from tests.envs.checks import assert_steps_equal_gymnasium, generator, through_files

OPTIONS = {"action_repeat": 1, "terminate": True, "max_episode_steps": None}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_rescaled_to_the_bounds_and_never_leave_them(dtype: Any) -> None:
    low, high = np.array([-1, -3, 0.1, -0.4], dtype), np.array([1, 3, 0.7, 0.9], dtype)
    task = Mock(bounds=(low, high), native=lambda action: action)
    task.step.return_value = np.zeros(1), 0.0, False, False
    simulator = ControlSimulator(task, OPTIONS, None)
    given = generator(0).uniform(-1, 1, (53, 4)).astype(np.float32)
    given[:3] = [[-1] * 4, [1] * 4, [0] * 4]
    for action in given:
        simulator.step(action)
    actions = np.array([call.args[0] for call in task.step.call_args_list])
    assert actions.dtype == dtype
    # What gymnasium's RescaleAction computes, up to rounding; exact where bounds are ±1.
    expected = low + (high - low) * (given.astype(np.float64) + 1) / 2
    np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(actions[:, 0], given[:, 0])
    np.testing.assert_array_equal(actions[:2], [low, high])
    assert ((low <= actions) & (actions <= high)).all()


def test_observations_are_float32_copies() -> None:
    shared, task = np.zeros(1, np.float32), Mock(bounds=None)
    task.step.side_effect = lambda _: (np.add(shared, 1, out=shared), 0.0, False, False)
    task.reset.return_value = np.zeros(1)
    simulator = ControlSimulator(task, OPTIONS, None)
    first, second = (simulator.step(0)[0] for _ in range(2))
    assert (first.tolist(), second.tolist()) == ([1.0], [2.0])
    assert simulator.reset().dtype == first.dtype == np.float32


@pytest.mark.parametrize("terminate", [True, False])
def test_options_agree_with_a_hand_written_loop_on_the_raw_environment(terminate: bool) -> None:
    for task in ("Hopper-v5", "Pendulum-v1"):
        options = {"action_repeat": 3, "terminate": terminate, "max_episode_steps": 40}
        terminations, _ = assert_steps_equal_gymnasium(task, 130, **options)
        assert (terminations > 0) == (terminate and task == "Hopper-v5")


def test_an_action_goes_into_its_range_or_is_refused() -> None:
    refused: dict[str, list[tuple[Any, str]]] = {
        "gym/Hopper-v5": [
            (np.zeros(2, np.float32), r"allowed are floats of shape \(3,\)"),
            (np.zeros(3, int), r"int64 of shape \(3,\)"),
            (1, r"int64 of shape \(\)"),
            (np.array([0, np.nan, 0]), r"nan at \[1\]"),
            (np.array([-1.00001, 0, 0]), r"-1.00001 at \[0\]"),
        ],
        "gym/CartPole-v1": [
            (action, "no integer in range: allowed are 0 to 1")
            for action in (np.array([1]), np.array(1.0), 0.5, 2, -1, np.zeros(2))
        ],
    }
    for env_id, rows in refused.items():
        env = envs.make(env_id, generator(0))
        env.reset()
        for action, message in rows:
            with pytest.raises(ValueError, match=message):
                env.step(action)
    given = [[1 + 9e-7, -1 - 9e-7, 0.25]]  # a list is an action too
    checked = checked_actions(envs.spec("gym/Hopper-v5"), given, (1,))
    assert (checked.tolist(), checked.dtype) == ([[1.0, -1.0, 0.25]], np.float32)


LIMITS = {"gym/Pendulum-v1": 200, "gym/Pusher-v5": 100, "dmc/pendulum-swingup": 1000}
LIMITS |= {f"gym/{own_envs.PREFIX}Still-v0": 10}


@pytest.mark.parametrize("env_id", LIMITS)
def test_a_repeat_ends_at_the_tasks_own_limit(env_id: str) -> None:
    limit, repeat = LIMITS[env_id], 7
    env, later = (envs.make(env_id, generator(0), action_repeat=repeat) for _ in range(2))
    zero: Any = 0 if env.spec.action_dim is None else np.zeros(env.spec.action_dim, np.float32)
    env.reset()
    frames, steps, truncated = 0, 0, False
    while not truncated:
        if steps == 1 and env.state_dict()["running"]:  # a resume knows how far it is
            later.load_state_dict(through_files(env.state_dict()))
            env = later
        _, _, terminated, truncated = env.step(zero)
        assert not terminated
        frames, steps = frames + env.step_frames, steps + 1
    assert (frames, steps) == (limit, env.spec.max_episode_steps)
