"""The standard set of benchmarks: ours and others side by side, in one process on one machine.

    python -m benchmarks [NAME ...] [--threads 2] [--rounds 7]
    python -m benchmarks dqn sac ppo small --device cuda

Sides take turns, so that whatever else the machine does falls on all of them. Figures are medians
with the spread. Speed is never asserted in tests.
"""

import argparse
import json
from collections.abc import Callable, Iterator

import torch

from benchmarks import agents, fire, replay, trainers
from benchmarks.tools import Row, machine
from rlplast.core.device import choose_device
from rlplast.core.errors import ConfigError

AGENTS: dict[str, Callable[..., Iterator[Row]]] = {
    "dqn": agents.dqn,
    "sac": agents.sac,
    "ppo": agents.ppo,
    "small": agents.small,
}
BENCHES: dict[str, Callable[..., Iterator[Row]]] = AGENTS | {
    "replay": replay.replay,
    "fire": fire.fire,
    "supervised": trainers.supervised,
    "gpt": trainers.gpt,
}


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    parser.add_argument("--device", default="cpu", help=f"of {', '.join(AGENTS)}; default cpu")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(BENCHES)}")
    names = args.names or list(BENCHES if args.device == "cpu" else AGENTS)
    if args.device != "cpu" and (others := set(names) - set(AGENTS)):
        parser.error(f"on a CPU alone: {', '.join(sorted(others))}")
    try:
        choose_device(args.device)
    except ConfigError as error:
        parser.error(str(error))
    torch.set_num_threads(args.threads)
    print(json.dumps(machine()))
    for name in names:
        options = {"device": args.device} if name in AGENTS else {}
        for row in BENCHES[name](args.threads, args.rounds, **options):
            show(row)


def show(row: Row) -> None:
    """Print a line of the report."""
    print(f"{row.name:48s} {row.value:10.4g} {row.unit:18s}{row.spread}", flush=True)


if __name__ == "__main__":
    main()
