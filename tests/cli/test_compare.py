"""`rlplast compare`: what it prints of equal runs, of others, and of what is no run."""

from pathlib import Path

import pytest
from rich.cells import cell_len

from rlplast.run import api
from tests.cli.commands import command, printed
from tests.cli.runs import refused
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.report.runs import metric_rows, receipt_row, write_run

LONG = "a_method_of_ones_own_whose_name_is_as_long_as_a_whole_row_of_a_usual_terminal_or_longer"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two equal runs, and one of each kind."""
    folder = tmp_path_factory.mktemp("compare")
    corpora = write_corpora(folder)
    for name in (*KINDS, "again"):
        kind = "dqn" if name == "again" else name
        api.train(small_run(kind, corpora), folder / name)
    return {name: folder / name for name in (*KINDS, "again")}


def compared(one: Path, other: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = command("compare", one, other)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(cell_len, outcome.out.splitlines())) <= columns
    return outcome.out


def _pair(out: str, key: str) -> tuple[str, ...]:
    """Return the values of a key in both runs."""
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == [key]]
    return tuple(row[1:])


def test_equal_runs_are_said_to_be_equal(runs, monkeypatch: pytest.MonkeyPatch):
    out = compared(runs["dqn"], runs["again"], 80, monkeypatch)
    metrics, receipts = (
        (runs["dqn"] / f"{name}.jsonl").read_text().count("\n") for name in ("metrics", "receipts")
    )
    last = out.splitlines()[-1]
    assert last == f"equal        bit for bit: {metrics} lines of metrics, {receipts} receipts"
    assert "settings that change training: equal" in out and "versions and machine: equal" in out


@pytest.mark.parametrize("columns", [60, 80, 160])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_runs_of_different_kinds_are_compared(
    runs, kind: str, columns: int, monkeypatch: pytest.MonkeyPatch
):
    out = compared(runs["dqn"], runs[kind], columns, monkeypatch)
    assert f"no, A is of kind dqn and B of kind {kind}" in " ".join(out.split())
    assert "absent" not in out and ("kind ", "dqn", kind) == ("kind ", *_pair(out, "kind"))
    assert len(out.splitlines()) < 60 or columns < 80
    data = printed("compare", runs["dqn"], runs[kind])
    assert data["config"]["kind"] == ["dqn", kind]


def test_long_names_go_on_below_and_are_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = metric_rows(float, [1000, 2000])
    hooks = [{"method": f"[red]{LONG}[/x]", "at": "50%"}]
    receipts = [receipt_row(f"[red]{LONG}[/x]", 1000)]
    one = write_run(tmp_path / "one", rows, receipts, config={"hooks": hooks})
    other = write_run(tmp_path / "other", rows)
    out = compared(one, other, 80, monkeypatch)
    assert "[red]" in out
    assert "receipts     line 1, at 500 updates, 1,000 env_steps, is only in A" in out


def test_runs_without_a_line_are_not_called_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, other = (write_run(tmp_path / name, []) for name in ("one", "other"))
    out = compared(one, other, 80, monkeypatch)
    assert "equal        bit for bit" not in out and "neither run has a line" in out


def test_what_is_no_run_is_refused_and_damage_named(runs, tmp_path: Path):
    assert "is no run's folder" in refused(command("compare", runs["dqn"], tmp_path))
    bad = write_run(tmp_path / "bad", [])
    (bad / "run.json").write_text("{")
    assert str(bad / "run.json") in refused(command("compare", runs["dqn"], bad), 1)
    assert command("compare", runs["dqn"]).code == 2
