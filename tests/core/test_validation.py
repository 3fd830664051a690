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
    limits,
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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "config has no name"),
        ({"name": 1}, "name = 1: allowed is text"),
        ({"name": None}, "name = null: allowed is text"),
        ({"names": "a"}, "config has an unknown key 'names': did you mean 'name'?"),
        ({"inner": {"lrr": 1}}, "config.inner has an unknown key 'lrr': did you mean 'lr'?"),
        ({"inner": 3}, "inner = 3: allowed is a mapping (keys: lr, every, mode, …)"),
        ({"inner": {"lr": 0}}, "inner.lr = 0: allowed is (0, inf)"),
        ({"inner": {"lr": True}}, "inner.lr = True: allowed is a number in (0, inf), such as 0.1"),
        ({"inner": {"lr": "1"}}, "inner.lr = '1': allowed is a number in (0, inf), such as 0.1"),
        ({"inner": {"lr": float("nan")}}, "inner.lr = nan: allowed is (0, inf)"),
        ({"inner": {"every": 5}}, "inner.every = 5 has no unit: say '5%'"),
        ({"inner": {"mode": "fsat"}}, "inner.mode = 'fsat': did you mean 'fast'?"),
        ({"inner": {"mode": 3}}, "inner.mode = 3: allowed is one of fast, exact"),
        ({"inner": {"steps": 0}}, "inner.steps = 0: allowed is [1, inf)"),
        ({"maybe": {"steps": 1.5}}, "maybe.steps = 1.5: allowed is a whole number in [1, inf)"),
        ({"total": 100}, "total = 100 has no unit: say '100 updates'"),
        ({"ratio": "x"}, "ratio = 'x': allowed is a number or a list of mappings"),
        ({"sizes": [3, 0]}, "sizes[1] = 0: allowed is [1, 9]"),
        ({"sizes": 3}, "sizes = 3: allowed is a list of whole numbers in [1, 9]"),
        ({"free": 3}, "free = 3: allowed is a mapping"),
    ],
    ids=str,
)
def test_messages_name_key_value_and_what_is_allowed(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        validated(Outer, data if not data or "name" in data else {"name": "a"} | data)
    assert str(error.value).startswith(message)


def test_a_key_in_front_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^here\.lr = -1: allowed is \(0, inf\)"):
        validated(Inner, {"lr": -1}, "here")
    with pytest.raises(ConfigError, match=r"^here\.lr = -1\.0: allowed is"):
        check_section(Inner(lr=-1.0), "here")


def test_whole_floats_are_whole_numbers() -> None:
    found = validated(Outer, {"name": "a", "sizes": [3.0, 2], "inner": {"steps": 1e6}})
    assert json.dumps([found.sizes, found.inner.steps]) == "[[3, 2], 1000000]"
    assert check_value("k", [3.0, 2], Low | list[Low]) == [3, 2]
    assert check_value("k", 3.0, Low | list[Low]) == 3


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Annotated[float, Field(ge=0, le=1)], "[0, 1]"),
        (Annotated[float, Field(gt=0, lt=0.5)] | None, "(0, 0.5)"),
        (PositiveInt, "[1, inf)"),
        (Literal["a", "b"], "a | b"),
        (Pair[Low], "[1, 9]"),
        (Names | None, "names"),
        (float, ""),
    ],
    ids=range(7),
)
def test_limits_say_what_a_type_allows(hint: Any, text: str) -> None:
    assert limits(hint) == text


def test_pairs_and_names_are_checked() -> None:
    assert check_value("k", [2, 5.0], Pair[Low]) == (2, 5)
    assert check_value("k", ["a*", "b"], Names) == ("a*", "b")
    assert check_value("k", None, Names | None) is None
    for value in ([0, 5], [2, 10], [5, 2], [2], [2, 3, 4], 2, "25", [2, None], [True, 3], None):
        with pytest.raises(ConfigError, match=r"k(\[\d\])? = .*: allowed is "):
            check_value("k", value, Pair[Low])
    for value in ("a", [], [""], [1], {"a": 1}):
        with pytest.raises(ConfigError, match="allowed is a list of names or globs"):
            check_value("k", value, Names)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1e39, 10**400])
def test_what_no_config_could_say_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="k = "):
        check_value("k", value, float)
