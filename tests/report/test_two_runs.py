"""Two runs beside each other: equal ones, and where others part."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplast.report.two_runs import compare, first_difference
from tests.report.runs import metric_rows, receipt_row, write_run


@pytest.fixture(scope="module")
def run(run_of: Callable[[str], Path]) -> Path:
    """A finished run; tests only read it."""
    return run_of("dqn")


def test_runs_that_differ_in_wall_clock_values_are_equal(run: Path, tmp_path: Path):
    again = Path(shutil.copytree(run, tmp_path / "again"))
    for name in ("metrics", "receipts"):
        text = (again / f"{name}.jsonl").read_text()
        (again / f"{name}.jsonl").write_text(text.replace('"time/seconds": ', '"time/seconds": 9'))
    found = compare(run, again)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for key in ("config", "free", "made_with"):
        assert found[key] == {}
    for name in ("metrics", "receipts"):
        count = (run / f"{name}.jsonl").read_text().count("\n")
        assert found[name] == {"lines": [count] * 2, "first": None}
    for key in ("score", "final", "updates"):
        assert len(set(found["result"][key])) == 1


def test_one_bit_of_one_number_is_found(run: Path, tmp_path: Path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    rows = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    number = max(i for i, row in enumerate(rows) if row.get("train/loss"))
    before = rows[number]["train/loss"]
    rows[number]["train/loss"] = before * (1 + 2**-52)
    assert rows[number]["train/loss"] != before
    (other / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = compare(run, other)["metrics"]["first"]
    assert (found["line"], found["key"]) == (number + 1, "train/loss")
    assert found["values"] == [before, rows[number]["train/loss"]]
    assert found["clock"]["env_steps"] == rows[number]["env_steps"]


def test_settings_versions_machine_and_kinds_are_compared(tmp_path: Path):
    rows = metric_rows(float, [1000])
    one = write_run(tmp_path / "one", rows, info={"versions": {"torch": "2.9", "numpy": "2"}})
    info = {"versions": {"torch": "2.8", "numpy": "2"}, "host": "there"}
    config = {"kind": "sac", "agent": {"lr": 2e-3}, "seed": 4, "log": {"every": "10%"}}
    other = write_run(tmp_path / "other", rows, config=config, info=info)
    found = compare(one, other)
    assert found["kinds"] == ["dqn", "sac"]
    assert found["config"] == {"kind": ["dqn", "sac"], "agent.lr": ["0.0001", "0.002"]}
    assert found["free"] == {"log.every": ["absent", "10%"], "seed": ["1", "4"]}
    assert found["made_with"] == {"host": ["here", "there"], "versions.torch": ["2.9", "2.8"]}
    assert found["metrics"]["first"] is None


def row(x: int, **values: Any) -> dict[str, Any]:
    return {"updates": x, **values}


@pytest.mark.parametrize(
    ("one", "other", "key", "values", "line"),
    [
        ([row(1, a=1)], [row(1, a=2)], "a", [1, 2], 1),
        ([row(1), row(2)], [row(1), row(3)], "clock", [{"updates": 2}, {"updates": 3}], 2),
        ([row(1, a=1)], [row(1)], "a", [1, "absent"], 1),
        ([row(1)], [row(1, a=None)], "a", ["absent", None], 1),
        ([row(1), row(2)], [row(1)], "the line", ["there", "absent"], 2),
        ([], [row(1)], "the line", ["absent", "there"], 1),
    ],
)
def test_the_first_difference_is_found(one, other, key, values, line):
    found = first_difference(one, other)
    assert found is not None
    assert (found["key"], found["values"], found["line"]) == (key, values, line)


def test_wall_clock_values_do_not_count():
    times = [{"time/seconds": 1.0}, {"time/seconds": 2.0}, {}]
    assert all(first_difference([row(1, **a)], [row(1, **b)]) is None for a in times for b in times)


def test_receipts_part_at_their_own_clock(tmp_path: Path):
    one = write_run(tmp_path / "one", [], [receipt_row("fire", 3000)])
    other = write_run(tmp_path / "other", [], [receipt_row("swr", 3000)])
    found = compare(one, other)["receipts"]["first"]
    assert (found["key"], found["values"]) == ("method", ["fire", "swr"])
    assert found["clock"] == {"updates": 1500, "env_steps": 3000}
