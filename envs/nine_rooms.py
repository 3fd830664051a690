"""Nine rooms: a grid in which a hidden goal moves, and PPO stops learning to find it.

15 × 15 cells make nine rooms of 5 × 5. Doors of one cell join neighbours, but for the middle room,
where an episode starts: it has doors up and down alone. Moves are certain; one into a wall or off
the edge leaves the agent in place. A step's reward is that of the cell it leaves: −0.01 × the
length of the shortest way from there to the goal, and 3 at the goal, where any action ends the
episode, as a success. The goal is not observed. It lies in any room but the start's and the three
on top. Observations are one-hot vectors (225,) of the cell, row by row.

Source: Chung et al. 2024, Parseval Regularization for Continual Reinforcement Learning; the
defaults of its code (`NineRoomsEnv`).

Options: `goal_seed` decides the goals; `goal_every` env_steps the next one comes, which truncates
the running episode, null: the first one stays; `max_episode_steps`. As tasks of a sequence, with
the shift ``moved_goal``, each task has a goal of its own, and evaluations the task's.
"""

from collections import deque
from functools import cache
from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, Simulator, State
from rlplast.envs.options import Family, Option, count, whole

__all__ = ["FAMILY", "distances", "goals"]

_ID = "toy/nine_rooms"
_SIZE, _ROOM = 15, 5
_START = (7, 7)
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right: rows and columns
_DOORS_DOWN = (2, 7, 12)  # columns of the doors between a room and the one below
_DOORS_RIGHT = (2, 12)  # rows of the doors between a room and the one to its right
_REWARD, _PER_STEP = 3, -0.01
_CELL = 16  # pixels of a rendered cell

Cell = tuple[int, int]


@cache
def _next(cell: Cell, action: int) -> Cell:
    down, right = _MOVES[action]
    row, column = target = cell[0] + down, cell[1] + right
    if not (0 <= row < _SIZE and 0 <= column < _SIZE):
        return cell
    if cell[0] // _ROOM != row // _ROOM:
        is_open = column in _DOORS_DOWN
    elif cell[1] // _ROOM != column // _ROOM:
        is_open = row in _DOORS_RIGHT
    else:
        is_open = True
    return target if is_open else cell


@cache
def distances(goal: Cell) -> np.ndarray:
    """Return the length of the shortest way to a goal from every cell, int64 (15, 15)."""
    lengths = np.full((_SIZE, _SIZE), -1)
    lengths[goal], queue = 0, deque([goal])
    while queue:
        cell = queue.popleft()
        for neighbour in (_next(cell, action) for action in range(len(_MOVES))):
            if lengths[neighbour] < 0:
                lengths[neighbour] = lengths[cell] + 1
                queue.append(neighbour)
    return lengths


def goals(seed: int, number: int) -> list[Cell]:
    """Return the first goals of a seed, in the published order of draws.

    Examples:
        >>> goals(123, 3)
        [(8, 0), (13, 3), (5, 2)]
    """
    rng, cells = np.random.default_rng(seed), []
    while len(cells) < number:
        row, column = map(int, rng.integers(0, _SIZE, size=2))
        in_start_room = row // _ROOM == 1 and column // _ROOM == 1
        if row >= _ROOM and not in_start_room:
            cells.append((row, column))
    return cells


class _NineRooms(Simulator):
    """The rooms, and the goal of now."""

    def __init__(self, goal_seed: int, goal_every: int | None) -> None:
        self._seed, self._every = goal_seed, goal_every
        self._place, self._steps = _START, 0  # steps of all episodes
        self._find_goal()

    def _find_goal(self) -> None:
        past = 0 if self._every is None else self._steps // self._every
        self.goal = goals(self._seed, past + 1)[-1]
        self._distances = distances(self.goal)

    def reset(self) -> np.ndarray:
        self._place = _START
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        reached = self._place == self.goal
        self.success = float(reached)
        reward = _REWARD * reached + _PER_STEP * float(self._distances[self._place])
        self._place = _next(self._place, action)
        self._steps += 1
        moves = self._every is not None and not self._steps % self._every
        if moves:
            self._find_goal()
        return self._observe(), reward, reached, moves

    def _observe(self) -> np.ndarray:
        obs = np.zeros(_SIZE**2, np.float32)
        obs[self._place[0] * _SIZE + self._place[1]] = 1
        return obs

    def render(self) -> np.ndarray:
        """Return the rooms, the goal in green and the agent in red."""
        picture = np.full((_SIZE * _CELL, _SIZE * _CELL, 3), (214, 234, 248), np.uint8)
        for (row, column), colour in ((self.goal, (88, 170, 110)), (self._place, (214, 69, 65))):
            top, left = row * _CELL, column * _CELL
            picture[top + 3 : top + _CELL - 3, left + 3 : left + _CELL - 3] = colour
        for cell in np.ndindex(_SIZE, _SIZE):
            top, left = cell[0] * _CELL, cell[1] * _CELL
            if _next(cell, 1) == cell:
                picture[top + _CELL - 2 : top + _CELL, left : left + _CELL] = (52, 73, 94)
            if _next(cell, 3) == cell:
                picture[top : top + _CELL, left + _CELL - 2 : left + _CELL] = (52, 73, 94)
        return picture

    def state_dict(self) -> State:
        return {"place": list(self._place), "steps": self._steps}

    def load_state_dict(self, state: State) -> None:
        row, column = map(int, state["place"])
        self._place, self._steps = (row, column), int(state["steps"])
        self._find_goal()


_OPTIONS: dict[str, Option] = {
    "goal_seed": whole(0, 0, 10**9),
    "goal_every": count(None, none_means="the first one stays"),
    "max_episode_steps": count(100),
}


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    return EnvSpec(
        id=env_id,
        obs_shape=(_SIZE**2,),
        num_actions=len(_MOVES),
        max_episode_steps=options["max_episode_steps"],
        changes=options["goal_every"] is not None,
    )


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    return _NineRooms(options["goal_seed"], options["goal_every"])


FAMILY = Family(
    ids={_ID: "nine rooms with a hidden goal that may move: 4 actions"},
    source="Chung et al. 2024, Parseval Regularization for Continual RL",
    options=lambda env_id: _OPTIONS,
    spec=_spec,
    make=_make,
)
