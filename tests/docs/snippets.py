"""The fenced blocks of the pages."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BLOCKS", "DOCS", "PAGES", "ROOT", "Block"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted(DOCS.rglob("*.md"))]
_FENCE = re.compile(r"( *)```(\w*)$")
_FILE = re.compile(r"`([\w.]+)`[.:]$")
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->$")


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
    def file(self) -> str:
        """The file that the page says this is, such as "`my_redo.py`:", or nothing."""
        found = _FILE.search(self.before)
        return found[1] if found and self.language in ("python", "yaml") else ""

    @property
    def not_run(self) -> str:
        """Why it is not run, which stands before it: ``<!-- not run: REASON -->``; or nothing."""
        found = _NOT_RUN.match(self.before)
        return found[1] if found else ""


def _blocks_of(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    start, indent, language = None, "", ""
    for number, line in enumerate(lines):
        if start is None and (fence := _FENCE.match(line)):
            start, indent, language = number, fence[1], fence[2]
        elif start is not None and line == f"{indent}```":
            text = "\n".join(line.removeprefix(indent) for line in lines[start + 1 : number])
            before = [words for words in lines[:start] if words]
            yield Block(page, start + 1, language, f"{text}\n", before[-1] if before else "")
            start = None
    assert start is None, f"{page}:{start} is never closed"


BLOCKS = [block for page in PAGES for block in _blocks_of(page)]
