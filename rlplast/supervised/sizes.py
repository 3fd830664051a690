"""What the sets of images are known to hold, for plans that must not read them."""

from typing import Any, NamedTuple

__all__ = ["KNOWN", "Sizes", "sizes_of"]


class Sizes(NamedTuple):
    """Numbers of images, their shape and the number of classes."""

    train: int
    test: int
    shape: tuple[int, int, int]  # channels, height, width
    classes: int


KNOWN = {
    "digits": Sizes(1797, 0, (1, 8, 8), 10),  # one set; `data.test` says how it is split
    "mnist": Sizes(60_000, 10_000, (1, 28, 28), 10),
    "cifar10": Sizes(50_000, 10_000, (3, 32, 32), 10),
    "cifar100": Sizes(50_000, 10_000, (3, 32, 32), 100),
    "tiny_imagenet": Sizes(100_000, 10_000, (3, 64, 64), 200),
    "ILSVRC/imagenet-1k": Sizes(1_281_167, 50_000, (3, 224, 224), 1000),  # of the Hub, and its size
    "bit_flipping": Sizes(10_000, 32, (1, 1, 20), 1),  # a task's examples; one output
    "curve": Sizes(100, 100, (1, 1, 1), 1),
}
_ANY = Sizes(50_000, 10_000, (3, 224, 224), 100)  # of another set: a guess


def sizes_of(data: Any) -> tuple[Sizes, bool]:
    """Return what the set of a section ``data`` holds once it is split, and if that is known."""
    name = data.huggingface.path if data.name == "huggingface" else data.name
    name = data.like or "cifar10" if name == "random" else name
    sizes = KNOWN.get(name, _ANY)
    if data.name == "digits":
        sizes = sizes._replace(train=round(1797 * (1 - data.test)), test=round(1797 * data.test))
    if data.name == "random":
        train = data.examples or 1000
        sizes = sizes._replace(train=train, test=-(-train // 5))
    elif data.examples is not None:
        sizes = sizes._replace(train=data.examples)
    if data.validation:
        held = round(data.validation * sizes.train)
        sizes = sizes._replace(train=sizes.train - held, test=held)
    return sizes, name in KNOWN
