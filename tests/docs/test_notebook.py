"""The notebooks: their cells run from top to bottom, and their charts have something to draw."""

import ast
import json
from pathlib import Path
from typing import Any

import altair as alt
import pytest

from tests.docs.snippets import DOCS

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


@pytest.mark.slow
def test_cells_run_and_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    found = [value_of(cell, names) for cell in texts_of(READ)]
    assert len(found[0]) == 3  # rows of a table
    for chart in found[1:]:
        (rows,) = chart.to_dict()["datasets"].values()
        assert isinstance(chart, alt.Chart) and len(rows) >= 29


@pytest.mark.slow
def test_the_lake_is_studied_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    small = {'"800 episodes"': '"40 episodes"', '"seeds": 5': '"seeds": 2'}
    first, *others = texts_of(LAKE)
    for before, after in small.items():
        assert before in first
        first = first.replace(before, after)
    states, summary, scores, curves = [value_of(cell, names) for cell in (first, *others)]
    assert states.to_dict() == {"done": 2 * 4}  # the arms, and what they share
    assert set(summary["arm"]) == {"none", "full_reset", "fire"}
    assert isinstance(scores, alt.LayerChart)
    (rows,) = curves.to_dict()["datasets"].values()
    assert {row["arm"] for row in rows} == set(summary["arm"])


def test_notebooks_have_outputs() -> None:
    for notebook in (READ, LAKE):
        assert all(cell["outputs"] for cell in cells_of(notebook)), notebook
