"""The index of a page of the Python API, for readers of the page as plain Markdown.

The site shows the docstrings of what a page names in lines ``::: NAME``. The code is read, not
imported: the adapters need libraries that only some users have.
"""

import ast
import re
from pathlib import Path

import griffe

from docs.generate.markdown import table

__all__ = ["index"]

_ROOT = Path(__file__).parents[2]
_DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


def index(text: str) -> str:
    """Return a table of what the page's ``:::`` lines document.

    A module stands for the names in its ``__all__``.

    Args:
        text: the page.
    """
    package = griffe.load("rlplast", search_paths=[_ROOT])
    rows = []
    for name in _DIRECTIVE.findall(text):
        found = package[name.removeprefix("rlplast.")] if name != "rlplast" else package
        if not found.is_module:
            rows.append(_row(name, found))
            continue
        for member in sorted(map(str, found.exports or ()), key=str.lower):
            if found[member].has_docstring:  # the others have no place on the site either
                rows.append(_row(f"{name}.{member}", found[member]))
    return table("name | what it is | what it takes, and its file", rows)


def _row(path: str, found: griffe.Object | griffe.Alias) -> tuple[str, ...]:
    target = found.final_target if isinstance(found, griffe.Alias) else found
    takes = ""
    if isinstance(target, griffe.Function | griffe.Class):
        names = [_parameter(p) for p in target.parameters if p.name[0] != "_" and p.name != "self"]
        takes = ", ".join(f"`{name}`" for name in names)
    summary = target.docstring.value.splitlines()[0] if target.docstring else ""
    source = Path(str(target.filepath)).relative_to(_ROOT).as_posix()
    below = f"{takes}<br>`{source}`" if takes else f"`{source}`"
    return f"[`{path.rpartition('.')[2]}`](#{path})", summary, below


def _parameter(parameter: griffe.Parameter) -> str:
    match parameter.kind:
        case griffe.ParameterKind.var_positional:
            return f"*{parameter.name}"
        case griffe.ParameterKind.var_keyword:
            return f"**{parameter.name}"
    if parameter.default is None:
        return parameter.name
    default = ast.parse(str(parameter.default), mode="eval").body
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "param":
        default = default.args[0]  # of a method's parameter: the range is on its card
    return f"{parameter.name}={ast.unparse(default)}"
