"""The switching frozen lake beside gymnasium's frozen lake, and its maps by brute force."""

from itertools import pairwise, product

import gymnasium
import numpy as np
import pytest

from rlplast import envs
from rlplast.envs.toy import lakes
from tests.envs.checks import assert_continues_after_restore, generator, random_actions

LAKE = "toy/switching_frozen_lake"
DOWN = 1  # gymnasium's number, and ours


def twin(rows: str) -> gymnasium.Env:
    return gymnasium.make("FrozenLake-v1", desc=rows.split("/"), is_slippery=False)


@pytest.mark.parametrize(("size", "switch_after"), [(2, 40), (2, None), (4, 10), (8, 3)])
def test_moves_rewards_and_ends_are_those_of_gymnasium(size: int, switch_after: int | None):
    limit = size * size // 2
    env = envs.make(LAKE, generator(0), size=size, map_seed=5, switch_after=switch_after)
    twins = [twin(rows) for rows in lakes(size, 5)]
    rewards, kinds, episode, steps = 0.0, set(), 1, 0
    obs, place = env.reset(), twins[0].reset()[0]
    for action in random_actions(LAKE, 3000, seed=1):
        second = switch_after is not None and episode > switch_after
        assert np.flatnonzero(obs).tolist() == [place]
        assert obs.sum() == 1
        assert obs.shape == env.spec.obs_shape == (size * size,)
        obs, reward, terminated, truncated = env.step(action)
        place, reward_twin, terminated_twin, _, _ = twins[second].step(action)
        steps += 1
        assert not truncated
        assert reward == reward_twin
        assert terminated == (terminated_twin or steps == limit)
        rewards += reward
        if terminated:
            kinds.add((second, "G" if reward else "H" if terminated_twin else "limit"))
            episode, steps = episode + 1, 0
            second = switch_after is not None and episode > switch_after
            obs, place = env.reset(), twins[second].reset()[0]
    assert {second for second, _ in kinds} == ({False} if switch_after is None else {False, True})
    assert size > 2 or {"G", "H", "limit"} == {kind for _, kind in kinds}


@pytest.mark.parametrize("size", (3, 4, 6))
def test_no_shortest_way_through_a_lake_is_one_through_the_other(size: int):
    for map_seed in range(4):
        first, second = lakes(size, map_seed)
        assert first != lakes(size, map_seed + 4)[0]
        rows = first.split("/")
        assert second.split("/") == ["".join(row[i] for row in rows) for i in range(size)]
        assert (rows[0][0], rows[-1][-1]) == ("S", "G")
        assert _ways(first) and not _ways(first) & _ways(second)


def _ways(text: str) -> set[tuple[int, ...]]:
    """All shortest ways, as moves: to the right, or not."""
    rows, found = text.split("/"), set()
    for moves in product((0, 1), repeat=2 * len(rows) - 2):
        if sum(moves) == len(rows) - 1:
            cells = [(i + 1 - right, right) for i, right in enumerate(np.cumsum(moves))]
            if all(rows[r][c] != "H" for r, c in cells):
                found.add(moves)
    return found


def test_restored_lakes_continue_bit_for_bit():
    for options in ({}, {"size": 5, "switch_after": 7}, {"switch_after": None}):
        assert_continues_after_restore(LAKE, 150, 300, min_ends=10, **options)


def test_the_picture_shows_the_lake_of_the_episode_and_the_agent():
    env = envs.make(LAKE, generator(0), switch_after=1)
    env.reset()
    pictures = [env.render()]
    env.step(DOWN)
    pictures.append(env.render())
    env.reset()
    pictures.append(env.render())
    assert {p.shape for p in pictures} == {(64, 64, 3)}
    upper_right, lower_left = ([tuple(p[i, j]) for p in pictures] for i, j in ((0, 63), (63, 0)))
    assert upper_right[0] == lower_left[2] != upper_right[2] == lower_left[0]  # the hole
    for one, two in pairwise(pictures):
        assert (one != two).any()
