"""How far a run is in its stream of phases, and where it ends."""

from collections.abc import Sequence
from typing import NamedTuple

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.supervised.streams import Phase

__all__ = [
    "Position",
    "batches_per_epoch",
    "check_total",
    "end_of_run",
    "position",
    "updates_before",
]


class Position(NamedTuple):
    """How far a run is in its phase."""

    epoch: int  # whole epochs done
    batch: int  # batches done of the epoch that has begun
    batches: int  # batches per epoch
    updates: int  # updates done


def batches_per_epoch(phase: Phase, batch_size: int) -> int:
    """Return the updates of one epoch: how many `rlplast.core.batches.batch_slices` gives."""
    full, left = divmod(len(phase.train), batch_size)
    return max(1, full + (left > 1))


def position(phase: Phase, batch_size: int, updates: int) -> Position:
    """Return the position after so many updates of a phase."""
    batches = batches_per_epoch(phase, batch_size)
    return Position(updates // batches, updates % batches, batches, updates)


def updates_before(stream: Sequence[Phase], batch_size: int, number: int) -> int:
    """Return the updates of all phases before phase `number`."""
    return sum(p.epochs * batches_per_epoch(p, batch_size) for p in stream[:number])


def end_of_run(stream: Sequence[Phase], batch_size: int, total: Time) -> Clock:
    """Return the clock at the end of a run; its phase is the number of phases begun."""
    end = Clock()
    for phase in stream:
        each = batches_per_epoch(phase, batch_size)
        left = phase.epochs * each
        if total.unit == "epochs":
            left = min(left, (int(total.value) - end.epochs) * each)
        else:
            left = min(left, int(total.value) - end.updates)
        if left <= 0:
            break
        # An epoch that is cut short counts: else the run would seem to end with the one before.
        end = end.advance(updates=left, epochs=-(-left // each), phase=1)
    return end


def check_total(stream: Sequence[Phase], batch_size: int, total: Time) -> None:
    """Raise ConfigError if a total in updates is more than the stream has."""
    whole = updates_before(stream, batch_size, len(stream))
    if total.unit == "updates" and total.value > whole:
        raise ConfigError(f"total = '{total}': the stream ends after {whole} updates")
