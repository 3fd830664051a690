"""The cards of methods: their headings are the agreed ones, and their tables are the code's."""

import re
from pathlib import Path
from typing import Any

from docs.generate import built
from rlplast.core.registry import LISTS, rows
from rlplast.training.config import parse_yaml

CARDS = Path(__file__).parents[2] / "docs" / "methods"
METHODS = {i.name: i for f in ("interventions", "layers", "penalties") for i in rows(f)}
KEYS = {family: key for key, family in LISTS.items()}
# In this order; a card may have others in between.
NEEDED = ("Formula", "Paper, code, and here")
ALLOWED = (*NEEDED, "Measured", "Cost")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
TABLE = re.compile(r"^\| parameter \| .*\n\|---.*\n((?:\|.*\n)+)", re.MULTILINE)


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_every_method_has_a_card_with_a_source_and_the_agreed_headings() -> None:
    for method, info in METHODS.items():
        card = (CARDS / f"{method}.md").read_text()
        title, words, smallest, _ = card.split("\n\n", 3)
        assert title == f"# {method}"
        assert "Use it" in words and "Source:" in words, method
        assert smallest.startswith("```yaml\n") and f"method: {method}" in smallest, method
        in_short = built(CARDS / f"{method}.md", card).split("\n\n", 4)[3]
        assert f"| listed under | `{KEYS[info.family]}:` |" in in_short, method
        assert ("default policies" in in_short) == (info.family == "interventions"), method
        headings = [heading for heading in HEADING.findall(card) if heading in ALLOWED]
        assert headings == [h for h in ALLOWED if h in NEEDED or h in headings], method


def test_a_card_s_parameters_on_the_site_are_the_code_s_and_all_are_explained() -> None:
    for method, info in METHODS.items():
        card = (CARDS / f"{method}.md").read_text()
        tables = TABLE.findall(built(CARDS / f"{method}.md", card))
        assert len(tables) == bool(info.params), method
        lines = "".join(tables).splitlines()
        cells = [[c.strip() for c in line.split("|", 4)[1:]] for line in lines]
        found = {n.strip("`"): parse_yaml(default.strip("`"), n) for n, default, *_ in cells}
        assert found == {n: plain(p["default"]) for n, p in info.params.items()}, method
        assert all(words.strip("| ") for *_, words in cells), method
