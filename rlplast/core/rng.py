"""Named random streams, all derived from one seed: no consumer moves the draws of another."""

import hashlib
import numbers
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rlplast.core.errors import ConfigError

__all__ = [
    "Streams",
    "check_seed",
    "continued_seed",
    "derive_seed",
    "numpy_stream",
    "preserve_global_rng",
    "torch_stream",
]


def check_seed(seed: Any) -> int:
    """Return a user's seed as an int, or raise a ConfigError for what is no whole number."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise ConfigError(f"seed = {seed!r}: allowed is a whole number, such as 1")
    return int(seed)


def derive_seed(seed: int, *names: object) -> int:
    """Return a 63-bit seed for the stream called `names` of a run seeded `seed`."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


# To torch.compile a constant, as torch.compiler.assume_constant_result would mark it; that one
# imports the whole compiler.
setattr(derive_seed, "_dynamo_marked_constant", True)  # noqa: B010


def torch_stream(seed: int, *names: object) -> torch.Generator:
    """Return a fresh CPU generator for a derived stream: every device gets the same draws."""
    return torch.Generator("cpu").manual_seed(derive_seed(seed, *names))


def numpy_stream(seed: int, *names: object) -> np.random.Generator:
    """Return a fresh NumPy generator for a derived stream."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *names)))


@contextmanager
def preserve_global_rng() -> Iterator[None]:
    """Put the global generators of PyTorch, NumPy and Python back as they were before a block."""
    python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([torch.cuda.current_device()] if _on_gpu() else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(of_numpy)


def _on_gpu() -> bool:
    """Whether this process computes on a GPU: asking for its state would begin it."""
    return torch.cuda.is_initialized()


def continued_seed(seed: int, continuation: int) -> int:
    """Return the seed of a run's streams; later continuations of one branch get another."""
    return seed if continuation == 1 else derive_seed(seed, "continuation", continuation)


class Streams:
    """The long-lived streams of one run, by name; each continuation of a branch has its own.

    Attributes:
        seed: `continued_seed`, from which all draws of learning derive, those of hooks too.
        parted: whether the state that was loaded is another continuation's: a prefix's.
    """

    def __init__(self, seed: int, continuation: int = 1) -> None:
        self.seed = seed = continued_seed(seed, continuation)
        self.continuation, self.parted = continuation, False
        self._numpy: dict[str, np.random.Generator] = {}
        torch.manual_seed(derive_seed(seed, "model"))

    def numpy(self, name: str) -> np.random.Generator:
        """Return the long-lived generator `name`; the same object at every call."""
        if name not in self._numpy:
            self._numpy[name] = numpy_stream(self.seed, name)
        return self._numpy[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every stream used so far and of torch's global generators."""
        state: dict[str, Any] = {
            "continuation": self.continuation,
            "numpy": {name: g.bit_generator.state for name, g in self._numpy.items()},
            "model": torch.get_rng_state(),
        }
        if _on_gpu():
            state["model_cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict` in place; another continuation's streams stay new."""
        self.parted = state.get("continuation", 1) != self.continuation
        if self.parted:
            return
        for name, stored in state["numpy"].items():
            self.numpy(name).bit_generator.state = stored
        torch.set_rng_state(state["model"])
        if "model_cuda" in state and _on_gpu():
            torch.cuda.set_rng_state(state["model_cuda"])
