"""What is registered, and the values that people write for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt

from rlplast.core import registry
from rlplast.core.errors import ConfigError
from rlplast.core.registry import build, get, register, rows
from rlplast.core.validation import check_value, hints_of

pytestmark = pytest.mark.usefixtures("own_methods")


@pytest.fixture
def toy() -> Iterator[Any]:
    @register("methods", "toy", source="nobody 2024", listed="penalties")
    @dataclass(frozen=True)
    class Toy:
        """Pull weights to zero.

        More about it.
        """

        coef: Annotated[float, Field(ge=0, lt=1)] = 0.1
        times: PositiveInt = 3
        rule: Literal["exact", "printed"] = "exact"
        on: bool = False
        layers: PositiveInt | None = None
        head: Annotated[float, Field(gt=0, le=1)] | None = None

    yield Toy


def test_row_is_read_from_the_definition(toy: Any) -> None:
    row = get("penalties", "toy").row()
    assert row == {
        "name": "toy",
        "family": "penalties",
        "summary": "Pull weights to zero.",
        "params": {
            "coef": {"default": 0.1, "range": "[0, 1)"},
            "times": {"default": 3, "range": "[1, inf)"},
            "rule": {"default": "exact", "range": "exact | printed"},
            "on": {"default": False, "range": ""},
            "layers": {"default": None, "range": "[1, inf)"},
            "head": {"default": None, "range": "(0, 1]"},
        },
        "source": "nobody 2024",
        "from": __name__.partition(".")[0],
    }


def test_functions_register_their_keyword_only_parameters() -> None:
    @register("metrics", "toy_metric", source="x")
    def toy_metric(weight: float, *, delta: Annotated[float, Field(gt=0, lt=1)] = 0.01) -> float:
        """Measure."""
        return weight * delta

    info = get("metrics", "toy_metric")
    assert info.params == {"delta": {"default": 0.01, "range": "(0, 1)"}}
    assert get("layers", "lifecycle").params["life"]["range"] == "[1, 1000000000]"  # of a pair
    assert info.target is toy_metric


def test_build_uses_defaults_and_checked_values(toy: Any) -> None:
    assert build("penalties", "toy") == toy()
    made = build("penalties", "toy", {"coef": 0, "times": 5.0, "on": True, "head": 0.5})
    assert made == toy(coef=0.0, times=5, on=True, head=0.5)
    assert isinstance(made.times, int) and isinstance(made.coef, float)
    for params, message in (({"coeff": 1}, "'coeff'.*'coef'"), ({"coef": 1.0}, r"toy\.coef")):
        with pytest.raises(ConfigError, match=message):
            build("penalties", "toy", params)


def test_names_are_unique_and_families_known(toy: Any) -> None:
    for listed in ("penalties", "interventions"):  # methods of all lists share their names
        with pytest.raises(ConfigError, match="'toy'"):
            register("methods", "toy", source="x", listed=listed)(type("Other", (), {}))
    register("methods", "toy", source="x", listed="penalties")(toy)  # imported a second time
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: register("penalty", "toy2", source="x"), "'penalties'"),
        (lambda: rows("layer"), "'layers'"),
        (lambda: get("penalties", "toi"), "'toy'"),
        (lambda: get("methods", "toi"), "'toy'"),
    ]
    for call, meant in calls:
        with pytest.raises(ConfigError, match=f"did you mean {meant}"):
            call()


def test_methods_are_one_family_and_each_is_in_one_list(toy: Any) -> None:
    lists = {key: [row.name for row in rows(key)] for key in registry.LISTS.values()}
    assert "toy" in lists["penalties"]
    assert {"fire", "swr"} <= set(lists["interventions"])
    assert "lifecycle" in lists["layers"]
    every = [name for names in lists.values() for name in names]
    assert sorted(every) == [row.name for row in rows("methods")]
    assert get("penalties", "toy") is get("methods", "toy")
    with pytest.raises(ConfigError, match="'toy'"):
        get("layers", "toy")


def test_every_entry_has_a_summary_a_source_and_defaults_in_their_ranges() -> None:
    for info in rows():
        assert info.summary.endswith(".") and info.source, info.name
        for name, spec in info.params.items():
            value = spec["default"]
            hint = hints_of(info.target).get(name, Any)
            assert check_value(name, value, hint) == value, (info.name, name)
