"""List what a config can name: methods, metrics, optimizers, environments, kinds, configs.

Without a WHAT it says only what each does, and counts environments. With a family, such as
`methods`, `metrics` or `envs`, it adds parameters and source, and says ``from`` which installed
package, or module given with `--import`, an entry comes, if not from rlplast. With a name, such as
`fire`, it adds what the parameters mean.
"""

import argparse
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlplast import plugins
from rlplast.cli.output import say, show_json
from rlplast.cli.tables import columns
from rlplast.core import registry
from rlplast.core.duration import counted
from rlplast.core.errors import ConfigError, check_choice, did_you_mean
from rlplast.run.imports import imported
from rlplast.run.shipped import config_folder, shipped_configs

__all__ = ["REGISTERED", "add_arguments", "list_rows", "registered_text", "run"]

Row = dict[str, Any]

# What this package registers, as `python -m docs.generate` found it: to import it takes seconds.
REGISTERED = Path(__file__).with_name("registered.json")
_PIPED_WIDTH = 160  # columns
_SENTENCE = re.compile(r".*?\.(?=\s|$)")  # "2.5" goes on


METHODS = ("interventions", "penalties", "layers", "regularisers", "replay")
# Shown only when asked for: the shipped lists of hooks, and all methods together.
FAMILIES = (*registry.FAMILIES, "hooks", "methods")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help=f"{' | '.join(FAMILIES)}, or a name; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of a table")


def _env_rows() -> list[Row]:
    from rlplast import envs

    try:
        return envs.list_envs()
    except ValueError as error:  # of a plug-in
        raise ConfigError(str(error)) from error


def _kind_rows() -> list[Row]:
    from rlplast.training.kinds import kinds

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


def list_rows(family: str | None, known: Mapping[str, list[Row]] | None = None) -> list[Row]:
    """Return the rows of one family, or of all, as ``--json`` prints them.

    `known` has rows of families for which nothing needs to be imported.
    """
    if family is not None:
        check_choice("family", family, FAMILIES)
    rows: list[Row] = []
    for name in _families(family):
        if known is not None and name in known:
            rows += known[name]
        elif name in _OUTSIDE_REGISTRY:
            rows += _OUTSIDE_REGISTRY[name]()
        else:
            rows += [info.row() for info in registry.rows(name)]
    return [row | {"from": row.get("from", "rlplast")} for row in rows]


def registered_text() -> str:
    """Return what `REGISTERED` has to hold: the rows that only importing PyTorch gives."""
    families = [name for name in registry.FAMILIES if name not in ("envs", "configs")]
    rows = {name: [r for r in list_rows(name) if r["from"] == "rlplast"] for name in families}
    return json.dumps(rows, indent=1) + "\n"


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


def _described(params: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{name} = {json.dumps(p['default'])}" + (f"  {p['range']}" if p["range"] else "")
        for name, p in params.items()
    ]


def _meaning(row: Row) -> str:
    """Return the docstring of what is registered under a name."""
    if row["family"] in _OUTSIDE_REGISTRY:
        return ""
    text = inspect.getdoc(registry.get(row["family"], row["name"]).target) or ""
    return "\n" + textwrap.indent(text.replace("``", "`"), "    ")


def run(args: argparse.Namespace) -> int:
    more = imported() or plugins.packages()  # which may have registered rows
    known = None if more else json.loads(REGISTERED.read_text())
    one = None if args.what in (None, *FAMILIES) else args.what
    what = None if one else args.what
    rows = list_rows(what, known)
    if one:
        rows = [row for row in rows if row["name"] == one]
        if not rows:
            near = did_you_mean(one, (*FAMILIES, *(row["name"] for row in list_rows(None, known))))
            raise ConfigError(f"{one!r} is no family, and no name of one: {near}")
    if args.json:
        show_json(rows)
        return 0
    if one:
        _show_entries(rows)
        say("".join(map(_meaning, rows)))
        return 0
    if what is None:
        rows = _envs_counted(rows)
    shown = {None: _show_lines, "envs": _show_envs}.get(what, _show_entries)
    for family in _families(what):
        own = [row for row in rows if row["family"] == family]
        say(f"\n{family}" if own else f"\n{family}: none")
        if own:
            shown(own)
    if what == "methods":
        say("\nWhich one? docs/how-to/choose-a-method.md says what to begin with, and why.")
    return 0


def _show_lines(rows: list[Row]) -> None:
    """Print a line for each entry: its name, what it does, and from whom if not from rlplast."""
    longest, width = max(len(row["name"]) for row in rows), columns(_PIPED_WIDTH)
    for row in rows:
        origin = "" if row["from"] == "rlplast" else f" (from {row['from']})"
        line = f"{row['name']:<{longest}}  {row['summary']}{origin}"
        say(_filled(line, width, min(longest, 40) + 2))


def _show_entries(rows: list[Row]) -> None:
    """Print entries below each other, with parameters and source."""
    for row in rows:
        say(f"\n{row['name']}")
        _indented([row["summary"], *_described(row["params"]), *_origin(row)])


def _show_envs(rows: list[Row]) -> None:
    """Print ids below each other, under the options that those of a family share."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        shared = [row["name"].split("/")[0], row["params"], row["source"], row["from"]]
        families.setdefault(json.dumps(shared), []).append(row)
    for family in families.values():
        name = family[0]["name"].split("/")[0]
        say(f"\n{name}/…  ({counted(len(family), 'environment')})")
        _indented([*_described(family[0]["params"]), *_origin(family[0])])
        _show_lines(family)


def _origin(row: Row) -> list[str]:
    """Return where an entry is defined, and by whom if not by rlplast."""
    found = [f"source: {row['source']}"]
    return found if row["from"] == "rlplast" else [*found, f"from: {row['from']}"]


def _indented(texts: Iterable[str]) -> None:
    for text in texts:
        say(_filled(f"    {text}", columns(_PIPED_WIDTH), 6))


def _filled(text: str, width: int, indent: int) -> str:
    """Return a text in lines of a width; names such as ``my-package`` stay whole."""
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
