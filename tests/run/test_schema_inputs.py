"""Wrong values for every key that the JSON Schema of configs knows.

Each ends in one ConfigError of one line that names the key, the value and what is allowed.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from docs.generate import SCHEMA as SHIPPED
from rlplast import Hooks
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, shortened
from rlplast.core.method.install import install_methods
from rlplast.core.method.penalties import Penalties
from rlplast.core.method.schedule import RULES
from rlplast.core.network.network import Network
from rlplast.core.registry import LISTS, rows
from rlplast.run.config_file import read_config
from rlplast.run.messages import visible
from rlplast.study.spec import StudyConfig
from rlplast.training.kinds import kinds
from tests.models import build

Schema = dict[str, Any]
SCHEMA = json.loads(SHIPPED.read_text())
# Rows are read when a run is built; what is in them is checked for itself.
DEFS = SCHEMA["$defs"] | {key: {"type": "object"} for key in LISTS}
# What the schema leaves open in rows.
OPEN: dict[str, Schema] = {
    **{key: {"type": ["string", "null"]} for key in ("scope", "optimizer", "followers", "on")},
    **{key: {"type": ["string", "null"]} for key in ("from", "until")},
    **{key: {"type": ["object", "null"]} for key in ("params", "when")},
    "networks": {"type": "array", "items": {"type": "string"}},
    "layers": {"type": ["array", "null"], "items": {"type": "string"}},
}
# What needs keys of its own.
OFF_POLICY = {
    "anneal": {"every": 9, "updates": 9, "n_step": 2},
    "values": {"kind": "c51"},
    "sampling": {"method": "sample_weight_decay"},
}
BASES: dict[str, dict[str, Any]] = {
    "dqn": {"agent": OFF_POLICY},
    "sac": {"agent": OFF_POLICY},
    "ppo": {},
    "supervised": {},
    "gpt": {
        "corpora": {"code": "embedded/stdlib"},
        "phases": [{"updates": 9, "mixture": {"code": 1}}],
    },
}
REMEDIES = ("allowed", "did you mean", "has no unit: say", "it needs", "one of", "leave")
VALUES: tuple[Any, ...] = (
    *(None, True, 0, 2.5, math.nan, math.inf, 10**30, -(10**400), "", "a\nb", "x" * 300),
    *("\x1b[31m", [], [None], {}, {"a\nb": 10**39}),
)


def resolved(schema: Any) -> Schema:
    if "$ref" in schema:
        return resolved(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "properties" in schema:
        return schema
    return next((found for own in schema.get("anyOf", ()) if (found := resolved(own))), {})


def keys_of(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Schema]]:
    """Every key of an object, and of the objects inside of it."""
    for key, own in resolved(schema)["properties"].items():
        yield (*path, key), own or OPEN[key]
        if resolved(own):
            yield from keys_of(own, (*path, key))


def with_value(base: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    return {**(base or {}), path[0]: with_value((base or {}).get(path[0]), path[1:], value)}


def numbers(schema: Any) -> Iterator[float]:
    if isinstance(schema, Mapping):
        for value in schema.values():
            yield from numbers(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from numbers(value)
    elif isinstance(schema, int | float) and not isinstance(schema, bool):
        yield schema


def is_wrong(schema: Schema) -> Callable[[Any], bool]:
    allows = jsonschema.Draft202012Validator(schema | {"$defs": DEFS}).is_valid
    return lambda v: not (allows(v) and (not isinstance(v, float) or math.isfinite(v)))


def values_near(schema: Schema) -> list[Any]:
    whole = (int(b) if b == int(b) else b for b in numbers(schema))
    near = sorted({bound + d for bound in whole for d in (-1, -0.25, 0, 0.25, 1)})
    return [*VALUES, *near, *([value] for value in near[:1])]


def texts(value: Any) -> Iterator[str]:
    """How messages may show a value, or what is inside."""
    yield from ("null", "None") if value is None else (shortened(value)[:20],)
    if isinstance(value, float) and value.is_integer():
        yield str(int(value))
    if isinstance(value, dict | list):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from texts(inner)


def check_refused(
    read: Callable[[Any], Any], base: Any, place: tuple[str, ...], value: Any
) -> None:
    key = shortened(place[-1])[1:-1]
    try:
        read(with_value(base, place, value))
        message = "accepted"
    except ConfigError as error:
        message = visible(str(error))
    about = f"{key} = {shortened(value)}: {message!r}"
    assert "\n" not in message and len(message) < 700, about
    absent = re.search("unknown key|has no parameter" + "|has no" * (not value), message)
    assert key.removesuffix("s") in message, about
    assert absent or any(text in message for text in texts(value)), about
    assert any(word in message for word in REMEDIES), about


def check_keys(schema: Schema, base: Any, read: Callable[[Any], Any]) -> None:
    """Check wrong values of every key of an object, and unknown keys beside them.

    Args:
        schema: of the object.
        base: an object that is right.
        read: what refuses others.
    """
    for place, own in keys_of(schema):
        for value in filter(is_wrong(own), values_near(own)):
            check_refused(read, base, place, value)
        for unknown in (f"{place[-1]}x", "a\nb"):
            check_refused(read, base, (*place[:-1], unknown), 1)


@pytest.mark.parametrize("kind", BASES)
def test_every_key_of_a_run(kind: str) -> None:
    base = BASES[kind] | {"kind": kind}
    read_config(base)
    check_keys({"$ref": kinds()[kind].config_class().__name__}, base, read_config)


def scheduled(row: Any) -> Any:
    return row if {*RULES} & row.keys() else row | {"at": "50%"}


NETWORK = Network("q", build("mlp"))
READERS: dict[str, Callable[[Any], Any]] = {
    "hooks": lambda row: Hooks([scheduled(row)], NETWORK, "100 updates", penalties=[]),
    "penalties": lambda row: Penalties([row], {"q": NETWORK}, total=Time(100, "updates")),
    "layers": lambda row: install_methods([row], [], {"q": (NETWORK.module,)}, 0),
}


def params_of(key: str, method: str) -> Schema:
    cases = SCHEMA["$defs"][key]["allOf"]
    name = "name" if key == "OptimizerConfig" else "method"
    (found,) = (c for c in cases if c["if"]["properties"][name]["const"] == method)
    return found["then"]["properties"]["params"]


@pytest.mark.parametrize("key", READERS)
def test_every_key_of_a_row_and_every_parameter(key: str) -> None:
    first = {"hooks": "fire", "penalties": "l2", "layers": "lifecycle"}[key]
    base = {"method": first}
    check_keys({"$ref": key}, base, READERS[key])
    for info in rows(LISTS[key]):
        row = base | {"method": info.name}
        read = lambda params, row=row: READERS[key](row | {"params": params})  # noqa: E731
        check_keys(params_of(key, info.name), {}, read)


def test_every_parameter_of_an_optimizer() -> None:
    for info in rows("optimizers"):

        def read(params: Any, name: str = info.name) -> None:
            read_config({"kind": "sac", "optimizer": {"name": name, "params": params}})

        check_keys(params_of("OptimizerConfig", info.name), {}, read)


SAMPLE = {"count": 2, "keys": {"x": [1, 2, 3]}}
STUDY: dict[str, Any] = {
    "base": "dqn/demo",
    "arms": {"none": {}, "a": {"sample": SAMPLE}},
    "published": {"file": "curves.csv", "arms": {"none": {"source": "x"}}},
}


def test_every_key_of_a_study() -> None:
    def arm(own: Any) -> StudyConfig:
        return StudyConfig.parse(STUDY | {"arms": {"a": own}})

    check_keys({"$ref": "StudyConfig"}, STUDY, StudyConfig.parse)
    check_keys({"$ref": "Arm"}, {"sample": SAMPLE}, arm)
