"""How often a run logs, evaluates, measures and saves."""

from dataclasses import dataclass

from rlplast.core.clock import Clock
from rlplast.core.method.schedule import Schedule

__all__ = ["Intervals", "is_due"]


@dataclass(frozen=True)
class Intervals:
    """How often a run logs, evaluates, measures and saves; None: never.

    The newest `keep` checkpoints stay, and that of the best evaluation by the score `best`.
    """

    log: Schedule
    evaluate: Schedule | None
    metrics: Schedule | None
    checkpoint: Schedule
    episodes: int = 10
    keep: int = 2
    best: str | None = None

    @property
    def schedules(self) -> list[Schedule]:
        """All of them that there are."""
        found = (self.metrics, self.evaluate, self.log, self.checkpoint)
        return [schedule for schedule in found if schedule is not None]


def is_due(schedule: Schedule | None, previous: Clock, clock: Clock) -> bool:
    """Say whether a schedule, if there is one, is due after `previous` and up to `clock`."""
    return schedule is not None and schedule.crossings(previous, clock) > 0
