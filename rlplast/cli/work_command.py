"""Work: train the cells of a study, beside workers in other terminals and on other machines.

STUDY is the folder of a study that `rlplast study` has planned. A worker takes a cell that is ready
and that nobody holds, trains it, and takes the next, until nothing is left. Ctrl-C saves its cell
and leaves it to others. `rlplast show STUDY` says how far all are.
"""

import argparse
import os
import re
from collections import Counter
from pathlib import Path

from rlplast.core.errors import ConfigError
from rlplast.run.messages import say
from rlplast.study.folder import read_study

__all__ = ["add_arguments", "run"]

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", type=Path, help="folder of a study")
    parser.add_argument("--jobs", type=int, default=1, help="workers; default: 1")
    parser.add_argument("--cells", type=int, help="after so many cells a worker ends")
    parser.add_argument("--time", help="after so long, such as 4h or 90m, cells save and it ends")


def run(args: argparse.Namespace) -> int:
    for key in ("jobs", "cells"):
        if getattr(args, key) is not None and getattr(args, key) < 1:
            raise ConfigError(f"--{key} {getattr(args, key)}: allowed is at least 1")
    seconds = None if args.time is None else _parsed(args.time)
    threads = str(read_study(args.study).get("threads", 1))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # libraries read them when they are loaded
        os.environ.setdefault(name, threads)
    from rlplast.study.state import StudyState
    from rlplast.study.work import crew

    code = crew(args.study, args.jobs, cells=args.cells, seconds=seconds)
    fates = Counter(fate for _, fate in StudyState(args.study).fates())
    words = ", ".join(f"{number} {fate}" for fate, number in sorted(fates.items()))
    say(f"{args.study}: {words}; `rlplast show {args.study}` says more")
    return code


def _parsed(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text)
    if found is None or float(found[1]) == 0:
        raise ConfigError(
            f"--time {text!r}: allowed is a number above 0 with s, m or h, such as 90m"
        )
    return float(found[1]) * _SECONDS[found[2]]
