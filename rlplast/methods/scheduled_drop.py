"""Scheduled dropout: Morerio et al. 2017 for the idea; the linear ramp is ours."""

from dataclasses import dataclass

from torch import Tensor

from rlplast.core.method.method import method
from rlplast.core.validation import Fraction, Updates
from rlplast.methods.dropout import UnitDropout

__all__ = ["ScheduledDrop"]


@method("scheduled_drop", key="layers", source="Morerio et al. 2017; the linear ramp is ours")
@dataclass(frozen=True)
class ScheduledDrop(UnitDropout):
    """Set hidden units to 0 at a rate that grows from 0: p·min(1, t/`updates`).

    t counts the updates that were made. All else is as `dropout` does it.

    Attributes:
        p: the share at the end of the ramp.
        updates: length of the ramp.
    """

    p: Fraction = 0.1
    updates: Updates = 10000

    def rate(self, updates: Tensor) -> Tensor:
        """Return p·min(1, t/T)."""
        return self.p * (updates.double() / self.updates).clamp(max=1)
