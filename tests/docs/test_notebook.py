"""The notebooks: their cells run from top to bottom, and their charts have something to draw."""

import ast
import json
from pathlib import Path
from typing import Any

import altair as alt
import pytest

from tests.docs.snippets import DOCS
from tests.report.conftest import quick  # noqa: F401
from tests.study.inline import inline

READ, LAKE = (DOCS / "examples" / f"{name}.ipynb" for name in ("read_a_run", "frozen_lake"))


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of code."""
    cells = json.loads(notebook.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def texts_of(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells_of(notebook)]


def value_of(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, as a notebook shows it."""
    tree = ast.parse(cell)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "notebook", "exec"), names)
    return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)


def run(notebook: Path, smaller: dict[str, str]) -> list[Any]:
    """Run all cells, of which the first is made smaller; return their values."""
    pytest.importorskip("pandas")
    first, *others = texts_of(notebook)
    for before, after in smaller.items():
        assert before in first
        first = first.replace(before, after)
    names: dict[str, Any] = {}
    return [value_of(cell, names) for cell in (first, *others)]


@pytest.mark.slow
def test_cells_run_and_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = [f'{key}__every="4 epochs"' for key in ("log", "evaluate")]
    changes = ", ".join(['metrics__every="1 phase"', "stream__epochs=4", *short])
    table, *charts = run(READ, {'metrics__every="1 phase"': changes})
    assert len(table) == 3
    for chart in charts:
        (rows,) = chart.to_dict()["datasets"].values()
        assert isinstance(chart, alt.Chart) and len(rows) >= 29


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_lake_is_studied_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with inline():
        found = run(LAKE, {'"800 episodes"': '"40 episodes"', '"seeds": 5': '"seeds": 2'})
    states, summary, scores, curves = found
    assert states.to_dict() == {"done": 2 * 4}  # the arms, and what they share
    assert set(summary["arm"]) == {"none", "full_reset", "fire"}
    assert isinstance(scores, alt.LayerChart)
    (rows,) = curves.to_dict()["datasets"].values()
    assert {row["arm"] for row in rows} == set(summary["arm"])


def test_notebooks_have_outputs() -> None:
    for notebook in (READ, LAKE):
        assert all(cell["outputs"] for cell in cells_of(notebook)), notebook
