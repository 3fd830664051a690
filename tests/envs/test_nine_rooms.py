"""The nine rooms, drawn, beside a slow walk over the drawing; goals beside the published code's."""

from functools import cache

import numpy as np
import pytest

from rlplast import envs
from rlplast.agents.tasks import Tasks
from rlplast.core.errors import ConfigError
from rlplast.envs.nine_rooms import goals
from rlplast.run.config_file import read_config
from tests.envs.checks import assert_continues_after_restore, generator

ROOMS = "toy/nine_rooms"
# Cells lie at odd rows and columns, walls and doors between them.
LINE = "#" * 31
SHUT = "#         #         #         #"
OPEN = "#                             #"  # in the middle of a room's side
DOORS = "##### ######### ######### #####"


def drawing() -> list[str]:
    """Return 31 lines of 31."""
    edge = [SHUT] * 4 + [OPEN] + [SHUT] * 4
    return [LINE, *edge, DOORS, *[SHUT] * 9, DOORS, *edge, LINE]


PLAN = drawing()
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]


def moved(cell: tuple[int, int], action: int) -> tuple[int, int]:
    row, column = 2 * cell[0] + 1, 2 * cell[1] + 1
    down, right = MOVES[action]
    if PLAN[row + down][column + right] == "#":
        return cell
    return cell[0] + down, cell[1] + right


@cache
def ways(goal: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Return how far each cell is from the goal, relaxed until nothing changes."""
    found = {(row, column): 1000 for row in range(15) for column in range(15)}
    found[goal] = 0
    while True:
        near = {c: min([found[c], *(found[moved(c, a)] + 1 for a in range(4))]) for c in found}
        if near == found:
            return found
        found = near


def test_moves_rewards_and_ends_are_those_of_a_walk_over_the_drawing():
    # By `make_vector`, which says at an end whether the episode reached its goal.
    env = envs.make_vector(ROOMS, [generator(0)], goal_seed=123, goal_every=300)
    rng, seen, steps, total = generator(123), set(), 0, 0
    obs, cell = env.reset()[0], (7, 7)
    for number in range(1000):
        goal = goals(123, number // 300 + 1)[-1]
        assert np.flatnonzero(obs).tolist() == [15 * cell[0] + cell[1]] and obs.sum() == 1
        nearest = min(range(4), key=lambda action: ways(goal)[moved(cell, action)])
        action = nearest if rng.random() < 0.3 else int(rng.integers(4))
        step = env.step(np.array([action]))
        obs, terminated, truncated = step.obs[0], step.terminated[0], step.truncated[0]
        steps += 1
        expected = 3.0 * (cell == goal) - 0.01 * ways(goal)[cell]
        assert step.reward[0] == pytest.approx(expected)
        assert terminated == (cell == goal)
        changes = (number + 1) % 300 == 0
        assert truncated == ((steps == 100 or changes) and not terminated)
        cell = moved(cell, action)
        if terminated or truncated:
            seen.add("goal" if terminated else "change" if changes else "limit")
            assert step.success[0] == float(terminated)
            total += terminated
            cell, steps = (7, 7), 0
    assert seen == {"goal", "change", "limit"}
    assert total > 5


def test_goals_are_those_of_the_published_code():
    # Of NineRoomsEnv(seed=123, change_freq=1) of wechu/parseval_reg.
    published = [(8, 0), (13, 3), (5, 2), (5, 12), (6, 13), (6, 4), (11, 12)]
    assert goals(123, len(published)) == published
    drawn = goals(0, 500)
    rooms = {(row // 5, column // 5) for row, column in drawn}
    assert rooms == {(1, 0), (1, 2), (2, 0), (2, 1), (2, 2)}
    assert np.max(drawn, 0).tolist() == [14, 14]


def test_it_continues_after_a_restore():
    for goal_every in (None, 37):
        options: dict[str, int | None] = {"goal_every": goal_every, "max_episode_steps": 9}
        assert_continues_after_restore(ROOMS, 200, 200, min_ends=10, **options)


def test_a_picture_shows_walls_goal_and_agent():
    env = envs.make(ROOMS, generator(0))
    env.reset()
    picture = env.render()
    goal = goals(0, 1)[0]
    assert picture.shape == (240, 240, 3)
    assert picture[7 * 16 + 8, 7 * 16 + 8].tolist() == [214, 69, 65]
    assert picture[goal[0] * 16 + 8, goal[1] * 16 + 8].tolist() == [88, 170, 110]
    walls = (picture == (52, 73, 94)).all(-1)
    shut = sum(moved((r, c), a) == (r, c) for r in range(15) for c in range(15) for a in (1, 3))
    assert walls[15::16].any() and 0 < walls.sum() <= shut * 32


def tasks(seed: int, **env: object) -> Tasks:
    config = read_config(
        "ppo/nine_rooms", {"seed": seed, **{f"env.{k}": v for k, v in env.items()}}
    )
    return Tasks(config.env, seed)


def test_every_task_has_a_goal_of_its_own_which_the_seed_decides():
    made, again, other = tasks(1), tasks(1), tasks(2)
    seeds = [made.of(k)[1]["goal_seed"] for k in range(20)]
    assert len(set(seeds)) == 20  # task 0 draws one too
    assert seeds == [again.of(k)[1]["goal_seed"] for k in range(20)]
    assert not set(seeds) & {other.of(k)[1]["goal_seed"] for k in range(20)}
    env = made.make(7, [generator(0)])
    env.reset()
    cell, goal = (7, 7), goals(seeds[7], 1)[0]
    assert env.step(np.array([0])).reward[0] == pytest.approx(-0.01 * ways(goal)[cell])
    with pytest.raises(ConfigError, match="no hidden goal"):
        tasks(1, id="gym/CartPole-v1")
