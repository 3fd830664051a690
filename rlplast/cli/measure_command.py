"""Measure the weights in a saved state dict: norms, ranks, distance from isometry."""

import argparse
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from rlplast.cli.state_file import read
from rlplast.cli.state_network import weights_of
from rlplast.cli.tables import figure, show, show_json
from rlplast.metrics.weights import Measurement, measure

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a .safetensors or .pt state dict")
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help="the weights before; adds weight_difference, sfe and sfe_normalized",
    )
    parser.add_argument("--key", help="a state dict nested in a .pt, such as model or a.b")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    weights = weights_of(read(args.file, args.key).tensors)
    before = None
    if args.reference is not None:
        before = weights_of(read(args.reference, args.key, key_if_nested=True).tensors)
    result = measure(weights, before)
    if args.json:
        show_json(result)
    else:
        show(_table(result))
    return 0


def _table(result: Measurement) -> Table:
    metrics = list(result["total"])
    table = Table("tensor", *(Column(metric, justify="right") for metric in metrics))
    for rows in (result["tensors"], {"total": result["total"]}):
        for name, row in rows.items():
            table.add_row(Text(name), *(figure(row[metric]) for metric in metrics))
        table.add_section()
    return table
