"""Say whether compiled updates, and CUDA graphs on a GPU, pay for a config on this machine.

CONFIG is a file or a shipped name. Set any of its keys with --dotted.key VALUE. Updates are timed
with each value of `accelerate`, in turns of 0.3 s. Compilers begin with empty caches; the first
time on a machine they also make headers, which they keep. The command takes a minute or two and
changes no run. The table goes to standard output.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

from rlplast.cli.output import say, warn
from rlplast.cli.signals import stoppable
from rlplast.cli.train_command import overrides
from rlplast.core.device import choose_device, device_info
from rlplast.core.duration import counted, duration
from rlplast.run.bench import Side, measure
from rlplast.run.config_file import read_config
from rlplast.run.info import device_words, processor, versions
from rlplast.run.length import length

__all__ = ["add_arguments", "conclusion", "run"]

SAME = 1.02  # times the least time: what counts as equal to it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="file or shipped name")
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    config: Any = read_config(args.config, overrides(args.overrides))
    with stoppable():
        sides = measure(config, lambda what: warn(f"{time.monotonic() - began:4.0f} s  {what}"))
    resolved: Any = config.resolved()
    count = int(length(resolved).get("updates", 0))
    say(f"| accelerate | an update, ms | set up, s | {count:,} updates | pays from |")
    say("|---|---|---|---|---|")
    for name, side in sides.items():
        say(f"| {name} | {_cells(side, sides['off'], count)} |")
    key = "agent.accelerate" if hasattr(resolved, "agent") else "accelerate"
    say(f"\n{conclusion(key, getattr(resolved, 'agent', resolved).accelerate, sides, count)}")
    device = device_words(device_info(choose_device(resolved.device)))
    libraries = ", ".join(f"{name} {value}" for name, value in versions().items())
    say(
        f"Measured on {device} ({processor()}), {counted(resolved.threads, 'thread')}; {libraries}."
    )
    return 0


def _cells(side: Side, eager: Side, count: int) -> str:
    if side.problem:
        return f"{side.problem.replace('|', '/')} | | |"
    middle, least, most = (1e3 * f(side.times) for f in (statistics.median, min, max))
    saved = statistics.median(eager.times) - middle / 1e3
    breaks_even = f"{side.setup / saved:,.0f} updates" if saved > 0 else "never"
    times = f"{middle:.3g} ({least:.3g} to {most:.3g}) | {side.setup:.1f}"
    return f"{times} | {duration(side.seconds(count))} | {'' if side is eager else breaks_even}"


def conclusion(key: str, choice: str, sides: Mapping[str, Side], count: int) -> str:
    """Say whether a choice of a key is right for so many updates, by what was measured."""
    seconds = {name: side.seconds(count) for name, side in sides.items() if side.times}
    best = min(seconds, key=lambda name: seconds[name])
    if choice not in seconds:
        found = f"which does not run here: set `--{key} {best}`"
    elif seconds[choice] <= SAME * seconds[best]:
        found = "which is right here"
    else:
        saved = duration(seconds[choice] - seconds[best])
        found = f"but `--{key} {best}` would save {saved} here"
    return f"This config runs its {count:,} updates with `{key}: {choice}`, {found}."
