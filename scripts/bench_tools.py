"""What all benchmarks share: runs to be timed, and lines of the report."""

from typing import Any

from rlplast.run import timing
from rlplast.run.timing import Times, alternate, medians

__all__ = ["Row", "Times", "alternate", "built", "medians", "rates", "row"]

Row = dict[str, Any]


def built(config: Any, **keys: Any) -> tuple[Any, Any]:
    """Return the trainable of a config on the CPU, and its hooks, which act inside its updates."""
    dotted = {key.replace("__", "."): value for key, value in keys.items()}
    return timing.built(config, {"device": "cpu"} | dotted)


def rates(seconds: Times, per_call: int) -> dict[str, float]:
    """Return how many steps or updates a second each side makes."""
    return {name: per_call / median for name, median in medians(seconds).items()}


def row(name: str, value: float, unit: str, times: list[float] | None = None) -> Row:
    """Return one line of the report."""
    spread = "" if times is None else f"{min(times):.4g} to {max(times):.4g} s per call"
    return {"name": name, "value": value, "unit": unit, "spread": spread}
