from typing import Any

import gymnasium
import numpy as np
import pytest

from rlplast import envs
from rlplast.envs.base import checked_actions
from rlplast.envs.control import ControlSimulator, control_options, control_spec, step_limit
from rlplast.envs.options import resolve_options
from tests.envs.checks import generator, random_actions, through_files


class CountingTask:
    """Counts its control steps; rewards 1, 2, 3 …; terminates after every third."""

    def __init__(self, bounds: Any = None) -> None:
        self.bounds = bounds
        self.actions: list[Any] = []

    def reset(self) -> np.ndarray:
        return np.zeros(1)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        self.actions.append(action)
        count = len(self.actions)
        return np.array([float(count)]), float(count), count % 3 == 0, False

    def render(self) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def read(self, obs: Any) -> np.ndarray:
        return obs

    def native(self, action: Any) -> Any:
        return action

    def close(self) -> None: ...


def test_repeated_rewards_are_summed_and_a_termination_cuts_the_repeat_short() -> None:
    simulator = ControlSimulator(CountingTask(), action_repeat=2, terminate=True)
    assert simulator.step(0) == (np.array([2.0], np.float32), 1.0 + 2.0, False, False)
    assert simulator.step_frames == 2
    assert simulator.step(0) == (np.array([3.0], np.float32), 3.0, True, False)
    assert simulator.step_frames == 1


def test_an_ignored_termination_cuts_nothing_short() -> None:
    simulator = ControlSimulator(CountingTask(), action_repeat=4, terminate=False)
    obs, reward, terminated, _ = simulator.step(0)
    assert (obs.tolist(), reward, terminated) == ([4.0], 1.0 + 2 + 3 + 4, False)
    assert simulator.step_frames == 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_rescaled_to_the_bounds_and_never_leave_them(dtype: Any) -> None:
    low, high = np.array([-1, -3, 0.1, -0.4], dtype), np.array([1, 3, 0.7, 0.9], dtype)
    task = CountingTask((low, high))
    simulator = ControlSimulator(task, action_repeat=1, terminate=True)
    for value in (-1, 1, 0):
        simulator.step(np.full(4, value, np.float32))
    for given in generator(0).uniform(-1, 1, (50, 4)).astype(np.float32):
        simulator.step(given)
        # What gymnasium's RescaleAction computes, up to rounding; exact where bounds are ±1.
        expected = low + (high - low) * (given.astype(np.float64) + 1) / 2
        np.testing.assert_allclose(task.actions[-1], expected, rtol=0, atol=1e-6)
        assert task.actions[-1][0] == given[0]
    np.testing.assert_array_equal(task.actions[0], low)
    np.testing.assert_array_equal(task.actions[1], high)
    np.testing.assert_allclose(task.actions[2], (low.astype(float) + high) / 2, rtol=1e-6)
    assert {action.dtype for action in task.actions} == {np.dtype(dtype)}
    assert all(((low <= action) & (action <= high)).all() for action in task.actions)


def test_observations_are_float32_copies() -> None:
    class Sharing(CountingTask):
        shared = np.zeros(1, np.float32)

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
            self.shared += 1
            return self.shared, 0.0, False, False

    simulator = ControlSimulator(Sharing(), action_repeat=1, terminate=True)
    first, second = (simulator.step(0)[0] for _ in range(2))
    assert (first.tolist(), second.tolist()) == ([1.0], [2.0])
    assert simulator.reset().dtype == first.dtype == np.float32


@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("env_id", ["gym/Hopper-v5", "gym/InvertedPendulum-v5", "gym/Pendulum-v1"])
def test_options_agree_with_a_hand_written_loop_on_the_raw_environment(
    env_id: str, terminate: bool
) -> None:
    repeat, limit = 3, 40
    env = envs.make(
        env_id, generator(3), action_repeat=repeat, terminate=terminate, max_episode_steps=limit
    )
    raw: Any = gymnasium.make(env_id.removeprefix("gym/"), disable_env_checker=True).unwrapped
    raw.np_random = generator(3)
    scale = raw.action_space.high
    terminations = 0
    np.testing.assert_array_equal(env.reset(), raw.reset()[0].astype(np.float32))
    steps = 0
    for action in random_actions(env_id, 130, seed=1):
        total, frames, ended = 0.0, 0, False
        for _ in range(repeat):
            obs, reward, raw_terminated, _, _ = raw.step(scale * action)
            total, frames = total + float(reward), frames + 1
            if raw_terminated and terminate:
                ended = True
                break
        steps += 1
        ours, our_reward, terminated, truncated = env.step(action)
        np.testing.assert_array_equal(ours, obs.astype(np.float32))
        assert (our_reward, env.step_frames, terminated) == (total, frames, ended)
        assert truncated == (steps == limit and not ended)
        terminations += terminated
        if terminated or truncated:
            steps = 0
            np.testing.assert_array_equal(env.reset(), raw.reset()[0].astype(np.float32))
    assert (terminations > 0) == (terminate and env_id != "gym/Pendulum-v1")


@pytest.mark.parametrize(
    ("task_limit", "given", "limit"),
    [
        (1000, {}, 1000),
        (1000, {"action_repeat": 2}, 500),
        (1000, {"action_repeat": 3}, 334),
        (50, {"action_repeat": 60}, 1),
        (1000, {"action_repeat": 2, "max_episode_steps": 700}, 700),
        (None, {"action_repeat": 2}, None),
        (None, {"max_episode_steps": 7}, 7),
    ],
)
def test_limits_count_steps_of_the_agent(
    task_limit: int | None, given: dict[str, int], limit: int | None
) -> None:
    options = resolve_options("x/y", given, control_options(task_limit))
    assert step_limit(options, task_limit) == limit
    spec = control_spec("x/y", 5, 2, task_limit, options, success_return=3.0)
    assert (spec.max_episode_steps, spec.frames_per_step) == (limit, options["action_repeat"])
    assert (spec.obs_shape, spec.action_dim, spec.success_return) == ((5,), 2, 3.0)


def test_an_action_goes_into_its_range_or_is_refused() -> None:
    env = envs.make("gym/Hopper-v5", generator(0))
    env.reset()
    refused: list[tuple[Any, str]] = [
        (np.zeros(2, np.float32), r"float32 of shape \(2,\): allowed are floats of shape \(3,\)"),
        (np.zeros((1, 3), np.float32), r"of shape \(1, 3\)"),
        (np.zeros(3, int), r"int64 of shape \(3,\)"),
        (1, r"int64 of shape \(\)"),
        (np.array([0, np.nan, 0]), r"not finite: nan at \[1\], allowed is \[-1, 1\]"),
        (np.array([0, 0, np.inf]), r"inf at \[2\]"),
        (np.array([-1.00001, 0, 0]), r"out of range .*: -1.00001 at \[0\]"),
    ]
    for action, message in refused:
        with pytest.raises(ValueError, match=message):
            env.step(action)
    given = [[1 + 9e-7, -1 - 9e-7, 0.25]]  # a list is an action too
    checked = checked_actions(env.spec, given, (1,))
    assert (checked.tolist(), checked.dtype) == ([[1.0, -1.0, 0.25]], np.float32)


@pytest.mark.parametrize("action", [np.array([1]), np.array(1.0), 0.5, 2, -1, np.zeros(2)])
def test_an_integer_action_has_to_be_one(action: Any) -> None:
    env = envs.make("gym/CartPole-v1", generator(0))
    env.reset()
    with pytest.raises(ValueError, match="no integer in range: allowed are 0 to 1"):
        env.step(action)


class Table(gymnasium.Env):
    """Reads a table of 31 rows, a row a step; registered with the limit that this needs."""

    observation_space, action_space = (
        gymnasium.spaces.Box(0, 31, (1,), np.float32),
        gymnasium.spaces.Discrete(2),
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.row = 0
        return np.arange(31, dtype=np.float32)[[self.row]], {}

    def step(self, action: Any) -> Any:
        self.row += 1
        return np.arange(31, dtype=np.float32)[[self.row]], 1.0, False, False, {}


LIMITS = {
    "gym/Pendulum-v1": 200,
    "gym/Pusher-v5": 100,
    "dmc/pendulum-swingup": 1000,
    "gym/Table-v0": 30,
}


@pytest.mark.parametrize("env_id", LIMITS)
def test_a_repeat_ends_at_the_tasks_own_limit(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium, "registry", dict(gymnasium.registry))
    monkeypatch.setattr("gymnasium.envs.registration.registry", gymnasium.registry)
    gymnasium.register("Table-v0", Table, max_episode_steps=30)
    limit, repeat = LIMITS[env_id], 7
    env, later = (envs.make(env_id, generator(0), action_repeat=repeat) for _ in range(2))
    zero: Any = 0 if env.spec.action_dim is None else np.zeros(env.spec.action_dim, np.float32)
    env.reset()
    frames, steps, truncated = 0, 0, False
    while not truncated:
        if steps == 2 and env.state_dict()["running"]:  # a resume knows how far it is
            later.load_state_dict(through_files(env.state_dict()))
            env = later
        _, _, terminated, truncated = env.step(zero)
        assert not terminated
        frames, steps = frames + env.step_frames, steps + 1
    assert (frames, steps) == (limit, env.spec.max_episode_steps)
