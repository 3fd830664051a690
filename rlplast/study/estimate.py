"""What a study will take: seconds and bytes of each cell and of the whole.

- `estimate`: cells → `Estimate`.

A cell takes its share of a whole run (`rlplast.run.cost`). Arms that go on from a prefix share the
initial weights, and of its replay what they have not overwritten.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlplast.core.clock import Time
from rlplast.run.cost import Cost, cost_of
from rlplast.run.length import updates_at
from rlplast.run.roofline import Machine
from rlplast.study.plan import Cell
from rlplast.training.config import RunConfig

__all__ = ["Estimate", "estimate"]

_NOT_COUNTED = ("seed", "hooks", "penalties", "layers")  # of a config


@dataclass(frozen=True)
class Estimate:
    """What one cell takes.

    Attributes:
        seconds: of one process with the run's threads.
        flops: of all its updates.
        disk: bytes that it leaves, beside what it shares with its prefix.
    """

    seconds: float
    flops: float
    disk: float

    def __add__(self, other: "Estimate") -> "Estimate":
        """Return what both take."""
        return Estimate(
            self.seconds + other.seconds, self.flops + other.flops, self.disk + other.disk
        )


def estimate(cells: Sequence[Cell], machine: Machine) -> Mapping[str, Estimate]:
    """Return the estimate of each cell by its key; none for kinds of runs that are not known.

    Raises:
        ConfigError: naming what a network cannot be built from.
    """
    costs: dict[str, Cost | None] = {}
    found = {}
    for cell in cells:
        key = _alike(cell.config)
        if key not in costs:
            costs[key] = cost_of(cell.config, machine)
        cost = costs[key]
        if cost is not None:
            found[cell.key] = _of_cell(cell, cost)
    return found


def _alike(config: RunConfig) -> str:
    """Return what a run's cost depends on."""
    return json.dumps(
        {k: v for k, v in vars(config).items() if k not in _NOT_COUNTED}, default=vars
    )


def _of_cell(cell: Cell, cost: Cost) -> Estimate:
    start = min((_share(cell.config, t, cost) for t in cell.starts), default=0.0)
    stop = min((_share(cell.config, t, cost) for t in cell.stops), default=1.0)
    share = max(0.0, stop - start)
    kept = cost.checkpoints if cell.arm is not None else 1
    disk = kept * cost.checkpoint + (0.0 if cell.parent else cost.initial)
    return Estimate(
        seconds=share * cost.seconds,
        flops=share * cost.updates * cost.flops,
        disk=disk + min(cost.rows, share * cost.env_steps) * cost.row,
    )


def _share(config: RunConfig, time: Time, cost: Cost) -> float:
    """Return how much of a run's updates, or of its env_steps, lies before a time."""
    if time.unit == "env_steps" and cost.env_steps:
        return min(1.0, time.value / cost.env_steps)
    return min(1.0, updates_at(config, time) / max(cost.updates, 1.0))
