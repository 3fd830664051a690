"""How many updates a run owes for its env_steps."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from rlplast.agents.sequence import TaskSequence
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, check_known
from rlplast.core.validation import check_value

__all__ = ["Ratio", "UpdatePlan", "ratios_of"]

Ratio = Annotated[float, Field(gt=0, le=1_000_000)]


def ratios_of(value: Any, total: Time) -> tuple[tuple[int, float], ...]:
    """Return the env_steps from which each replay ratio holds, ascending from 0, and the ratios.

    Args:
        value: a number, or a list of ``{from: TIME, value: X}``, the first one from 0.
        total: what percentages refer to.

    Examples:
        >>> ratios_of([{"value": 1}, {"from": "50%", "value": 8}], Time(100, "env_steps"))
        ((0, 1.0), (50, 8.0))
    """
    if not isinstance(value, list):
        return ((0, check_value("replay_ratio", value, Ratio, 1.0)),)
    if not value:
        raise ConfigError("replay_ratio = []: allowed is a number, or a list of at least one row")
    rows: list[tuple[int, float]] = []
    for number, row in enumerate(value):
        key = f"replay_ratio[{number}]"
        start, ratio = _row(row, total, key)
        if not rows and start:
            raise ConfigError(f"{key}.from = {row['from']!r}: the first one begins at 0%")
        if rows and start <= rows[-1][0]:
            quoted = repr(row["from"]) if "from" in row else "null"
            raise ConfigError(
                f"{key}.from = {quoted}: allowed is later than the one before, "
                f"{rows[-1][0]} env_steps"
            )
        rows.append((start, ratio))
    return tuple(rows)


def _row(row: Any, total: Time, key: str) -> tuple[int, float]:
    """Return the env_steps from which a row holds, and its replay ratio."""
    check_known(key, row, ["from", "value"])
    if "value" not in row:
        raise ConfigError(f"{key} = {row!r}: allowed is a mapping such as {{from: 50%, value: 8}}")
    ratio = check_value(f"{key}.value", row["value"], Ratio, 1.0)
    start = Time.parse(row.get("from", "0%"), f"{key}.from")
    if not start.value:
        return 0, ratio
    start = start.resolve(total)
    if start.unit != "env_steps":
        raise ConfigError(
            f"{key}.from = {row['from']!r}: allowed are env_steps, or a percentage of a total in "
            "env_steps; how many env_steps an episode has is not known in advance"
        )
    if total.unit == "env_steps" and start.value >= total.value:
        raise ConfigError(
            f"{key}.from = {row['from']!r}: allowed is less than the total, {total}, or it would "
            "change nothing"
        )
    return int(start.value), ratio


@dataclass(frozen=True)
class UpdatePlan:
    """Updates owed, as a function of env_steps."""

    ratios: tuple[tuple[int, float], ...]  # of `ratios_of`
    initial_steps: int  # env_steps before the first update
    initial_updates: int  # owed at the end of `initial_steps`
    sequence: TaskSequence  # in which each task may wait for its own initial steps

    def owed(self, before: int, after: int) -> float:
        """Return the updates owed for the env_steps after `before` and up to `after`."""
        ends = [*(start for start, _ in self.ratios[1:]), after]
        learning = partial(self.sequence.learning, initial=self.initial_steps)
        owed = 0.0
        for (start, ratio), end in zip(self.ratios, ends, strict=True):
            first, last = max(before, start), min(after, end)
            if first < last:
                owed += ratio * (learning(last) - learning(first))
        if before < self.initial_steps <= after:
            owed += self.initial_updates
        return owed

    def updates_at(self, env_steps: int) -> int:
        """Return the updates that are owed for the first `env_steps`."""
        return math.floor(self.owed(0, env_steps) + 1e-9)

    def env_steps_of(self, updates: int) -> int:
        """Return the fewest env_steps that owe so many updates, in a run of one environment."""
        left = updates - self.initial_updates
        first, ratio = self.initial_steps, self.ratios[0][1]
        for (_, ratio), (end, _) in pairwise([*self.ratios, (math.inf, 0.0)]):
            owed = ratio * max(0, end - first)
            if left <= owed:
                break
            left, first = left - owed, max(first, int(end))
        return first + math.ceil(max(0, left) / ratio - 1e-9)
