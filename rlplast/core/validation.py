"""Values that people write, checked by pydantic against the types and ranges of dataclasses."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, did_you_mean, shortened

__all__ = [
    "Betas",
    "Count",
    "Fraction",
    "Names",
    "Pair",
    "Paths",
    "Section",
    "Share",
    "Updates",
    "check_section",
    "check_value",
    "hints_of",
    "limits",
    "validated",
]

T = TypeVar("T")
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Section:
    """Base of dataclasses that mappings of a config become."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


def _ascending(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    if pair[0] > pair[1]:
        raise ValueError("allowed is [min, max], with min at most max")
    return pair


Pair = Annotated[tuple[T, T], AfterValidator(_ascending)]
Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]  # of what is never the whole, such as a decay
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Updates = Annotated[int, Field(ge=1, le=1_000_000_000)]
Betas = tuple[Fraction, Fraction]
Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
Paths = tuple[Annotated[str, Field(min_length=1)], ...]

_WORDS: dict[Any, str] = {
    Names: "a list of names or globs",
    Paths: "a list of paths",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    dict: "a mapping",
    Any: "anything",
}
_OUTSIDE = ("finite_number", "greater_than", "greater_than_equal", "less_than", "less_than_equal")
_LARGEST = 1e38  # of a number without another limit: the range of float32


def validated(cls: type[T], data: Any, where: str = "") -> T:
    """Return a config's mapping `where` as a dataclass, or refuse a key or value by name."""
    return _parsed(cls, data, where, None)


def check_section(section: Any, where: str) -> None:
    """Check the values of a dataclass that code has made; raises as `validated` does."""
    validated(type(section), dataclasses.asdict(section), where)


def check_value(key: str, value: Any, hint: Any, default: Any = None) -> Any:
    """Return a value as its type has it (lists become tuples, whole numbers floats), or refuse it.

    A `default` is an example for messages.
    """
    parsed = _parsed(hint, value, key, default)
    if isinstance(parsed, float) and abs(parsed) > _LARGEST:
        raise ConfigError(
            f"{key} = {shortened(value)}: allowed is {limits(hint)}, at most {_LARGEST:.0e}"
        )
    return parsed


def _parsed(hint: Any, data: Any, where: str, default: Any) -> Any:
    try:
        return _adapter(hint).validate_json(json.dumps(data))
    except (TypeError, RecursionError) as error:
        raise ConfigError(
            f"{where or 'config'} = {shortened(data)}: {error}; allowed are text, numbers, true, "
            "false, null, lists and mappings"
        ) from error
    except ValidationError as error:
        problems = error.errors(include_url=False)
        for problem in problems:
            value = problem["input"]
            floating = problem["type"] == "int_type" and isinstance(value, float)
            if floating and value.is_integer() and abs(value) < 1e19:  # 1e6 is a float in YAML
                return _parsed(hint, _with_whole(data, problem["loc"]), where, default)
        unknown = [e for e in problems if e["type"] == "unexpected_keyword_argument"]
        place = _Place(where, hint, data, default)
        raise ConfigError(_message((unknown or problems)[0], place)) from error


def _with_whole(data: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(data, float):
        return int(data)
    part, rest = path[0], path[1:]
    if isinstance(data, dict) and part in data:
        return data | {part: _with_whole(data[part], rest)}
    if isinstance(data, list | tuple) and isinstance(part, int):
        return [_with_whole(v, rest) if i == part else v for i, v in enumerate(data)]
    return _with_whole(data, rest)  # the part names the member of a union


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint) if _is_section(hint) else TypeAdapter(hint, config=_STRICT)


@dataclasses.dataclass(frozen=True)
class _Place:
    """A value inside of data, with its default as an example."""

    key: str
    hint: Any
    value: Any
    default: Any


def _message(error: Any, place: _Place) -> str:
    """Turn pydantic's account of an error into ours: key, value and what is allowed."""
    path, root = list(error["loc"]), place.key or "config"
    while path and (inner := _inside(place, path[0])) is not None:
        place, path = inner, path[1:]
    section = _bare(place.hint)
    if error["type"] == "unexpected_keyword_argument":
        known = [field.name for field in dataclasses.fields(section)]
        near = did_you_mean(str(path[0]), known)
        where = place.key if place.key.startswith(root) else ".".join([root, place.key])
        return f"{where.rstrip('.')} has an unknown key {shortened(path[0])}: {near}"
    if error["type"] == "missing" and _is_section(section):
        return f"{place.key or 'config'} has no {path[0]}, which it needs"
    shown = "null" if place.value is None else shortened(place.value, 120)
    return f"{place.key or 'config'} = {shown}{_remedy(error, place)}"


def _inside(place: _Place, part: Any) -> _Place | None:
    """Return the place of a part; None for what pydantic calls the members of a union."""
    hint, value = _bare(place.hint), place.value
    if _members(place.hint)[0] in (Names, Paths):
        return None
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping) and part in value:
        defaults = {field.name: field.default for field in dataclasses.fields(hint)}
        if part in defaults:
            key = f"{place.key}.{part}" if place.key else str(part)
            return _Place(key, hints_of(hint)[part], value[part], defaults[part])
    if typing.get_origin(hint) is dict and isinstance(value, Mapping) and part in value:
        return _Place(f"{place.key}.{part}", typing.get_args(hint)[1], value[part], None)
    if isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
        items = [item for item in typing.get_args(hint) if item is not ...] or [Any]
        item = items[min(part, len(items) - 1)]
        return _Place(f"{place.key}[{part}]", item, value[part], None)
    return None


def _remedy(error: Any, place: _Place) -> str:
    kind, value = error["type"], place.value
    if kind == "value_error":
        return f": {error['ctx']['error']}"
    if kind == "literal_error":
        choices = [str(choice) for choice in typing.get_args(_bare(place.hint))]
        if isinstance(value, str):
            return f": {did_you_mean(value, choices)}"
        return f": allowed is one of {', '.join(choices)}"
    if kind in _OUTSIDE:
        within = limits(place.hint) or ("a finite number" if kind == _OUTSIDE[0] else "")
        return f": allowed is {within or _words(place.hint)}"
    unit = _unit_of(place)
    if unit is not None:
        return f" has no unit: say {str(Time(value, unit))!r}"
    default = place.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    example = f", such as {default!r}" if plain and default else ""
    return f": allowed is {_words(place.hint)}{example}"


def _unit_of(place: _Place) -> str | None:
    """Return the unit that a bare number lacks, if its key is a time."""
    number = isinstance(place.value, int | float) and not isinstance(place.value, bool)
    example = _examples(place.hint) or [place.default]
    if number and isinstance(example[0], str):
        with suppress(ConfigError):
            return Time.parse(example[0]).unit
    return None


@cache
def hints_of(target: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields or a function's parameters, with their ranges."""
    return typing.get_type_hints(target, include_extras=True)


def limits(hint: Any) -> str:
    """Return what a type allows: an interval, choices, or nothing.

    Examples:
        >>> limits(Annotated[int, Field(ge=1, le=9)] | None), limits(Literal["fp32", "bf16"])
        ('[1, 9]', 'fp32 | bf16')
    """
    bare, low, high = _bare(hint), "(-inf", "inf)"
    if _members(hint)[0] in (Names, Paths):
        return "names" if _members(hint)[0] == Names else "paths"
    if typing.get_origin(bare) is Literal:
        return " | ".join(map(str, typing.get_args(bare)))
    rules = list(_rules(hint))
    for rule in rules:
        low = f"[{_short(rule.ge)}" if hasattr(rule, "ge") else low
        if hasattr(rule, "gt"):
            low = f"[{rule.gt + 1}" if bare is int else f"({_short(rule.gt)}"
        high = f"{_short(rule.le)}]" if hasattr(rule, "le") else high
        high = f"{_short(rule.lt)})" if hasattr(rule, "lt") else high
    if (low, high) != ("(-inf", "inf)"):
        return f"{low}, {high}"
    return limits(typing.get_args(bare)[0]) if typing.get_origin(bare) is tuple else ""


def _short(number: Any) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _rules(hint: Any) -> Iterator[Any]:
    """Yield what bounds a type."""
    for member in _members(hint):
        for extra in typing.get_args(member)[1:] if typing.get_origin(member) is Annotated else ():
            yield from extra.metadata if isinstance(extra, FieldInfo) else [extra]


def _members(hint: Any) -> list[Any]:
    """Return the members of a union but None."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return [hint]
    return [arg for arg in typing.get_args(hint) if arg is not type(None)]


def _bare(hint: Any) -> Any:
    """Return a type without its ranges and None; a union of several stays."""
    [first, *others] = _members(hint)
    if others:
        return hint
    return typing.get_args(first)[0] if typing.get_origin(first) is Annotated else first


def _examples(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is not Annotated:
        return []
    fields = [extra for extra in typing.get_args(hint)[1:] if isinstance(extra, FieldInfo)]
    return next((field.examples for field in fields if field.examples), [])


def _words(hint: Any, many: bool = False) -> str:
    if hint in (Names, Paths):
        return _WORDS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        words = [_words(arg) for arg in args]
        return f"{', '.join(words[:-1])} or {words[-1]}".replace(" or false or ", ", false or ")
    if origin is Annotated:
        if AfterValidator in map(type, args):
            return f"[min, max], both in {limits(hint)}"
        within = limits(hint) if args[0] in (int, float) else ""
        return _words(args[0], many) + (f" in {within}" if within else "")
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin is tuple and args[-1] is not ...:
        return f"two {_words(args[0], many=True)}"
    if origin in (list, tuple):
        return f"a list of {_words(args[0], many=True)}"
    if _is_section(hint):
        keys = [field.name for field in dataclasses.fields(hint)]
        return f"a mapping (keys: {', '.join(keys[:3])}, …)"
    name = _WORDS.get(origin or hint, str(hint))
    return name.removeprefix("a ") + ("s" if name.startswith("a ") else "") if many else name


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)
