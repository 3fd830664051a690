"""Take from the code what pages say of it, for pages of the repository and for the site.

A short table stands in the page, between two comments of their own lines, and is replaced by
`make reference`. A test fails when it is not what the code says::

    <!-- generated: NAME -->
    <!-- end -->

A card of a method has the defaults of its parameters above its example.

A long table is only on the site. Its place is one line, and a card gets what the registry, the
class (its parameters, too) and the table of costs say, below its example::

    <!-- built: NAME -->

NAME is one of

- ``commands``: the help of every command.
- ``keys common``, ``keys KIND``: a config's keys, defaults and meanings.
- ``methods FAMILY``, ``metrics``, ``optimizers``, ``configs``: what `rlplast list` prints.
- ``params FAMILY``: the parameters of a family's methods.
- ``receipt``: the fields of a receipt.

``configs/schema.json`` is written anew too, and what `rlplast list` reads of this package.
"""

import re
from pathlib import Path

from docs.generate import cards, tables
from rlplast.cli.list_command import REGISTERED, registered_text
from rlplast.study.schema import schema_text

__all__ = ["DOCS", "SCHEMA", "built", "regenerated", "write"]

DOCS = Path(__file__).parents[1]
SCHEMA = DOCS.parent / "configs" / "schema.json"
_START = re.compile(r"^<!-- generated: .+ -->$", re.MULTILINE)
_PLACE = re.compile(r"^<!-- generated: (.+?) -->$(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
_BUILT = re.compile(r"^<!-- built: (.+?) -->$", re.MULTILINE)


def regenerated(page: Path, text: str) -> str:
    """Return the text of a page in the repository with its places filled in from the code.

    Args:
        page: the page's path.
        text: what the page has now.

    Raises:
        ValueError: for a name that stands for nothing, or a place without an end.
    """
    if len(_PLACE.findall(text)) != len(_START.findall(text)):
        raise ValueError(f"{page} has a `generated` comment without a later `<!-- end -->`")

    def filled(place: re.Match[str]) -> str:
        made = tables.table_of(place[1]).strip()
        return f"<!-- generated: {place[1]} -->\n\n{made}\n\n<!-- end -->"

    text = _PLACE.sub(filled, text)
    return cards.with_defaults(page.stem, text) if _is_card(page) else text


def built(page: Path, text: str) -> str:
    """Return the text of a page on the site: with its long tables, and what a card says in short.

    Args:
        page: the page's path, whose stem is the method on a card.
        text: what the page has in the repository.

    Raises:
        ValueError: for a name that stands for nothing.
    """
    text = _BUILT.sub(lambda place: tables.table_of(place[1]), text)
    if not _is_card(page):
        return text
    title, words, example, rest = text.split("\n\n", 3)
    words = words.partition("\nParameters: ")[0]  # the table below has them
    return "\n\n".join((title, words, example, cards.frame(page.stem), rest))


def _is_card(page: Path) -> bool:
    return page.parent.name == "methods" and cards.is_card(page.stem)


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
