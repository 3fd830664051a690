"""What the JSON files of runs and studies hold, by key; whoever edits one may break it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.validation import Section, check_value

__all__ = ["CONFIG", "RECEIPTS", "RUN_INFO", "STUDY", "Cell", "check_keys", "check_line"]

Moment = Annotated[str, AfterValidator(lambda text: Time.parse(text) and text)]
Mapped = dict[str, Any]

RUN_INFO: Mapping[str, Any] = {  # dotted key → type; a mapping comes before what is in it
    "id": str,
    "status": Literal["running", "done", "failed", "interrupted"],
    "diverged": bool,
    "command": list[str],
    "versions": dict[str, str],
    "git_revision": str | None,
    "host": str,
    "seed": int,
    "threads": int,
    "processes": int,
    "devices": list[Mapped],
    "started": str,
    "resumed": str,
    "ended": str,
    "imports": list[str],
    "length": Mapped | None,
    "length.total": Moment,
    "length.percentages_of": Moment,
    "length.known": dict[str, int],
    "length.expected": dict[str, float],
    "environment": Mapped,
    "environment.id": str,
    "environment.resume": Literal["exact", "replayed", "restarted"],
    "environment.reason": str,
    "new_episodes": list[Mapped],
    "study": Mapped,
    "study.study": str | None,
    "study.task": str | None,
    "study.seed": int,
    "study.arm": str,
    "branched_from": Mapped,
    "branched_from.run": str,
    "branched_from.checkpoint": str,
    "branched_from.clock": dict[str, int],
    "branched_from.seconds": float,
    "branched_from.ids": list[str],
    "altered": Mapped,
}

CONFIG: Mapping[str, Any] = {  # what is read of a config.yaml that is not checked as a whole
    "kind": str,
    "seed": int,
    "threads": int,
    **dict.fromkeys(("env", "agent", "evaluate", "stream", "data", "log"), Mapped | None),
    **dict.fromkeys(("hooks", "penalties", "layers"), list[Mapped] | None),
    "env.id": str,
    "env.options": Mapped | None,
    "stream.name": str,
    "data.name": str | None,
    "evaluate.final": float,
}

STUDY: Mapping[str, Any] = {
    "versions": dict[str, str],
    "name": str | None,
    "command": list[str],
    "arms": list[str],
    "tasks": list[str | None],
    "seeds": list[int],
    "baseline": str | None,
    "smoke": bool,
    "retries": int,
    "processes": int,
    "threads": int,
    "imports": list[str],
    "folder": str,
    "recovered": float | None,
    "published": list[Mapped],
    "cells": list[Mapped],
}


@dataclass(frozen=True)
class Cell(Section):
    """A cell as study.json has it."""

    key: str
    kind: Literal["arm", "prefix"]
    task: str | None
    seed: int
    arm: str | None
    folder: str
    parent: str | None
    starts: tuple[Moment, ...]
    stops: tuple[Moment, ...]
    name: str = ""
    continuation: int = 1
    weight: float = 0.0


Kinds = Mapping[str, tuple[type, ...]]  # key → what it may be, if it is no number

RECEIPTS: Kinds = {
    "hook": (str,),
    "method": (str,),
    "network": (str,),
    "clock": (dict,),
    "optimizer_policy": (str,),
    "followers": (dict, type(None)),
    "units": (dict, type(None)),
    "layers": (list, type(None)),
}
_NUMBERS = {int, float, type(None)}
_NEEDED = {"method", "clock"}
_INSIDE = {"clock": int, "units": int, "followers": str}  # what mappings of a line hold


_INNER = {"environment.resume", "environment.reason", "length.total"}  # there if the mapping is


def check_keys(data: Mapping[str, Any], shape: Mapping[str, Any], where: object) -> None:
    """Check the values of a JSON object by their keys; DamagedFile names `where` and the key."""
    for key, hint in shape.items():
        *outer, last = key.split(".")
        inside: Any = data
        for part in outer:
            inside = inside.get(part) or {}
        if key in _INNER and inside and last not in inside:
            raise DamagedFile(f"{where} has no {key}")
        if last in inside:
            try:
                check_value(key, inside[last], hint)
            except ConfigError as error:
                raise DamagedFile(f"{where}: {error}") from error


def check_line(line: Mapping[str, Any], kinds: Kinds, where: str) -> None:
    """Check a line of a .jsonl file: keys that are not in `kinds` have numbers or null."""
    if not kinds and {*map(type, line.values())} <= _NUMBERS:  # most lines, so they are quick
        return
    absent = next((key for key in kinds if key in _NEEDED and key not in line), None)
    if absent is not None:
        raise DamagedFile(f"{where} has no {absent}")
    for key, value in line.items():
        if key in kinds:
            right = isinstance(value, kinds[key])
        else:
            right = type(value) in _NUMBERS
        if not right:
            names = [own.__name__ for own in kinds.get(key, (float,))]
            words = {"str": "text", "dict": "a mapping", "list": "a list", "NoneType": "null"}
            allowed = " or ".join(words.get(name, "a number or null") for name in names)
            raise DamagedFile(f"{where}: {key} = {value!r}: allowed is {allowed}")
    for key, kind in _INSIDE.items():
        for part, value in (line.get(key) or {}).items() if key in kinds else ():
            if type(value) is not kind:
                words = "text" if kind is str else "a whole number"
                raise DamagedFile(f"{where}: {key}.{part} = {value!r}: allowed is {words}")
