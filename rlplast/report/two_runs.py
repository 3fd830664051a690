"""Two runs beside each other: whether they are equal, and what they differ in."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.core.clock import UNITS
from rlplast.report.frame import read_run
from rlplast.report.statistics import measure
from rlplast.run.differences import ABSENT, differing, is_free
from rlplast.run.read import check_is_run, read_config, read_info, read_lines, unaltered

__all__ = ["compare", "first_difference"]

_MADE_WITH = ("versions", "host", "processes", "git_revision")  # keys of run.json


def compare(one: Path, other: Path) -> dict[str, Any]:
    """Return where two runs differ, as JSON can hold it; a pair is of `one` and `other`.

    Returns:
        ``runs``, ``kinds``, ``status``: pairs; ``config``: pairs by dotted key; ``free``: the same
        of keys that do not change what is trained; ``made_with``: pairs of versions and machine
        that differ; ``result``: pairs of ``score`` (the name), ``final`` (as in a report),
        ``evaluation`` (the newest line), ``updates``, ``seconds``; ``metrics`` and ``receipts``:
        the ``lines`` of either, and the ``first`` difference, as `first_difference` has it.
    """
    folders, results = (one, other), []
    for folder in folders:
        check_is_run(folder)
    for folder in folders:
        with unaltered(folder):
            results.append(_result(folder, read_lines(folder / "metrics.jsonl")))
    configs, infos = [read_config(own) for own in folders], [read_info(own) for own in folders]
    config = differing(*configs)
    made = [{key: info.get(key) for key in _MADE_WITH} for info in infos]
    return {
        "runs": [str(one), str(other)],
        "kinds": [own.get("kind") for own in configs],
        "status": [info.get("status") for info in infos],
        "config": {key: list(pair) for key, pair in config.items() if not is_free(key)},
        "free": {key: list(pair) for key, pair in config.items() if is_free(key)},
        "made_with": {key: list(pair) for key, pair in differing(*made).items()},
        "result": {key: [own[key] for own in results] for key in results[0]},
        "metrics": _lines([read_lines(own / "metrics.jsonl") for own in folders]),
        "receipts": _lines([read_lines(own / "receipts.jsonl") for own in folders]),
    }


def first_difference(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return where two lists of lines part, values under ``time/`` left out; None if nowhere.

    A key, or a line, that only the other one has is "absent".

    Examples:
        >>> first_difference([{"updates": 5, "train/loss": 0.5}], [{"updates": 5}])
        {'line': 1, 'clock': {'updates': 5}, 'key': 'train/loss', 'values': [0.5, 'absent']}
    """
    for number, (left, right) in enumerate(zip(one, other, strict=False), start=1):
        clocks = [_clock(left), _clock(right)]
        if clocks[0] != clocks[1]:
            return {"line": number, "clock": clocks[0], "key": "clock", "values": clocks}
        for key in [*left, *(key for key in right if key not in left)]:
            pair = [row.get(key, ABSENT) for row in (left, right)]
            if not key.startswith("time/") and pair[0] != pair[1]:
                return {"line": number, "clock": clocks[0], "key": key, "values": pair}
    if len(one) == len(other):
        return None
    number = min(len(one), len(other))
    row = (one if len(one) > len(other) else other)[number]
    pair = ["there" if number < len(rows) else ABSENT for rows in (one, other)]
    return {"line": number + 1, "clock": _clock(row), "key": "the line", "values": pair}


def _clock(row: Mapping[str, Any]) -> dict[str, int]:
    counts = row.get("clock", row)  # receipts have theirs apart
    return {unit: counts[unit] for unit in UNITS if unit in counts}


def _lines(pair: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    return {"lines": [len(lines) for lines in pair], "first": first_difference(*pair)}


def _result(folder: Path, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    run = measure(read_run(folder)).runs.loc[0]
    evaluations = [row for row in lines if any(key.startswith("eval/") for key in row)]
    return {
        "score": run.score or None,
        "final": None if math.isnan(run.final) else float(run.final),
        "evaluation": evaluations[-1] if evaluations else None,
        "updates": int(run.updates),
        "seconds": float(run.seconds),
    }
