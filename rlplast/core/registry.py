"""One table of everything a config can name: methods, metrics, optimizers and so on.

Parameters, defaults and ranges are read from the definitions, for `rlplast list`, checks and docs.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from rlplast import plugins
from rlplast.core.errors import ConfigError, check_choice, did_you_mean, shortened
from rlplast.core.validation import check_value, hints_of, limits

__all__ = [
    "FAMILIES",
    "LISTS",
    "Info",
    "build",
    "checked",
    "get",
    "load_plugins",
    "measurer",
    "register",
    "rows",
]

T = TypeVar("T")
FAMILIES = (
    "interventions",
    "penalties",
    "layers",
    "regularisers",  # that are keys of a config
    "replay",
    "metrics",
    "optimizers",
    "envs",
    "kinds",
    "configs",
)
# Methods are one family; a config lists each under one key, which is a filter of it.
LISTS = {"hooks": "interventions", "penalties": "penalties", "layers": "layers"}


@dataclass(frozen=True)
class Info:
    """One row of the registry."""

    name: str
    family: str
    summary: str
    params: Mapping[str, Mapping[str, Any]]
    source: str
    target: Callable[..., Any]
    origin: str = "rlplast"

    def row(self) -> dict[str, Any]:
        """Return what `rlplast list --json` prints for this entry."""
        return {
            "name": self.name,
            "family": self.family,
            "summary": self.summary,
            "params": {name: dict(p) for name, p in self.params.items()},
            "source": self.source,
            "from": self.origin,
        }


_TABLE: dict[str, dict[str, Info]] = {"methods": {}, **{f: {} for f in FAMILIES}}
# What registers when imported.
_BUILT_IN = (
    "rlplast.methods",
    "rlplast.agents.sampling",
    "rlplast.metrics",
    "rlplast.optimizers.factories",
    "rlplast.optimizers.adam_o",
    "rlplast.optimizers.kron",
    "rlplast.optimizers.muon_fire",
    "rlplast.optimizers.schedule_free",
    "rlplast.optimizers.trac",
    "rlplast.optimizers.upgd",
)
_MEASURER = "rlplast.metrics.probe"  # which imports most of core


@functools.cache
def _load() -> None:
    """Import what registers itself: ours, then plug-ins."""
    for name in _BUILT_IN:
        importlib.import_module(name)
    load_plugins(plugins.METHODS)


def load_plugins(group: str) -> None:
    """Import the installed packages of a group of entry points, each once, or refuse one."""
    try:
        plugins.load(group)
    except plugins.BrokenPlugin as error:
        raise ConfigError(str(error)) from error


def measurer() -> Any:
    """Return the class that measures metrics: `rlplast.metrics.probe.RunMetrics`."""
    return importlib.import_module(_MEASURER).RunMetrics


def _family(family: str) -> dict[str, Info]:
    """Return a family's rows by name."""
    _load()
    if family in LISTS.values():
        return {n: info for n, info in _TABLE["methods"].items() if info.family == family}
    return _TABLE[family]


def _params_of(target: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    if dataclasses.is_dataclass(target):
        defaults = {f.name: f.default for f in dataclasses.fields(target) if f.init}
    else:
        parameters = inspect.signature(target).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    hints = hints_of(target)
    return {
        name: {"default": default, "range": limits(hints.get(name, Any))}
        for name, default in defaults.items()
        if default is not MISSING
    }


def register(
    family: str, name: str, *, source: str, listed: str | None = None
) -> Callable[[Any], Any]:
    """Add the decorated dataclass or function to the registry.

    Args:
        family: methods, or one of `FAMILIES`.
        name: the name configs use.
        source: paper, equation or table the definition comes from.
        listed: of a method, the family under which `rlplast list` shows it.

    Raises:
        ConfigError: if the family is unknown or the name is taken.
    """
    check_choice("family", family, _TABLE)

    def add(target: Any) -> Any:
        taken = _TABLE[family].get(name)
        definition = (target.__module__, target.__qualname__)
        # It may be imported twice, by a reload or a test collector.
        if taken and (taken.target.__module__, taken.target.__qualname__) != definition:
            raise ConfigError(
                f"{family} already has a {name!r}, from {taken.origin}: choose another name"
            )
        summary = (inspect.getdoc(target) or name).splitlines()[0]
        params = _params_of(target)
        origin = plugins.origin(target.__module__)
        _TABLE[family][name] = Info(name, listed or family, summary, params, source, target, origin)
        return target

    return add


def get(family: str, name: str, key: str = "") -> Info:
    """Return the registry row of `name`.

    Args:
        family: methods, or one of `FAMILIES`.
        name: the entry's name.
        key: the key of a config that gives it, for messages.

    Raises:
        ConfigError: for an unknown name, with the nearest one.
    """
    one = "penalty" if family == "penalties" else family.removesuffix("s")
    wrong = f"{key} = {shortened(name)}" if key else f"{one} {shortened(name)} is unknown"
    return look_up(name, _family(family), wrong)


def look_up(name: Any, table: Mapping[str, T], wrong: str) -> T:
    """Return the entry of `name`, or raise a ConfigError: `wrong` and the nearest name."""
    if not isinstance(name, str) or name not in table:
        near = did_you_mean(str(name), table)
        remedy = "" if near.startswith("did") else "; your own: `rlplast --import MODULE ...`"
        raise ConfigError(f"{wrong}: {near}{remedy}")
    return table[name]


def rows(family: str | None = None) -> list[Info]:
    """Return the registry's rows, of one family or of all, sorted by name."""
    if family is not None:
        check_choice("family", family, _TABLE)
    families = FAMILIES if family is None else (family,)
    return [_family(f)[name] for f in families for name in sorted(_family(f))]


def checked(family: str, name: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a config's `params` of an entry, or refuse its name, a parameter or a value."""
    info = get(family, name)
    values = {}
    for key, value in (params or {}).items():
        if key not in info.params:
            raise ConfigError(f"{name} has no parameter {key!r}: {did_you_mean(key, info.params)}")
        default = info.params[key]["default"]
        hint = hints_of(info.target).get(key, Any if default is None else type(default))
        values[key] = check_value(f"{name}.{key}", value, hint, default)
    return values


def build(family: str, name: str, params: Mapping[str, Any] | None = None) -> Any:
    """Construct an entry from a config's `params`.

    Raises:
        ConfigError: for an unknown name, an unknown parameter or a value out of range.
    """
    return get(family, name).target(**checked(family, name, params))
