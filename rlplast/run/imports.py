"""Modules of the user's own, which register what a run needs; run.json keeps their names."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError
from rlplast.plugins import import_named

__all__ = ["import_again", "import_modules", "imported"]

_imported: list[str] = []


def imported() -> list[str]:
    """Return the modules that the command named."""
    return list(_imported)


def import_modules(modules: Iterable[str]) -> None:
    """Import modules, looked for in the current folder too; ConfigError if one is not there."""
    _imported.clear()
    for module in modules:
        if not _is_name(module):
            raise ConfigError(
                f"--import {module!r}: allowed is a module's name, such as my_methods or "
                "lab.methods"
            )
        try:
            import_named(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"--import {module}: {error}") from error
        _imported.append(module)


def import_again(info: Mapping[str, Any], folder: Path) -> None:
    """Import the modules that `info`, a run.json, names; ConfigError if one is not there."""
    for module in info.get("imports", ()):
        if not _is_name(module) or module in _imported:
            continue
        try:
            import_named(module)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{folder} was begun with --import {module}: {error}; give the command in the "
                "folder where the module lies, or install it"
            ) from error


def _is_name(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))
