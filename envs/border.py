"""Where an environment of somebody else's meets the agent."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplast.envs.base import State, plain

__all__ = ["Border", "learners"]


@dataclass(frozen=True)
class Border:
    """What an environment is beside an `Env`.

    Attributes:
        read: turns an observation in its own form into what the agent sees.
        native: turns the agent's action into its own form.
        success: what its last step said of success; None if nothing.
        learners: wrappers with running statistics, and the name of these.
    """

    read: Callable[[Any], np.ndarray]
    native: Callable[[Any], Any]
    success: Callable[[], float | None] = lambda: None
    learners: Sequence[tuple[Any, str]] = ()

    def learned(self) -> list[State]:
        """Return the running statistics of its wrappers, as a copy."""
        statistics = [getattr(wrapper, name) for wrapper, name in self.learners]
        return [{part: plain(getattr(one, part)) for part in _PARTS} for one in statistics]

    def take_over(self, learned: Sequence[State], freeze: bool) -> None:
        """Go on with running statistics that another one returned; `freeze` them there."""
        for (wrapper, name), state in zip(self.learners, learned, strict=True):
            statistics = getattr(wrapper, name)
            for part in _PARTS:
                setattr(statistics, part, np.array(state[part])[()])
            if freeze:
                wrapper.update_running_mean = False


_PARTS = ("mean", "var", "count")


def learners(wrappers: Iterable[Any]) -> list[tuple[Any, str]]:
    """Return wrappers that keep running statistics as Gymnasium's do, and the names of these."""
    return [
        (wrapper, name)
        for wrapper in wrappers
        for name in ("obs_rms", "return_rms")
        if name in vars(wrapper) and hasattr(type(wrapper), "update_running_mean")
    ]
