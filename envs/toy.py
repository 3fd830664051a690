"""The switching frozen lake: the smallest task on which a network has to learn something new.

The agent starts in the upper left corner (S) of a square lake and wants to the lower right one (G).
A hole (H) ends the episode without a reward, the goal with a reward of 1. Its `max_episode_steps`
end it too, without one: as a termination, as in the published code, so that nothing is expected
beyond. After `switch_after` episodes the lake is its mirror image about the diagonal: where a way
went down it now goes right. Moves are certain; one off the edge leaves the agent in place.

The lake of 2 × 2 is ``SH/FG``, then ``SF/HG`` (ICLR blog post 2024, "It's Time to Move On: Primacy
Bias and Why It Helps to Forget"). Its episodes end after 2 steps.

Observations are one-hot vectors (size²,) of the place, row by row. Options: `size` of the lake;
`map_seed` decides the holes of lakes from 3 × 3 on, which have a way to the goal by moves down and
right alone; `switch_after` episodes, null: never; `max_episode_steps`, null: size² / 2. Each
environment counts its own episodes, so one made for an evaluation begins on the first lake.
"""

from functools import cache
from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, Simulator, State
from rlplast.envs.options import Family, count, whole

__all__ = ["FAMILY", "lakes"]

_ID = "toy/switching_frozen_lake"
_MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # left, down, right, up: rows and columns
_HOLES = 0.35  # share of the cells that are tried as holes
_CELL = 32  # pixels of a rendered cell
_COLOURS = {"S": (214, 234, 248), "F": (214, 234, 248), "H": (52, 73, 94), "G": (88, 170, 110)}


@cache
def lakes(size: int, map_seed: int) -> tuple[str, str]:
    """Return both lakes, their rows joined by slashes; the second is the first one transposed.

    No shortest way through the first is one through the second.

    Examples:
        >>> lakes(2, 0)
        ('SH/FG', 'SF/HG')
    """
    if size == 2:
        return "SH/FG", "SF/HG"
    rng = np.random.default_rng([size, map_seed])
    while True:
        holes = rng.random((size, size)) < _HOLES
        holes[0, 0] = holes[-1, -1] = False
        ways = _ways(holes)
        if ways and not ways & _ways(holes.T):
            return _text(holes), _text(holes.T)


def _ways(holes: np.ndarray) -> frozenset[str]:
    """Return all ways to the goal by moves down (d) and right (r)."""
    size = len(holes)
    ways: dict[tuple[int, int], set[str]] = {(0, 0): {""}}
    for row in range(size):
        for column in range(size):
            if (row, column) != (0, 0):
                above, before = ways.get((row - 1, column), ()), ways.get((row, column - 1), ())
                reached = {f"{way}d" for way in above} | {f"{way}r" for way in before}
                ways[row, column] = set() if holes[row, column] else reached
    return frozenset(ways[size - 1, size - 1])


def _text(holes: np.ndarray) -> str:
    cells = np.where(holes, "H", "F")
    cells[0, 0], cells[-1, -1] = "S", "G"
    return "/".join("".join(row) for row in cells)


class _FrozenLake(Simulator):
    """One lake, then another; episodes end after `limit` steps at the latest."""

    def __init__(self, size: int, map_seed: int, switch_after: int | None, limit: int) -> None:
        self._limit = limit
        self._lakes = [text.split("/") for text in lakes(size, map_seed)]
        self._size, self._switch_after = size, switch_after
        self._place, self._episodes = 0, 0  # where the agent is; episodes begun

    @property
    def lake(self) -> list[str]:
        """The rows of the lake of the current episode."""
        switched = self._switch_after is not None and self._episodes > self._switch_after
        return self._lakes[int(switched)]

    def reset(self) -> np.ndarray:
        self._place = 0
        self._episodes += 1
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        row, column = divmod(self._place, self._size)
        down, right = _MOVES[action]
        row = min(max(row + down, 0), self._size - 1)
        column = min(max(column + right, 0), self._size - 1)
        self._place = row * self._size + column
        cell = self.lake[row][column]
        over = cell in "GH" or self.steps + 1 >= self._limit
        return self._observe(), float(cell == "G"), over, False

    def _observe(self) -> np.ndarray:
        obs = np.zeros(self._size**2, np.float32)
        obs[self._place] = 1
        return obs

    def render(self) -> np.ndarray:
        """Return the lake in colour, with the agent as a square in its cell."""
        cells = np.array([[_COLOURS[cell] for cell in row] for row in self.lake], np.uint8)
        picture = cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
        row, column = divmod(self._place, self._size)
        inside = slice(_CELL // 4, _CELL - _CELL // 4)
        tile = picture[row * _CELL :, column * _CELL :][:_CELL, :_CELL]
        tile[inside, inside] = (214, 69, 65)
        return picture

    def state_dict(self) -> State:
        return {"place": self._place, "steps": self.steps, "episodes": self._episodes}

    def load_state_dict(self, state: State) -> None:
        self._place, self._episodes = int(state["place"]), int(state["episodes"])


_OPTIONS = {
    "size": whole(2, 2, 8),
    "map_seed": whole(0, 0, 10**9),
    "switch_after": count(200, none_means="never"),
    "max_episode_steps": count(None, none_means="size² / 2"),
}


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    cells = options["size"] ** 2
    return EnvSpec(
        id=env_id,
        obs_shape=(cells,),
        num_actions=len(_MOVES),
        max_episode_steps=_limit(options),
        changes=options["switch_after"] is not None,
    )


def _limit(options: dict[str, Any]) -> int:
    return options["max_episode_steps"] or options["size"] ** 2 // 2


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    limit = _limit(options)
    return _FrozenLake(options["size"], options["map_seed"], options["switch_after"], limit)


FAMILY = Family(
    ids={_ID: "a frozen lake that turns into its mirror image: 4 actions"},
    source="ICLR blog post 2024, It's Time to Move On",
    options=lambda env_id: _OPTIONS,
    spec=_spec,
    make=_make,
)
