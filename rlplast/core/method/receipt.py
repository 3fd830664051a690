"""Receipt: what one firing of a method did to one network."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from rlplast.core.clock import Clock

__all__ = ["Receipt"]


@dataclass(frozen=True)
class Receipt:
    """What one firing of a method did to one network.

    Attributes:
        method: registry name.
        network: network name.
        clock: the run's clock at the firing.
        crossings: how many due points this firing stands for.
        entries_touched: number of entries the plan wrote (per firing, if it sums up several).
        sfe: squared Frobenius error Σ‖before − after‖² over the plan's tensors.
        dfi_before: Σ `dfi_scaled` over the tensors the method orthogonalises, else None.
        dfi_after: the same after the edit.
        norm_before: root of summed squares over all trainable tensors of the network.
        norm_after: the same after the edit.
        optimizer_policy: what was done to the optimizer's state.
        followers: what was done to followers, by name.
        seconds: wall-clock time of planning and writing.
        firings: for every-update methods, how many updates the receipt sums up.
        log_factor: for every-update methods that scale, Σ log of all factors.
        units: for methods that act on units, how many of each layer were reset.
        deviation: for methods that measure it, how far the last plan moves outputs on a probe from
            a multiple of themselves, see `rlplast.core.method.deviation.deviation`.
    """

    method: str
    network: str
    clock: Clock
    crossings: int
    entries_touched: int
    sfe: float
    dfi_before: float | None = None
    dfi_after: float | None = None
    norm_before: float | None = None
    norm_after: float | None = None
    optimizer_policy: str = "keep"
    followers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    firings: int = 1
    log_factor: float | None = None
    units: dict[str, int] | None = None
    deviation: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the flat line of ``receipts.jsonl``; wall-clock under ``time/``."""
        row = dataclasses.asdict(self)
        row["time/seconds"] = row.pop("seconds")
        # JSON has no NaN; a reset may well start from weights that are not finite.
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
        }
