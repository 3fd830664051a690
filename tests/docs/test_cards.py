"""The cards of methods: their headings are the agreed ones, and their tables are the code's."""

import re
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.registry import rows
from rlplast.core.training.config import parse_yaml

CARDS = Path(__file__).parents[2] / "docs" / "methods"
METHODS = {i.name: i for f in ("interventions", "layers", "penalties") for i in rows(f)}
# In bold at the start of a paragraph, in this order; a card may have others in between.
NEEDED = ("Formula", "Paper, code, and here")
ALLOWED = (*NEEDED, "Measured", "Cost")
LEAD = re.compile(r"^\*\*([^*\n]+)\.\*\*", re.MULTILINE)
TABLE = re.compile(
    r"^\| parameter \| default \| \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE
)


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_card_with_a_source_and_the_agreed_headings(method: str) -> None:
    card = (CARDS / f"{method}.md").read_text()
    title, words, _ = card.split("\n\n", 2)
    assert title == f"# {method}"
    assert "Source:" in words
    leads = [lead for lead in LEAD.findall(card) if lead in ALLOWED]
    assert leads == [lead for lead in ALLOWED if lead in NEEDED or lead in leads]


@pytest.mark.parametrize("method", METHODS)
def test_a_cards_parameters_and_defaults_are_the_codes(method: str) -> None:
    tables = TABLE.findall((CARDS / f"{method}.md").read_text())
    assert len(tables) == (1 if METHODS[method].params else 0)
    lines = "".join(tables).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {name.strip("`"): parse_yaml(default, name) for name, default, *_ in cells}
    expected = {name: plain(p["default"]) for name, p in METHODS[method].params.items()}
    assert found == expected
