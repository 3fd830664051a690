"""Measure the weights in a saved state dict: norms, ranks, distance from isometry.

FILE is a .safetensors, or a .pt that is a flat dict of names and tensors.
"""

import argparse
from pathlib import Path

from rich.table import Column, Table
from torch import Tensor

from rlplast.cli.output import show_json
from rlplast.cli.tables import figure, show
from rlplast.core.errors import ConfigError
from rlplast.core.registry import get
from rlplast.metrics.probe import OF_CHANGE, where_measured
from rlplast.metrics.weights import measure
from rlplast.run.file_layers import check_own, is_weight
from rlplast.run.state_file import read, weights_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a .safetensors, or a flat .pt")
    reference = "earlier weights; adds weight_difference, sfe and sfe_normalized"
    add("--reference", type=Path, metavar="FILE", help=reference)
    one = "measure this one; default: all metrics of weights"
    add("--metric", action="append", metavar="NAME", help=one)
    add("--json", action="store_true", help="print JSON instead of a table")


def _weights(path: Path) -> dict[str, Tensor]:
    tensors = weights_of(read(path))
    check_own(tensors, [name for name, tensor in tensors.items() if is_weight(name, tensor)])
    return tensors


def run(args: argparse.Namespace) -> int:
    weights, reference = (path and _weights(path) for path in (args.file, args.reference))
    result = measure(weights, reference)
    chosen = args.metric or list(result["total"])
    for name in chosen:
        get("metrics", name)
        if name in result["total"]:
            continue
        if name in OF_CHANGE:
            raise ConfigError(f"{name} reads other weights too: give them with --reference FILE")
        raise ConfigError(f"{name} reads more than a file of weights has: {where_measured(name)}")
    rows = {tensor: {n: row[n] for n in chosen} for tensor, row in result["tensors"].items()}
    total = {name: result["total"][name] for name in chosen}
    if args.json:
        show_json({"tensors": rows, "total": total})
        return 0
    table = Table("tensor", *(Column(name, justify="right") for name in chosen))
    for part in (rows, {"total": total}):
        for tensor, row in part.items():
            table.add_row(tensor, *map(figure, row.values()))
        table.add_section()
    show(table)
    return 0
