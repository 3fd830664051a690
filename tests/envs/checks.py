"""What the tests of every environment share."""

import io
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
    """Write arrays to npz and the rest to JSON, without pickle, and read both back."""
    arrays: dict[str, np.ndarray] = {}

    def take_arrays(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            key = f"array{len(arrays)}"
            arrays[key] = value
            return {"__array__": key}
        if isinstance(value, dict):
            assert all(type(key) is str for key in value)
            return {key: take_arrays(item) for key, item in value.items()}
        if isinstance(value, list):
            return [take_arrays(item) for item in value]
        assert value is None or type(value) in (bool, int, float, str), type(value)
        return value

    text = json.dumps(take_arrays(state))
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    file.seek(0)
    read = np.load(file, allow_pickle=False)

    def put_arrays(value: Any) -> Any:
        if isinstance(value, dict):
            if "__array__" in value:
                return read[value["__array__"]]
            return {key: put_arrays(item) for key, item in value.items()}
        return [put_arrays(item) for item in value] if isinstance(value, list) else value

    return put_arrays(json.loads(text))


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
) -> None:
    """A state taken after `before` steps continues alike in another instance for `after` steps.

    The other instance has another seed; when `used`, it stands at the end of an episode.
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


def assert_same_states(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            assert_same_states(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_same_states(our, their)
    else:
        assert ours == theirs
