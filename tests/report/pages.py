"""Pages of reports, read as a reader does."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rlplast.report.contents import write_report
from rlplast.report.frame import read
from rlplast.report.view import report_of
from tests.report.runs import write_study

__all__ = ["Page", "reported", "written"]

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Elements with their attributes, tables and paragraphs as text, and that tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[tuple[str, list[list[str]]]] = []  # with the heading above
        self.paragraphs: list[tuple[str | None, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self._heading = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.elements.append((tag, own))
        if tag not in VOID:
            self._open.append(tag)
        if tag in ("h2", "h3"):
            self._heading = ""
        elif tag == "table":
            self.tables.append((self._heading, []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):  # an interval has a cell of its own, without a head
            self._end = "end" in (own.get("class") or "").split()
            if not self._end:
                self.tables[-1][1][-1].append("")
        elif tag == "p":
            self.paragraphs.append((own.get("class"), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & set(self._open):
            return
        self.words.append(data)
        if {"h2", "h3"} & set(self._open):
            self._heading += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][1][-1][-1] += f" {data}" if self._end else data
        if "p" in self._open:
            kind, text = self.paragraphs[-1]
            self.paragraphs[-1] = (kind, text + data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def table(self, *columns: str) -> dict[str, dict[str, str]]:
        """First cell of a row → column → cell, of the first table with these columns."""
        for _, rows in self.tables:
            if set(columns) <= set(rows[0]):
                return {row[0]: dict(zip(rows[0], row, strict=False)) for row in rows[1:]}
        raise AssertionError(f"no table with {columns}")


def written(folder: Path, out: Path, **options: Any) -> str:
    """The page of a folder's report."""
    return write_report(report_of(read([folder])), out, **options).read_text(encoding="utf-8")


def reported(folder: Path, **changes: Any) -> Page:
    """The page of a study's report; `changes` are those of `write_study`."""
    return Page(written(write_study(folder, **changes), folder / "out"))
