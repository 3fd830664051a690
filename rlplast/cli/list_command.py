"""List what a config can name: methods, metrics, optimizers, environments, configs."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

import rlplast.interventions
import rlplast.metrics  # noqa: F401 - registers
from rlplast.cli.shipped import config_folder, shipped_configs
from rlplast.cli.tables import show
from rlplast.core import registry
from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.optim_state import RULES

__all__ = ["add_arguments", "list_rows", "run"]

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "family", nargs="?", metavar="FAMILY", help=f"{' | '.join(registry.FAMILIES)}; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of a table")


def _optimizer_rows() -> list[Row]:
    return [
        {
            "name": rule.__name__.lower(),
            "family": "optimizers",
            "summary": f"{rule.__name__}, whose state hooks know: {', '.join(sorted(entries))}.",
            "params": {},
            "source": f"torch.optim.{rule.__name__}",
        }
        for rule, entries in sorted(RULES.items(), key=lambda item: item[0].__name__.lower())
    ]


def _env_rows() -> list[Row]:
    import envs

    return envs.list_envs()


def _first_comment(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        comments = (line.lstrip("# ").rstrip() for line in file if line.startswith("#"))
        return next((text for text in comments if text), "")


def _config_rows() -> list[Row]:
    root = config_folder().parent
    return [
        {
            "name": name,
            "family": "configs",
            "summary": _first_comment(path),
            "params": {},
            "source": path.relative_to(root).as_posix(),
        }
        for name, path in shipped_configs().items()
    ]


_OUTSIDE_REGISTRY = {
    "optimizers": _optimizer_rows,
    "envs": _env_rows,
    "configs": _config_rows,
}


def list_rows(family: str | None = None) -> list[Row]:
    """Return the rows of one family, or of all, as ``--json`` prints them.

    Args:
        family: one of `rlplast.core.registry.FAMILIES`.

    Raises:
        ConfigError: naming the nearest family if there is no such one.
    """
    if family is not None and family not in registry.FAMILIES:
        raise ConfigError(f"family {family!r}: {did_you_mean(family, registry.FAMILIES)}")
    rows: list[Row] = []
    for name in registry.FAMILIES if family is None else (family,):
        elsewhere = _OUTSIDE_REGISTRY.get(name)
        rows += [info.row() for info in registry.rows(name)] if elsewhere is None else elsewhere()
    return rows


def _described(params: dict[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"{name} = {json.dumps(p['default'])}" + (f"  {p['range']}" if p["range"] else "")
        for name, p in params.items()
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    rows = list_rows(args.family)
    if args.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    table = Table("family", "name", "summary", "parameters", "source")
    for row in rows:
        # Text, because a range such as [0, 1] would be read as markup.
        cells = (row["family"], row["name"], row["summary"], _described(row["params"]))
        table.add_row(*map(Text, (*cells, row["source"])))
    show(table)
    return 0
