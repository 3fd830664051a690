"""Rows of a hook list: from a config's mapping to a hook that is ready to fire."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.condition import Measured
from rlplast.core.method.context import Source, is_trainer
from rlplast.core.method.firing import check_policy
from rlplast.core.method.hook import Hook
from rlplast.core.method.listing import parse_row
from rlplast.core.method.method import Method
from rlplast.core.method.schedule import KEYS, Schedule, hook_identity, unique
from rlplast.core.method.scope import narrowed, scope
from rlplast.core.network.network import Network

__all__ = ["HookList", "hook_of"]


@dataclass(frozen=True)
class HookList:
    """What all rows of a list share; see `rlplast.core.method.hooks.Hooks`."""

    networks: Mapping[str, Network]
    total: Time
    horizon: Clock
    units: Iterable[str] | None
    measured: Measured | None
    source: Source | None


def hook_of(label: str, config: Mapping[str, Any], about: HookList, seen: Iterable[str]) -> Hook:
    """Return the hook of one row; an identity that is among `seen` keys gets a number."""
    row = parse_row(label, config, "hooks", about.networks)
    timing = {key: config.get(key) for key in KEYS}
    schedule = Schedule.parse(timing, about.total, row.label, about.horizon)
    schedule.check_units(schedule.units() if about.units is None else about.units, row.label)
    if row.method.fires_once and len(schedule.at) != 1:
        raise ConfigError(
            f"{row.label} fires once in a run: allowed is one moment, such as at: 50%"
        )
    if schedule.when is not None and about.measured is not None:
        schedule.when.check(about.measured, about.networks, f"{row.label}.when")
    optimizer, followers = _policies(row.label, config, row.method, schedule.every_update)
    chosen = {name: about.networks[name] for name in row.networks}
    named = scope(_value_or(config, "scope", "all"), f"{row.label}.scope")
    return Hook(
        method=row.method,
        schedule=schedule,
        networks=tuple(chosen.values()),
        scope=narrowed(named, row.layers, chosen, row.label, live=is_trainer(about.source)),
        optimizer=optimizer,
        followers=followers,
        key=unique(hook_identity(config, schedule), seen),
        label=row.label,
        skips=not row.named,
        source=about.source,
    )


def _policies(
    label: str, config: Mapping[str, Any], method: Method, every: bool
) -> tuple[str, str]:
    optimizer, followers = ("keep", "leave") if every else method.policies
    optimizer = _value_or(config, "optimizer", optimizer)
    followers = _value_or(config, "followers", followers)
    check_policy(optimizer, followers, label)
    if every and (optimizer, followers) != ("keep", "leave"):
        raise ConfigError(
            f"{label} fires at every update: allowed are optimizer 'keep' and followers 'leave', "
            f"not {optimizer!r} and {followers!r}"
        )
    return optimizer, followers


def _value_or(config: Mapping[str, Any], key: str, default: str) -> Any:
    return default if config.get(key) is None else config[key]
