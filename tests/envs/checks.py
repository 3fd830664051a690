"""What the tests of every environment share."""

import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from rlplast import envs

Step = tuple[np.ndarray, float, bool, bool, int]
Actions = Sequence[int] | np.ndarray


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def through_files(state: Any) -> Any:
    """Return what files keep of a state: arrays of numbers, and what JSON holds, no pickle."""
    if isinstance(state, np.ndarray):
        assert state.dtype.kind in "biuf"
        return state.copy()
    if isinstance(state, dict):
        assert all(type(key) is str for key in state)
        return {key: through_files(value) for key, value in state.items()}
    if isinstance(state, list):
        return [through_files(value) for value in state]
    assert state is None or type(state) in (bool, int, float, str), type(state)
    return json.loads(json.dumps(state))


def random_actions(env_id: str, count: int, seed: int) -> Actions:
    """Integers, or float32 (count, action_dim) that reach both bounds."""
    spec = envs.spec(env_id)
    if spec.action_dim is None:
        assert spec.num_actions is not None
        return generator(seed).integers(spec.num_actions, size=count).tolist()
    wide = generator(seed).uniform(-1.2, 1.2, size=(count, spec.action_dim))
    return wide.clip(-1, 1).astype(np.float32)


def play(env: envs.Env, actions: Actions) -> list[Step]:
    """Act, starting a new episode where none is running; what every step and reset gave."""
    steps: list[Step] = []

    def reset() -> None:
        obs = env.reset()
        assert (obs.shape, str(obs.dtype)) == (env.spec.obs_shape, env.spec.obs_dtype)
        steps.append((obs, 0.0, False, False, 0))

    if not env.state_dict()["running"]:
        reset()
    for action in actions:
        steps.append((*env.step(action), env.step_frames))
        if steps[-1][2] or steps[-1][3]:
            reset()
    return steps


def assert_same_steps(steps: Sequence[Step], expected: Sequence[Step]) -> None:
    assert len(steps) == len(expected)
    for ours, theirs in zip(steps, expected, strict=True):
        assert ours[1:] == theirs[1:]
        np.testing.assert_array_equal(ours[0], theirs[0], strict=True)


def act_to_an_end(env: envs.Env) -> None:
    for action in random_actions(env.spec.id, 30_000, seed=5):
        if any(env.step(action)[2:]):
            return


def assert_continues_after_restore(
    env_id: str, before: int, after: int, min_ends: int, everywhere: bool = True, **options: Any
) -> envs.Env:
    """Its states, through files, continue alike in another instance for `after` steps.

    They are taken after `before` steps, and `everywhere` also before the first reset, after it, and
    at an episode's end. The other instance has another seed and stands at the end of an episode.
    The last state is put into a new instance too, which is returned.
    """
    env, used, fresh = (envs.make(env_id, generator(seed), **options) for seed in (1, 3, 4))
    actions = random_actions(env_id, after, seed=4)
    used.reset()
    act_to_an_end(used)
    for place in ("new", "first", "end", "midst") if everywhere else ("midst",):
        if place == "first":
            env.reset()
        if place == "end":
            act_to_an_end(env)
        if place == "midst":
            play(env, random_actions(env_id, before, seed=2))
        state = through_files(env.state_dict())
        expected = play(env, actions)
        assert sum(step[2] or step[3] for step in expected) >= min_ends
        for other in (used, fresh) if place == "midst" else (used,):
            other.load_state_dict(state)
            assert_same_steps(play(other, actions), expected)
            assert_same_states(other.state_dict(), env.state_dict())
        env.load_state_dict(state)
    return fresh


def assert_steps_equal_gymnasium(task: str, count: int, **options: Any) -> tuple[int, int]:
    """Compare with a hand-written loop on the raw environment; how many terminated, truncated."""
    env = envs.make(f"gym/{task}", generator(7), **options)
    raw: Any = gymnasium.make(task, disable_env_checker=True).unwrapped
    raw.np_random = generator(7)
    scale = getattr(raw.action_space, "high", 1)
    np.testing.assert_array_equal(env.reset(), raw.reset()[0].astype("f4"))
    limit = options.get("max_episode_steps", env.spec.max_episode_steps)
    steps, ends = 0, [0, 0]
    for action in random_actions(env.spec.id, count, seed=1):
        total, frames, over, steps = 0.0, 0, False, steps + 1
        while frames < options.get("action_repeat", 1) and not over:
            obs_raw, reward_raw, terminated_raw, *_ = raw.step(scale * action)
            total, frames = total + float(reward_raw), frames + 1
            over = terminated_raw and options.get("terminate", True)
        obs, reward, terminated, truncated = env.step(action)
        np.testing.assert_array_equal(obs, obs_raw.astype("f4"))
        assert (reward, env.step_frames, terminated) == (total, frames, over)
        assert truncated == (steps == limit and not over)
        ends = [ends[0] + terminated, ends[1] + truncated]
        if terminated or truncated:
            steps = 0
            np.testing.assert_array_equal(env.reset(), raw.reset()[0].astype("f4"))
    return ends[0], ends[1]


def assert_same_states(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        assert_same_states(list(ours.values()), list(theirs.values()))
    elif isinstance(ours, list):
        for our, their in zip(ours, theirs, strict=True):
            assert_same_states(our, their)
    else:
        assert ours == theirs
