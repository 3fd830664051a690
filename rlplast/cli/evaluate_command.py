"""Evaluate: play full episodes with a trained agent, with unclipped rewards.

A classifier or a language model is evaluated on held-out data instead.
"""

import argparse
from pathlib import Path

from rich.table import Column, Table

from rlplast.cli.output import say, warn
from rlplast.cli.tables import figure, show
from rlplast.core.duration import counted
from rlplast.core.mean_interval import FEWEST
from rlplast.run import api
from rlplast.training.best import Best, read_best

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run's folder")
    parser.add_argument("--episodes", type=int, help="full episodes, for an agent (default 10)")
    parser.add_argument(
        "--checkpoint", default="newest", help="newest (default), best, or a name such as step-800"
    )
    parser.add_argument("--video", type=Path, help="write a .gif of the first environment")


def run(args: argparse.Namespace) -> int:
    opened = api.load(args.folder, args.checkpoint, warn)
    try:
        if args.checkpoint == "best":
            say(_chosen(read_best(opened.path / "checkpoints")))
        scores = opened.evaluate(args.episodes, args.video)
    finally:
        opened.close()
    if "return_mean" in scores:
        say(_played(scores))
    else:
        table = Table("score", Column("value", justify="right"))
        for name, value in scores.items():
            table.add_row(name, figure(value))
        show(table)
    if args.video is not None:
        say(f"video: {args.video}")
    return 0


def _chosen(best: Best) -> str:
    when = ", ".join(f"{unit} {count}" for unit, count in best.clock.items())
    return f"{best.checkpoint}: best {best.metric} {figure(best.value)}, at {when}"


def _played(scores: dict[str, float]) -> str:
    episodes = round(scores["episodes"])
    spread = "all alike" if scores["return_std"] == 0 and episodes > 1 else ""
    if episodes < FEWEST:
        spread = f"an interval needs at least {FEWEST} episodes"
    words = f"{counted(episodes, 'episode')}: mean {scores['return_mean']:.2f}"
    words += _within(scores, "return", spread) + f", median {scores['return_median']:.2f}"
    if "success_rate" in scores:
        words += f", success rate {scores['success_rate']:.2f}" + _within(scores, "success")
    return words


def _within(scores: dict[str, float], name: str, without: str = "") -> str:
    """Return a score's interval in brackets, or words where there is none."""
    if f"{name}_low" in scores:
        without = f"95% interval {scores[f'{name}_low']:.2f} to {scores[f'{name}_high']:.2f}"
    return f" ({without})" if without else ""
