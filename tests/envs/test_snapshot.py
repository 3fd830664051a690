"""A state taken and put back, beside a deep copy."""

import collections
import copy
import dataclasses
import enum
import json
import random
import types
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.envs.snapshot import NoSnapshot, put, take
from rlplast.training import checkpoint


class Way(enum.Enum):
    UP = 1
    DOWN = 2


@dataclasses.dataclass
class Cell:
    place: Any
    other: Any = None


class Slotted:
    __slots__ = ("_left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self._left, self.right = left, right


Point = collections.namedtuple("Point", "x y")


class World:
    """Holds what it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def move(self) -> str:
        return "moved"


def with_attributes() -> Any:
    def count() -> int:
        return 0

    count.calls = 0  # pyright: ignore[reportFunctionMemberAccess]
    return count


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else []


def spaces_of_one_generator() -> Any:
    one, other = spaces.Discrete(2), spaces.Discrete(2)
    other._np_random = one.np_random
    return [one, other]


BITS = np.random.PCG64(0)
NUMBERS = st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=3)
SCALARS = st.sampled_from([np.float32(0.1), np.int64(-3), np.bool_(True), np.uint8(7), Way.DOWN])
ARRAYS = st.builds(
    lambda kind, shape: np.arange(np.prod(shape, dtype=int)).astype(kind).reshape(shape),
    st.sampled_from(["f4", "f8", "i8", "u1", "?", "S2", "U2", "c8", ">i4"]),
    st.lists(st.integers(0, 3), max_size=3),
)
LEAVES = NUMBERS | SCALARS | ARRAYS | st.binary(max_size=3)
KEYS = st.text(max_size=2) | st.integers() | st.tuples(st.integers(), st.booleans())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(collections.deque, st.lists(inner, max_size=3), st.sampled_from([None, 5])),
        st.builds(Cell, inner, inner),
        st.builds(Slotted, inner, inner),
        st.builds(Point, inner, inner),
        st.frozensets(st.integers(), max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=8,
)


def saved(state: Any) -> Any:
    """Return a state as it comes back from a checkpoint."""
    tensors: dict[str, Any] = {}
    rest = checkpoint._split(state, "state", tensors)
    return checkpoint._join(json.loads(json.dumps(rest)), tensors)


def put_back(world: World, **now: Any) -> World:
    other = World(**now)
    put(saved(take([world])), [other])
    return other


def same(one: Any, other: Any) -> bool:
    """Say whether two values are equal in type and content, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, np.generic):
        return one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple | collections.deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Cell):
        return same(vars(one), vars(other))
    if isinstance(one, Slotted):
        return same((one._left, one.right), (other._left, other.right))
    return one == other or (one != one and other != other)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_what_comes_back_is_a_deep_copy(value: Any) -> None:
    world = World(value=value, same=value)
    expected = copy.deepcopy(value)
    other = put_back(world, value=None, more=3)
    assert same(other.value, expected)
    assert not hasattr(other, "more")
    mutable = isinstance(value, list | dict | set | Cell | collections.deque | Slotted)
    assert not mutable or (other.same is other.value and other.value is not value)


def test_what_is_shared_stays_shared_even_in_a_circle() -> None:
    cell = Cell([1, 2])
    cell.other = [cell]
    world = World(cell=cell, cells={"a": cell}, own=None)
    world.own = world
    other = put_back(world)
    assert other.own is other
    assert other.cells["a"] is other.cell is other.cell.other[0] is not cell


@pytest.mark.parametrize(
    "make", [lambda: np.random.default_rng(3), lambda: np.random.RandomState(3), lambda: None]
)
def test_generators_go_on(make: Any) -> None:
    rng = make() or random.Random(3)
    other = put_back(World(rng=rng, also=rng), rng=make() or random.Random(4))
    assert other.also is other.rng is not rng
    draw = "normal" if hasattr(rng, "normal") else "random"
    assert [getattr(rng, draw)() for _ in range(3)] == [
        getattr(other.rng, draw)() for _ in range(3)
    ]


def test_functions_stay_and_their_cells_come_back() -> None:
    def counter() -> Any:
        total = [0]

        def count() -> int:
            total[0] += 1
            return total[0]

        return count

    one = World(count=counter(), kind=Cell, module=json, sine=np.sin)
    one.act = one.move
    one.count(), one.count()
    other = World(count=counter(), kind=Cell, module=json, sine=np.sin)
    function = other.count
    put(saved(take([one])), [other])
    assert other.count is function
    assert (one.count(), other.count(), other.count()) == (3, 3, 4)
    assert (other.kind, other.module, other.sine) == (Cell, json, np.sin)
    assert other.act.__self__ is other


def test_a_function_with_itself_in_a_variable_comes_back() -> None:
    def make(total: int) -> Any:
        def count() -> Any:
            nonlocal total
            total += 1
            return total, count

        return count

    one, other = World(count=make(5)), World(count=make(0))
    one.count()
    put(saved(take([one])), [other])
    assert other.count() == (7, other.count)


def test_generators_spawn_the_same_children() -> None:
    rng = np.random.default_rng(3)
    rng.spawn(2)
    other = put_back(World(rng=rng), rng=np.random.default_rng(4))
    assert other.rng.spawn(1)[0].normal() == rng.spawn(1)[0].normal()


def test_the_generators_inside_spaces_come_back() -> None:
    def space() -> spaces.Dict:
        return spaces.Dict({"a": spaces.Discrete(99), "b": spaces.Tuple([spaces.Discrete(99)])})

    one = World(space=space())
    one.space.seed(3)
    other = put_back(one, space=space())
    assert [other.space.sample() for _ in range(3)] == [one.space.sample() for _ in range(3)]


def test_slots_of_what_is_written_to_come_back() -> None:
    class SlotWorld(World):
        __slots__ = ("left", "right")

    one, other = SlotWorld(more=1), SlotWorld()
    one.left, other.left, other.right = 3, 4, 5
    put(saved(take([one])), [other])
    assert (other.left, other.more, hasattr(other, "right")) == (3, 1, False)


def test_arrays_keep_their_order_in_memory() -> None:
    board = np.asfortranarray(np.random.default_rng(0).normal(size=(3, 4)))
    found = put_back(World(board=board)).board
    assert found.flags.f_contiguous
    np.testing.assert_array_equal(found, board)


def test_what_is_outside_is_not_copied() -> None:
    rng, theirs = np.random.default_rng(0), np.random.default_rng(1)
    other = World()
    put(saved(take([World(rng=rng)], [rng])), [other], [theirs])
    assert other.rng is theirs


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (iter([1]), "World.value is a builtins:list_iterator, whose state Python does not show"),
        (type("Rows", (list,), {})(), "World.value is a .*Rows, whose state"),
        (np.arange(3).data, "World.value is a builtins:memoryview"),
        ([Cell(open)], None),
        ([].append, "World.value is a builtins:builtin_function_or_method"),
        (np.zeros(2, [("x", "f8")]), r"World.value is an array of \[\('x', '<f8'\)\]"),
        (np.ma.zeros(2), "World.value is a numpy.ma:MaskedArray"),
        (with_attributes(), "World.value is a function with attributes, or defaults that may"),
        (lambda x=[]: x, "World.value is a function with attributes, or defaults that may"),
        (types.MethodType(len, []), "World.value is a method len that its class has not"),
        (type("Local", (), {}), "World.value is the class tests.envs.test_snapshot:Local"),
        ([np.random.Generator(BITS), np.random.Generator(BITS)], "are one generator"),
        (spaces_of_one_generator(), "are one generator"),
        (deep(99), r"World\.value\[0\].*… is more than 50 objects deep"),
    ],
)
def test_what_python_does_not_show_is_refused(value: Any, message: str | None) -> None:
    if message is None:
        take([World(value=value)])
        return
    with pytest.raises(NoSnapshot, match=message):
        take([World(value=value)])


def test_the_memory_of_pygame_is_refused() -> None:
    pygame = pytest.importorskip("pygame")
    for value in (pygame.Rect(0, 0, 3, 3), pygame.Surface((4, 4)), pygame.math.Vector2(0, 0)):
        with pytest.raises(NoSnapshot, match="whose state Python does not show"):
            take([World(value=value)])


def test_views_of_one_array_are_refused() -> None:
    board = np.zeros((3, 3))
    with pytest.raises(NoSnapshot, match=r"World\.row and World\.board are views of one array"):
        take([World(board=board, row=board[0])])

    def act(row: Any = None) -> Any:
        def inside() -> Any:
            return board, rows

        rows = board[1]
        return inside

    with pytest.raises(NoSnapshot, match="are views of one array"):
        take([World(act=act())])
    other = put_back(World(only=board[0]))
    np.testing.assert_array_equal(other.only, board[0])


def test_another_class_or_function_is_refused() -> None:
    state = saved(take([World(act=lambda: 1)]))
    with pytest.raises(NoSnapshot, match=r"World.act was .*<lambda>, and is 3 in a new"):
        put(state, [World(act=3)])
    with pytest.raises(NoSnapshot, match="cannot fill"):
        put(state, [Cell(1)])


def rules() -> list[Any]:
    return [lambda x: x, lambda x: -x]


def constants(*numbers: float) -> list[Any]:
    return [lambda number=number: number for number in numbers]


def closures(*numbers: float) -> list[Any]:
    def make(number: float) -> Any:
        return lambda: number

    return [make(number) for number in numbers]


def pair(number: int = 0) -> list[Any]:
    def add() -> None:
        nonlocal number
        number += 1

    return [add, lambda: number]


def bounds(low: float) -> Any:
    space = spaces.Box(-1, 1, (2,))
    space.low[:] = low
    return space


@pytest.mark.parametrize(
    ("value", "now", "message"),
    [
        (rules()[1], rules()[0], "World.value was .*<lambda>, and is"),
        (constants(2)[0], constants(1)[0], "World.value was .*<lambda>, and is"),
        (closures(1, 2)[::-1] + closures(3), [closures(1)[0]] * 3, "are one in a new environment"),
        (pair(), [pair()[0], pair()[1]], "shared a variable"),
        ([*pair()[:1], *pair()[1:]], pair(), "are one in a new environment"),
        (bounds(-3), bounds(-1), "World.value was gymnasium.spaces.box:Box, and is Box"),
        (spaces.Discrete(2), spaces.Discrete(3), "World.value was .*Discrete, and is Discrete"),
    ],
)
def test_what_stays_is_never_taken_for_another(value: Any, now: Any, message: str) -> None:
    with pytest.raises(NoSnapshot, match=message):
        put_back(World(value=value), value=now)


@pytest.mark.parametrize(
    "node",
    [
        {"is": "named", "of": "subprocess:Popen", "items": ["true"], "n": 0},
        {"is": "object", "of": "subprocess:Popen", "items": [["args", "true"]], "n": 0},
        {"is": "enum", "of": "os:system", "name": "true"},
        {"is": "kept", "of": "os:system", "n": 0},
        {"is": "generator", "n": 0}
        | {"state": {"is": "dict", "n": 1, "items": [["bit_generator", "seed"]]}},
        {"is": "method", "name": "__init__", "n": 0}
        | {"self": {"is": "kept", "of": "os:system", "n": 1}},
    ],
)
def test_a_file_that_names_code_runs_none(node: Any) -> None:
    world = World(value=None)
    state = take([world])
    state["roots"][0][1] = [["value", node]]
    with pytest.raises(NoSnapshot):
        put(state, [world])
    assert world.value is None
