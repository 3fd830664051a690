"""Frame: what runs measured, as one table: a row per number, or with --runs a row per run.

DIR is the folder of a study or of a run, or a folder with such folders in it. `rlplast.frame` and
`rlplast.runs` return the same tables in Python.
"""

import argparse
from pathlib import Path

from rlplast.cli.output import say
from rlplast.core.errors import ConfigError
from rlplast.core.optional import import_optional
from rlplast.training.files import whole

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="studies or runs")
    parser.add_argument("--out", type=Path, required=True, help="a .csv or .parquet file to write")
    parser.add_argument("--runs", action="store_true", help="a row per run, not per number")


def run(args: argparse.Namespace) -> int:
    from rlplast.report import frame  # pandas is slow to import

    if args.out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {args.out}: allowed is a name that ends with .csv or .parquet")
    if args.out.suffix == ".parquet":
        import_optional("pyarrow", "parquet")
    table = frame.runs(*args.folders) if args.runs else frame.frame(*args.folders)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with whole(args.out) as temporary:
        if args.out.suffix == ".csv":
            table.to_csv(temporary, index=False, errors="replace")
        else:
            table.to_parquet(temporary, index=False)
    say(f"{len(table):,} rows: {args.out}")
    return 0
