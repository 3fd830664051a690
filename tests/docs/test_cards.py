"""The cards of methods: their headings are the agreed ones, and their tables are the code's."""

import re
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.registry import LISTS, rows
from rlplast.training.config import parse_yaml

CARDS = Path(__file__).parents[2] / "docs" / "methods"
METHODS = {i.name: i for f in ("interventions", "layers", "penalties") for i in rows(f)}
KEYS = {family: key for key, family in LISTS.items()}
# In this order; a card may have others in between.
NEEDED = ("Formula", "Paper, code, and here", "What the tests prove")
ALLOWED = ("Formula", "Paper, code, and here", "Measured", "Cost", "What the tests prove")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
TABLE = re.compile(r"^\| parameter \| .*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_card_with_a_source_and_the_agreed_headings(method: str) -> None:
    card = (CARDS / f"{method}.md").read_text()
    title, words, smallest, place, _ = card.split("\n\n", 4)
    assert title == f"# {method}"
    assert "Use it" in words
    assert "Source:" in words
    assert smallest.startswith("```yaml\n")
    assert f"method: {method}" in smallest
    assert place == "<!-- generated: card -->"
    assert f"| listed under | `{KEYS[METHODS[method].family]}:` |" in card
    assert "<!-- generated: tests -->\n\n- " in card
    headings = [heading for heading in HEADING.findall(card) if heading in ALLOWED]
    assert headings == [h for h in ALLOWED if h in NEEDED or h in headings]


@pytest.mark.parametrize("method", METHODS)
def test_a_cards_parameters_and_defaults_are_the_codes_and_all_are_explained(method: str) -> None:
    tables = TABLE.findall((CARDS / f"{method}.md").read_text())
    assert len(tables) == (1 if METHODS[method].params else 0)
    cells = [[c.strip() for c in line.split("|", 4)[1:]] for line in "".join(tables).splitlines()]
    found = {name.strip("`"): parse_yaml(default.strip("`"), name) for name, default, *_ in cells}
    expected = {name: plain(p["default"]) for name, p in METHODS[method].params.items()}
    assert found == expected
    assert all(words.strip("| ") for *_, words in cells)
