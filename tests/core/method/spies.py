"""Methods that look at what they may read, and change nothing unless told to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rlplast.core import registry
from rlplast.core.method.context import Context
from rlplast.core.method.method import Method, State, method
from rlplast.core.network.edits import Edit


def spy(look: Callable[[Context], Any], *what: str, size: int = 5) -> tuple[str, list[Any]]:
    """Register a method that reads `what` and plans what `look` gives; return its name and that."""
    seen: list[Any] = []
    name = f"spy{len(registry.rows('methods'))}"

    @method(name, source="a test")
    @dataclass(frozen=True)
    class Spy(Method):
        """Look at the context of every firing."""

        reads: ClassVar[tuple[str, ...]] = what
        policies: ClassVar[tuple[str, str]] = ("keep", "leave")
        probe: int = size

        def plan(self, context: Context, state: State) -> list[Edit]:
            seen.append(look(context))
            return seen[-1] if isinstance(seen[-1], list) else []

    return name, seen
