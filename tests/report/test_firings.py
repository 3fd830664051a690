"""What each firing of a run cost, by hand."""

from pathlib import Path
from typing import Any

import pytest

from rlplast.report.drops import Drop
from rlplast.report.firings import Firing, firings
from rlplast.report.run_data import measure, read_run
from tests.report.runs import metric_rows, receipt_row, write_run


def score(x: int) -> float:
    """10; 4 from 1000 until before 2000; 13 from 3000 on; 8 from 5000 on."""
    return 10.0 - 6 * (1000 <= x < 2000) + 3 * (x >= 3000) - 5 * (x >= 5000)


def found(folder: Path, receipts: list[dict], key: str = "eval/return_mean", **config: Any) -> Any:
    sign = -1 if key == "eval/loss" else 1
    rows = metric_rows(lambda x: sign * score(x), range(500, 6001, 500), key)
    return read_run(write_run(folder, rows, receipts, config), "", "", 1)


@pytest.mark.parametrize("key", ["eval/return_mean", "eval/loss"])
def test_each_firing_has_a_drop_a_recovery_and_an_area(key: str, tmp_path: Path) -> None:
    receipts = [receipt_row("fire", 1000), receipt_row("fire", 1000, "other")]
    receipts += [receipt_row("swr", 1200, norm=None), receipt_row("full_reset", 4700)]
    run = found(tmp_path / "run", receipts, key)
    assert firings(run) == [
        Firing(("fire",), 1000, Drop(6, 1000, 6 * 500 + 6 * 500 / 2)),
        Firing(("full_reset",), 4700, Drop(5, None, 5 * 1300)),
    ]
    assert measure(run, None).drop == firings(run)[0].drop


def test_a_firing_is_followed_up_to_the_next_one(tmp_path: Path) -> None:
    receipts = [receipt_row("fire", x) for x in (1000, 1800, 1900)]
    receipts += [receipt_row("head_reset", 1900), receipt_row("fire", 5900)]
    assert firings(found(tmp_path / "run", receipts)) == [
        Firing(("fire",), 1000, Drop(6, None, 6 * 500)),
        Firing(("fire", "head_reset"), 1800, Drop(-6, 0, 0)),
        Firing(("fire",), 5900, Drop(0, 0, 0)),
    ]


def test_a_firing_without_a_score_on_either_side_is_left_out(tmp_path: Path) -> None:
    receipts = [receipt_row("fire", x) for x in (100, 6100)]
    assert firings(found(tmp_path / "run", receipts)) == []
    assert firings(found(tmp_path / "none", [])) == []


def test_a_return_of_training_at_the_firing_is_of_what_lay_before(tmp_path: Path) -> None:
    returns = {500: 10, 1000: 10, 1500: 4, 2000: 10, 2500: 10}
    rows = [{"updates": x // 2, "env_steps": x, "train/return": y} for x, y in returns.items()]
    run = read_run(write_run(tmp_path / "run", rows, [receipt_row("fire", 1000)], {}), "", "", 1)
    assert run.score == "train/return"
    assert firings(run) == [Firing(("fire",), 1000, Drop(6, 1000, 6 * 500 + 6 * 500 / 2))]
