"""Fill in what the reference pages take from the code, when the site is built.

A page says where with a comment of its own line, ``<!-- made from the code: NAME -->``:

- ``commands``: the help of every command.
- ``keys common``, ``keys KIND``: a config's keys, defaults and meanings.
- ``methods FAMILY``, ``metrics``, ``configs``: what `rlplast list` prints.
- ``receipt``: the fields of a receipt.

mkdocs calls `on_page_markdown`; see ``hooks`` in mkdocs.yml.
"""

import dataclasses
import inspect
import io
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from mkdocs.exceptions import PluginError

from rlplast.cli.list_command import list_rows
from rlplast.cli.main import COMMANDS, main
from rlplast.core.method.receipt import Receipt
from rlplast.core.training.config import RunConfig
from rlplast.core.training.kinds import get_kind

__all__ = ["on_page_markdown"]

_PLACE = re.compile(r"^<!-- made from the code: (.+?) -->$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_BAR = re.compile(r"(`[^`]*`)|\|")  # a bar that would end a cell: not one inside code
_CARDS = Path(__file__).parent / "methods"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's source with every place filled in.

    Raises:
        PluginError: for a name that stands for nothing.
    """
    return _PLACE.sub(lambda place: _made(place[1]), markdown)


def _made(name: str) -> str:
    match name.split():
        case ["commands"]:
            return "\n".join(f"## rlplast {c}\n\n{_help(c)}" for c in COMMANDS)
        case ["keys", "common"]:
            return _table("key | default | meaning", _keys(RunConfig()))
        case ["keys", kind]:
            return _table("key | default | meaning", _own_keys(get_kind(kind).config_class()()))
        case ["methods", family]:
            return _methods(family)
        case ["metrics"]:
            rows = ((_code(r["name"]), r["summary"], r["source"]) for r in list_rows("metrics"))
            return _table("metric | meaning | source", rows)
        case ["configs"]:
            rows = ((_code(r["name"]), r["summary"]) for r in list_rows("configs"))
            return _table("config | what it is", rows)
        case ["receipt"]:
            rows = ((_code(key), meaning) for key, meaning in _meanings(Receipt).items())
            return _table("field | meaning", rows)
    raise PluginError(f"nothing is made under the name {name!r}")


def _help(command: str) -> str:
    """Return what ``rlplast COMMAND --help`` prints, as a block of text."""
    printed = io.StringIO()
    environment = {"COLUMNS": "90", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, environment), redirect_stdout(printed), suppress(SystemExit):
        main([command, "--help"])
    return f"```text\n{printed.getvalue()}```\n"


def _own_keys(config: RunConfig) -> Iterator[tuple[str, ...]]:
    """Yield the keys that only this kind has, and those it has another default for."""
    common = {key: default for key, default, _ in _keys(RunConfig())}
    for key, default, meaning in _keys(config):
        if common.get(key) != default:
            yield key, default, meaning


def _keys(config: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield key, default and meaning from a config of defaults, a section's keys after it.

    Raises:
        KeyError: for a key that no docstring explains.
    """
    meanings = _meanings(type(config))
    for field in dataclasses.fields(config):
        key, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield _code(key), "", meanings[field.name]
            yield from _keys(value, f"{key}.")
        else:
            yield _code(key), _yaml(value), meanings[field.name]


def _meanings(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say about each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        attributes = (inspect.getdoc(base) or "").partition("Attributes:")[2]
        found |= {m[1]: " ".join(m[2].split()) for m in _ATTRIBUTE.finditer(attributes)}
    return found


def _methods(family: str) -> str:
    """Return a table of a family's methods, then one of the parameters of each."""
    rows = list_rows(family)
    table = [(_linked(row["name"]), row["summary"], row["source"]) for row in rows]
    parts = [_table("method | what it does | source", table)]
    for row in rows:
        if row["params"]:
            params = [
                (_code(name), _yaml(p["default"]), _code(p["range"]))
                for name, p in row["params"].items()
            ]
            parts.append(_table(f"parameter of {_code(row['name'])} | default | allowed", params))
    return "\n".join(parts)


def _linked(name: str) -> str:
    card = f"{name}.md"
    return f"[{_code(name)}]({card})" if (_CARDS / card).exists() else _code(name)


def _yaml(value: Any) -> str:
    """Return a value as a config has it."""
    value = list(value) if isinstance(value, tuple) else value
    return _code(yaml.safe_dump(value, default_flow_style=True, width=math.inf).split("\n")[0])


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; `head` has its columns' names between bars."""
    columns = [name.strip() for name in head.split(" | ")]
    lines = [columns, ["---"] * len(columns)]
    lines += [[_BAR.sub(lambda m: m[1] or "\\|", cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
