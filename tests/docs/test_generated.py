"""What the pages take from the code is what the code says now."""

import re
from pathlib import Path

from docs import generate
from rlplast.cli.list_command import REGISTERED, list_rows, registered_text

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if "<!-- generated: " in p.read_text()]


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def test_generated_parts_are_up_to_date() -> None:
    old = []
    for page in PAGES:
        text = page.read_text()
        # Python versions break the lines of usages differently.
        if text.split() != generate.regenerated(page, text).split():
            old.append(name(page))
    assert not old, "out of date: run `make reference`, and commit it"


def test_what_list_reads_is_what_is_registered() -> None:
    wrong = f"{REGISTERED.name} is out of date: run `make reference`, and commit it"
    assert REGISTERED.read_text() == registered_text(), wrong


def built(page: str) -> str:
    return generate.built(DOCS / page, (DOCS / page).read_text())


def test_tables_name_everything_that_the_command_line_lists() -> None:
    methods, metrics = built("methods/README.md"), built("reference/metrics.md")
    for family in ("interventions", "layers", "penalties", "regularisers", "replay"):
        assert all(f"[`{row['name']}`]({row['name']}.md)" in methods for row in list_rows(family))
    assert all(f"| `{row['name']}` |" in metrics for row in list_rows("metrics"))
    optimizers = built("reference/optimizers.md")
    for row in list_rows("optimizers"):
        assert f"| `{row['name']}` |" in optimizers
        assert all(f"| `{param}` |" in optimizers for param in row["params"])
    assert "| `agent.target_every` |" in built("reference/config.md")
    commands = built("reference/command-line.md")
    assert "usage: rlplast train" in commands and "--print_config" in commands
    assert "| `entries_touched` |" in built("reference/run-folder.md")


def test_no_cell_has_code_with_a_bar() -> None:
    """GitHub ends the cell there, also inside code."""
    for page in DOCS.rglob("*.md"):
        fenced = False
        for line in page.read_text().splitlines():
            fenced ^= line.startswith("```")
            if line.startswith("|") and not fenced:
                code = line.split("`")[1::2]
                assert not [c for c in code if re.search(r"(?<!\\)\|", c)], f"{name(page)}: {line}"
