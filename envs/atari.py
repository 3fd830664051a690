"""Atari 2600 games on the Arcade Learning Environment, with exact state.

Built on a single `ALEInterface`, because ale-py's vector environment cannot save its state.
Grey frames, the maximum of the last two, shrunk to 84×84 (Mnih et al. 2015); four frames a step;
sticky actions drawn **per frame** from our own stream, because ALE's copy of its state leaves out
the action they repeat (Machado et al. 2018, arXiv:1709.06009). Episodes are whole games: no end on
a lost life, no no-op or fire start, no reward clipping.

- `sticky`: probability of repeating the previous frame's action.
- `sticky_steps`: draw once a step whether all its frames repeat the previous step's action.
- `frame_skip`: frames a step.
- `full_action_space`: all actions (18 in most games) instead of the game's minimal set.
- `grey_last`: maximum and shrinking are done in colour; the 84×84 picture is turned grey.
- `repeat_first`: stacks begin as copies of the episode's first frame, instead of zeros.
- `max_episode_steps`: steps until truncation (27 000 of four frames are half an hour of play).

`sticky_steps`, `grey_last` and `repeat_first` together are the wrappers of CleanRL's DQN with
Stable-Baselines3's `StickyActionEnv`, as FIRE used them. For a `frame_skip` below 3, the first
observation of Yars' Revenge after a restore can differ, since ALE's state has no screen; for the
same reason `render` is right again only after the next step.
"""

from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, Simulator, State
from rlplast.envs.options import Family, count, probability, switch
from rlplast.envs.resize import area_resize, box_taps, grey

__all__ = ["FAMILY", "MINIMAL_ACTIONS"]

_SIZE = 84
_NOOP = 0

# Size of the minimal action set: names of ROMs in ale-py. The four without a one-player game
# (combat, joust, maze_craze, warlords) are left out: ALE cannot run them.
_GAMES = {
    3: "backgammon freeway skiing",
    4: "atlantis atlantis2 blackjack breakout casino kaboom",
    5: "frogger pacman surround tetris video_checkers",
    6: (
        "air_raid basic_math bowling carnival demon_attack galaxian king_kong name_this_game pong "
        "pooyan qbert sir_lancelot space_invaders up_n_down"
    ),
    7: "assault",
    8: "gopher phoenix tutankham",
    9: "asterix beam_rider crazy_climber enduro koolaid lost_luggage ms_pacman video_pinball",
    10: "amidar mr_do othello tic_tac_toe_3d time_pilot video_chess wizard_of_wor",
    12: "turmoil",
    14: "asteroids keystone_kapers kung_fu_master",
    16: "journey_escape",
    18: (
        "adventure alien bank_heist battle_zone berzerk boxing centipede chopper_command crossbow "
        "darkchambers defender donkey_kong double_dunk earthworld elevator_action entombed et "
        "fishing_derby flag_capture frostbite gravitar hangman haunted_house hero "
        "human_cannonball ice_hockey jamesbond kangaroo klax krull laser_gates mario_bros "
        "miniature_golf montezuma_revenge pitfall pitfall2 private_eye riverraid road_runner "
        "robotank seaquest solaris space_war star_gunner superman tennis trondead venture "
        "video_cube word_zapper yars_revenge zaxxon"
    ),
}
MINIMAL_ACTIONS = {rom: size for size, roms in _GAMES.items() for rom in roms.split()}

# ROMs whose full action set is not the joystick's 18 actions.
_LEGAL_ACTIONS = {"lost_luggage": 9, "skiing": 9}


_ROMS = {"atari/" + rom.title().replace("_", ""): rom for rom in MINIMAL_ACTIONS}


class _Game(Simulator):
    """One game, `frame_skip` frames a step, observed as (84, 84) uint8.

    `rom` is its name in ale-py; ALE's own seed is drawn from `rng`.
    """

    def __init__(
        self,
        rom: str,
        rng: np.random.Generator,
        frame_skip: int,
        sticky: float,
        full_action_space: bool,
        sticky_steps: bool = False,
        grey_last: bool = False,
    ) -> None:
        import ale_py  # here, as it is large
        from ale_py import roms

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
        ale = ale_py.ALEInterface()
        ale.setInt("random_seed", int(rng.integers(2**31 - 1)))
        ale.setFloat("repeat_action_probability", 0.0)
        path: Any = roms.get_rom_path(rom)
        ale.loadROM(path)
        self._ale = ale
        self._make_state = ale_py.ALEState
        self._ale_actions = {int(action.value): action for action in ale.getLegalActionSet()}
        minimal = [int(action.value) for action in ale.getMinimalActionSet()]
        self._actions = list(self._ale_actions) if full_action_space else minimal
        self._rng = rng
        self._frame_skip = frame_skip
        self._sticky = sticky
        self._draws = 1 if sticky_steps else frame_skip  # a step
        self._grey_last = grey_last
        height, width = ale.getScreenDims()
        self._taps = box_taps(height, _SIZE), box_taps(width, _SIZE)
        channels = (3,) if grey_last else ()
        self._frames = np.zeros((2, height, width, *channels), dtype=np.uint8)  # the last two
        self._executed = _NOOP  # the value of the last frame's action

    def reset(self) -> np.ndarray:
        self._ale.reset_game()
        self._executed = _NOOP
        self._look()
        self._frames[0] = self._frames[1]
        return self._observe()

    def _look(self) -> None:
        if self._grey_last:
            self._ale.getScreenRGB(self._frames[1])
        else:
            self._ale.getScreenGrayscale(self._frames[1])

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Run up to `frame_skip` frames; a game that ends before is seen by its last one alone."""
        ale, frames = self._ale, self._frames
        chosen, last = self._actions[action], self._frame_skip - 1
        draws = self._rng.random(self._draws)
        reward, game_over, frame = 0, False, 0
        for frame in range(self._frame_skip):
            if frame < self._draws and draws[frame] >= self._sticky:
                self._executed = chosen
            reward += ale.act(self._ale_actions[self._executed])
            game_over = ale.game_over(with_truncation=False)
            if game_over or frame >= last - 1:
                frames[0] = frames[1]
                self._look()
            if game_over:
                break
        if frame < last:
            frames[0] = frames[1]
        self.step_frames = frame + 1
        return self._observe(), float(reward), game_over, False

    def _observe(self) -> np.ndarray:
        newest = np.maximum(self._frames[0], self._frames[1])
        if not self._grey_last:
            return area_resize(newest, *self._taps)
        return grey(np.stack([area_resize(newest[..., c], *self._taps) for c in range(3)], axis=-1))

    def render(self) -> np.ndarray:
        return self._ale.getScreenRGB()

    def state_dict(self) -> State:
        """Return ALE's state with its random stream, and what ALE leaves out of it."""
        serialized = self._ale.cloneState(include_rng=True).serialize()
        return {
            "ale": np.frombuffer(serialized, dtype=np.uint8).copy(),
            "executed_action": self._executed,
            "frames": self._frames.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        ale_state = self._make_state(state["ale"].tobytes())
        self._executed = state["executed_action"]
        # ALE's state also leaves out the console's switches, which the first frame after a reset
        # sets: without that frame Q*bert and Tetris go on differently.
        self._ale.reset_game()
        if ale_state.getEpisodeFrameNumber() > 0:
            self._ale.act(self._ale_actions[self._executed])
        self._ale.restoreState(ale_state)
        self._frames[...] = state["frames"]


_OPTIONS = {
    "sticky": probability(0.25),
    "frame_skip": count(4),
    "full_action_space": switch(False),
    "sticky_steps": switch(False),
    "grey_last": switch(False),
    "repeat_first": switch(False),
    "max_episode_steps": count(27_000, none_means="no limit"),
}


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    rom, full = _ROMS[env_id], options["full_action_space"]
    num_actions = _LEGAL_ACTIONS.get(rom, 18) if full else MINIMAL_ACTIONS[rom]
    return EnvSpec(
        id=env_id,
        obs_shape=(_SIZE, _SIZE),
        obs_dtype="uint8",
        frame_stack=4,
        num_actions=num_actions,
        frames_per_step=options["frame_skip"],
        max_episode_steps=options["max_episode_steps"],
        obs_scale=1 / 255,
        clip_rewards=True,
        repeat_first=options["repeat_first"],
    )


_OF_SPEC = ("max_episode_steps", "repeat_first")  # no business of the simulator's


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    game_options = {name: value for name, value in options.items() if name not in _OF_SPEC}
    return _Game(_ROMS[env_id], rng, **game_options)


FAMILY = Family(
    ids={
        env_id: f"Atari 2600 {rom.replace('_', ' ')}: 84x84 grey, {MINIMAL_ACTIONS[rom]} actions"
        for env_id, rom in _ROMS.items()
    },
    source="Bellemare et al. 2013, arXiv:1207.4708; Machado et al. 2018, arXiv:1709.06009",
    options=lambda env_id: _OPTIONS,
    spec=_spec,
    make=_make,
)
