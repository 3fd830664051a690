"""Tables of what the code declares, such as keys, methods, receipts and commands."""

import dataclasses
import io
import os
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from docs.generate import cards
from docs.generate.markdown import choices, code, table, yaml_code
from rlplast.cli.list_command import list_rows
from rlplast.cli.main import COMMANDS, main
from rlplast.core.method.receipt import Receipt
from rlplast.core.validation import hints_of, limits
from rlplast.study.schema import meanings
from rlplast.training.config import RunConfig
from rlplast.training.kinds import get_kind

__all__ = ["table_of"]

_HEAD = "key | default | allowed | meaning"
_CARDS = Path(__file__).parents[1] / "methods"


def table_of(name: str) -> str:
    """Return what stands at a place of a page.

    Args:
        name: ``commands``, ``keys KIND`` and so on; see `docs.generate`.

    Raises:
        ValueError: for a name that stands for nothing.
    """
    match name.split():
        case ["commands"]:
            return "\n".join(f"## rlplast {c}\n\n{_help(c)}" for c in COMMANDS)
        case ["keys", "common"]:
            return table(_HEAD, _keys(RunConfig()))
        case ["keys", kind]:
            return table(_HEAD, _own_keys(get_kind(kind).config_class()()))
        case ["methods", family]:
            return _methods(family)
        case ["params", family]:
            return _params(family)
        case ["metrics"]:
            found = ((code(r["name"]), r["summary"], r["source"]) for r in _rows("metrics"))
            return table("metric | meaning | source", found)
        case ["optimizers"]:
            found = ((code(r["name"]), r["summary"], r["source"]) for r in _rows("optimizers"))
            return table("optimizer | what it does | source", found)
        case ["configs"]:
            found = ((code(r["name"]), r["summary"]) for r in _rows("configs"))
            return table("config | what it is", found)
        case ["receipt"]:
            found = ((code(key), meaning) for key, meaning in meanings(Receipt).items())
            return table("field | meaning", found)
    raise ValueError(f"nothing is generated under the name {name!r}")


def _rows(family: str) -> list[dict[str, Any]]:
    """Return the rows of a family, without those of plug-ins that happen to be installed."""
    return [row for row in list_rows(family) if row["from"] == "rlplast"]


def _help(command: str) -> str:
    """Return what ``rlplast COMMAND --help`` prints, as a block of text."""
    printed = io.StringIO()
    environment = {"COLUMNS": "90", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, environment), redirect_stdout(printed), suppress(SystemExit):
        main([command, "--help"])
    return f"```text\n{printed.getvalue()}```\n"


def _own_keys(config: RunConfig) -> Iterator[tuple[str, ...]]:
    """Yield the keys that only this kind has, and those it has another default for."""
    common = {key: default for key, default, *_ in _keys(RunConfig())}
    for key, default, *rest in _keys(config):
        if common.get(key) != default:
            yield key, default, *rest


def _keys(config: Any, prefix: str = "") -> Iterator[tuple[str, ...]]:
    """Yield key, default, what is allowed and meaning, a section's keys after it.

    Raises:
        KeyError: for a key that no docstring explains.
    """
    about = meanings(type(config))
    for field in dataclasses.fields(config):
        key, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield code(key), "", "", about[field.name]
            yield from _keys(value, f"{key}.")
        else:
            allowed = choices(limits(hints_of(type(config))[field.name]))
            yield code(key), yaml_code(value), allowed, about[field.name]


def _methods(family: str) -> str:
    """Return a table of a family's methods."""
    rows = _rows(family)
    if family in ("regularisers", "replay"):
        lines = ((_linked(r["name"]), r["summary"], r["source"]) for r in rows)
        return table("method | what it does | source", lines)
    facts = ((r, *cards.reads_and_policies(r["name"])) for r in rows)
    if family != "interventions":
        lines = ((_linked(r["name"]), r["summary"], reads, r["source"]) for r, reads, _ in facts)
        return table("method | what it does | reads | source", lines)
    found = ((_linked(r["name"]), r["summary"], *both, r["source"]) for r, *both in facts)
    return table("method | what it does | reads | `optimizer`, `followers` | source", found)


def _params(family: str) -> str:
    """Return a table of the parameters of each of a family's methods."""
    parts = []
    for row in _rows(family):
        params = [
            (code(name), yaml_code(p["default"]), choices(p["range"]))
            for name, p in row["params"].items()
        ]
        if params:
            parts.append(table(f"parameter of {code(row['name'])} | default | allowed", params))
    return "\n".join(parts)


def _linked(name: str) -> str:
    card = f"{name}.md"
    return f"[{code(name)}]({card})" if (_CARDS / card).exists() else code(name)
