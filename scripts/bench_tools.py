"""What all benchmarks share: runs to be timed, sides called in turn, and lines of the report."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlplast.run import api
from rlplast.run.build import build

Row = dict[str, Any]
Times = dict[str, list[float]]


def built(config: Any, **keys: Any) -> tuple[Any, Any]:
    """Return the trainable of a config on the CPU, and its hooks, which act inside its updates."""
    dotted = {key.replace("__", "."): value for key, value in keys.items()}
    trainable, hooks = build(api.read_config(config, {"device": "cpu"} | dotted))
    trainable.after_update = hooks.after_update
    return trainable, hooks


def alternate(sides: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 0) -> Times:
    """Return seconds per call of each side, called in turn `rounds` times after a warm-up."""
    seconds: Times = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name, call in sides.items():
            started = time.perf_counter()
            call()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def medians(seconds: Times) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in seconds.items()}


def rates(seconds: Times, per_call: int) -> dict[str, float]:
    """Return how many steps or updates a second each side makes."""
    return {name: per_call / median for name, median in medians(seconds).items()}


def row(name: str, value: float, unit: str, times: list[float] | None = None) -> Row:
    """Return one line of the report."""
    spread = "" if times is None else f"{min(times):.4g} to {max(times):.4g} s per call"
    return {"name": name, "value": value, "unit": unit, "spread": spread}
