"""A page in one file: text, tables and charts, and a box per arm that hides it everywhere.

The parts of a page are data; the template `report.html.j2` escapes whatever text they hold. Nothing
is loaded from anywhere: styles, scripts and charts are in the page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import vl_convert

from rlplast.report.arm_styles import ArmStyle
from rlplast.report.vega import CONFIG, VERSION, Spec

__all__ = ["Chart", "Details", "Part", "Row", "Section", "Table", "Text", "page"]

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
        words: how many columns hold words; the others hold numbers and are aligned right.
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


Part = Text | Chart | Table | Details


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `name` is where links to it point."""

    name: str
    title: str
    parts: tuple[Part, ...]


def page(
    title: str, arms: Sequence[ArmStyle], sections: Iterable[Section], footer: str = ""
) -> str:
    """Return a whole page, with a box for each arm, which hides it.

    Sections without parts are left out. The first one has no heading.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["kind"] = lambda part: type(part).__name__
    shown = [section for section in sections if section.parts]
    charts = {p.name: p.spec for s in shown for p in s.parts if isinstance(p, Chart)}
    return environment.get_template("report.html.j2").render(
        title=title,
        arms=arms,
        sections=shown,
        footer=footer,
        data={"config": CONFIG, "charts": charts, "arms": [look.label for look in arms]},
        seeds=any(spec["datasets"].get("seeds") for spec in charts.values()),
        vega=_vega() if charts else "",
    )


_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script; a tag's end in it would end it."""
    return vl_convert.javascript_bundle(_SNIPPET, VERSION).replace("</script", "<\\/script")
