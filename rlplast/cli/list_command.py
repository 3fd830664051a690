"""List what a config can name: methods, metrics, optimizers, environments, kinds, configs.

Without a FAMILY it says only what each does, and counts environments. With one, such as `methods`,
`metrics` or `envs`, it adds parameters and source. The column ``from`` says where a row comes from:
rlplast, an installed package, or a module given with `--import`.
"""

import argparse
import inspect
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

from rlplast.cli.output import say, show_json
from rlplast.cli.tables import counted, show
from rlplast.core import registry
from rlplast.core.errors import ConfigError, check_choice
from rlplast.run.shipped import config_folder, shipped_configs
from rlplast.training.kinds import kinds

__all__ = ["add_arguments", "list_rows", "run"]

Row = dict[str, Any]

_PIPED_WIDTH = 160  # columns
_SENTENCE = re.compile(r".*?\.(?=\s|$)")  # "2.5" goes on


METHODS = ("interventions", "penalties", "layers", "regularisers", "replay")
# Shown only when asked for: the shipped lists of hooks, and all methods together.
FAMILIES = (*registry.FAMILIES, "hooks", "methods")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "family", nargs="?", metavar="FAMILY", help=f"{' | '.join(FAMILIES)}; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of a table")


def _env_rows() -> list[Row]:
    from rlplast import envs

    try:
        return envs.list_envs()
    except ValueError as error:  # of a plug-in
        raise ConfigError(str(error)) from error


def _kind_rows() -> list[Row]:
    return [
        {
            "name": kind.name,
            "family": "kinds",
            "summary": (inspect.getdoc(kind.config_class()) or kind.name).splitlines()[0],
            "params": {},
            "source": kind.trainable,
            "from": kind.origin,
        }
        for _, kind in sorted(kinds().items())
    ]


def _first_sentence(path: Path) -> str:
    """Return the first sentence of the comment that a file begins with."""
    with path.open(encoding="utf-8") as file:
        lines = itertools.takewhile(lambda line: line.startswith("#"), file)
        comment = " ".join(line.lstrip("# ").rstrip() for line in lines).strip()
    found = _SENTENCE.match(comment)
    return found[0] if found else comment


def _file_rows(family: str, paths: Iterable[Path]) -> list[Row]:
    root = config_folder()
    return [
        {
            "name": path.relative_to(root).with_suffix("").as_posix(),
            "family": family,
            "summary": _first_sentence(path),
            "params": {},
            "source": path.relative_to(root.parent).as_posix(),
        }
        for path in paths
    ]


_OUTSIDE_REGISTRY = {
    "hooks": lambda: _file_rows("hooks", sorted(config_folder().glob("*/hooks/*.yaml"))),
    "envs": _env_rows,
    "kinds": _kind_rows,
    "configs": lambda: _file_rows("configs", shipped_configs().values()),
}


def _families(family: str | None) -> tuple[str, ...]:
    if family is None:
        return registry.FAMILIES
    return METHODS if family == "methods" else (family,)


def list_rows(family: str | None = None) -> list[Row]:
    """Return the rows of one family, or of all, as ``--json`` prints them.

    Args:
        family: one of `FAMILIES`.

    Raises:
        ConfigError: naming the nearest family if there is no such one.
    """
    if family is not None:
        check_choice("family", family, FAMILIES)
    rows: list[Row] = []
    for name in _families(family):
        elsewhere = _OUTSIDE_REGISTRY.get(name)
        rows += [info.row() for info in registry.rows(name)] if elsewhere is None else elsewhere()
    return [row | {"from": row.get("from", "rlplast")} for row in rows]


def _envs_counted(rows: list[Row]) -> list[Row]:
    """Return `rows` with one row for all environments whose ids start alike."""
    starts: dict[str, list[Row]] = {}
    for row in rows:
        if row["family"] == "envs":
            starts.setdefault(f"{row['name'].split('/')[0]}/…", []).append(row)
    short = [row for row in rows if row["family"] != "envs"]
    for start, alike in starts.items():
        summary = f"{counted(len(alike), 'environment')}, see `rlplast list envs`"
        origin = "; ".join(dict.fromkeys(row["from"] for row in alike))
        short.append(
            {"name": start, "family": "envs", "summary": summary, "params": {}, "from": origin}
        )
    return short


def _described(params: dict[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"{name} = {json.dumps(p['default'])}" + (f"  {p['range']}" if p["range"] else "")
        for name, p in params.items()
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    rows = list_rows(args.family)
    if args.json:
        show_json(rows)
        return 0
    if args.family is None:
        rows = _envs_counted(rows)
    for family in _families(args.family):
        _show_family(family, [row for row in rows if row["family"] == family], args.family is None)
    if args.family == "methods":
        say("Which one? docs/how-to/choose-a-method.md says what to begin with, and why.")
    return 0


def _show_family(family: str, rows: list[Row], short: bool) -> None:
    """Print the table of one family, without parameters where none has any."""
    if not rows:
        say(f"{family}: none")
        return
    columns = ["summary", "params", "source", "from"]
    if short:
        foreign = any(row["from"] != "rlplast" for row in rows)
        columns = ["summary", "from"] if foreign else ["summary"]
    if not any(row["params"] for row in rows):
        columns = [column for column in columns if column != "params"]
    longest = max(len(row["name"]) for row in rows)
    table = Table()
    table.add_column("name", no_wrap=True, min_width=min(longest, 40))  # whole, to be copied
    for column in columns:
        table.add_column("parameters" if column == "params" else column, overflow="fold")
    for row in rows:
        cells = (_described(row[c]) if c == "params" else row[c] for c in ("name", *columns))
        table.add_row(*cells)
    say(family)
    show(table, _PIPED_WIDTH)
