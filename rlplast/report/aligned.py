"""Tables whose numbers stand with their decimal points below one another.

- `Cell`: one cell as a page has it; `aligned`: heads and rows of cells.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["Cell", "aligned"]

_ESTIMATE = re.compile(r"(\S+) \[(\S+), (\S+)\]")
_DECIMAL = re.compile(r"\[?-?[\d,]*\d(?:\.(\d+))?[,\]]?")


class Cell(NamedTuple):
    """A cell: its text; whether it is of a number; what it lacks behind to end with its column.

    An estimate takes three cells, and its head spans them: the value and the ends of its interval.
    """

    text: str
    number: bool = False
    end: bool = False
    lacks: str = ""
    span: int = 1


class _Table(Protocol):
    @property
    def head(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence["_Row"]: ...
    @property
    def words(self) -> int: ...


class _Row(Protocol):
    @property
    def cells(self) -> Sequence[str]: ...


def aligned(table: _Table) -> tuple[list[Cell], list[list[Cell]]]:
    """Return the head and the rows of a table."""
    head: list[Cell] = []
    rows: list[list[Cell]] = [[] for _ in table.rows]
    for index, title in enumerate(table.head):
        column = [row.cells[index] for row in table.rows]
        parts = [[Cell(text)] for text in column] if index < table.words else _numbers(column)
        head.append(Cell(title, index >= table.words, span=max(map(len, parts), default=1)))
        for row, own in zip(rows, parts, strict=True):
            row += own
    return head, rows


def _numbers(column: Sequence[str]) -> list[list[Cell]]:
    """Return the cells of a column, of each row as many."""
    found = [_ESTIMATE.fullmatch(text) for text in column]
    if not any(found):
        return [[cell] for cell in _padded(column)]
    split = [
        (own[1], f"[{own[2]},", f"{own[3]}]") if own else (text, "", "")
        for own, text in zip(found, column, strict=True)
    ]
    columns = [_padded(own, end=number > 0) for number, own in enumerate(zip(*split, strict=True))]
    return [list(cells) for cells in zip(*columns, strict=True)]


def _padded(column: Sequence[str], end: bool = False) -> list[Cell]:
    """Return a column's cells with what each lacks of the decimals of the longest."""
    found = [_DECIMAL.fullmatch(text) for text in column]
    decimals = [len(own[1] or "") if own else None for own in found]
    most = max((own for own in decimals if own is not None), default=0)
    cells = []
    for text, own in zip(column, decimals, strict=True):
        lacks = "" if own is None else "0" * (most - own)
        cells.append(Cell(text, True, end, f".{lacks}" if lacks and own == 0 else lacks))
    return cells
