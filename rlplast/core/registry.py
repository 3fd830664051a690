"""One table of everything a config can name: interventions, metrics and so on.

A method registers itself where it is defined; its parameters, defaults and ranges
are read from the definition, so `rlplast list`, validation and docs never disagree.

- `param`: a dataclass field with a checked range.
- `register`: decorator that adds a class or function to the table.
- `get`, `rows`, `build`: look up, list, and construct with validated parameters.
- `checked`: the validated parameters alone.
- `measurer`: the class that measures registered metrics.
"""

import dataclasses
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, TypeVar, get_args

from rlplast import plugins
from rlplast.core.errors import ConfigError, check_choice, did_you_mean, shortened

__all__ = [
    "FAMILIES",
    "LISTS",
    "Info",
    "build",
    "check_range",
    "checked",
    "get",
    "load_plugins",
    "measurer",
    "param",
    "register",
    "rows",
]

T = TypeVar("T")
# Ranges of parameters that are lists of texts.
NAMES, PATHS = "names", "paths"
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
    "rlplast.optimizers.kron",
    "rlplast.optimizers.muon_fire",
    "rlplast.optimizers.schedule_free",
    "rlplast.optimizers.trac",
    "rlplast.optimizers.upgd",
)
# What measures registered metrics, which imports most of core.
_MEASURER = "rlplast.metrics.probe"


@functools.cache
def _load() -> None:
    """Import what registers itself, when the table is first read: ours, then plug-ins."""
    for name in _BUILT_IN:
        importlib.import_module(name)
    load_plugins(plugins.METHODS)


def load_plugins(group: str) -> None:
    """Import the installed packages of a group of entry points, each once.

    Raises:
        ConfigError: naming the one that cannot be loaded.
    """
    try:
        plugins.load(group)
    except plugins.BrokenPlugin as error:
        raise ConfigError(str(error)) from error


def measurer() -> Any:
    """Return the class that measures metrics: `rlplast.metrics.probe.RunMetrics`."""
    return importlib.import_module(_MEASURER).RunMetrics


def _family(family: str) -> dict[str, Info]:
    """Return the rows of a family by name; interventions and so on are those of its methods."""
    _load()
    if family in LISTS.values():
        return {n: info for n, info in _TABLE["methods"].items() if info.family == family}
    return _TABLE[family]


def param(default: Any, range: str) -> Any:
    """Declare a dataclass field with a checked range.

    Args:
        default: the default; its type is the type of the parameter. None stays allowed
            where it is the default. A pair is a ``[min, max]`` of numbers.
        range: an interval such as ``"[0, 1]"`` or ``"(0, inf)"`` (a round bracket
            excludes the end; of a pair both numbers lie in it), choices such as
            ``"cubic | quintic | exact"``, ``"names"`` for a list of names or globs, or ``"paths"``
            for a list of paths, which may be empty.
    """
    return field(default=default, metadata={"range": range})


def check_range(key: str, value: Any, default: Any, range: str, whole: bool | None = None) -> Any:
    """Return `value` as the parameter's type if it lies in `range`.

    Args:
        key: what the error message calls the parameter.
        value: the value a user gave.
        default: the parameter's default; decides the type.
        range: an interval, choices or names, as in `param`.
        whole: whether the number must be whole; None: if `default` is.

    Raises:
        ConfigError: for a wrong type or a value outside the range.
    """
    if value is None and default is None:
        return None
    wrong = ConfigError(f"{key} = {value!r}: allowed is {range or type(default).__name__}")
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise wrong
        return value
    if range in (NAMES, PATHS):
        texts = value if isinstance(value, list | tuple) else (None,)
        if not all(isinstance(v, str) and v for v in texts) or (range == NAMES and not texts):
            what = "names or globs" if range == NAMES else "paths"
            raise ConfigError(f"{key} = {value!r}: allowed is a list of {what}")
        return tuple(texts)
    if isinstance(default, tuple):
        return _pair(key, value, default, range)
    if range[:1] in ("[", "("):
        return _number(key, value, range, isinstance(default, int) if whole is None else whole)
    if range:
        check_choice(key, value, range.split(" | "))
    return value


def check_fields(config: Any, prefix: str = "") -> None:
    """Check the fields of a dataclass that `param` declares, and those of its parts.

    Args:
        config: a dataclass.
        prefix: what error messages put before a field's name.

    Raises:
        ConfigError: for a wrong type or a value outside its range.
    """
    for f in dataclasses.fields(config):
        value, allowed = getattr(config, f.name), f.metadata.get("range")
        if dataclasses.is_dataclass(value):
            check_fields(value, f"{prefix}{f.name}.")
        elif allowed is not None:
            whole = _is_whole(f.type) if f.default is None else None
            check_range(f"{prefix}{f.name}", value, f.default, allowed, whole)


def _is_whole(annotation: Any) -> bool:
    """Say whether what may be None too is annotated as a whole number."""
    return int in (annotation, *get_args(annotation))


_LARGEST = 1e38  # of a number without another limit: the range of float32


def _number(key: str, value: Any, range: str, whole: bool) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key} = {value!r}: allowed is {range}")
    try:
        float(value)
    except OverflowError:
        raise ConfigError(f"{key} = {shortened(value)}: allowed is {range}") from None
    low, high = (float(end) for end in range[1:-1].split(","))
    inside = (low < value or (low == value and range[0] == "[")) and (
        value < high or (high == value and range[-1] == "]")
    )
    if not inside or math.isnan(value):
        raise ConfigError(f"{key} = {shortened(value)}: allowed is {range}")
    if abs(value) > _LARGEST:
        raise ConfigError(f"{key} = {shortened(value)}: allowed is {range}, at most {_LARGEST:.0e}")
    if whole and value != int(value):
        raise ConfigError(f"{key} = {value!r}: allowed is a whole number in {range}")
    return int(value) if whole else float(value)


def _pair(key: str, value: Any, default: tuple[Any, Any], range: str) -> tuple[Any, Any]:
    """Return a checked ``[min, max]``."""
    allowed = f"allowed is [min, max], both in {range}"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(f"{key} = {value!r}: {allowed}")
    low, high = (check_range(key, v, d, range) for v, d in zip(value, default, strict=True))
    if low > high:
        raise ConfigError(f"{key} = {value!r}: {allowed}, with min at most max")
    return low, high


def _params_of(target: Callable[..., Any], ranges: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    if dataclasses.is_dataclass(target):
        return {
            f.name: {"default": f.default, "range": f.metadata.get("range", "")}
            for f in dataclasses.fields(target)
            if f.init and f.default is not MISSING
        }
    keyword_only = [
        p for p in inspect.signature(target).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    return {p.name: {"default": p.default, "range": ranges.get(p.name, "")} for p in keyword_only}


def register(
    family: str,
    name: str,
    *,
    source: str,
    ranges: Mapping[str, str] | None = None,
    listed: str | None = None,
) -> Callable[[Any], Any]:
    """Add the decorated dataclass or function to the registry.

    Args:
        family: methods, or one of `FAMILIES`.
        name: the name configs use.
        source: paper, equation or table the definition comes from.
        ranges: for functions, the range of each keyword-only parameter.
        listed: of a method, the filter of `rlplast list` that shows it.

    Raises:
        ConfigError: if the family is unknown or the name is taken.
    """
    check_choice("family", family, _TABLE)

    def add(target: Any) -> Any:
        taken = _TABLE[family].get(name)
        here = (target.__module__, target.__qualname__)
        # The same definition may be imported twice, by a reload or a test collector.
        if taken and (taken.target.__module__, taken.target.__qualname__) != here:
            raise ConfigError(
                f"{family} already has a {name!r}, from {taken.origin}: choose another name"
            )
        summary = (inspect.getdoc(target) or name).splitlines()[0]
        params = _params_of(target, ranges or {})
        origin = plugins.origin(target.__module__)
        _TABLE[family][name] = Info(name, listed or family, summary, params, source, target, origin)
        return target

    return add


def get(family: str, name: str) -> Info:
    """Return the registry row of `name`.

    Raises:
        ConfigError: naming the nearest entry if there is no such one.
    """
    one = "penalty" if family == "penalties" else family.removesuffix("s")
    return look_up(name, _family(family), f"{one} {shortened(name)} is unknown")


def look_up(name: Any, table: Mapping[str, T], wrong: str) -> T:
    """Return the entry of `name`, which a config gives and may be anything.

    Raises:
        ConfigError: if there is none; it begins with `wrong` and names the nearest one.
    """
    if not isinstance(name, str) or name not in table:
        near = did_you_mean(str(name), table)
        own = "" if near.startswith("did") else "; your own: `rlplast --import MODULE ...`"
        raise ConfigError(f"{wrong}: {near}{own}")
    return table[name]


def rows(family: str | None = None) -> list[Info]:
    """Return the registry's rows, of one family or of all, sorted by name.

    Raises:
        ConfigError: if the family is unknown.
    """
    if family is not None:
        check_choice("family", family, _TABLE)
    families = FAMILIES if family is None else (family,)
    return [_family(f)[name] for f in families for name in sorted(_family(f))]


def checked(family: str, name: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a config's `params` of an entry, every one of them checked.

    Raises:
        ConfigError: for an unknown name, an unknown parameter or a value out of range.
    """
    info = get(family, name)
    found = {}
    for key, value in (params or {}).items():
        if key not in info.params:
            raise ConfigError(f"{name} has no parameter {key!r}: {did_you_mean(key, info.params)}")
        spec = info.params[key]
        annotation = inspect.get_annotations(info.target).get(key)
        whole = _is_whole(annotation) if spec["default"] is None else None
        found[key] = check_range(f"{name}.{key}", value, spec["default"], spec["range"], whole)
    return found


def build(family: str, name: str, params: Mapping[str, Any] | None = None) -> Any:
    """Construct an entry from a config's `params`.

    Raises:
        ConfigError: for an unknown name, an unknown parameter or a value out of range.
    """
    return get(family, name).target(**checked(family, name, params))
