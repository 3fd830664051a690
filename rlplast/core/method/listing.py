"""Rows of a config: one parser for the keys hooks, layers and penalties."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rlplast.core.errors import ConfigError, check_known, did_you_mean, shortened
from rlplast.core.method.method import Method, implements
from rlplast.core.method.schedule import KEYS
from rlplast.core.registry import LISTS, build, get, rows
from rlplast.core.validation import Names, check_value

__all__ = ["ROW_KEYS", "Row", "listed_method", "method_of", "parse_row", "row_implements"]

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


@dataclass(frozen=True)
class Row:
    """One entry of a config's list.

    Attributes:
        label: what messages call it, such as ``hooks[0] (fire)``.
        networks: those it names, else all of the run.
        named: whether it names networks: then each of them must have something to edit.
        layers: the names and globs of layers that it gives; None if it gives none.
    """

    label: str
    method: Method
    networks: tuple[str, ...]
    named: bool
    layers: tuple[str, ...] | None


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


def parse_row(label: str, config: Any, key: str, networks: Mapping[str, Any]) -> Row:
    """Return an entry of a config's list `key`, checked."""
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
            near = did_you_mean(str(network), networks) + _follower(str(network), networks)
            raise ConfigError(f"{label}.networks: {shortened(network)}: {near}")
    layers = check_value(f"{label}.layers", config.get("layers"), Names | None)
    return Row(label, method, tuple(chosen), "networks" in config, layers)


def _follower(name: str, networks: Mapping[str, Any]) -> str:
    """Say which network `name` follows, if it follows one."""
    for owner, network in networks.items():
        if name in list(getattr(network, "followers", ())):
            return f"; {name!r} follows {owner!r} as the key `followers` says"
    return ""
