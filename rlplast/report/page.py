"""A page in one file: a card, text, tables and charts, and a box per arm that hides it everywhere.

The parts of a page are data; the template `report.html.j2` escapes whatever text they hold. Nothing
is loaded from anywhere: styles, scripts and charts are in the page. Behind each chart stands its
picture, which is seen where no script draws it: on paper, or in a browser without scripts.
"""

import base64
import gzip
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

import jinja2
import vl_convert

from rlplast.report.aligned import aligned
from rlplast.report.arm_styles import ArmStyle
from rlplast.report.vega import CONFIG, VERSION, Spec

__all__ = [
    "Card",
    "Chart",
    "Details",
    "Line",
    "Pair",
    "Part",
    "Row",
    "Section",
    "Table",
    "Text",
    "page",
]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Text:
    """A paragraph; `bad` says that something went wrong."""

    words: str
    bad: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart: what it shows, how its numbers were computed, and its specification.

    The name is that of its files and unique in the page, of letters, digits and hyphens.
    """

    name: str
    title: str
    caption: str
    spec: Spec


@dataclass(frozen=True)
class Pair:
    """Charts that lie beside each other where there is room."""

    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Line:
    """A sentence of a card with what makes it certain; hidden with its arm, if it has one."""

    words: str
    certainty: str = ""
    arm: int | None = None
    about: str = ""


@dataclass(frozen=True)
class Card:
    """What a reader is to know first.

    Attributes:
        lines: the first is large.
        facts: names with their values.
        bad: what went wrong.
        folded: titles with paragraphs that are folded away.
    """

    lines: tuple[Line, ...]
    facts: tuple[tuple[str, str], ...] = ()
    bad: tuple[str, ...] = ()
    folded: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Row:
    """A row of a table; hidden with its arm, if it has one, whose swatch is in its first cell."""

    cells: tuple[str, ...]
    arm: int | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        head: names of the columns.
        rows: as long as the head.
        caption: below it.
        words: how many columns hold words; the others hold numbers, aligned at the decimal point.
        title: above it.
    """

    head: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    words: int = 1
    title: str = ""


@dataclass(frozen=True)
class Details:
    """Text that is folded away, letter for letter; hidden with its arm, if it has one."""

    summary: str
    text: str
    arm: int | None = None


Part = Text | Chart | Pair | Table | Details | Card


@dataclass(frozen=True)
class Section:
    """A part of the page that folds, with a heading; `name` is where links to it point."""

    name: str
    title: str
    parts: tuple[Part, ...]
    open: bool = False

    @property
    def charts(self) -> list[Chart]:
        """Its charts, in order."""
        parts = (part.charts if isinstance(part, Pair) else (part,) for part in self.parts)
        return [part for own in parts for part in own if isinstance(part, Chart)]


def page(
    title: str,
    arms: Sequence[ArmStyle],
    sections: Iterable[Section],
    footer: str = "",
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return a whole page, with a box for each arm, which hides it.

    Args:
        title: of the page.
        arms: those that have a box.
        sections: those without parts are left out; the first one has no heading, and stands above
            the boxes.
        footer: at the end.
        pictures: name of a chart → its .svg file.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.filters["aligned"] = aligned
    shown = [section for section in sections if section.parts]
    charts = {chart.name: chart.spec for section in shown for chart in section.charts}
    stills = {name: _still(svg) for name, svg in (pictures or {}).items()}
    return environment.get_template("report.html.j2").render(
        title=title,
        arms=arms,
        sections=shown,
        footer=footer,
        stills=stills,
        data={"config": CONFIG, "charts": charts, "arms": [look.label for look in arms]},
        seeds=any(spec["datasets"].get("seeds") for spec in charts.values()),
        vega=_vega() if charts else "",
    )


def _still(svg: str) -> str:
    """Return a picture as an address that holds it; nothing in an image is read aloud."""
    return "data:image/svg+xml," + quote(_READ.sub("", svg), safe=" <>/=:;,()'!*~?$&@[]{}|")


_READ = re.compile(r' (?:aria-[a-z]+|role)="[^"<>]*"')


_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, compressed to less than half."""
    script = vl_convert.javascript_bundle(_SNIPPET, VERSION)
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
