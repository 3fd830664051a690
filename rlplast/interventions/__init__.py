"""Interventions: one method per file, a pure function and a thin class each."""

from rlplast.interventions.fire import Fire, fire
from rlplast.interventions.full_reset import FullReset, full_reset
from rlplast.interventions.head_reset import HeadReset, head_reset
from rlplast.interventions.shrink_perturb import ShrinkPerturb, shrink_perturb
from rlplast.interventions.swr import Swr, swr

__all__ = [
    "Fire",
    "FullReset",
    "HeadReset",
    "ShrinkPerturb",
    "Swr",
    "fire",
    "full_reset",
    "head_reset",
    "shrink_perturb",
    "swr",
]
