"""Tables of what is refused."""

from collections.abc import Callable, Iterable
from typing import Any

from rlplast.core.errors import ConfigError


def check_refused(
    read: Callable[[Any], Any],
    rows: Iterable[tuple[Any, str]],
    error: type[Exception] = ConfigError,
) -> None:
    """Check that each input of a table is refused with a message that holds its words."""
    for given, words in rows:
        try:
            read(given)
            message = "accepted"
        except error as refusal:
            message = str(refusal)
        assert words in message, (given, message)
