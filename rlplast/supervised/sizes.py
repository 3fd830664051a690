"""What the sets of images are known to hold, for plans that must not read them."""

from typing import NamedTuple

__all__ = ["Sizes", "sizes_of"]


class Sizes(NamedTuple):
    """How many images a set has, of which shape and how many classes."""

    train: int
    test: int
    shape: tuple[int, int, int]  # channels, height, width
    classes: int


_KNOWN = {
    "digits": Sizes(1797, 0, (1, 8, 8), 10),  # one set; `data.test` says how it is split
    "mnist": Sizes(60_000, 10_000, (1, 28, 28), 10),
    "cifar10": Sizes(50_000, 10_000, (3, 32, 32), 10),
    "cifar100": Sizes(50_000, 10_000, (3, 32, 32), 100),
    "tiny_imagenet": Sizes(100_000, 10_000, (3, 64, 64), 200),
}
_ANY = Sizes(50_000, 10_000, (3, 224, 224), 100)  # of another set: a guess


def sizes_of(name: str, validation: float = 0.0, test: float = 0.25) -> tuple[Sizes, bool]:
    """Return what a set holds once it is split, and whether that is known.

    Args:
        name: as in `rlplast.supervised.data.DataConfig`.
        validation: share of the training images that is tested on instead.
        test: share of digits that is tested on.
    """
    found = _KNOWN.get(name, _ANY)
    if name == "digits":
        found = found._replace(train=round(1797 * (1 - test)), test=round(1797 * test))
    if validation:
        held = round(validation * found.train)
        found = found._replace(train=found.train - held, test=held)
    return found, name in _KNOWN
