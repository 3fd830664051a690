"""What the pages take from the code is what the code says now."""

import re
from pathlib import Path

import pytest

from docs import generate
from rlplast.cli.list_command import REGISTERED, list_rows, registered_text

DOCS = Path(__file__).parents[2] / "docs"
API = "<!-- generated: api -->"
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if "<!-- generated: " in p.read_text()]


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def check_up_to_date(pages: list[Path]) -> None:
    old = []
    for page in pages:
        text = page.read_text()
        # Python versions break the lines of usages differently.
        if text.split() != generate.regenerated(page, text).split():
            old.append(name(page))
    assert not old, "out of date: run `make reference`, and commit it"


def test_generated_parts_are_up_to_date() -> None:
    check_up_to_date([page for page in PAGES if API not in page.read_text()])


def test_generated_parts_of_signatures_are_up_to_date() -> None:
    pytest.importorskip("griffe", reason="it reads signatures; of the extra `docs`")
    check_up_to_date([page for page in PAGES if API in page.read_text()])


def test_what_list_reads_is_what_is_registered() -> None:
    wrong = f"{REGISTERED.name} is out of date: run `make reference`, and commit it"
    assert REGISTERED.read_text() == registered_text(), wrong


@pytest.mark.parametrize("text", ["<!-- generated: keys common -->\n", "<!-- generated: x -->\n"])
def test_a_place_without_an_end_or_with_an_unknown_name_is_refused(text: str) -> None:
    end = "" if "common" in text else "<!-- end -->\n"
    with pytest.raises(ValueError, match=r"<!-- end -->|'x'"):
        generate.regenerated(DOCS / "index.md", text + end)


def test_a_cards_words_on_a_parameter_stay_and_the_rest_is_the_codes() -> None:
    table = "| `alpha` | 7 | any | stays |\n| `gone` | 1 | | goes |\n"
    place = f"<!-- generated: parameters -->\n\n{table}\n<!-- end -->\n"
    made = generate.regenerated(DOCS / "methods" / "dash.md", place)
    assert re.search(r"\| `alpha` \| `0\.3` \| `\[0, 1\]` \| stays \|", made)
    assert "gone" not in made
    assert "| `coef` | `0.3` |" in made


def test_tables_name_everything_that_the_command_line_lists() -> None:
    methods, metrics = DOCS / "methods" / "README.md", DOCS / "reference" / "metrics.md"
    keys, commands = DOCS / "reference" / "config.md", DOCS / "reference" / "command-line.md"
    for family in ("interventions", "layers", "penalties", "regularisers"):
        for row in list_rows(family):
            assert f"[`{row['name']}`]({row['name']}.md)" in methods.read_text()
            assert all(f"| `{param}` |" in methods.read_text() for param in row["params"])
    assert all(f"| `{row['name']}` |" in metrics.read_text() for row in list_rows("metrics"))
    assert "| `agent.target_every` |" in keys.read_text()
    assert "usage: rlplast train" in commands.read_text()
    assert "--print_config" in commands.read_text()


def test_no_cell_has_code_with_a_bar() -> None:
    """GitHub ends the cell there, also inside code."""
    for page in DOCS.rglob("*.md"):
        fenced = False
        for line in page.read_text().splitlines():
            fenced ^= line.startswith("```")
            if line.startswith("|") and not fenced:
                code = line.split("`")[1::2]
                assert not [c for c in code if re.search(r"(?<!\\)\|", c)], f"{name(page)}: {line}"
