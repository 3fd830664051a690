"""Measure this machine in about two minutes, and say whether compiled updates save time here.

CONFIG is a file or a shipped name, of a DQN or SAC; the default is sac/pendulum. Set any of its
keys with --dotted.key VALUE. These parts are measured: environment, acting, replay, eager and
compiled updates, whole training, a checkpoint, and methods. Training is compared with
Stable-Baselines3 and SBX if they are installed. Both sides of a comparison take turns of 0.3 s.
Compiling has no time limit. The command changes no run and keeps none.

The table goes to standard output, so that you can paste it into an issue. Progress goes to
standard error.
"""

import argparse
import time
from typing import Any

from rlplast.cli.errors import stoppable
from rlplast.cli.output import say, warn
from rlplast.cli.tables import duration
from rlplast.cli.train_command import overrides
from rlplast.core.errors import ConfigError
from rlplast.run.bench import Measured, Row, measure, verdict
from rlplast.run.config_file import read_config
from rlplast.run.timing import machine

__all__ = ["add_arguments", "agent_config", "run"]

DEFAULT = "sac/pendulum"
KINDS = ("dqn", "sac")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; CONFIG is read by `run`.

    argparse would take the value of an undeclared option for it.
    """
    parser.usage = "rlplast bench [CONFIG] [--dotted.key VALUE]... [--threads N] [--rounds N]"
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads; default: the config's"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, metavar="N", help="turns per side (default 7)"
    )
    parser.set_defaults(takes_overrides=True)


def agent_config(words: list[str], threads: int | None = None) -> Any:
    """Return the agent's config that ``[CONFIG] [--dotted.key VALUE]...`` asks for.

    Raises:
        ConfigError: if it is wrong, or no agent's.
    """
    named = words[:1] if not words[:1] or not words[0].startswith("-") else []
    keys = overrides(words[len(named) :]) | ({} if threads is None else {"threads": threads})
    config = read_config(named[0] if named else DEFAULT, keys)
    if config.kind not in KINDS:
        raise ConfigError(
            f"kind = {config.kind!r}: `rlplast bench` measures agents, allowed are "
            f"{' and '.join(KINDS)}; name another config, such as {DEFAULT}"
        )
    return config


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.rounds < 1:
        raise ConfigError(f"--rounds {args.rounds}: allowed is a whole number from 1 on")
    began = time.monotonic()
    config = agent_config(args.overrides, args.threads)

    def tell(part: str) -> None:
        warn(f"{time.monotonic() - began:4.0f} s  {part}")

    with stoppable():
        found = measure(config, args.rounds, tell)
    tell("done")
    own = machine(config.device)
    say(f"`rlplast {' '.join(['bench', *args.overrides])}` on {own.pop('cpu')}", end="; ")
    say(", ".join(f"{key} {value}" for key, value in own.items()), end="\n\n")
    say("| part | median | least to most |\n|---|---|---|")
    for row in found.rows:
        say(_line(row))
    say(f"\n{conclusion(config, found)}")
    return 0


def _line(row: Row) -> str:
    median = row.note if row.value is None else f"{_figure(row.value)} {row.unit}"
    spread = "" if row.least is None else f"{_figure(row.least)} to {_figure(row.most)}"
    cells = (" ".join(cell.replace("|", "\\|").split()) for cell in (row.name, median, spread))
    return f"| {' | '.join(cells)} |"


def _figure(value: float | None) -> str:
    """Return a number with three significant digits, or all those before the point."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def conclusion(config: Any, found: Measured) -> str:
    """Say what `auto` chooses for a config, and whether that is right by what was measured."""
    from rlplast.agents.compiled import chosen

    count = config.updates_planned()
    choice = chosen(config)
    said = f"`agent.accelerate: auto` chooses `{choice}` for the {count:,} updates of this config"
    if found.compile is None:
        wrong = "" if choice == "off" else ": set `agent.accelerate: off`, or install g++"
        return f"{said}. Updates do not compile here{wrong}."
    saved = 1e3 * (found.eager - found.compiled)
    here = verdict(choice, count, found.compile, found.eager, found.compiled)
    right = "right here"
    if not here.right:
        right = f"set it to `{here.best}`, which here saves {duration(here.lost)}"
    pays = "never pays" if here.pays_from is None else f"pays from {here.pays_from:,.0f} updates"
    return (
        f"{said}: {right}. Compiling takes {found.compile:.1f} s and saves {saved:.3g} ms an "
        f"update: it {pays}."
    )
