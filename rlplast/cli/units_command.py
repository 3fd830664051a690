"""Show the hidden units of a run's networks: which entries belong to which.

Methods such as redo, and lifecycle layers, act on these units. If a layer has no units, the reason
is shown.
"""

import argparse
from typing import Any

from rich.table import Table

from rlplast.cli.output import show_json
from rlplast.cli.tables import show
from rlplast.cli.train_command import overrides
from rlplast.core.network.network import Network
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config

__all__ = ["add_arguments", "run"]

Row = dict[str, Any]
PARTS = ("incoming", "norms", "slopes", "outgoing")  # of a group of units


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", help="file, or a shipped name such as dqn/asterix"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    trainable = build_trainable(read_config(args.config, overrides(args.overrides)))
    try:
        rows = [row for network in trainable.networks.values() for row in _rows(network)]
    finally:
        trainable.close()
    if args.json:
        show_json(rows)
    else:
        show(_table(rows))
    return 0


def _rows(network: Network) -> list[Row]:
    found = network.units()
    rows: list[Row] = [
        {
            "network": network.name,
            "units": group.name,
            "size": group.size,
            "nonlinearity": group.nonlinearity,
            **{key: [str(part) for part in getattr(group, key)] for key in PARTS},
            "refused": None,
        }
        for group in found.groups
    ]
    return rows + [
        {"network": network.name, "units": name, "size": 0, "refused": why}
        for name, why in found.refused.items()
    ]


def _table(rows: list[Row]) -> Table:
    table = Table("network", "units of", "size", "nonlinearity", "unit i owns")
    for row in rows:
        if row["refused"] is None:
            owns = "\n".join(part for key in PARTS for part in row[key])
            cells = [row["network"], row["units"], str(row["size"]), row["nonlinearity"], owns]
        else:
            cells = [row["network"], row["units"], "none", "", row["refused"]]
        table.add_row(*cells)
    return table
