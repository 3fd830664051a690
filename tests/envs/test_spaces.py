from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlplast.envs.spaces import action_size, observation_size


def box(low: Any, high: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def bounds(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low, "f4"), np.array(high, "f4"))


@pytest.mark.parametrize(
    ("space", "size"),
    [(box(-np.inf, np.inf, (7,)), 7), (box(0, 1, (2, 3, 4), np.float64), 24), (box(0, 1, ()), 1)],
)
def test_a_box_of_floats_is_flattened(space: spaces.Space, size: int) -> None:
    assert observation_size("gym/X", space) == size


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": box(0, 1, (2,))}), "'gym/X' are Dict, .*no flattening rule: wrap it"),
        (spaces.Tuple([box(0, 1, (2,))]), "are Tuple, .*FlattenObservation"),
        (spaces.Discrete(3), "are Discrete, .*one-hot"),
        (spaces.MultiDiscrete([2, 3]), "are MultiDiscrete, .*one-hot"),
        (spaces.MultiBinary(3), "are MultiBinary, .*return it as a Box"),
        (spaces.Text(3), "are Text, .*return a Box of float32"),
        (box(0, 255, (4, 4, 3), np.uint8), r"Box of uint8: .*DtypeObservation\(env, numpy"),
        (box(0, 1, (3, 0)), r"shape \(3, 0\): no entries"),
    ],
)
def test_other_observations_are_refused_with_a_remedy(space: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        observation_size("gym/X", space)


def test_actions_are_counted_or_bounded() -> None:
    assert action_size("gym/X", spaces.Discrete(5, start=2)) == 5
    found = action_size("gym/X", box(-2, 3, (2, 2), np.float64))
    np.testing.assert_array_equal(found, np.array([[-2.0] * 4, [3.0] * 4]), strict=True)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (box(-np.inf, np.inf, (2,)), "entry 0 of the actions of env 'gym/X' has the bounds -inf"),
        (box(-np.inf, 1, (2,)), "entry 0 .* bounds -inf and 1.0"),
        (bounds([0, 0], [1, np.inf]), "entry 1 .* bounds 0.0 and inf: .*finite"),
        (bounds([0, 1], [1, 1]), "entry 1 .* 1.0 and 1.0: .* apart"),
        (box(0, 5, (2,), np.int64), r"a Box of int64, shape \(2,\): allowed are Discrete and"),
        (box(0, 5, (0,)), r"shape \(0,\): allowed"),
        (spaces.MultiDiscrete([2, 3]), "are MultiDiscrete: allowed are Discrete and a Box"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "are Dict: allowed"),
    ],
)
def test_other_actions_are_refused(space: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        action_size("gym/X", space)
