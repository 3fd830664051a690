"""Tables and code in Markdown."""

from collections.abc import Iterable
from typing import Any

from rlplast.training.config import dump_yaml

__all__ = ["choices", "code", "table", "yaml_code"]


def code(text: str) -> str:
    """Return a text as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def choices(allowed: str) -> str:
    """Return what is allowed, ``a | b`` or ``[0, 1]``, as code without a bar: it ends a cell."""
    return ", ".join(map(code, allowed.split(" | ")))


def yaml_code(value: Any) -> str:
    """Return a value as a config has it, as code."""
    value = list(value) if isinstance(value, tuple) else value
    return code(dump_yaml(value, flow=True).split("\n")[0])


def table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; `head` has its columns' names between bars.

    Raises:
        ValueError: for code with a bar, which ends the cell in some readers.
    """
    columns = [name.strip() for name in head.split(" | ")]
    lines = [f"| {' | '.join(line)} |\n" for line in (columns, *(map(_cell, r) for r in rows))]
    return "".join((lines[0], f"|{'---|' * len(columns)}\n", *lines[1:]))


def _cell(text: str) -> str:
    if any("|" in part for part in text.split("`")[1::2]):
        raise ValueError(f"a table's cell cannot have code with a bar: {text}")
    return text.replace("|", "&#124;")
