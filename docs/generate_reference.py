"""Fill in what the reference pages take from the code, when the site is built.

A page says where with a comment of its own line, ``<!-- made from the code: NAME -->``:

- ``commands``: the help of every command.
- ``keys common``, ``keys KIND``: a config's keys, defaults and meanings.
- ``methods FAMILY``, ``metrics``, ``configs``: what `rlplast list` prints.
- ``receipt``: the fields of a receipt.

The card of a method, ``methods/NAME.md``, needs no comment. After its first paragraph it gets a
table of what the registry, the class and the last measurement of costs say; beside its parameters
what is allowed; and at its end the names of its tests. What it has in bold at the start of a
paragraph (``**Formula.**``) becomes a heading.

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

import torch
import yaml
from mkdocs.exceptions import PluginError

from rlplast.cli.list_command import list_rows
from rlplast.cli.main import COMMANDS, main
from rlplast.core.errors import ConfigError
from rlplast.core.method.method import has_face
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.network import Network
from rlplast.core.registry import Info, rows
from rlplast.core.training.config import RunConfig
from rlplast.core.training.kinds import get_kind

__all__ = ["on_page_markdown"]

_PLACE = re.compile(r"^<!-- made from the code: (.+?) -->$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_BAR = re.compile(r"(`[^`]*`)|\|")  # a bar that would end a cell: not one inside code
_LEAD = re.compile(r"^\*\*([^*\n]+)\.\*\* ?", re.MULTILINE)
_PARAMETERS = re.compile(
    r"^\| parameter \| default \| \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE
)
_TEST = re.compile(r"^def (test_\w+)\(([^)]*)\)", re.MULTILINE)
_DOCS = Path(__file__).parent
_CARDS = _DOCS / "methods"
_TESTS = _DOCS.parent / "tests" / "methods"
# Of a family: files of tests that many of its methods share, and the argument that names one.
_SHARED_TESTS = {
    "penalties": [("test_terms.py", "method")],
    "layers": [("test_layers.py", "layer")],
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's source with every place filled in, and a card in its frame.

    Raises:
        PluginError: for a name that stands for nothing.
    """
    place, name = Path(page.file.src_uri).parent.name, Path(page.file.src_uri).stem
    if place == "methods" and name in _method_rows():
        markdown = _framed(markdown, _method_rows()[name])
    return _PLACE.sub(lambda place: _made(place[1]), markdown)


def _method_rows() -> dict[str, Info]:
    return {info.name: info for f in ("interventions", "layers", "penalties") for info in rows(f)}


def _framed(card: str, info: Info) -> str:
    """Return a card with what is made from the code."""
    title, words, rest = card.split("\n\n", 2)
    rest = _LEAD.sub(r"## \1\n\n", rest)
    rest = _PARAMETERS.sub(lambda table: _with_ranges(table[1], info), rest)
    return "\n\n".join([title, words, _frame(info).strip(), rest.strip(), _tests(info)])


def _with_ranges(lines: str, info: Info) -> str:
    """Return a card's table of parameters with defaults of the code, and what is allowed."""
    table = []
    for line in lines.splitlines():
        name, _, words = (cell.strip() for cell in line[1:-1].split("|", 2))
        param = info.params[name.strip("`")]
        table.append((name, _yaml(param["default"]), _code(param["range"]), words))
    return _table("parameter | default | allowed | ", table)


def _frame(info: Info) -> str:
    """Return what the registry, the class and the table of costs say of a method."""
    method: Any = info.target
    policies = ", ".join(map(_code, method.policies)) if method.key == "hooks" else ""
    facts = {
        "listed under": _code(f"{method.key}:"),
        "source": info.source,
        "reads": ", ".join(("weights", *method.reads)),
        "own tensors, saved with the run": _state(method),
        "optimizer, followers by default": policies,
        "fires": "once in a run" if method.fires_once else "",
        "cost": _cost(info.name),
    }
    return _table("in short | ", ((what, fact) for what, fact in facts.items() if fact))


def _state(method: Any) -> str:
    """Return the names of a method's tensors, from a small network."""
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 2))
    before = set(model.state_dict())
    try:
        if has_face(method, "install"):
            method().install(model, 0)
        network = Network("net", model)
        names = set(method().setup(network, network.blocks)) | (set(model.state_dict()) - before)
    except ConfigError:
        return ""
    parts = {re.sub(r"(^|/)\d+(?=[./]|$)", r"\1LAYER", name) for name in names}
    return ", ".join(_code(part) for part in sorted(parts)) or "none"


def _cost(name: str) -> str:
    """Return the method's row of the table of costs, in words; empty if it was not measured."""
    made = (_DOCS / "explanation" / "benchmarks.md").read_text().partition("<!-- costs -->")[2]
    lines = [line.strip("| ").split(" | ") for line in made.splitlines() if line.startswith("|")]
    for _, when, *cells in (line for line in lines if line[0] == _code(name)):
        found = (f"{what} {cell}" for what, cell in zip(lines[0][2:], cells, strict=True))
        link = "[Benchmarks](../explanation/benchmarks.md#what-every-method-costs)"
        return f"{when}: {', '.join(found)}; see {link}"
    return ""


def _tests(info: Info) -> str:
    """Return the names of a method's own tests as sentences; a name says what it proves."""
    names = [
        test
        for file in sorted(_TESTS.glob(f"test_{info.name}*.py"))
        if _about(file.stem) == info.name
        for test, _ in _TEST.findall(file.read_text())
    ]
    for shared, named in _SHARED_TESTS.get(info.family, ()):
        tests = _TEST.findall((_TESTS / shared).read_text())
        names += [t for t, args in tests if f"{named}: str" in args or _about(t) == info.name]
    lines = "".join(f"- {name.removeprefix('test_').replace('_', ' ')}\n" for name in names)
    return (
        "## What the tests prove\n\nBeside the [tests of every method]"
        f"(../reference/method.md#in-the-library):\n\n{lines}"
    )


def _about(test: str) -> str:
    """Return the method that a test is about: the longest one that its name begins with."""
    name = f"{test.removeprefix('test_')}_"
    return max((n for n in _method_rows() if name.startswith(f"{n}_")), key=len, default="")


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
