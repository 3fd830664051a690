"""`rlplast frame`: the file that it writes, and what it refuses."""

import csv
import math
import sys
from pathlib import Path

import pytest

import rlplast
from tests.cli.commands import command
from tests.cli.runs import refused
from tests.report.runs import smooth_score, write_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study with a null, and a name that holds what separates columns."""

    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        return None if x == 4000 else smooth_score(task, arm, seed, x)

    return write_study(tmp_path, ("none", 'a,"b'), (1, 2), score=score)


@pytest.mark.parametrize("words", [(), ("--runs",)])
def test_a_csv_file_has_the_rows_of_the_python_function(
    words: tuple[str, ...], study: Path, tmp_path: Path
):
    table = (rlplast.runs if words else rlplast.frame)(study)
    done = command("frame", study, "--out", tmp_path / "own.csv", *words)
    assert (done.code, done.err) == (0, "")
    assert f"{len(table):,} rows: {tmp_path / 'own.csv'}" in done.out
    with (tmp_path / "own.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == list(table)
    assert len(rows) == len(table)
    for row, values in zip(rows, table.itertuples(index=False), strict=True):
        for text, value in zip(row, values, strict=True):
            if isinstance(value, str | bool):
                assert text == str(value)
            else:
                assert float(text or math.nan) == pytest.approx(value, rel=0, abs=0, nan_ok=True)


def test_a_parquet_file_has_the_same_rows(study: Path, tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    out = tmp_path / "own.parquet"
    assert command("frame", study, "--out", out).code == 0
    theirs = rlplast.frame(study)
    pandas.testing.assert_frame_equal(pandas.read_parquet(out), theirs, check_categorical=False)


def test_parquet_without_pyarrow_says_what_to_install(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = refused(command("frame", study, "--out", tmp_path / "own.parquet"))
    assert 'pip install "rlplast[parquet]"' in words


def test_what_cannot_be_read_or_written_is_refused(study: Path, tmp_path: Path):
    out = tmp_path / "own.csv"
    out.write_text("mine")
    assert ".csv or .parquet" in refused(command("frame", study, "--out", tmp_path / "own.txt"))
    assert "is no folder" in refused(command("frame", tmp_path / "nowhere", "--out", out))
    assert command("frame", study, "--out", tmp_path / "new" / "own.csv").code == 0
    lines = next(study.glob("cells/*/*/none-*/metrics.jsonl"))
    lines.write_text("[]\n" + lines.read_text())
    assert f"{lines}, line 1" in refused(command("frame", study, "--out", out), 1)
    assert out.read_text() == "mine"
    assert command("frame", study).code == 2
