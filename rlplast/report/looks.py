"""How arms look, the same in all pictures and tables of a report, and how figures become files.

- `Look`, `looks`: an arm's colour, marker and line; `ids`: of what belongs to arms in a picture.
- `style`: what all figures of a report look like; drawing and saving happen inside it.
- `svg_of`, `png_of`: a figure as a file's content, equal bytes for equal figures.
- `inline`: that SVG for a page, where ids are unique and ink takes the page's colour.
"""

import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

__all__ = ["DASHED", "INK", "Ids", "Look", "ids", "inline", "looks", "png_of", "style", "svg_of"]

BASELINE = "#777777"
# Paul Tol's "vibrant" scheme, distinguishable by colour-blind readers, https://sronpersonalpages.nl/~pault/
COLOURS = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#33bbee", "#cc3311")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "<", ">")
DASHES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
LONGEST = 26  # letters of a name in a picture; tables have the whole one

Ids = Callable[[int], str]  # index of an arm → the next id of what belongs to it
INK = "#1b1e23"  # of text and axes; in a page it becomes the colour of the page's text
DASHED = (0, (4, 3))  # of lines across a picture
PAPER = "paper"  # id of the white background, which a page hides

_OPTIONS: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.1,  # numbers below neighbouring panels stay apart
    "figure.facecolor": "white",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # alike in width, so labels fit in a browser
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "rlplast",
    "text.color": INK,
    "text.parse_math": False,  # a $ in an arm's name is a $
    "xtick.color": INK,
    "ytick.color": INK,
}
_TAG = re.compile(r"<(?:path|use|text|g|rect)\b[^>]*>")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


@dataclass(frozen=True)
class Look:
    """How an arm is drawn: `index` in the order of the study, and its own colour and marker."""

    index: int
    name: str
    colour: str
    marker: str
    dash: Literal["-", "--", ":"]

    @property
    def short(self) -> str:
        """The name, cut where it is too long for a picture, without unprintable letters."""
        name = "".join(letter if letter.isprintable() else "�" for letter in self.name)
        return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def ids(picture: str) -> Ids:
    """Return a function that gives ids of a picture, none of them twice."""
    counter = itertools.count()
    return lambda arm: f"arm-{arm}-{picture}-{next(counter)}"


def looks(arms: Sequence[str], baseline: str | None) -> tuple[Look, ...]:
    """Return how each arm is drawn: the baseline grey, the others in the order of the scheme.

    From the seventh on, colours come again with dashed lines. Arms are in the order of the study.
    """
    others = [name for name in arms if name != baseline]
    found = []
    for index, name in enumerate(arms):
        if name == baseline:
            found.append(Look(index, name, BASELINE, "o", "-"))
            continue
        number = others.index(name)
        turn, colour = divmod(number, len(COLOURS))
        marker = MARKERS[(number + 1) % len(MARKERS)]
        found.append(Look(index, name, COLOURS[colour], marker, DASHES[turn % len(DASHES)]))
    return tuple(found)


@contextmanager
def style() -> Iterator[None]:
    """Set matplotlib's options, whatever the user's own are, and put those back."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # the browser finds a font for names in scripts that matplotlib's font lacks
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_OPTIONS)
        yield


def svg_of(figure: Figure) -> str:
    """Return a figure as the text of an .svg file, without date or versions."""
    figure.patch.set_gid(PAPER)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    # six decimals of a point make half the file, and none is seen
    return _TAG.sub(lambda tag: _NUMBER.sub(_short, tag[0]), buffer.getvalue())


def png_of(figure: Figure) -> bytes:
    """Return a figure as the bytes of a .png file, without versions."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def inline(svg: str, name: str, title: str) -> str:
    """Return an .svg file's text as an element of a page.

    Args:
        svg: what `svg_of` returned.
        name: unique in the page; ids get it as a prefix, but those of arms, which have it already.
        title: what a screen reader says, as HTML.
    """
    body = svg[svg.index("<svg ") :]
    body = re.sub(r"<style\b.*?</style>", "", body, count=1, flags=re.DOTALL)  # in the page's own
    body = re.sub(r"<[^>]*>", lambda tag: _for_page(tag[0], name), body)
    start = f'<svg role="img" aria-labelledby="{name}-title" '
    head, rest = body.split(">", 1)
    head = re.sub(r'(width|height)="[\d.]+pt" ', "", head)  # as wide as the page lets it be
    return f'{head.replace("<svg ", start)}><title id="{name}-title">{title}</title>{rest}'


def _for_page(tag: str, name: str) -> str:
    tag = re.sub(r'\bid="(?!arm-)', f'id="{name}-', tag)
    tag = tag.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    return re.sub(r"font-family: [^;\"]*; ", "", tag).replace(f": {INK}", ": currentColor")


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
