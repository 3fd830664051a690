from typing import Any

import ale_py
import cv2
import numpy as np
import pytest
from ale_py import roms

from rlplast import envs
from rlplast.envs import atari
from rlplast.envs.atari import MINIMAL_ACTIONS
from rlplast.run import api
from tests.envs.checks import assert_continues_after_restore, generator, random_actions
from tests.marks import slow, slow_but
from tests.naive.atari_wrappers import FireWrappers


def load(rom: str, seed: int = 0) -> Any:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.0)
    path = roms.get_rom_path(rom)
    assert path is not None
    ale.loadROM(path)
    return ale


class SlowTwin:
    """The same game from the written rules, one frame at a time, resized by OpenCV."""

    def __init__(self, rom: str, seed: int, frame_skip: int, sticky: float) -> None:
        self.rng = generator(seed)
        self.ale = load(rom, int(self.rng.integers(2**31 - 1)))
        self.actions = self.ale.getMinimalActionSet()
        self.frame_skip, self.sticky = frame_skip, sticky
        self.executed = [ale_py.Action.NOOP]
        self.screens: list[np.ndarray] = []

    def reset(self) -> np.ndarray:
        self.ale.reset_game()
        self.executed = [ale_py.Action.NOOP]
        self.screens = [self.ale.getScreenGrayscale()] * 2
        return self.observe()

    def observe(self) -> np.ndarray:
        newest = np.maximum(self.screens[-1], self.screens[-2])
        return cv2.resize(newest, (84, 84), interpolation=cv2.INTER_AREA)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, int]:
        reward = 0.0
        for frame, draw in enumerate(self.rng.random(self.frame_skip)):
            repeat = draw < self.sticky
            self.executed.append(self.executed[-1] if repeat else self.actions[action])
            reward += self.ale.act(self.executed[-1])
            self.screens.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                if frame < self.frame_skip - 1:
                    self.screens.append(self.screens[-1])
                return self.observe(), reward, True, frame + 1
        return self.observe(), reward, False, self.frame_skip


@pytest.mark.parametrize(
    ("rom", "options"),
    [
        ("breakout", {}),
        slow("asterix", {"sticky": 0.0}),
        ("space_invaders", {"frame_skip": 3, "sticky": 0.5}),
    ],
)
def test_steps_equal_a_slow_twin_that_replays_the_draws(rom: str, options: dict[str, Any]) -> None:
    env_id = "atari/" + rom.title().replace("_", "")
    env = envs.make(env_id, generator(5), **options)
    twin = SlowTwin(rom, 5, **({"frame_skip": 4, "sticky": 0.25} | options))
    np.testing.assert_allclose(env.reset().astype(int), twin.reset(), atol=1)
    for action in random_actions(env_id, 300, seed=6):
        obs, reward, terminated, _ = env.step(action)
        obs_twin, *expected = twin.step(action)
        assert [reward, terminated, env.step_frames] == expected
        np.testing.assert_allclose(obs.astype(int), obs_twin, atol=1)
        if terminated:
            np.testing.assert_allclose(env.reset().astype(int), twin.reset(), atol=1)


FIRE = dict.fromkeys(("sticky_steps", "grey_last", "repeat_first"), True)


def opencv_shrinks(picture: np.ndarray, *taps: Any) -> np.ndarray:
    del taps
    return cv2.resize(picture, (84, 84), interpolation=cv2.INTER_AREA)


@pytest.mark.parametrize(
    ("config", "sticky", "steps"),
    [
        ("dqn/asterix", 0.25, 120),
        slow("dqn/beamrider", 0.25, 500),
        slow("dqn/demonattack", 0.0, 500),
    ],
)
@pytest.mark.parametrize("shrinks", ["opencv", "rlplast"])
def test_configs_of_fire_equal_its_wrappers_observation_by_observation(
    config: str, sticky: float, steps: int, shrinks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They differ by the shrinking alone, where a pixel's mean is half way between two levels."""
    if shrinks == "opencv":
        monkeypatch.setattr(atari, "area_resize", opencv_shrinks)
    section: Any = api.read_config(config).env
    env_id, options = section.id, {"sticky": sticky} | section.options
    rng = generator(5)
    twin = FireWrappers(load(atari._ROMS[env_id], int(rng.integers(2**31 - 1))), sticky, rng)
    env = envs.make_vector(env_id, [generator(5)], **options)
    stack = envs.FrameStack(1, env.spec)
    stack.push(env.reset(), True)
    expected, differing = twin.reset(), 0
    for action in random_actions(env_id, steps, seed=6):
        difference = np.abs(stack.obs()[0].astype(int) - expected)
        differing += np.count_nonzero(difference)
        assert difference.max() <= (shrinks == "rlplast")
        step = env.step(np.array([action]))
        expected, reward, over = twin.step(action)
        assert (np.sign(step.reward[0]), step.terminated[0]) == (reward, over)
        stack.push(step.obs, step.terminated)
        if over:
            expected = twin.reset()
    assert differing < 1e-3 * steps * expected.size


@pytest.mark.parametrize(
    ("game", "before", "after", "options"),
    [
        ("Asterix", 47, 80, {"sticky": 0.6, "max_episode_steps": 50} | FIRE),
        ("Breakout", 60, 150, {"max_episode_steps": 100}),
        slow("Breakout", 137, 300, {"max_episode_steps": 100, "frame_skip": 1}),
        # From a first observation.
        ("Qbert", 0, 60, {"max_episode_steps": 30}),
    ],
)
def test_restored_games_continue_bit_for_bit(
    game: str, before: int, after: int, options: dict[str, Any]
) -> None:
    assert_continues_after_restore(f"atari/{game}", before, after, 1, False, **options)


@pytest.mark.parametrize("rom", slow_but(("lost_luggage",), MINIMAL_ACTIONS))
def test_every_game_has_the_actions_of_the_tables_and_continues_bit_for_bit(rom: str) -> None:
    env_id, options = "atari/" + rom.title().replace("_", ""), {"max_episode_steps": 50}
    env = assert_continues_after_restore(env_id, 30, 60, 1, False, **options)
    ale = env.simulator._ale  # type: ignore[attr-defined]
    assert envs.spec(env_id).num_actions == len(ale.getMinimalActionSet())
    full = envs.spec(env_id, full_action_space=True)
    assert full.num_actions == len(ale.getLegalActionSet())


def test_the_table_lists_what_ale_can_play() -> None:
    no_game_for_one = {"combat", "joust", "maze_craze", "warlords"}
    assert set(MINIMAL_ACTIONS) == set(roms.get_all_rom_ids()) - no_game_for_one


def test_pictures_are_in_colour_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    env = envs.make("atari/Breakout", generator(0))
    assert (env.spec.obs_scale, env.spec.frames_per_step) == (1 / 255, 4)
    env.reset()
    picture = env.render()
    env.close()
    assert picture.shape == (210, 160, 3) and picture.dtype == np.uint8
    assert (picture[..., 0] != picture[..., 2]).any()
    assert capfd.readouterr() == ("", "")
