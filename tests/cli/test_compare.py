"""`rlplast compare`: what it prints of equal runs, of others, and of what is no run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.cli.commands import command, printed
from tests.cli.runs import refused
from tests.cli.terminals import LONG
from tests.report.runs import metric_rows, receipt_row, write_run


def compared(one: Path, other: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = command("compare", one, other)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(cell_len, outcome.out.splitlines())) <= columns
    return outcome.out


def test_equal_runs_are_said_to_be_equal(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = run_of("dqn")
    out = compared(run, Path(shutil.copytree(run, tmp_path / "again")), 80, monkeypatch)
    metrics, receipts = (
        (run / f"{name}.jsonl").read_text().count("\n") for name in ("metrics", "receipts")
    )
    last = out.splitlines()[-1]
    assert last == f"equal        bit for bit: {metrics} lines of metrics, {receipts} receipts"
    assert "settings that change training: equal" in out and "versions and machine: equal" in out


def test_runs_of_different_kinds_are_compared(
    run_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    one, other = run_of("ppo"), run_of("supervised")
    out = compared(one, other, 80, monkeypatch)
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["kind"]]
    assert row == ["kind", "ppo", "supervised"] and "metrics      line 1 is at" in out
    assert printed("compare", one, other)["config"]["kind"] == ["ppo", "supervised"]


def test_long_names_go_on_below_and_are_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = metric_rows(float, [1000, 2000])
    hooks = [{"method": f"[red]{LONG}[/x]", "at": "50%"}]
    receipts = [receipt_row(f"[red]{LONG}[/x]", 1000)]
    one = write_run(tmp_path / "one", rows, receipts, config={"hooks": hooks})
    other = write_run(tmp_path / "other", rows)
    out = compared(one, other, 80, monkeypatch)
    assert "[red]" in out
    assert "receipts     line 1, at 500 updates, 1,000 env_steps, is only in A" in out


def test_runs_without_a_line_are_not_called_equal_and_damage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, other = (write_run(tmp_path / name, []) for name in ("one", "other"))
    out = compared(one, other, 80, monkeypatch)
    assert "equal        bit for bit" not in out and "neither run has a line" in out
    assert "is no run's folder" in refused(command("compare", one, tmp_path))
    (other / "run.json").write_text("{")
    assert str(other / "run.json") in refused(command("compare", one, other), 1)
    assert command("compare", one).code == 2
