"""Global generators of an environment's own, for code that draws from those of the process."""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

__all__ = ["OwnDraws"]

WATCHED = 1000  # calls of an environment's code, resets aside


@dataclass
class _Watch:
    """Whether the code of an environment was seen to draw, and in how many calls it was watched."""

    drew: bool = False
    calls: int = 0


_watches: dict[str, _Watch] = {}


class OwnDraws:
    """Calls code that may draw from the global generators of NumPy, Python or PyTorch.

    It draws from generators of its own, seeded at each episode's reset; those of the process stay
    as they are. Code that has drawn nothing in `WATCHED` calls runs without them from then on, but
    for its resets.
    """

    def __init__(self, env_id: str, seed: int) -> None:
        """Begin with generators seeded `seed`, in [0, 2^32), for an environment."""
        self._watch = _watches.setdefault(env_id, _Watch())
        self._seed(seed)

    def _seed(self, seed: int) -> None:
        self._numpy: Any = np.random.MT19937()
        self._numpy._legacy_seeding(seed)  # as np.random.seed does
        self._python: Any = random.Random(seed).getstate()
        self._torch: Any = None  # until it is imported
        self._torch_seed = seed

    def __call__(
        self, function: Callable[..., Any], *arguments: Any, begin: int | None = None, **named: Any
    ) -> Any:
        """Return what a function returns; `begin` seeds the generators anew."""
        watch = self._watch
        if begin is not None:
            self._seed(begin)
        elif not watch.drew and watch.calls >= WATCHED:
            return function(*arguments, **named)
        else:
            watch.calls += 1
        return self._called(function, *arguments, **named)

    def _called(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        torch = sys.modules.get("torch")  # not imported for this
        outside, python = np.random.get_state(legacy=False), random.getstate()
        generator = get_bit_generator()
        of_torch = torch and torch.get_rng_state()
        if torch and self._torch is None:
            self._torch = torch.Generator().manual_seed(self._torch_seed).get_state()
        before = None if self._watch.drew else (self._numpy.state, self._python, self._torch)
        set_bit_generator(self._numpy)
        random.setstate(self._python)
        if torch:
            torch.set_rng_state(self._torch)
        try:
            return function(*arguments, **named)
        finally:
            self._python = random.getstate()
            set_bit_generator(generator)
            if outside["has_gauss"]:  # the second of a pair of normal numbers
                np.random.set_state(outside)
            random.setstate(python)
            if torch:
                self._torch = torch.get_rng_state()
                torch.set_rng_state(of_torch)
            if before is not None:
                self._watch.drew = self._drew(*before)

    def _drew(self, numpy: Any, python: Any, torch: Any) -> bool:
        now = self._numpy.state["state"]
        return (
            now["pos"] != numpy["state"]["pos"]
            or not np.array_equal(now["key"], numpy["state"]["key"])
            or python != self._python
            or (torch is not None and not np.array_equal(torch, self._torch))
        )
