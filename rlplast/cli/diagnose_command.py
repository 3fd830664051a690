"""Diagnose: does a run lose plasticity? What its checkpoint says, in words.

Copies of each network learn new random targets on inputs from the run's data: one from the current
weights, one from the initial weights, one from fresh weights. Whoever learns less than a fresh
network has lost plasticity. Other signs are printed beside it, with what they mean. The run stays
as it is.
"""

import argparse
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from rlplast.cli.output import new_console, say, show_json, visible, warn
from rlplast.cli.tables import figure, show_rows
from rlplast.core.errors import ConfigError
from rlplast.metrics.diagnosis import Sign
from rlplast.run import api
from rlplast.run.diagnose import Diagnosis, diagnose

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--checkpoint", default="newest", help="newest (default), best, or a name such as step-800"
    )
    parser.add_argument(
        "--updates", type=int, default=2000, help="of each fit of new targets (default 2000)"
    )
    parser.add_argument("--targets", type=int, default=3, help="new targets (default 3)")
    parser.add_argument("--lr", type=float, help="of the fits (default: the run's)")
    parser.add_argument("--samples", type=int, default=256, help="inputs (default 256)")
    parser.add_argument(
        "--episodes", type=int, default=3, help="of an agent, to judge its values (default 3)"
    )
    parser.add_argument("--json", action="store_true", help="print data, not text")


def run(args: argparse.Namespace) -> int:
    if Path(args.folder).is_file():
        raise ConfigError(
            f"{args.folder} is a file: allowed is a run's folder. In Python there are "
            "rlplast.adapters.sb3_diagnosis.diagnose_sb3(model, observations), for a model of "
            "Stable-Baselines3, and rlplast.diagnose_module(model, inputs)"
        )
    found = diagnose(
        api.load(args.folder, args.checkpoint, warn),
        updates=args.updates,
        targets=args.targets,
        samples=args.samples,
        episodes=args.episodes,
        lr=args.lr,
        observer=lambda text: None if args.json else say(text),
    )
    if args.json:
        plain = dataclasses.asdict(found) | {"run": str(found.run)}
        show_json({"verdict": found.verdict, **plain})
    else:
        _text(new_console(), found)
    return 0


def _text(console: Console, found: Diagnosis) -> None:
    rows = [("run", f"{found.run} ({found.kind})"), ("verdict", found.verdict)]
    show_rows(console, [*rows, *((own.network, own.reason) for own in found.networks)])
    for own in found.networks:
        if own.signs:
            console.print()
            console.print(_table(own.network, own.signs))
    if found.agent:
        console.print()
        console.print(_table("agent", found.agent))
    console.print()
    signs = [*(sign for own in found.networks for sign in own.signs), *found.agent]
    for name, means in dict((sign.name, sign.means) for sign in signs).items():
        say(f"{name}: {means}.")
    say("\nA study that settles it (`rlplast study FILE`):")
    console.print(visible(found.study), markup=False, highlight=False, soft_wrap=True)


def _table(name: str, signs: Iterable[Sign]) -> Table:
    heads = [Column(head, justify="right") for head in ("now", "initial", "fresh")]
    table = Table(visible(name), *heads, "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for sign in signs:
        values = map(figure, (sign.now, sign.initial, sign.fresh))
        table.add_row(sign.name, *values, "a sign of loss" if sign.alarming else "")
    return table
