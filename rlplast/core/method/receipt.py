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
        method: name of the method.
        network: name of the network.
        clock: the run's clock at the firing.
        crossings: how many due points this firing stands for.
        entries_touched: entries of weights and buffers that the plan wrote; per firing, in a
            receipt of several.
        sfe: squared Frobenius error Σ‖before − after‖² over the plan's tensors.
        sfe_normalized: the part of `sfe` that is of trainable tensors, over `norm_before`²: the
            share of their squared norm that the firing moved. None where norms are not known.
        dfi_before: Σ `dfi_scaled` over the tensors that the method orthogonalises; None for other
            methods.
        dfi_after: the same value after the edit.
        norm_before: norm of all trainable tensors of the network together.
        norm_after: the same value after the edit.
        optimizer_policy: what happened to the optimizer's state.
        followers: what happened to each target network or average, by name.
        seconds: wall-clock time of planning and writing.
        firings: for methods that act at every update: number of updates that the receipt sums up.
        log_factor: for methods that scale at every update: sum of the logarithms of all factors.
        units: for methods that act on units: number of units reset in each layer.
        deviation: for methods that measure it: how far the last plan moves outputs on a probe batch
            from a multiple of themselves, see `rlplast.core.method.deviation.deviation`.
        layers: the names and globs of the layers to which the firing kept; None for all, which the
            line leaves out.
        hook: the hook that fired: its method and schedule, numbered where several have the same.
    """

    method: str
    network: str
    clock: Clock
    crossings: int
    entries_touched: int
    sfe: float
    sfe_normalized: float | None = None
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
    layers: tuple[str, ...] | None = None
    hook: str = ""

    def row(self) -> dict[str, Any]:
        """Return the flat line of ``receipts.jsonl``; wall-clock under ``time/``."""
        row = dataclasses.asdict(self)
        row["time/seconds"] = row.pop("seconds")
        layers = row.pop("layers")
        row |= {} if layers is None else {"layers": list(layers)}
        # JSON has no NaN; a reset may well start from weights that are not finite.
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
        }
