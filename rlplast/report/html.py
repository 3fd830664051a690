"""A page in one file: text, tables and pictures, and a box per arm that hides it everywhere.

The parts of a page are data; whatever text they hold is escaped here, once. Nothing is loaded from
anywhere: styles, script and pictures are in the page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rlplast.report.looks import Look, inline

__all__ = ["Details", "Part", "Picture", "Row", "Section", "Table", "Text", "page"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Text:
    """A paragraph; `bad` says that something went wrong."""

    words: str
    bad: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture: what it shows, how its numbers were computed, and the contents of its files.

    The name is that of its files and unique in the page, of letters, digits and hyphens. The width
    is in inches.
    """

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    width: float


@dataclass(frozen=True)
class Row:
    """A row of a table; hidden with its arm, if it has one, whose name is its first cell then."""

    cells: tuple[str, ...]
    arm: int | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        head: names of the columns.
        rows: as long as the head.
        caption: below it.
        words: how many columns hold words; the others hold numbers and are aligned right.
        title: above it.
        arms: index of the arm of each column; columns of arms are hidden with them.
    """

    head: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    words: int = 1
    title: str = ""
    arms: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Details:
    """Text that is folded away, letter for letter; hidden with its arm, if it has one."""

    summary: str
    text: str
    arm: int | None = None


Part = Text | Picture | Table | Details


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `name` is where links to it point."""

    name: str
    title: str
    parts: tuple[Part, ...]


def page(title: str, arms: Sequence[Look], sections: Iterable[Section], footer: str = "") -> str:
    """Return a whole page, with a box for each arm, which hides it.

    Sections without parts are left out. The first one has no heading.
    """
    shown = [section for section in sections if section.parts]
    links = "".join(f'<a href="#{s.name}">{escape(s.title)}</a>' for s in shown[1:])
    body = "\n".join(_section(section, arms, number == 0) for number, section in enumerate(shown))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{_asset("report.css")}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<nav aria-label="Sections">{links}<a href="summary.csv">summary.csv</a></nav>
</header>
{_boxes(arms)}
<main>
{body}
</main>
<footer>{escape(footer)}</footer>
<script>
{_asset("report.js")}</script>
</body>
</html>
"""


# Should text of a run ever get past `escape`, it can load nothing and send nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _boxes(arms: Sequence[Look]) -> str:
    if len(arms) < 2:
        return ""
    boxes = "\n".join(
        f'<label><input type="checkbox" id="show-{a.index}" data-toggles="{a.index}" checked>'
        f"{_swatch(a)}{escape(a.name)}</label>"
        for a in arms
    )
    button = '<button type="button" id="show-all">show all</button>'
    return f'<div class="arms"><fieldset><legend>Show:</legend>\n{boxes}\n{button}</fieldset></div>'


def _swatch(arm: Look) -> str:
    return f'<span class="swatch" style="background:{arm.colour}"></span>'


def _section(section: Section, arms: Sequence[Look], first: bool) -> str:
    heading = "" if first else f'<h2 id="{section.name}">{escape(section.title)}</h2>'
    parts = "\n".join(_part(part, arms) for part in section.parts)
    return f"<section>{heading}\n{parts}\n</section>"


def _part(part: Part, arms: Sequence[Look]) -> str:
    match part:
        case Text():
            return f"<p{' class=bad' if part.bad else ''}>{escape(part.words)}</p>"
        case Picture():
            return _picture(part)
        case Table():
            return _table(part, {arm.index: arm for arm in arms})
        case Details():
            text = f"<summary>{escape(part.summary)}</summary><pre>{escape(part.text)}</pre>"
            return f"<details{_of_arm(part.arm)}>{text}</details>"


def _picture(picture: Picture) -> str:
    title = escape(picture.title)
    drawing = inline(picture.svg, picture.name, title)
    files = " ".join(f'<a href="{picture.name}.{k}">{k.upper()}</a>' for k in ("svg", "png"))
    width = f"--width:{picture.width:.2f}in"
    return (
        f'<h3>{title}</h3>\n<figure class="picture" id="picture-{picture.name}" style="{width}">'
        f"{_scrolled(drawing, title)}\n"
        f"<figcaption>{escape(picture.caption)} {files}</figcaption></figure>"
    )


def _table(table: Table, arms: dict[int, Look]) -> str:
    columns = table.arms or (None,) * len(table.head)

    def cell(tag: str, number: int, text: str, own: int | None) -> str:
        aligned = ' class="number"' if number >= table.words else ""
        scope = ' scope="col"' if tag == "th" else ""
        words = escape(text)
        if own in arms and (number == 0 or tag == "th"):
            words = f'<span class="arm">{_swatch(arms[own])}{words}</span>'
        return f"<{tag}{scope}{aligned}{_of_arm(columns[number])}>{words}</{tag}>"

    head = "".join(cell("th", n, text, columns[n]) for n, text in enumerate(table.head))
    body = "\n".join(
        f"<tr{_of_arm(row.arm)}>"
        + "".join(cell("td", n, text, row.arm) for n, text in enumerate(row.cells))
        + "</tr>"
        for row in table.rows
    )
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    label = escape(table.title or ", ".join(table.head))
    caption = f"\n<figcaption>{escape(table.caption)}</figcaption>" if table.caption else ""
    content = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    return f"{title}<figure>{_scrolled(content, label)}{caption}</figure>"


def _scrolled(content: str, label: str) -> str:
    """Return HTML in a box that scrolls if the page is narrow, with the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">{content}</div>'


def _of_arm(arm: int | None) -> str:
    return "" if arm is None else f' data-arm="{arm}"'
