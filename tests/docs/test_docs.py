"""The documents: their links lead somewhere, every family has its cards, the site builds."""

import json
import re
import tomllib
import warnings
from pathlib import Path

import pytest
import yaml

import rlplast
from rlplast.cli.list_command import list_rows
from rlplast.core.method.listing import ROW_KEYS
from rlplast.core.method.scope import SCOPES
from tests.docs.snippets import DOCS, PAGES, ROOT

LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")


@pytest.mark.parametrize(("page", "fewest"), [("README.md", 50), ("AGENTS.md", 2)])
def test_pages_of_the_root_link_to_what_exists(page: str, fewest: int) -> None:
    links = LINK.findall((ROOT / page).read_text())
    assert len(links) >= fewest
    assert not [link for link in links if not (ROOT / link).exists()]


def test_readme_s_badges_version_and_picture_are_true() -> None:
    text = (ROOT / "README.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python, licence, status = re.findall(r"img.shields.io/badge/\w+-(.+?)-\w+\)", text)
    assert f">={python.removesuffix('%2B')}" == project["requires-python"]
    assert licence == project["license"]
    assert any("- Beta" in c for c in project["classifiers"]) and status == "beta"
    assert re.findall(r"version = {(.+)}", text) == [rlplast.__version__]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (rlplast.__version__, licence)
    (picture,) = re.findall(r'<img src="([^"]+)"', text)
    assert (ROOT / picture).exists()


def test_readme_counts_the_verdicts_of_the_papers_pages() -> None:
    counts = dict.fromkeys(("holds", "does not hold", "in part", "unclear"), 0)
    for page in (DOCS / "papers").glob("*.md"):
        table = page.read_text().partition("| claim |")[2].partition("\n\n")[0]
        for line in table.splitlines()[2:]:
            verdict = line.split(" | ")[2].strip()
            part = "holds" in verdict and ("does not" in verdict or "unclear" in verdict)
            counts["in part" if part else re.match(r"holds|does not hold|unclear", verdict)[0]] += 1
    said = re.search(
        r"Of (\d+) verdicts .*?, (\d+) hold, (\d+) do not, (\d+) hold in\s+part, (\d+) are unclear",
        (ROOT / "README.md").read_text(),
    )
    assert said and list(map(int, said.groups())) == [sum(counts.values()), *counts.values()]


def test_the_reference_names_what_the_package_offers() -> None:
    table = (DOCS / "reference" / "api" / "rlplast.md").read_text().partition("\n\n`fire` takes")[0]
    named = set(re.findall(r"`(\w+)`", table)) - {"Run"}
    assert named >= set(rlplast.__all__) and all(hasattr(rlplast, name) for name in named)


def test_a_list_or_table_has_an_empty_line_before_it() -> None:
    """GitHub shows it without one, the site shows a paragraph."""
    wrong = []
    for page in PAGES:
        fenced, before = False, ""
        for number, line in enumerate(page.read_text().splitlines(), 1):
            fenced ^= line.startswith("```")
            starts = line.startswith(("- ", "1. ", "|")) and not fenced
            if starts and before and before[0] not in " |-0123456789":
                wrong.append(f"{page.relative_to(ROOT)}:{number}")
            before = line
    assert not wrong


def test_everything_of_a_family_has_a_card() -> None:
    for family in ("replay", "regularisers"):
        names = [row["name"] for row in list_rows(family)]
        assert names
        assert not [name for name in names if not (DOCS / "methods" / f"{name}.md").exists()]


def test_the_config_page_names_every_key_of_hooks_and_penalties_and_every_scope() -> None:
    named = set(re.findall(r"`(\w+)`", (DOCS / "reference" / "config.md").read_text()))
    assert {*(name for keys in ROW_KEYS.values() for name in keys), *SCOPES} <= named


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is strict is the log of the build
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere_and_its_search_finds_everything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) - 2
    for page in pages:
        loaded = re.findall(r"<(?:link|script|img|source|iframe)\b[^>]*>", page.read_text())
        wrong = [tag for tag in loaded if re.search(r'(?:src|href)="(?:https?:)?//', tag)]
        assert not wrong, page
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {row["location"] for row in index["docs"]}
    names = {page.relative_to(site).as_posix() for page in pages} - {"404.html"}
    assert {name for name in names if not name.startswith("gallery/")} <= places  # the reports
    assert {f"reference/api/rlplast.html#rlplast.{name}" for name in rlplast.__all__} <= places
    assert "agent.target_every" in (site / "reference" / "config.html").read_text()
    # Docstrings are rendered with their sections and links.
    page = (site / "reference" / "api" / "rlplast.html").read_text()
    train = page[page.index('id="rlplast.train"') :]
    assert "Parameters:" in train[: train.index("Returns:")]
    assert 'href="#rlplast.run.api.Run"' in page
