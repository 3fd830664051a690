"""A JSON Schema of the configs of runs and studies, by which editors complete and check YAML."""

import dataclasses
import inspect
import json
import re
from typing import Any

from pydantic import TypeAdapter

from rlplast.core.clock import UNITS
from rlplast.core.method.listing import ROW_KEYS
from rlplast.core.method.schedule import RULES
from rlplast.core.registry import LISTS, Info, rows
from rlplast.core.validation import hints_of
from rlplast.study.spec import StudyConfig
from rlplast.study.spec_checks import Arm
from rlplast.training.kinds import get_kind, kinds

__all__ = ["config_schema", "meanings", "schema_text"]

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
Schema = dict[str, Any]


def meanings(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say about each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        attributes = (inspect.getdoc(base) or "").partition("Attributes:")[2]
        found |= {m[1]: " ".join(m[2].split()) for m in _ATTRIBUTE.finditer(attributes)}
    return found


def config_schema() -> Schema:
    """Return the schema of runs' and studies' configs, with all methods that are registered."""
    definitions: dict[str, Schema] = {key: _row(key, family) for key, family in LISTS.items()}
    _schedule(definitions["hooks"])
    of_kinds: list[Schema] = [{"properties": {"kind": {"enum": list(kinds())}}}]
    for name in kinds():
        cls = get_kind(name).config_class()
        _define(cls, definitions)
        given: Schema = {"properties": {"kind": {"const": name}}}
        if name != "dqn":  # which a config is that names no kind
            given["required"] = ["kind"]
        of_kinds.append({"if": given, "then": {"$ref": f"#/$defs/{cls.__name__}"}})
    named = [{"const": info.name, "description": info.summary} for info in rows("optimizers")]
    definitions["OptimizerConfig"]["properties"]["name"]["oneOf"] = named
    definitions["OptimizerConfig"]["allOf"] = _cases(rows("optimizers"), "name")
    study = _define(StudyConfig, definitions)
    keys = study["properties"]
    _define(Arm, definitions)
    for key in keys.keys() - {"base", "arms"}:
        keys[key] = _or_null(keys[key])
    keys["baseline"]["anyOf"].append({"type": "number"})  # as the names of arms may be
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A config of rlplast",
        "type": "object",
        "if": {"required": ["arms"]},
        "then": {"$ref": f"#/$defs/{StudyConfig.__name__}"},
        "else": {"allOf": of_kinds},
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the schema as a file holds it."""
    return json.dumps(config_schema(), indent=1) + "\n"


def _or_null(own: Schema) -> Schema:
    """Return a schema that null keeps to as well."""
    about = {"description": own.pop("description")} if "description" in own else {}
    return about | {"anyOf": [own, {"type": "null"}]}


def _define(cls: type, definitions: dict[str, Schema]) -> Schema:
    """Add the definition of a dataclass and of its sections; return it."""
    made = TypeAdapter(cls).json_schema(ref_template="#/$defs/{model}")
    definitions |= {name: own for name, own in made.pop("$defs", {}).items()}
    definitions[cls.__name__] = made
    for section in (cls, *_sections(cls)):
        about, properties = meanings(section), definitions[section.__name__]["properties"]
        for key, own in properties.items():
            own.pop("title", None)
            if key in about:
                own["description"] = about[key]
        for key in LISTS.keys() & properties.keys() if section is cls else ():
            listed = {"type": "array", "items": {"$ref": f"#/$defs/{key}"}}
            file = {"type": "string", "description": "a YAML file that holds the list"}
            others = [{"type": "null"}] if section is Arm else []
            properties[key] = {"description": about.get(key, ""), "anyOf": [listed, file, *others]}
    return made


def _sections(cls: type) -> list[type]:
    """Return the dataclasses inside of a dataclass, at any depth."""
    found: list[type] = []
    for hint in hints_of(cls).values():
        for part in (hint, *getattr(hint, "__args__", ())):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                found += [part, *_sections(part)]
    return found


def _row(key: str, family: str) -> Schema:
    """Return the definition of an entry of a list: its keys, its methods and their parameters."""
    methods = [{"const": info.name, "description": info.summary} for info in rows(family)]
    return {
        "type": "object",
        "properties": {n: {} for n in ROW_KEYS[key]} | {"method": {"oneOf": methods}},
        "required": ["method"],
        "additionalProperties": False,
        "allOf": _cases(rows(family), "method"),
    }


def _cases(infos: list[Info], key: str) -> list[Schema]:
    """Return the parameters of each of some registered things that a key names."""
    cases = []
    for info in infos:
        hints = hints_of(info.target)
        given = {n: TypeAdapter(hints.get(n, Any)).json_schema() for n in info.params}
        params = {"type": "object", "properties": given, "additionalProperties": False}
        params = {"anyOf": [params, {"type": "null"}]}
        named = {"properties": {key: {"const": info.name}}, "required": [key]}
        cases.append({"if": named, "then": {"properties": {"params": params}}})
    return cases


def _schedule(hook: Schema) -> None:
    """Add to a hook what its schedule may say: times with units, and exactly one rule."""
    units = "|".join(f"{unit.removesuffix('s')}s?" for unit in UNITS)
    time = {"type": "string", "pattern": rf"(%|{units})\s*$|^\s*phase\s"}
    null = {"type": "null"}
    times = {key: {"anyOf": [time, null]} for key in ("every", "first", "from", "until")}
    many = {"type": "array", "items": time}
    hook["properties"] |= times | {"at": {"anyOf": [time, many, null]}}
    hook["oneOf"] = [{"required": [k], "properties": {k: {"not": null}}} for k in RULES]
