"""Whether compiled updates pay on this machine: what `rlplast bench` measures."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

from rlplast.core.device import choose_device
from rlplast.run.timing import paced, ready, timed, updates, variables

__all__ = ["Side", "measure"]

ROUNDS = 7  # turns of each side
LONGEST = 20.0  # seconds of all turns, if a single update is longer than a turn
FIRST = 8  # updates by whose end all is compiled or captured; more where `actor_every` is more


@dataclass(frozen=True)
class Side:
    """What updates with one value of `accelerate` take, in seconds.

    ``times`` are those of an update, one for each turn; ``setup`` is what the first updates take
    besides. ``problem`` says why there are no such updates here.
    """

    times: list[float]
    setup: float = 0.0
    problem: str = ""

    def seconds(self, updates: float) -> float:
        """Return the seconds of so many updates."""
        return self.setup + updates * statistics.median(self.times)


def measure(config: Any, report: Callable[[str], None]) -> dict[str, Side]:
    """Return what updates take with each value of `accelerate`; `report` gets each part's name."""
    gpu = choose_device(config.device).type == "cuda"
    runs, first, sides = {}, {}, {}
    count = max(FIRST, getattr(getattr(config, "agent", None), "actor_every", 1))
    with ExitStack() as stack:
        folder = TemporaryDirectory(prefix="rlplast-bench-", ignore_cleanup_errors=True)
        cache = stack.enter_context(folder)
        stack.enter_context(variables(TORCHINDUCTOR_CACHE_DIR=cache))
        for choice in ("off", "compile", "graph")[: 3 if gpu else 2]:
            report(f"{choice}: first updates")
            try:
                trainable, _ = ready(config, choice)
                stack.callback(trainable.close)
                steps = updates(trainable)
                first[choice], runs[choice] = timed(steps, count), steps
            except Exception as error:  # compilers may raise anything
                if choice == "off":
                    raise
                sides[choice] = Side([], problem=shorten(str(error), 160))
        report("updates in turn")
        for choice, times in paced(runs, ROUNDS, LONGEST).items():
            setup = first[choice] - count * statistics.median(times)
            sides[choice] = Side(times, max(0.0, setup))
    return sides
