"""The five MinAtar games: Atari dynamics on a 10×10 grid, with exact state.

Young & Tian 2019, arXiv:1903.03176. Observations are uint8 (channels, 10, 10) of zeros and ones.

Options: `sticky` probability of repeating the previous action; `ramping` whether games get harder
as they go on; `full_action_space` all six actions (MinAtar's v0 ids) instead of the game's minimal
set (its v1 ids); `max_episode_steps` until truncation: MinAtar has no limit, and a Seaquest agent
that stays at the surface plays for ever. Freeway's own limit of 2500 steps terminates, as there.
"""

from typing import Any

import numpy as np

from rlplast.envs.base import EnvSpec, Simulator, State, plain, require
from rlplast.envs.options import Family, count, probability, switch

__all__ = ["FAMILY"]

_PREFIX = "minatar/"
_NUM_ACTIONS = 6

# Game: its channels and the size of its minimal action set.
_GAMES = {
    "asterix": (4, 5),
    "breakout": (4, 3),
    "freeway": (7, 3),
    "seaquest": (10, 6),
    "space_invaders": (6, 4),
}

# Attributes of a game that never change, or that it shares with its wrapper.
_NOT_STATE = frozenset({"channels", "action_map", "ramping", "random"})

_COLOURS = np.frombuffer(  # of the background, then of each channel: red, green, blue
    bytes.fromhex("000000 1f77b4 ff7f0e 787878 d62728 9467bd 8c564b e377c2 2ca02c bcbd22 17becf"),
    dtype=np.uint8,
).reshape(-1, 3)
_CELL = 16  # pixels of a rendered cell


class _Game(Simulator):
    """One game, one frame a step, observed as (channels, 10, 10) uint8."""

    def __init__(
        self,
        game: str,
        rng: np.random.Generator,
        sticky: float,
        ramping: bool,
        full_action_space: bool,
    ) -> None:
        minatar = require("minatar", "rlplast[minatar]")
        self._wrapper = minatar.Environment(
            game, sticky_action_prob=sticky, difficulty_ramping=ramping
        )
        # One legacy stream over our generator's bits, shared by wrapper and game as in MinAtar's
        # own `seed`: restoring the generator in place restores both, and they stay shared.
        shared = np.random.RandomState(rng.bit_generator)
        self._wrapper.random = self._wrapper.env.random = shared
        self._wrapper.reset()  # its constructor drew the first episode from an unseeded stream
        minimal = self._wrapper.minimal_action_set()
        self._actions = list(range(_NUM_ACTIONS)) if full_action_space else minimal

    def reset(self) -> np.ndarray:
        self._wrapper.reset()  # which keeps the action that may be repeated
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        reward, terminated = self._wrapper.act(self._actions[action])
        return self._observe(), float(reward), bool(terminated), False

    def _observe(self) -> np.ndarray:
        return np.ascontiguousarray(self._wrapper.state().transpose(2, 0, 1), dtype=np.uint8)

    def render(self) -> np.ndarray:
        """Return the grid in colour, (160, 160, 3); of several objects the last channel shows."""
        obs = self._observe()
        order = np.arange(1, len(obs) + 1)[:, None, None]
        grid = (obs * order).max(axis=0)
        return _COLOURS[grid].repeat(_CELL, axis=0).repeat(_CELL, axis=1)

    def state_dict(self) -> State:
        """Return every attribute of the game, and the action that may be repeated."""
        game = {name: plain(value) for name, value in self._game_state().items()}
        return {"game": game, "last_action": int(self._wrapper.last_action)}

    def load_state_dict(self, state: State) -> None:
        installed, saved = set(self._game_state()), set(state["game"])
        if installed != saved:
            raise ValueError(
                f"the state of MinAtar's {self._wrapper.game_name()} has other attributes than "
                f"the installed version: {sorted(installed ^ saved)}"
            )
        for name, value in state["game"].items():
            setattr(self._wrapper.env, name, plain(value))
        self._wrapper.last_action = state["last_action"]

    def _game_state(self) -> dict[str, Any]:
        attributes = vars(self._wrapper.env)
        return {name: value for name, value in attributes.items() if name not in _NOT_STATE}


_OPTIONS = {
    "sticky": probability(0.1),
    "ramping": switch(True),
    "full_action_space": switch(False),
    "max_episode_steps": count(10_000, none_means="no limit"),
}


def _spec(env_id: str, options: dict[str, Any]) -> EnvSpec:
    channels, minimal_actions = _GAMES[env_id.removeprefix(_PREFIX)]
    return EnvSpec(
        id=env_id,
        obs_shape=(channels, 10, 10),
        obs_dtype="uint8",
        num_actions=_NUM_ACTIONS if options["full_action_space"] else minimal_actions,
        max_episode_steps=options["max_episode_steps"],
    )


def _make(env_id: str, rng: np.random.Generator, options: dict[str, Any]) -> Simulator:
    game_options = {name: value for name, value in options.items() if name != "max_episode_steps"}
    return _Game(env_id.removeprefix(_PREFIX), rng, **game_options)


FAMILY = Family(
    ids={
        f"{_PREFIX}{game}": f"MinAtar {game.replace('_', ' ')}: {channels}x10x10 planes, "
        f"{minimal_actions} actions"
        for game, (channels, minimal_actions) in _GAMES.items()
    },
    source="Young & Tian 2019, arXiv:1903.03176",
    options=lambda env_id: _OPTIONS,
    spec=_spec,
    make=_make,
)
