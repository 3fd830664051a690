"""What the JSON files of runs and studies hold, by key; whoever edits one may break it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, DamagedFile, shortened
from rlplast.core.validation import Section, check_value, validated

__all__ = ["CONFIG", "RUN_INFO", "Study", "check_keys", "check_line"]

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


@dataclass(frozen=True)
class Study(Section):
    """What study.json holds."""

    format: int
    versions: dict[str, str]
    cells: list[Cell]
    name: str | None = None
    command: list[str] = field(default_factory=list)
    arms: list[str] = field(default_factory=list)
    tasks: list[str | None] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    baseline: str | None = None
    smoke: bool = False
    retries: int = 1
    processes: int = 1
    threads: int = 1
    imports: list[str] = field(default_factory=list)
    folder: str = "."
    recovered: float | None = None
    published: list[Mapped] = field(default_factory=list)


@dataclass(frozen=True)
class Receipt(Section):
    """What is no number in a line of receipts.jsonl."""

    method: str
    clock: dict[str, int]
    hook: str = ""
    network: str = ""
    optimizer_policy: str = ""
    followers: dict[str, str] | None = None
    units: dict[str, int] | None = None
    layers: list[Any] | None = None


_NUMBERS = {int, float, type(None)}
_WORDS = frozenset(own.name for own in fields(Receipt))
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


def check_line(line: Mapping[str, Any], receipt: bool, where: str) -> None:
    """Check a line of metrics.jsonl, of numbers and null, or of receipts.jsonl, as `Receipt`."""
    if not receipt and {*map(type, line.values())} <= _NUMBERS:  # most lines, so they are quick
        return
    words = {key: value for key, value in line.items() if receipt and key in _WORDS}
    for key in line.keys() - words.keys():
        if type(line[key]) not in _NUMBERS:
            value = shortened(line[key])
            raise DamagedFile(f"{where}: {key} = {value}: allowed is a number or null")
    if receipt:
        try:
            validated(Receipt, words, where)
        except ConfigError as error:
            raise DamagedFile(str(error)) from error
