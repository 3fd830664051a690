"""Slow twin of `rlplast.agents.replay`: every row ever seen, with its full stack, in Python lists.

Nothing is overwritten here; what a ring of limited size would have lost is worked out from the
number of rows.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Transition:
    """What sampling one transition has to return."""

    obs: np.ndarray
    action: int | np.ndarray
    reward: float
    discount: float
    obs_next: np.ndarray


@dataclass
class Row:
    """An observation, and once an action was taken on it, what came of that."""

    stack: np.ndarray
    earlier: int  # rows before this one that the stack was made from
    acted: bool = False
    action: int | np.ndarray = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


@dataclass
class Ring:
    rows: list[Row] = field(default_factory=list)
    episode: list[np.ndarray] = field(default_factory=list)


class NaiveReplay:
    def __init__(
        self,
        rows_per_env: int,
        num_envs: int,
        frame_stack: int,
        n_step: int,
        gamma: float,
        repeat_first: bool = False,
    ):
        self.rows_per_env, self.frame_stack = rows_per_env, frame_stack
        self.n_step, self.gamma, self.repeat_first = n_step, gamma, repeat_first
        self.rings = [Ring() for _ in range(num_envs)]

    def observe(self, ring: Ring, frame: np.ndarray):
        """Append the row of `frame`, the next observation of the ring's episode."""
        ring.episode.append(np.array(frame))
        frames = ring.episode[-self.frame_stack :]
        before = ring.episode[0] if self.repeat_first else np.zeros_like(frame)
        missing = [before] * (self.frame_stack - len(frames))
        ring.rows.append(Row(np.stack(missing + frames), earlier=len(frames) - 1))

    def start(self, obs: np.ndarray):
        for ring, frame in zip(self.rings, obs, strict=True):
            if len(ring.episode) > 1:  # an episode in progress is cut off
                ring.rows[-2].truncated = True
            ring.episode = []
            self.observe(ring, frame)

    def add(self, action, reward, terminated, truncated, obs_next, obs_final):
        for env, ring in enumerate(self.rings):
            row = ring.rows[-1]
            row.acted, row.action, row.reward = True, np.array(action[env]), float(reward[env])
            row.terminated = bool(terminated[env])
            row.truncated = bool(truncated[env]) and not row.terminated
            if row.truncated:
                self.observe(ring, obs_final[env])
            if row.terminated or row.truncated:
                ring.episode = []
            self.observe(ring, obs_next[env])

    def transition(self, ring: Ring, start: int) -> Transition | None:
        """The transition from row `start`, or None if it cannot be sampled."""
        first = ring.rows[start]
        overwritten = len(ring.rows) - self.rows_per_env
        if not first.acted or start - first.earlier < overwritten:
            return None
        reward, discount, at = 0.0, 1.0, start
        while at < start + self.n_step:
            row = ring.rows[at]
            if not row.acted:
                return None
            reward += discount * row.reward
            discount *= 0.0 if row.terminated else self.gamma
            at += 1
            if row.terminated or row.truncated:
                break
        return Transition(first.stack, first.action, reward, discount, ring.rows[at].stack)

    def transitions(self) -> dict[tuple[int, ...], Transition]:
        """Everything that can be sampled, by the newest frame of its observation."""
        found = {}
        for ring in self.rings:
            for start, row in enumerate(ring.rows):
                transition = self.transition(ring, start)
                if transition is not None:
                    found[tuple(row.stack[-1].tolist())] = transition
        return found
