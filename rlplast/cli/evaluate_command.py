"""Evaluate: play unclipped full episodes with what a run trained.

A classifier or a language model is measured on the data held out instead.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from rlplast.cli.tables import counted, figure, show
from rlplast.core.checkpoint.files import fsync
from rlplast.core.errors import ConfigError
from rlplast.core.rng import numpy_stream
from rlplast.core.training.kinds import get_kind
from rlplast.run import api

__all__ = ["add_arguments", "run"]

RESAMPLES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="RUN", help="the run's folder")
    parser.add_argument("--episodes", type=int, help="full episodes of an agent (default 10)")
    parser.add_argument(
        "--checkpoint", default="newest", help="newest (default), best, or a name as step-800"
    )
    parser.add_argument("--video", type=Path, help="write the first environment's play as .gif")


def interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the 95% percentile-bootstrap interval of the mean."""
    picks = rng.integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.episodes is not None and args.episodes < 1:
        raise ConfigError(f"--episodes {args.episodes}: allowed is at least 1")
    if args.video is not None:
        _check_video(args.video)
    opened = api.load(args.folder, args.checkpoint)
    plays = hasattr(get_kind(opened.config.kind).trainable_class(), "play")
    return _play(opened, args) if plays else _held_out(opened, args)


def _held_out(opened: api.Run, args: argparse.Namespace) -> int:
    """Print the scores on the data held out."""
    for option in ("episodes", "video"):
        if getattr(args, option) is not None:
            raise ConfigError(f"--{option}: a run of kind {opened.config.kind} plays no episodes")
    trainable = opened.agent()
    try:
        scores = trainable.evaluate(0, opened.config.evaluate.episodes)
    finally:
        trainable.close()
    table = Table("score", Column("value", justify="right"))
    for name, value in scores.items():
        table.add_row(name, figure(value))
    show(table)
    return 0


def _play(opened: api.Run, args: argparse.Namespace) -> int:
    """Play an agent's episodes, print its scores and write its video."""
    episodes = 10 if args.episodes is None else args.episodes
    agent = opened.agent()
    frames: list[np.ndarray] = []
    keep = frames.append if args.video is not None else None
    try:
        played = agent.play(0, episodes, keep)
    except ImportError as error:  # of what draws the pictures
        raise ConfigError(f"--video: {error}") from error
    finally:
        agent.close()
    spread = "an interval needs at least 2 episodes"
    if episodes > 1:
        low, high = interval(played.returns, numpy_stream(opened.config.seed, "bootstrap"))
        spread = f"95% interval {low:.2f} to {high:.2f}"
    Console().print(
        f"{counted(episodes, 'episode')}: mean {played.returns.mean():.2f} ({spread}), "
        f"median {np.median(played.returns):.2f}",
        highlight=False,
        soft_wrap=True,
    )
    if args.video is not None:
        _write_gif(args.video, frames)
        Console().print(f"video: {args.video}", highlight=False, soft_wrap=True, markup=False)
    return 0


def _check_video(path: Path) -> None:
    if path.suffix != ".gif":
        raise ConfigError(f"--video {path}: allowed is a file that ends with .gif")
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"--video {path}: allowed is a file in a folder that exists")


def _write_gif(path: Path, frames: list[np.ndarray]) -> None:
    from PIL import Image

    pictures = [Image.fromarray(f) for f in frames]
    temporary = path.with_name(f".{path.name}.tmp")
    pictures[0].save(
        temporary, format="GIF", save_all=True, append_images=pictures[1:], duration=66, loop=0
    )
    fsync(temporary)
    temporary.rename(path)
