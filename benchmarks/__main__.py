"""The standard set of benchmarks: ours and others side by side, in one process on one machine.

    python -m benchmarks [NAME ...] [--threads 2] [--rounds 7]

Sides take turns, so that whatever else the machine does falls on all of them. Figures are medians
with the spread. Speed is never asserted in tests.
"""

import argparse
import json

import torch

from benchmarks import agents, fire, replay, trainers
from benchmarks.tools import Row, machine

BENCHES = {
    "dqn": agents.dqn,
    "replay": replay.replay,
    "fire": fire.fire,
    "sac": agents.sac,
    "small": agents.small,
    "supervised": trainers.supervised,
    "gpt": trainers.gpt,
}


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(BENCHES)}")
    torch.set_num_threads(args.threads)
    print(json.dumps(machine()))
    for name in args.names or BENCHES:
        for row in BENCHES[name](args.threads, args.rounds):
            show(row)


def show(row: Row) -> None:
    """Print a line of the report."""
    print(f"{row.name:48s} {row.value:10.4g} {row.unit:18s}{row.spread}", flush=True)


if __name__ == "__main__":
    main()
