"""The documents: their code runs, their configs and commands are accepted, the site builds."""

import re
import shlex
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from rlplast.cli.bench_command import agent_config
from rlplast.cli.list_command import list_rows
from rlplast.cli.main import parser
from rlplast.cli.train_command import overrides
from rlplast.core import registry
from rlplast.core.method.listing import ROW_KEYS
from rlplast.core.method.scope import SCOPES
from rlplast.core.training.config import parse_yaml
from rlplast.run.config_file import read_config
from rlplast.run.shipped import shipped_configs
from tests.marks import slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"```(\w*)$")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")
# What may stand before a block: why it is not run, that it goes on where the last one stopped,
# or which file it is, for later blocks of the page to import.
NOT_RUN = re.compile(r"<!-- not run: .+ -->$")
CONTINUES = "<!-- continues -->"
# Sizes that make a block of docs/methods take seconds, and sizes that its tests run with.
SMALLER = {"1001": "101", "2000": "20", "512": "32", "3136": "64"}
FILE = re.compile(r"`([\w/]+)\.py`:$")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, its text, the words before it."""

    page: Path
    line: int
    language: str
    text: str
    before: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def module(self) -> str:
        """The module that the page says this is, or nothing."""
        found = FILE.search(self.before)
        return found[1].replace("/", ".") if found else ""


def blocks_of(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    start, language = None, ""
    for number, line in enumerate(lines):
        if start is None and (fence := FENCE.match(line)):
            start, language = number, fence[1]
        elif start is not None and line == "```":
            text = "\n".join(lines[start + 1 : number]) + "\n"
            before = [words for words in lines[:start] if words]
            yield Block(page, start + 1, language, text, before[-1] if before else "")
            start = None
    assert start is None, f"{page}:{start} is never closed"


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [b for b in BLOCKS if b.language == "python" and not NOT_RUN.match(b.before)]
YAML = [b for b in BLOCKS if b.language == "yaml"]


def chains() -> list[list[Block]]:
    """Return lists of Python blocks that share a namespace: one, and those that continue it."""
    found: list[list[Block]] = []
    for block in PYTHON:
        if block.before == CONTINUES:
            found[-1].append(block)
        else:
            found.append([block])
    return found


@pytest.fixture
def _untouched(
    own_methods: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Leave no method, environment, draw or file behind."""
    monkeypatch.chdir(tmp_path)
    known = dict(gymnasium.registry)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    for name in gymnasium.registry.keys() - known:
        del gymnasium.registry[name]


def run(block: Block, namespace: dict[str, Any]) -> None:
    code = "\n" * block.line + block.text  # so that a traceback has the page's line
    if block.page.parent.name == "methods":
        code = re.sub(r"\b\d+\b", lambda size: SMALLER.get(size[0], size[0]), code)
    exec(compile(code, f"{block.page.relative_to(ROOT)} (a block)", "exec"), namespace)


def import_files(later: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the files that a page has before a block modules that can be imported."""
    for block in PYTHON:
        if block.page == later.page and block.line < later.line and block.module:
            module = types.ModuleType(block.module)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            run(block, module.__dict__)


# Those of the README at every step, the others in `make test-slow`.
MARKED = [c if c[0].page.name == "README.md" else slow(c) for c in chains()]


@pytest.mark.parametrize("chain", MARKED, ids=lambda chain: str(chain[0]))
@pytest.mark.usefixtures("_untouched")
def test_python_blocks_run(chain: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    import_files(chain[0], monkeypatch)
    namespace: dict[str, Any] = {"__name__": "block"}
    for block in chain:
        run(block, namespace)
    for name, value in list(namespace.items()):
        if name.startswith("test_"):
            value()


def check_lists(data: Mapping[str, Any]) -> None:
    """Check keys, methods and parameters of hooks, penalties and layers."""
    for key, family in registry.LISTS.items():
        for row in data.get(key, []):
            assert set(row) <= set(ROW_KEYS[key])
            registry.build(family, row["method"], row.get("params"))


@pytest.mark.parametrize("block", YAML, ids=str)
@pytest.mark.usefixtures("_untouched")
def test_yaml_blocks_are_yaml_and_whole_configs_are_accepted(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_files(block, monkeypatch)
    data = parse_yaml(block.text, str(block))
    assert isinstance(data, dict)
    check_lists(data)
    if "kind" in data:
        read_config(data)


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield where, and what, for every `rlplast ...` line of a block without a language."""
    for block in BLOCKS:
        if block.language not in ("", "sh"):
            continue
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            if found := re.match(r"\s*(?:\S*/)?rlplast (.*)", line):
                yield str(block), found[1]


@pytest.mark.parametrize(("where", "line"), list(command_lines()))
def test_commands_and_their_options_exist(
    where: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = [re.sub(r"\$\w+", "1", word) for word in shlex.split(line, comments=True)]
    arguments, rest = parser().parse_known_args(words)
    if arguments.command == "bench":
        agent_config(rest, arguments.threads)
    elif arguments.command != "train":
        assert not rest
    elif arguments.config in shipped_configs():
        config = read_config(arguments.config, overrides(rest))
        if not arguments.modules:  # else methods may be those of the module
            check_lists(vars(config))


def test_readme_links_to_what_exists() -> None:
    links = LINK.findall((ROOT / "README.md").read_text())
    assert len(links) > 5
    assert not [link for link in links if not (ROOT / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_list_or_table_has_an_empty_line_before_it(page: Path) -> None:
    """GitHub shows it without one, the site shows a paragraph."""
    wrong, fenced, before = [], False, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.startswith("```")
        for mark in ("- ", "1. ", "|"):
            if line.startswith(mark) and not fenced and before and before[0] not in " |-0123456789":
                wrong.append(number)
        before = line
    assert not wrong


@pytest.mark.parametrize("family", ["replay", "regularisers"])
def test_everything_of_a_family_has_a_card(family: str) -> None:
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


def test_the_site_builds_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) - 2
    for page in pages:
        loaded = re.findall(r"<(?:link|script|img|source|iframe)\b[^>]*>", page.read_text())
        assert not [tag for tag in loaded if re.search(r'(?:src|href)="(?:https?:)?//', tag)]
