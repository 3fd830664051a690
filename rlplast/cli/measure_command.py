"""Measure the weights in a saved state dict: norms, ranks, distance from isometry."""

import argparse
import inspect
from pathlib import Path

from rich.table import Column, Table

from rlplast.cli.output import show_json
from rlplast.cli.state_network import weights_of
from rlplast.cli.tables import figure, show
from rlplast.core.errors import ConfigError
from rlplast.core.registry import get
from rlplast.metrics.probe import OF_CHAINS, OF_CHANGE, where_measured
from rlplast.metrics.weights import Measurement, measure
from rlplast.run.state_file import read

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a .safetensors or .pt state dict")
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help="earlier weights; adds weight_difference, sfe and sfe_normalized",
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="measure this one; default: all metrics of weights",
    )
    parser.add_argument("--key", help="key of a state dict inside a .pt, such as model or a.b")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    weights = weights_of(read(args.file, args.key).tensors)
    before = None
    if args.reference is not None:
        before = weights_of(read(args.reference, args.key, key_if_nested=True).tensors)
    result = measure(weights, before)
    if args.metric:
        result = _chosen(result, args.metric)
    if args.json:
        show_json(result)
    else:
        show(_table(result))
    return 0


def _chosen(result: Measurement, names: list[str]) -> Measurement:
    """Return some metrics of a measurement.

    Raises:
        ConfigError: for a name that is no metric, or one of something else than a file's weights.
    """
    for name in names:
        reads = inspect.signature(get("metrics", name).target).parameters.values()
        if name in result["total"]:
            continue
        if name in OF_CHANGE:
            raise ConfigError(f"{name} reads other weights too: give them with --reference FILE")
        needed = [p.name for p in reads if p.default is p.empty]
        what = "the layers' forward order" if name in OF_CHAINS else ", ".join(needed)
        raise ConfigError(
            f"{name} reads {what}, which a file of weights has not: {where_measured(name)}"
        )
    rows = {tensor: {n: row[n] for n in names} for tensor, row in result["tensors"].items()}
    return {"tensors": rows, "total": {n: result["total"][n] for n in names}}


def _table(result: Measurement) -> Table:
    metrics = list(result["total"])
    table = Table("tensor", *(Column(metric, justify="right") for metric in metrics))
    for rows in (result["tensors"], {"total": result["total"]}):
        for name, row in rows.items():
            table.add_row(name, *(figure(row[metric]) for metric in metrics))
        table.add_section()
    return table
