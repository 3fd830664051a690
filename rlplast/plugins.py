"""Plug-ins: what installed packages add by entry points, without `--import`.

Needs the standard library only: environments import this, and no torch.
"""

import functools
import importlib
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

__all__ = [
    "ENVS",
    "KINDS",
    "METHODS",
    "BrokenPlugin",
    "import_named",
    "load",
    "origin",
    "owner",
    "packages",
]

METHODS, ENVS, KINDS = GROUPS = ("rlplast.methods", "rlplast.envs", "rlplast.kinds")

_loaded: set[metadata.EntryPoint] = set()
_loading = ""  # the package whose entry point is being imported


class BrokenPlugin(ValueError):
    """Raised when an entry point cannot be loaded; names it, its package, cause and remedy."""


@functools.cache
def _entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    points = metadata.entry_points(group=group)
    return tuple(sorted(points, key=lambda point: (_package(point), point.name)))


def _package(point: metadata.EntryPoint) -> str:
    """Return the name and version of the package that an entry point is from."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load(group: str) -> bool:
    """Import the entry points of a group, each once; return whether there are any.

    Raises:
        BrokenPlugin: for the first that cannot be imported, or registers what it may not.
    """
    global _loading
    for point in _entry_points(group):
        if point in _loaded:
            continue
        _loaded.add(point)  # before its import, which may read what is registered
        outer, _loading = _loading, _package(point)
        try:
            point.load()
        except BaseException as error:
            _loaded.remove(point)
            if isinstance(error, KeyboardInterrupt):
                raise
            raise BrokenPlugin(_what_is_wrong(point, error)) from error
        finally:
            _loading = outer
    return bool(_entry_points(group))


def _what_is_wrong(point: metadata.EntryPoint, error: BaseException) -> str:
    cause = " ".join(f"{type(error).__name__}: {error}".split())
    name = point.dist.name if point.dist else "PACKAGE"
    return (
        f"entry point {point.name} = {point.value} ({point.group}) of {_package(point)} cannot be "
        f"loaded ({cause}): fix the package, or `pip uninstall {name}`"
    )


def packages() -> set[str]:
    """Return the names of the installed packages with an entry point of ours."""
    return {p.dist.name for group in GROUPS for p in _entry_points(group) if p.dist}


def owner(module: str) -> str | None:
    """Return whose a module is: rlplast, or an installed plug-in's name and version."""
    top = module.partition(".")[0]
    if top == "rlplast":
        return top
    points = [p for group in GROUPS for p in _entry_points(group)]
    owners = {_package(p) for p in points if p.module.partition(".")[0] == top}
    return owners.pop() if len(owners) == 1 else None  # some share a namespace


def origin(module: str) -> str:
    """Return where something comes from that is registered now and defined in a module."""
    return owner(module) or _loading or module.partition(".")[0]


def import_named(module: str) -> ModuleType:
    """Import a module that a user names, looked for in the current folder too."""
    here = str(Path.cwd())
    if here not in sys.path:
        # Last, or folders of the user's called agents or envs would hide ours; and it stays
        # there: environment workers import the module too.
        sys.path.append(here)
    return importlib.import_module(module)
