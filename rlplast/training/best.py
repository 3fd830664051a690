"""The best moment of a run, by one score of its evaluations, and the checkpoint of it."""

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlplast.core.errors import ConfigError, DamagedFile, did_you_mean
from rlplast.training.files import read
from rlplast.training.run_folder import write_json

__all__ = [
    "Best",
    "best_checkpoint",
    "find_checkpoint",
    "higher_is_better",
    "improved",
    "read_best",
    "write_best",
]

FILE = "best.json"


@dataclass(frozen=True)
class Best:
    """The best evaluation so far; its ``checkpoint`` has no name until it is saved."""

    metric: str
    value: float
    checkpoint: str = ""
    clock: Mapping[str, int] = field(default_factory=dict)


def higher_is_better(key: str) -> bool:
    """Return whether a greater number is the better one: not for losses and calibration errors.

    Examples:
        >>> [higher_is_better(k) for k in ("eval/accuracy", "eval/source/loss", "eval/ece")]
        [True, False, False]
    """
    return not key.endswith("loss") and key.rpartition("/")[2] != "ece"


def improved(best: Best | None, metric: str, scores: Mapping[str, float]) -> Best | None:
    """Return the new best, if these scores, which have the metric, are better; a tie is not."""
    if metric not in scores:
        raise ConfigError(
            f"checkpoint.best = {metric!r} is no score of an evaluation: "
            f"{did_you_mean(metric, scores)}"
        )
    value = scores[metric]
    if not math.isfinite(value):
        return None
    sign = 1 if higher_is_better(metric) else -1
    if best is not None and best.metric == metric and sign * value <= sign * best.value:
        return None
    return Best(metric, value)


def write_best(root: Path, best: Best | None) -> None:
    """Write which of the checkpoints in `root` is the best, or that none is."""
    if best is None:
        (root / FILE).unlink(missing_ok=True)
    else:
        write_json(root / FILE, dataclasses.asdict(best))


def read_best(root: Path) -> Best:
    """Return which of the checkpoints in `root` is the best.

    Raises:
        ConfigError: if the run keeps none, or had no evaluation yet.
        DamagedFile: if the file that says so is damaged.
    """
    path = root / FILE
    try:
        best = Best(**json.loads(read(path)))
        return dataclasses.replace(best, checkpoint=Path(best.checkpoint).name)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{root} has no best checkpoint: a run keeps one from its first evaluation on if its "
            "config has checkpoint.best: a value of its evaluations, such as return_mean or loss"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error


def best_checkpoint(root: Path) -> Path:
    """Return the checkpoint of the best evaluation so far, checked; raises as `read_best` does."""
    from rlplast.training import checkpoint  # here, as torch takes a second

    found = root / read_best(root).checkpoint
    checkpoint.check(found)
    return found


def find_checkpoint(
    run: Path, name: str, key: str, report: Callable[[str], object] = warnings.warn
) -> Path:
    """Return the folder of a run's checkpoint: newest, best or its name such as ``step-30000``.

    Error messages call the name `key`. `report` is called with a message for each newer checkpoint
    that is damaged and passed over.

    Raises:
        ConfigError: if the run has none of that name.
        DamagedFile: if it is damaged.
    """
    from rlplast.training import checkpoint

    root = run / "checkpoints"
    if not root.is_dir():
        raise ConfigError(f"{run} is no run's folder: it has no checkpoints")
    if name == "newest":
        found, problems = checkpoint.newest(root)
        for problem in problems:
            report(f"passed over: {problem}; {found.name} is used instead")
        return found
    if name == "best":
        return best_checkpoint(root)
    there = [path.name for path in checkpoint.complete(root)]
    if name not in there:
        raise ConfigError(
            f"{key} = {name!r} is not in {root}: {did_you_mean(name, ['newest', 'best', *there])} "
            "(a run keeps its newest `checkpoint.keep` only)"
        )
    return root / name
