"""What the tests of every environment share."""

import json
from collections.abc import Sequence
from typing import Any

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
    """Act, starting a new episode where one ended; returns what every step and reset gave."""
    steps: list[Step] = []
    for action in actions:
        obs, reward, terminated, truncated = env.step(action)
        steps.append((obs, reward, terminated, truncated, env.step_frames))
        if terminated or truncated:
            steps.append((env.reset(), 0.0, False, False, 0))
    return steps


def ends(steps: Sequence[Step]) -> int:
    return sum(step[2] or step[3] for step in steps)


def assert_same_steps(steps: Sequence[Step], expected: Sequence[Step]) -> None:
    assert len(steps) == len(expected)
    for ours, theirs in zip(steps, expected, strict=True):
        assert ours[1:] == theirs[1:]
        assert ours[0].dtype == theirs[0].dtype
        np.testing.assert_array_equal(ours[0], theirs[0])


def assert_continues_after_restore(
    env_id: str, before: int, after: int, min_ends: int, used: bool = False, **options: Any
) -> envs.Env:
    """A state taken after `before` steps continues alike in another instance for `after` steps.

    The other instance has another seed; when `used`, it stands at the end of an episode.

    Returns:
        That instance.
    """
    env = envs.make(env_id, generator(1), **options)
    env.reset()
    play(env, random_actions(env_id, before, seed=2))
    state = through_files(env.state_dict())
    actions = random_actions(env_id, after, seed=4)
    other = envs.make(env_id, generator(3), **options)
    if used:
        other.reset()
        while not any(other.step(actions[0])[2:]):
            pass
    expected = play(env, actions)
    other.load_state_dict(state)
    assert_same_steps(play(other, actions), expected)
    assert ends(expected) >= min_ends
    assert_same_states(other.state_dict(), env.state_dict())
    return other


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
