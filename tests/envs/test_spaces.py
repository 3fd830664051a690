from itertools import product
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten

from rlplast.envs.spaces import acted, seen


def box(low: Any, high: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def bounds(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low, "f4"), np.array(high, "f4"))


FLAT = [
    (box(-np.inf, np.inf, (7,)), 7),
    (box(0, 1, (2, 3, 4), np.float64), 24),
    (box(0, 1, ()), 1),
    (box(-3, 9, (2, 2), np.int64), 4),
    (spaces.Discrete(3, start=-1), 3),
    (spaces.MultiDiscrete([2, 3]), 5),
    (spaces.MultiBinary((2, 2)), 4),
    (spaces.Tuple([box(0, 1, (2,)), spaces.Discrete(4)]), 6),
    (spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Discrete(3)])}), 5),
]


def test_observations_are_flattened_as_gymnasium_does() -> None:
    for space, size in FLAT:
        space.seed(0)
        found, obs = seen("gym/X", space), space.sample()
        assert (found.shape, found.dtype, found.scale) == ((size,), "float32", 1.0)
        np.testing.assert_array_equal(found.read(obs), flatten(space, obs))


def test_bytes_with_two_or_three_axes_are_a_picture_and_others_a_scaled_vector() -> None:
    for shape, expected, turn in (
        ((8, 6, 3), (3, 8, 6), lambda a: a.transpose(2, 0, 1)),
        ((3, 8, 6), (3, 8, 6), lambda a: a),
        ((5, 5), (1, 5, 5), lambda a: a[None]),
        ((7, 7, 7), (7, 7, 7), lambda a: a.transpose(2, 0, 1)),
        ((128,), (128,), lambda a: a),
    ):
        space = box(0, 255, shape, np.uint8)
        found, obs = seen("gym/X", space), np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        dtype = "uint8" if len(shape) > 1 else "float32"
        assert (found.shape, found.dtype, found.scale) == (expected, dtype, 1 / 255)
        np.testing.assert_array_equal(found.read(obs), turn(obs))


PICTURE, BYTES = box(0, 255, (2, 2), np.uint8), box(0, 255, (4,), np.uint8)
BOTH = spaces.Dict({"a": box(0, 1, (2,)), "b": box(0, 1, (2,))})
ONE_OF_THREE, TWO, BITS = spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)


REFUSED: list[tuple[spaces.Space, Any]] = [
    *[(PICTURE, np.full((2, 2), value)) for value in (0.7, 300, -1, np.nan)],
    *[(BYTES, np.full(4, value)) for value in (0.7, 300, -1, np.nan)],
    *[(ONE_OF_THREE, value) for value in (-1, 3, 1.5, "x", None, [1, 2])],
    *[(TWO, value) for value in ([1], [-1, 0], [1, 3], [0, 0.5])],
    *[(BITS, value) for value in ([7, 0, 1], [1, 0])],
    *[(BOTH, {"a": [0.0], "b": [0.0] * 3}), (BOTH, {"a": [0.0] * 2}), (BOTH, np.zeros(4))],
    *[(spaces.Tuple([ONE_OF_THREE] * 2), value) for value in ((1,), (1, 1, 1))],
    *[(box(0, 1, (2,)), value) for value in (["a", "b"], [1j, 0], [[1], [2, 3]], None)],
]


def test_observations_of_another_space_are_refused() -> None:
    for space, obs in REFUSED:
        with pytest.raises((KeyError, IndexError, TypeError, ValueError)):
            seen("gym/X", space).read(obs)
            pytest.fail(f"{obs} of {space}")


def test_observations_need_the_values_of_their_space_not_its_types() -> None:
    for space, obs, expected in (
        (PICTURE, [[1.0, 2.0], [3.0, 255.0]], [[[1, 2], [3, 255]]]),
        (ONE_OF_THREE, np.array([1]), [0, 1, 0]),
        (spaces.Discrete(2), True, [0, 1]),
        (TWO, [1, 2], [0, 1, 0, 0, 1]),
        (BITS, [1, 0, 1], [1, 0, 1]),
        (box(0, 1, (2,)), (7, -7.5), [7, -7.5]),
        (BOTH, {"b": [0.0, 1.0], "a": (2, 3), "c": None}, [2, 3, 0, 1]),
    ):
        np.testing.assert_array_equal(seen("gym/X", space).read(obs), expected)
    values = [0.75, 300.0, -300.0, 1e6]  # more than their types can hold
    for dtype in (np.int8, np.int64, np.float16, np.bool_):
        own = spaces.Box(0, 1, (4,), dtype)
        np.testing.assert_array_equal(seen("gym/X", own).read(values), values)
        found = seen("gym/X", spaces.Dict({"a": own, "b": BITS})).read(
            {"a": values, "b": [1, 0, 1]}
        )
        np.testing.assert_array_equal(found[:4], values)


def test_keys_choose_entries_of_a_dict() -> None:
    image = box(0, 255, (4, 4, 3), np.uint8)
    space = spaces.Dict({"image": image, "way": spaces.Discrete(4), "say": spaces.Text(9)})
    obs = {"image": np.ones((4, 4, 3), np.uint8), "way": 2, "say": "go"}
    assert seen("gym/X", space, ["image"]).shape == (3, 4, 4)
    both = seen("gym/X", space, ["way", "image"])
    assert both.shape == (52,)
    assert both.read(obs).sum() == 49
    assert seen("gym/X", spaces.Dict({"image": image})).read(obs).shape == (3, 4, 4)
    with pytest.raises(ValueError, match="'picture'"):
        seen("gym/X", space, ["picture"])
    with pytest.raises(ValueError, match="are Discrete"):
        seen("gym/X", spaces.Discrete(3), ["image"])


def test_spaces_of_other_observations_are_refused_with_a_remedy() -> None:
    for space, message in (
        (spaces.Text(3), r"are Text.*keys: \[...\]"),
        (spaces.Dict({"a": spaces.Text(3), "b": box(0, 1, (2,))}), r"observations\['a'\]"),
        (spaces.Sequence(spaces.Discrete(2)), "are Sequence"),
        (box(0, 1, (3, 0)), "no entries"),
        (spaces.Discrete(10**9), "1000000000 entries"),
        (box(0, 255, (0, 4), np.uint8), "no entries"),
    ):
        with pytest.raises(ValueError, match=message):
            seen("gym/X", space)


def test_actions_are_counted_or_bounded() -> None:
    five = acted("gym/X", spaces.Discrete(5, start=2))
    assert (five.count, five.bounds, five.native(0)) == (5, None, 2)
    low, high = acted("gym/X", box(-2, 3, (2, 2), np.float64)).bounds or (0, 0)
    np.testing.assert_array_equal([low, high], np.array([[-2.0] * 4, [3.0] * 4]), strict=True)
    assert acted("gym/X", box(-2, 3, (2, 2))).native(np.zeros(4)).shape == (2, 2)


def test_combinations_are_numbered_through() -> None:
    for space, combinations in (
        (spaces.MultiDiscrete([2, 3]), product(range(2), range(3))),
        (spaces.MultiDiscrete([2, 2], start=[1, 5]), product((1, 2), (5, 6))),
        (spaces.MultiBinary(3), product((0, 1), repeat=3)),
        (spaces.MultiDiscrete([[2], [2]]), (([a], [b]) for a in (0, 1) for b in (0, 1))),
    ):
        found, expected = acted("gym/X", space), [np.array(c).tolist() for c in combinations]
        assert found.count == len(expected)
        actions = [found.native(i) for i in range(len(expected))]
        assert [a.tolist() for a in actions] == expected
        assert all(space.contains(a) for a in actions)


def test_other_actions_are_refused() -> None:
    for space, message in (
        (box(-np.inf, np.inf, (2,)), "entry 0 .* 'gym/X' .* -inf and inf"),
        (box(-np.inf, 1, (2,)), "entry 0 .* -inf and 1.0"),
        (box(-1.7e308, 1.7e308, (2,), np.float64), "their difference"),
        (bounds([0, 0], [1, np.inf]), "entry 1 .* 0.0 and inf"),
        (bounds([0, 1], [1, 1]), "entry 1 .* 1.0 and 1.0"),
        (box(0, 5, (2,), np.int64), r"a Box of int64, shape \(2,\)"),
        (box(0, 5, (0,)), r"shape \(0,\)"),
        (spaces.MultiDiscrete([32, 33]), "1056 combinations"),
        (spaces.MultiBinary(99), f"{2**99} combinations"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "are Dict"),
    ):
        with pytest.raises(ValueError, match=message):
            acted("gym/X", space)
