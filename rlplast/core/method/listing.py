"""Rows of a config's lists hooks, layers and penalties: one parser, and what a row says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError, check_known, did_you_mean, shortened
from rlplast.core.method.condition import Measured
from rlplast.core.method.firing import check_policy
from rlplast.core.method.method import Method, implements
from rlplast.core.method.schedule import KEYS, Schedule
from rlplast.core.method.scope import SCOPES, Scope, scope
from rlplast.core.registry import LISTS, build, get, rows
from rlplast.core.validation import Names, check_value

__all__ = ["ROW_KEYS", "Row", "Span", "listed_method", "method_of", "parse_row", "row_implements"]

# What an entry of each list may say.
ROW_KEYS = {
    "hooks": ("method", *KEYS, "networks", "scope", "layers", "optimizer", "followers", "params"),
    "layers": ("method", "networks", "params"),
    "penalties": ("method", "from", "until", "networks", "layers", "params"),
}
# What may be taken for a method, by family, and the setting to use instead.
_ELSEWHERE = {
    "optimizers": "optimizer: {{name: {0}}}",
    "replay": "agent: {{sampling: {{method: {0}}}}}",
    "regularisers": "{0}: ...",
}
_ADVICE = {
    "hooks": "list it under `hooks:`, with a schedule such as `at: 50%`",
    "layers": "list it under `layers:`, where it needs no schedule",
    "penalties": "list it under `penalties:`, where it needs no schedule",
}
EVERY_UPDATE = Schedule(every=Time(1, "updates"))


@dataclass(frozen=True)
class Row:
    """One entry of a config's list.

    Attributes:
        label: what messages call it, such as ``hooks[0] (fire)``.
        networks: those it names, else all of the run.
        named: whether it names networks: then each of them must have something to edit.
        layers: the names and globs of layers that it gives; None if it gives none.
        schedule: when its method plans.
        window: the updates whose losses have its term, where it says ``from`` or ``until``.
    """

    label: str
    method: Method
    networks: tuple[str, ...] = ()
    named: bool = True
    layers: tuple[str, ...] | None = None
    schedule: Schedule = EVERY_UPDATE
    window: Schedule | None = None
    scope: Scope = SCOPES["all"]
    optimizer: str = "keep"
    followers: str = "leave"


@dataclass(frozen=True)
class Span:
    """The run in which schedules lie; see `rlplast.core.method.hooks.Hooks`."""

    total: Time | None
    units: Iterable[str] | None = None
    horizon: Clock | None = None
    measured: Measured | None = None

    def schedule(self, label: str, keys: Mapping[str, Any]) -> Schedule:
        """Return the schedule of a row's keys, checked."""
        if self.total is None:
            raise ConfigError(
                f"{label}: from and until need the run's length: Penalties(..., total=)"
            )
        schedule = Schedule.parse(keys, self.total, label, self.horizon)
        schedule.check_units(schedule.units() if self.units is None else self.units, label)
        return schedule


def method_of(label: str, config: Any, key: str) -> str:
    """Return the name of the method that an entry lists; wrong entries and keys are refused."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"{label} = {shortened(config)}: allowed is a mapping with a method")
    if "method" in config:
        _check_elsewhere(label, config["method"])
        info = get("methods", config["method"], f"{label}.method")
        right = cast(type[Method], info.target).key
        if right != key:  # checked first: the other keys may be right in the other list
            raise ConfigError(f"{label}.method = {config['method']!r}: {_ADVICE[right]}")
    check_known(label, config, ROW_KEYS[key])
    if "method" not in config:
        raise ConfigError(f"{label} has no 'method': name one, see `rlplast list {LISTS[key]}`")
    return config["method"]


def _check_elsewhere(label: str, name: Any) -> None:
    for family, setting in _ELSEWHERE.items():
        if any(info.name == name for info in rows(family)):
            raise ConfigError(
                f"{label}.method = {name!r} is no method but one of `rlplast list {family}`: set "
                f"`{setting.format(name)}`"
            )


def listed_method(config: Any) -> type[Method] | None:
    """Return an entry's method; None for a wrong entry, which `parse_row` refuses."""
    name: Any = config.get("method") if isinstance(config, Mapping) else None
    known = any(name == info.name for info in rows("methods"))
    return cast(type[Method], get("methods", name).target) if known else None


def row_implements(config: Any, function: str) -> bool:
    """Whether an entry's method implements a function; False for a wrong entry."""
    kind = listed_method(config)
    return kind is not None and implements(kind, function)


def parse_row(
    label: str, config: Any, key: str, networks: Mapping[str, Any], span: Span | None = None
) -> Row:
    """Return an entry of a config's list `key`, checked; without a span not its times."""
    name = method_of(label, config, key)
    label = f"{label} ({name})"
    params = {} if config.get("params") is None else config["params"]
    if not isinstance(params, Mapping):
        raise ConfigError(f"{label}.params = {shortened(params)}: allowed is a mapping")
    method: Method = build("methods", name, params)
    chosen = config.get("networks", list(networks))
    listed = isinstance(chosen, list | tuple) and len(chosen) > 0
    if not listed or len(set(map(str, chosen))) < len(chosen):
        raise ConfigError(
            f"{label}.networks = {shortened(chosen)}: allowed is a list of {list(networks)}, "
            "each once"
        )
    for network in chosen:
        if network not in list(networks):
            near = did_you_mean(str(network), networks)
            raise ConfigError(f"{label}.networks: {shortened(network)}: {near}")
    layers = check_value(f"{label}.layers", config.get("layers"), Names | None)
    row = Row(label, method, tuple(chosen), "networks" in config, layers)
    given = {k: v for k, v in config.items() if v is not None}
    if key == "hooks" and span is not None:
        return _timed(row, given, networks, span)
    return replace(row, window=_window(label, given, span)) if key == "penalties" else row


def _timed(row: Row, given: Mapping[str, Any], networks: Iterable[str], span: Span) -> Row:
    """Return a row of ``hooks`` with what it says of its firings."""
    schedule = span.schedule(row.label, {k: v for k, v in given.items() if k in KEYS})
    if row.method.fires_once and len(schedule.at) != 1:
        raise ConfigError(
            f"{row.label} fires once in a run: allowed is one moment, such as at: 50%"
        )
    if schedule.when is not None and span.measured is not None:
        schedule.when.check(span.measured, networks, f"{row.label}.when")
    every = schedule.every_update
    optimizer, followers = ("keep", "leave") if every else row.method.policies
    optimizer, followers = given.get("optimizer", optimizer), given.get("followers", followers)
    check_policy(optimizer, followers, row.label)
    if every and (optimizer, followers) != ("keep", "leave"):
        raise ConfigError(
            f"{row.label} fires at every update: allowed are optimizer 'keep' and followers "
            f"'leave', not {optimizer!r} and {followers!r}"
        )
    named = scope(given.get("scope", "all"), f"{row.label}.scope")
    return replace(row, schedule=schedule, optimizer=optimizer, followers=followers, scope=named)


def _window(label: str, given: Mapping[str, Any], span: Span | None) -> Schedule | None:
    """Return the schedule of a penalty's ``from`` and ``until``; None if it says neither."""
    bounds = {key: given[key] for key in ("from", "until") if key in given}
    if not bounds or span is None:
        return None
    window = span.schedule(label, {"every": "1 updates"} | bounds)
    until = window.until
    if until is not None and until.value == 0 and until.unit not in ("epochs", "phase"):
        raise ConfigError(f"{label}.until = {until} is before the first update: allowed is more")
    return window
