"""How arms look, the same in all charts and tables of a report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from unicodedata import category

__all__ = ["ArmStyle", "arm_styles", "printable", "unused"]

BASELINE = "#777777"
_NO_LETTERS = ("Cc", "Cs", "Cn", "Zl", "Zp")  # control, half a letter, none, ends of lines
# Paul Tol's "vibrant" scheme, moved until each has a contrast of 3 to white and to dark paper, and
# colour-blind readers tell each pair apart (tests/report/test_palette.py).
COLOURS = ("#0077bb", "#e3772b", "#00a5a4", "#f0015f", "#918ae2", "#c03517")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = (
    *((1, 0), (6, 3), (2, 2), (8, 2, 2, 2)),
    *((12, 3), (4, 1), (1, 4), (12, 2, 2, 2, 2, 2)),
)


@dataclass(frozen=True)
class ArmStyle:
    """How an arm is drawn.

    Attributes:
        index: in the order of the study.
        name: the arm's.
        label: its name in charts, printable, unlike all others.
        colour: its own, together with `dash` and `shape`.
        shape: of its points.
        dash: of its lines, lengths of strokes and gaps in pixels.
    """

    index: int
    name: str
    label: str
    colour: str
    shape: str
    dash: tuple[int, ...]


def arm_styles(arms: Sequence[str], baseline: str | None) -> tuple[ArmStyle, ...]:
    """Return how each arm is drawn: the baseline grey, the others in the order of the scheme.

    From the seventh on, colours come again with dashed lines. Arms are in the order of the study.
    """
    others = [name for name in arms if name != baseline]
    found: list[ArmStyle] = []
    for index, name in enumerate(arms):
        label = unused(printable(name), [look.label for look in found])
        if name == baseline:
            found.append(ArmStyle(index, name, label, BASELINE, SHAPES[0], DASHES[0]))
            continue
        number = others.index(name)
        turn, colour = divmod(number, len(COLOURS))
        shape, dash = SHAPES[(number + 1) % len(SHAPES)], DASHES[turn % len(DASHES)]
        found.append(ArmStyle(index, name, label, COLOURS[colour], shape, dash))
    return tuple(found)


def printable(text: str) -> str:
    """Return a text without letters that no picture can hold, or that end a line.

    Examples:
        >>> printable("a" + chr(0))
        'a�'
    """
    return "".join("�" if category(own) in _NO_LETTERS else own for own in text)


def unused(name: str, names: Collection[str], joint: str = " ") -> str:
    """Return a name that is none of `names`: itself, or with a number from 2 on.

    Examples:
        >>> unused("a", ["a", "a 2"])
        'a 3'
    """
    number, free = 1, name
    while free in names:
        number += 1
        free = f"{name}{joint}{number}"
    return free
