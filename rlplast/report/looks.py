"""How each arm looks, the same in all pictures and tables of a report."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Ids", "Look", "looks"]

BASELINE = "#777777"
# Paul Tol's "vibrant" scheme, distinguishable by colour-blind readers, https://sronpersonalpages.nl/~pault/
COLOURS = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#33bbee", "#cc3311")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "<", ">")
DASHES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
LONGEST = 26  # letters of a name in a picture; tables have the whole one


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


@dataclass
class Ids:
    """Ids of what belongs to arms in one picture, none of them twice."""

    picture: str
    counter: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, arm: int) -> str:
        """Return the next id of an arm's."""
        return f"arm-{arm}-{self.picture}-{next(self.counter)}"


def looks(arms: Sequence[str], baseline: str | None) -> tuple[Look, ...]:
    """Return how each arm is drawn: the baseline grey, the others in the order of the scheme.

    From the seventh on, colours come again with dashed lines.

    Args:
        arms: names, in the order of the study.
        baseline: one of them, or None.
    """
    others = itertools.count()
    found = []
    for index, name in enumerate(arms):
        if name == baseline:
            found.append(Look(index, name, BASELINE, "o", "-"))
            continue
        number = next(others)
        turn, colour = divmod(number, len(COLOURS))
        marker = MARKERS[(number + 1) % len(MARKERS)]
        found.append(Look(index, name, COLOURS[colour], marker, DASHES[turn % len(DASHES)]))
    return tuple(found)
