"""Write into the pages what they take from the code: `make reference`.

A page says where, between two comments of their own lines::

    <!-- generated: NAME -->
    <!-- end -->

What stands between them is replaced. A test fails when it is not what the code says. NAME is one of

- ``commands``: the help of every command.
- ``keys common``, ``keys KIND``: a config's keys, defaults and meanings.
- ``methods FAMILY``, ``metrics``, ``optimizers``, ``configs``: what `rlplast list` prints.
- ``receipt``: the fields of a receipt.
- ``card``: on the card of a method, what the registry, the class and the table of costs say.
- ``parameters``: on a card, its parameters. The last column is the page's own and stays.
- ``api``: the names, signatures and first lines of what the page's ``::: NAME`` lines document.

``configs/schema.json`` is written anew too, and what `rlplast list` reads of this package.
"""

import re
from pathlib import Path

from docs.generate import cards, tables
from rlplast.cli.list_command import REGISTERED, registered_text
from rlplast.study.schema import schema_text

__all__ = ["DOCS", "SCHEMA", "regenerated", "write"]

DOCS = Path(__file__).parents[1]
SCHEMA = DOCS.parent / "configs" / "schema.json"
_START = re.compile(r"^<!-- generated: .+ -->$", re.MULTILINE)
_PLACE = re.compile(r"^<!-- generated: (.+?) -->$(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def regenerated(page: Path, text: str) -> str:
    """Return the text of a page with every place filled in from the code.

    Args:
        page: the page's path, whose stem is the method on a card.
        text: what the page has now.

    Raises:
        ValueError: for a name that stands for nothing, or a place without an end.
    """
    if len(_PLACE.findall(text)) != len(_START.findall(text)):
        raise ValueError(f"{page} has a `generated` comment without a later `<!-- end -->`")

    def filled(place: re.Match[str]) -> str:
        made = _made(place[1], page, text, place[2])
        return f"<!-- generated: {place[1]} -->\n\n{made.strip()}\n\n<!-- end -->"

    return _PLACE.sub(filled, text)


def _made(name: str, page: Path, text: str, now: str) -> str:
    match name:
        case "card":
            return cards.frame(page.stem)
        case "parameters":
            return cards.parameters(page.stem, now)
        case "api":
            from docs.generate import api  # needs griffe, of the extra `docs`

            return api.index(text)
    return tables.table_of(name)


def write() -> list[Path]:
    """Write all pages, the schema of configs and the list of what is registered, anew.

    Returns:
        Those that changed.
    """
    changed = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        if (new := regenerated(page, text)) != text:
            page.write_text(new)
            changed.append(page)
    for file, new in ((SCHEMA, schema_text()), (REGISTERED, registered_text())):
        if file.read_text() != new:
            file.write_text(new)
            changed.append(file)
    return changed
