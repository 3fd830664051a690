"""The notebook: its cells run from top to bottom, and its charts have something to draw."""

import ast
import json
from pathlib import Path
from typing import Any

import altair as alt
import pytest

from tests.docs.snippets import DOCS

NOTEBOOK = DOCS / "examples" / "read_a_run.ipynb"
CELLS = [
    "".join(cell["source"])
    for cell in json.loads(NOTEBOOK.read_text())["cells"]
    if cell["cell_type"] == "code"
]


def value_of(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, as a notebook shows it."""
    tree = ast.parse(cell)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


@pytest.mark.slow
def test_cells_run_and_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    found = [value_of(cell, names) for cell in CELLS]
    assert len(found[0]) == 3  # rows of a table
    for chart in found[1:]:
        (rows,) = chart.to_dict()["datasets"].values()
        assert isinstance(chart, alt.Chart) and len(rows) >= 29


def test_notebook_has_outputs() -> None:
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
