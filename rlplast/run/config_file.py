"""From YAML and the command line's overrides to a checked config."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, did_you_mean, shortened
from rlplast.core.registry import LISTS
from rlplast.core.validation import hints_of, validated
from rlplast.run.shipped import config_folder, find_config
from rlplast.training.config import RunConfig, dump_yaml, read_yaml
from rlplast.training.kinds import get_kind, kinds

__all__ = ["dump_config", "merged", "read_config"]

_LONGEST = 4096  # characters of a text: of a path, on Linux
_LARGEST = 1e38  # the range of float32


def read_config(source: str | Path | Mapping[str, Any], *overrides: Mapping[str, Any]) -> RunConfig:
    """Return a checked config.

    Text under ``hooks``, ``penalties`` or ``layers`` is the path of a YAML file that holds the
    list, or the name of a shipped one such as ``supervised/hooks/fire``.

    Args:
        source: a path, a shipped name such as ``dqn/asterix``, or a mapping.
        overrides: values by dotted key, applied last; a later mapping's over an earlier one's.

    Raises:
        ConfigError: naming the key, its value, and what is allowed.
    """
    data = merged(source, *overrides)
    kind = data.get("kind", "dqn")
    cls = get_kind(kind).config_class()
    _refuse_keys_of_other_places(data, cls, kind)
    config = validated(cls, _over(data, cls()))
    config.check()
    config.intervals()
    config.smoke = {}  # whatever it says, the run is the same
    return config


def merged(source: str | Path | Mapping[str, Any], *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's mapping with its overrides, before it is checked; as `read_config`."""
    data = dict(source) if isinstance(source, Mapping) else read_yaml(find_config(str(source)))
    if not isinstance(data, dict):
        raise ConfigError(f"config {source} holds {_holds(data)}: allowed is a mapping of keys")
    if {"base", "arms"} <= set(data):
        raise ConfigError(f"config {source} is a study's, not a run's: `rlplast study` takes it")
    data = _plain(data, "config" if isinstance(source, Mapping) else f"config {source}")
    for dotted, value in (row for layer in overrides for row in layer.items()):
        first, _, inside = dotted.partition(".")
        if inside and first in LISTS and isinstance(data.get(first), str):
            data[first] = _list_in_file(first, data[first])
        _set(data, dotted, _plain(value, f"--{dotted}"))
    for key in LISTS:  # each of which may lie in a file of its own
        if isinstance(data.get(key), str):
            data[key] = _list_in_file(key, data[key])
    return data


def _over(data: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """Return a section's mapping with what it does not say as it is by default."""
    merged = dict(data)
    for field in dataclasses.fields(default):
        own = getattr(default, field.name)
        given = data.get(field.name, {})
        if dataclasses.is_dataclass(own) and isinstance(given, Mapping):
            merged[field.name] = _over(given, own)
        elif field.name not in data:
            merged[field.name] = own
    return merged


def dump_config(config: RunConfig) -> str:
    """Return a config as YAML that `read_config` reads back to an equal one."""
    data = dataclasses.asdict(config)
    del data["smoke"]
    return dump_yaml(data)


def _holds(data: Any) -> str:
    return "nothing" if data is None else f"a {type(data).__name__}"


def _plain(data: Any, where: str) -> Any:
    """Return a copy of `data` that holds nothing but what JSON can, and no number beyond floats."""
    try:
        plain = json.loads(json.dumps(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where}: {error}; allowed are text, numbers, true, false, null, lists and mappings"
        ) from error
    _refuse_endless(plain, where)
    return plain


def _refuse_endless(data: Any, where: str, *path: str) -> None:
    """Refuse whole numbers of which no float can be made, as text too, and endless text."""
    key = f"{where}: {'.'.join(path)}" if path else where
    if isinstance(data, str) and len(data) > _LONGEST:
        raise ConfigError(f"{key} = {shortened(data)}: allowed is text of {_LONGEST} characters")
    endless = isinstance(data, str) and len(data) > 300 and data.strip("+-_ ").isdigit()
    if endless or (isinstance(data, int | float) and _LARGEST < abs(data) < math.inf):
        raise ConfigError(f"{key} = {shortened(data)}: allowed are numbers up to {_LARGEST:.0e}")
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            _refuse_endless(value, where, *path, str(key))


def _set(data: Any, dotted: str, value: Any) -> None:
    """Set ``a.b.c`` in nested mappings and lists; intermediate mappings are created."""
    *parents, last = dotted.split(".")
    for key in parents:
        if isinstance(data, dict) and not isinstance(data.get(key), dict | list):
            data[key] = {}
        data = data[_place(data, key, dotted)]
    data[_place(data, last, dotted)] = value


def _place(data: Any, key: str, dotted: str) -> str | int:
    """Return a mapping's key as it is, and a list's as a position."""
    if isinstance(data, dict):
        return key
    if not isinstance(data, list):
        raise ConfigError(f"--{dotted}: there is no {key!r} to set")
    if key in map(str, range(len(data))):
        return int(key)
    allowed = f"a position from 0 to {len(data) - 1}" if data else "nothing: the list is empty"
    raise ConfigError(
        f"--{dotted}: {shortened(key)} is no position in the list: allowed is {allowed}"
    )


def _list_in_file(key: str, name: str) -> Any:
    """Return what the YAML file of a list of hooks or layers holds."""
    shipped = config_folder() / f"{name.removesuffix('.yaml')}.yaml"
    path = Path(name) if os.path.isfile(name) else shipped
    if not os.path.isfile(path):
        files = config_folder().glob("*/hooks/*.yaml")
        lists = [f"{file.parent.parent.name}/hooks/{file.stem}" for file in files]
        raise ConfigError(
            f"{key} = {shortened(name)}: there is no such file; allowed is a list of mappings, a "
            f"file that holds one, or a shipped one ({did_you_mean(name, lists)})"
        )
    found = _plain(read_yaml(path), f"{key} = {name!r}")
    if not isinstance(found, list):
        raise ConfigError(f"{key} = {name!r} holds {_holds(found)}: allowed is a list of mappings")
    return found


Tree = dict[str, "Tree"]  # keys of a config's class; those of sections have keys in turn


def _refuse_keys_of_other_places(data: Any, cls: type, kind: str) -> None:
    """Refuse a key that belongs to another section, or to a config of another kind, naming it."""
    tree = _tree(cls)
    for *outer, key in _unknown_keys(data, tree):
        where = ".".join(("config", *outer))
        homes = [name for name, inner in tree.items() if key in inner]
        near = did_you_mean(key, _inside(tree, outer)).startswith("did")
        if len(homes) == 1 and not near:
            raise ConfigError(f"{where} has an unknown key {key!r}: did you mean {homes[0]}.{key}?")
        of_kinds = {name: _tree(found.config_class()) for name, found in kinds().items()}
        others = [name for name, own in of_kinds.items() if key in _inside(own, outer)]
        if others:
            raise ConfigError(
                f"{where} has an unknown key {key!r}: this key is for kind: "
                f"{' or '.join(others)}, and the config is of kind: {kind}"
            )


def _tree(cls: Any) -> Tree:
    sections = {key: hint for key, hint in hints_of(cls).items() if dataclasses.is_dataclass(hint)}
    keys = [field.name for field in dataclasses.fields(cls)]
    return {key: _tree(sections[key]) if key in sections else {} for key in keys}


def _unknown_keys(data: Any, tree: Tree) -> Iterator[tuple[str, ...]]:
    """Yield the paths of keys that a tree does not have."""
    for key, value in data.items() if isinstance(data, Mapping) else ():
        if key not in tree:
            yield (key,)
        elif tree[key]:
            yield from ((key, *path) for path in _unknown_keys(value, tree[key]))


def _inside(tree: Tree, path: Sequence[str]) -> Tree:
    """Return the part of a tree at a path; empty if it is not there."""
    return functools.reduce(lambda part, key: part.get(key, {}), path, tree)
