import minatar
import numpy as np
import pytest

from rlplast import envs
from tests.envs.checks import (
    assert_continues_after_restore,
    generator,
    random_actions,
    through_files,
)

GAMES = ["asterix", "breakout", "freeway", "seaquest", "space_invaders"]


@pytest.mark.parametrize("game", GAMES)
def test_steps_equal_minatar_itself(game: str) -> None:
    twin = minatar.Environment(game, sticky_action_prob=0.3)
    twin.random = twin.env.random = np.random.RandomState(np.random.PCG64(7))
    twin.reset()  # ours starts a first game when it is built
    env = envs.make(f"minatar/{game}", generator(7), sticky=0.3)
    obs = env.reset()
    twin.reset()
    for action in random_actions(env.spec.id, 400, seed=1):
        np.testing.assert_array_equal(obs, np.moveaxis(twin.state(), 2, 0))
        obs, reward, terminated, _ = env.step(action)
        assert (reward, terminated) == twin.act(twin.minimal_action_set()[action])
        if terminated:
            obs = env.reset()
            twin.reset()


@pytest.mark.parametrize("game", GAMES)
def test_restored_games_continue_bit_for_bit_from_every_step(game: str) -> None:
    env_id = f"minatar/{game}"
    assert_continues_after_restore(env_id, 173, 450, min_ends=2, max_episode_steps=200)
    env, other = envs.make(env_id, generator(0)), envs.make(env_id, generator(9))
    env.reset()
    for action in random_actions(env_id, 25, seed=3):
        if any(env.step(action)[2:]):
            env.reset()
        other.load_state_dict(through_files(env.state_dict()))
        np.testing.assert_array_equal(other.render(), env.render())


def test_a_state_with_other_attributes_is_refused() -> None:
    env = envs.make("minatar/breakout", generator(0))
    state = env.state_dict()
    del state["simulator"]["game"]["strike"]
    with pytest.raises(ValueError, match=r"other attributes .*\['strike'\]"):
        env.load_state_dict(state)


def test_the_whole_action_space_is_there_and_pictures_are_in_colour() -> None:
    env = envs.make("minatar/breakout", generator(0), full_action_space=True)
    env.reset()
    assert env.spec.num_actions == 6
    env.step(5)
    assert env.render().shape == (160, 160, 3) and env.render().dtype == np.uint8


def test_the_difficulty_rises_only_when_ramping() -> None:
    for ramping, ramp_timer in ((True, 99), (False, 100)):
        env = envs.make("minatar/asterix", generator(0), ramping=ramping)
        env.reset()
        env.step(0)
        assert env.state_dict()["simulator"]["game"]["ramp_timer"] == ramp_timer
