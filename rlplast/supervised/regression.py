"""Data with numbers for targets: generated, or in a file.

Inputs are float32 (n, 1, 1, features), as images of one row are; targets float32 (n, outputs).
Neither is normalised.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.rng import numpy_stream, torch_stream
from rlplast.supervised.data import DataConfig, Dataset
from rlplast.supervised.formats import Images

__all__ = ["ThresholdNet", "bit_flipping", "curve", "load_regression", "read_table"]

BITS, SLOW = 20, 15  # of an input; those that stay as they are for a task
UNITS, BETA = 100, 0.7  # of the target network


def load_regression(config: DataConfig, seed: int) -> Dataset:
    """Return the examples to learn from and those to be tested on; bit_flipping draws by the seed.

    Raises:
        ConfigError: for a file that is missing or holds too little.
        DamagedFile: naming a file that cannot be read.
    """
    if config.name == "bit_flipping":
        train, test = bit_flipping(seed, 0, config.examples or 10_000, "all")
    elif config.name == "curve":
        train, test = curve(config.examples or 100)
    else:
        train, test = read_table(config.file, config.test)
    return Dataset(config.name, train, test, train.y.shape[1])


def _examples(x: Tensor, y: Tensor) -> Images:
    """Return inputs (n, features) and targets (n, outputs) as float32."""
    return Images(x.float()[:, None, None, :], y.float())


@dataclass(frozen=True)
class ThresholdNet:
    """The target of slowly changing regression: one layer of linear threshold units.

    All weights are −1 or 1. A unit is on where its weighted sum exceeds 0.7 · (inputs + 1) − (how
    many of its weights are −1); the output is the weighted sum of the units that are on. Both sums
    count a last input that is always 1. That is the rule of the paper; its code counts the bias
    otherwise, which moves thresholds by a half to one.
    """

    incoming: Tensor  # (units, inputs + 1)
    outgoing: Tensor  # (units + 1,)

    @classmethod
    def drawn(cls, seed: int) -> "ThresholdNet":
        """Return the network of a run: 20 inputs, 100 units."""
        stream = torch_stream(seed, "data", "target")
        signs = 2 * torch.randint(0, 2, (UNITS * (BITS + 1) + UNITS + 1,), generator=stream) - 1
        incoming, outgoing = signs.split([UNITS * (BITS + 1), UNITS + 1])
        return cls(incoming.view(UNITS, BITS + 1), outgoing)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs (n,), int64, of inputs (n, inputs) of 0 and 1."""
        incoming, outgoing = self.incoming, self.outgoing
        thresholds = BETA * incoming.shape[1] - (incoming == -1).sum(1)
        on = x.long() @ incoming[:, :-1].T + incoming[:, -1] > thresholds
        return on.long() @ outgoing[:-1] + outgoing[-1]


def bit_flipping(seed: int, number: int, examples: int, flip: str) -> tuple[Images, Images]:
    """Return the examples of one task of slowly changing regression, and its test examples.

    The first 15 of 20 bits are the task's; the last 5 are drawn anew for every example. The test
    examples are the 32 that differ in the last 5 bits. With `flip` "all" a task's bits are redrawn,
    with "one" a bit of the task before is flipped.

    Source: Dohare et al. 2024, Loss of plasticity in deep continual learning.
    """
    slow = _slow_bits(seed, number, flip)
    stream = torch_stream(seed, "data", "bits", number)
    fast = torch.randint(0, 2, (examples, BITS - SLOW), generator=stream)
    every = torch.cartesian_prod(*[torch.arange(2)] * (BITS - SLOW))
    target = ThresholdNet.drawn(seed)
    parts = [torch.cat([slow.expand(len(bits), -1), bits], 1) for bits in (fast, every)]
    train, test = (_examples(x, target(x)[:, None]) for x in parts)
    return train, test


def _slow_bits(seed: int, number: int, flip: str) -> Tensor:
    """Return a task's bits (15,); with `flip` "one" a sum over all flips so far."""
    drawn = number if flip == "all" else 0
    stream = torch_stream(seed, "data", "slow bits", drawn)
    bits = torch.randint(0, 2, (SLOW,), generator=stream)
    flips = numpy_stream(seed, "data", "flips").integers(SLOW, size=number - drawn)
    return (bits + torch.from_numpy(np.bincount(flips, minlength=SLOW))) % 2


def curve(examples: int) -> tuple[Images, Images]:
    """Return points of y = 3 sin(3x) + x, equally spaced from −3 to 3; test points lie between."""
    if examples < 2:
        raise ConfigError(f"data.examples = {examples}: allowed is at least 2 for a curve")
    x = torch.linspace(-3, 3, examples, dtype=torch.float64)
    middle = (x[1:] + x[:-1]) / 2
    train, test = (_examples(p[:, None], (3 * (3 * p).sin() + p)[:, None]) for p in (x, middle))
    return train, test


def read_table(file: str | None, share: float) -> tuple[Images, Images]:
    """Return the rows of a file to learn from, and the share held out: the same for every seed.

    A ``.npz`` has arrays x (n, features) or (n,) and y (n, outputs) or (n,). A ``.csv`` has numbers
    without a header, the target last.

    Raises:
        ConfigError: for a missing file, another ending, or too few rows.
        DamagedFile: if it is not such a file, or a number in it is not finite.
    """
    if file is None:
        raise ConfigError("data.file is not set: give a .npz file of x and y, or a .csv file")
    path = Path(file).expanduser()
    if path.suffix not in (".npz", ".csv"):
        raise ConfigError(f"data.file = {file!r}: allowed is a file ending with .npz or .csv")
    if not path.is_file():
        raise ConfigError(f"data.file = {file!r}: no such file; give the path of a table")
    x, y = _npz(path) if path.suffix == ".npz" else _csv(path)
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or not x.shape[1] or not y.shape[1]:
        raise DamagedFile(
            f"{path}: x has shape {x.shape} and y {y.shape}; expected are (rows, features) and "
            "(rows, outputs), at least one of each"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DamagedFile(f"{path} has an entry that is no finite number")
    held = int(share * len(x) + 0.5)
    if not 0 < held < len(x):
        raise ConfigError(
            f"data.test = {share} holds {held} of the {len(x)} rows of {path} out; some have to "
            "be held out, and some have to be left to train on"
        )
    order = torch.randperm(len(x), generator=torch_stream(0, "data", "split"))
    rows = _examples(torch.from_numpy(x), torch.from_numpy(y))
    return rows[order[held:].sort().values], rows[order[:held].sort().values]


def _npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y = (np.asarray(arrays[name], dtype=np.float64) for name in ("x", "y"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedFile(f"{path} holds no arrays x and y of numbers ({error})") from error
    columns = [a[:, None] if a.ndim == 1 else a for a in (x, y)]
    return columns[0], columns[1]


def _csv(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        text = path.read_text("utf-8").strip()
        lines = [line.split(",") for line in text.splitlines()]
        values = np.array([[float(v) for v in line] for line in lines], ndmin=2)
    except (OSError, ValueError) as error:
        raise DamagedFile(
            f"{path}: expected are rows of equally many numbers between commas ({error})"
        ) from error
    return values[:, :-1], values[:, -1:]
