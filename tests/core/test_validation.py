"""Values that people write, checked against types."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt

from rlplast.core.errors import ConfigError
from rlplast.core.validation import (
    Names,
    Pair,
    Section,
    check_section,
    check_value,
    validated,
)

Low = Annotated[int, Field(ge=1, le=9)]


@dataclass
class Inner(Section):
    lr: Annotated[float, Field(gt=0)] = 0.1
    every: str = "10%"
    mode: Literal["fast", "exact"] = "fast"
    steps: PositiveInt | None = None


@dataclass
class Outer(Section):
    name: str
    inner: Inner = field(default_factory=Inner)
    total: Annotated[str, Field(examples=["20k updates"])] = "auto"
    ratio: float | list[dict[str, Any]] = 1.0
    sizes: list[Low] = field(default_factory=list)
    maybe: Inner | None = None
    free: dict[str, Any] = field(default_factory=dict)


def test_a_mapping_becomes_the_dataclass_with_its_defaults() -> None:
    free = {"class_path": "os.system", "1": [1.5, None]}
    found = validated(Outer, {"name": "a", "inner": {"lr": 1}, "maybe": {}, "free": free})
    assert found == Outer("a", Inner(lr=1.0), maybe=Inner(), free=free)
    assert isinstance(found.inner.lr, float)
    assert validated(Outer, {"name": "a"}).inner is not validated(Outer, {"name": "a"}).inner
    found = validated(Outer, {"name": "a", "sizes": [3.0, 2], "inner": {"steps": 1e6}})
    assert json.dumps([found.sizes, found.inner.steps]) == "[[3, 2], 1000000]"
    assert check_value("k", [3.0, 2], Low | list[Low]) == [3, 2]
    assert check_value("k", 3.0, Low | list[Low]) == 3


def test_what_is_wrong_is_refused_by_the_path_of_its_key() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "no name"),
        ({"name": None}, "name = null"),
        ({"inner": {"lrr": 1}}, "config.inner .*'lrr': did you mean 'lr'"),
        ({"inner": {"lr": 0}}, r"inner\.lr = 0: .*\(0, inf\)"),
        ({"inner": {"lr": "1"}}, r"inner\.lr = '1': .*number"),
        ({"inner": {"every": 5}}, r"inner\.every = 5 .*unit"),
        ({"inner": {"mode": "fsat"}}, r"inner\.mode = 'fsat': did you mean 'fast'"),
        ({"maybe": {"steps": 1.5}}, r"maybe\.steps = 1.5: .*whole number"),
        ({"sizes": [3, 0]}, r"sizes\[1\] = 0: .*\[1, 9\]"),
    ]
    for data, message in cases:
        with pytest.raises(ConfigError, match=message):
            validated(Outer, data if not data or "name" in data else {"name": "a"} | data)
    with pytest.raises(ConfigError, match=r"^here\.lr = -1"):
        check_section(Inner(lr=-1.0), "here")
    for value in (object(), {1, 2}, 1e39, 10**400):  # which no config could say
        with pytest.raises(ConfigError, match="k = "):
            check_value("k", value, float)


def test_pairs_and_names_are_checked() -> None:
    assert check_value("k", [2, 5.0], Pair[Low]) == (2, 5)
    assert check_value("k", ["a*", "b"], Names) == ("a*", "b")
    assert check_value("k", None, Names | None) is None
    for value in ([0, 5], [5, 2], [2, 3, 4], "25", [2, None]):
        with pytest.raises(ConfigError, match="k"):
            check_value("k", value, Pair[Low])
    for value in ("a", [], [""], {"a": 1}):
        with pytest.raises(ConfigError, match="k"):
            check_value("k", value, Names)
