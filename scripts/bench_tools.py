"""What all benchmarks share: sides called in turn, and lines of the report."""

import time
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def alternate(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return seconds per call of each side, called in turn `rounds` times."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            started = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def row(name: str, value: float, unit: str, times: list[float] | None = None) -> Row:
    """Return one line of the report."""
    spread = "" if times is None else f"{min(times):.4g} to {max(times):.4g} s per call"
    return {"name": name, "value": value, "unit": unit, "spread": spread}
