import json
from collections.abc import Iterator
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
    assert info.target is toy_metric


def test_build_uses_defaults_and_checked_values(toy: Any) -> None:
    assert build("penalties", "toy") == toy()
    made = build("penalties", "toy", {"coef": 0, "times": 5.0, "on": True, "rule": "printed"})
    assert made == toy(coef=0.0, times=5, on=True, rule="printed")
    assert isinstance(made.times, int) and isinstance(made.coef, float)


def test_optional_whole_numbers_stay_whole(toy: Any) -> None:
    assert build("penalties", "toy", {"layers": None}).layers is None
    layers = build("penalties", "toy", {"layers": 2}).layers
    assert layers == 2 and isinstance(layers, int)
    with pytest.raises(ConfigError, match=r"toy\.layers = 2\.5: allowed is a whole number in"):
        build("penalties", "toy", {"layers": 2.5})
    assert build("penalties", "toy", {"head": 0.5}).head == 0.5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"coeff": 1}, r"toy has no parameter 'coeff': did you mean 'coef'"),
        ({"coef": 1.0}, r"toy\.coef = 1\.0: allowed is \[0, 1\)"),
        ({"coef": -0.1}, r"toy\.coef = -0\.1: allowed is \[0, 1\)"),
        ({"coef": float("nan")}, r"toy\.coef = nan"),
        ({"coef": "0.5"}, r"toy\.coef = '0\.5': allowed is a number in \[0, 1\)"),
        ({"coef": True}, r"toy\.coef = True"),
        ({"coef": None}, r"toy\.coef = null"),
        ({"coef": [0.5]}, r"toy\.coef = \[0\.5\]"),
        ({"times": 0}, r"toy\.times = 0: allowed is \[1, inf\)"),
        ({"times": 1.5}, r"toy\.times = 1\.5: allowed is a whole number in \[1, inf\)"),
        ({"times": float("inf")}, r"toy\.times = inf"),
        ({"rule": "exakt"}, r"toy\.rule = 'exakt': did you mean 'exact'"),
        ({"rule": 3}, r"toy\.rule = 3: allowed is one of exact, printed"),
        ({"on": 1}, r"toy\.on = 1: allowed is true or false"),
        ({"on": "yes"}, r"toy\.on = 'yes': allowed is true or false"),
        ({"head": 0}, r"toy\.head = 0: allowed is \(0, 1\]"),
        ({"layers": 0}, r"toy\.layers = 0: allowed is \[1, inf\)"),
    ],
    ids=str,
)
def test_bad_parameters_name_key_value_and_what_is_allowed(
    toy: Any, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build("penalties", "toy", params)


def test_names_are_unique_and_families_known(toy: Any) -> None:
    for listed in ("penalties", "interventions"):  # methods of all lists share their names
        with pytest.raises(ConfigError, match="methods already has a 'toy'"):
            register("methods", "toy", source="x", listed=listed)(type("Other", (), {}))
    register("methods", "toy", source="x", listed="penalties")(toy)  # imported a second time
    with pytest.raises(ConfigError, match="family = 'penalty': did you mean 'penalties'"):
        register("penalty", "toy2", source="x")
    with pytest.raises(ConfigError, match="family = 'layer': did you mean 'layers'"):
        rows("layer")
    with pytest.raises(ConfigError, match="penalty 'toi' is unknown: did you mean 'toy'"):
        get("penalties", "toi")
    with pytest.raises(ConfigError, match="method 'toi' is unknown: did you mean 'toy'"):
        get("methods", "toi")


def test_methods_are_one_family_and_each_is_in_one_list(toy: Any) -> None:
    lists = {key: [row.name for row in rows(key)] for key in registry.LISTS.values()}
    assert "toy" in lists["penalties"]
    assert {"fire", "swr"} <= set(lists["interventions"])
    assert "lifecycle" in lists["layers"]
    every = [name for names in lists.values() for name in names]
    assert sorted(every) == [row.name for row in rows("methods")]
    assert get("penalties", "toy") is get("methods", "toy")
    with pytest.raises(ConfigError, match="layer 'toy' is unknown"):
        get("layers", "toy")


def test_rows_are_sorted_by_family_and_name(toy: Any) -> None:
    names = [row.name for row in rows("interventions")]
    assert names == sorted(names) and "fire" in names
    every = rows()
    assert [r for r in every if r.family == "interventions"] == rows("interventions")
    assert every.count(get("penalties", "toy")) == 1


def test_every_registered_default_lies_in_its_own_range() -> None:
    for info in rows():
        for name, spec in info.params.items():
            value = spec["default"]
            hint = hints_of(info.target).get(name, Any)
            assert check_value(name, value, hint) == value, (info.name, name)


def test_every_entry_has_a_summary_and_a_source() -> None:
    for info in rows():
        assert info.summary.endswith(".") and info.source, info.name


# Pairs and names.


def test_registry_shows_the_pairs_and_their_range() -> None:
    row = json.loads(json.dumps(get("layers", "lifecycle").row()))
    assert row["params"]["life"] == {"default": [1000, 5000], "range": "[1, 1000000000]"}
    assert row["params"]["layers"] == {"default": None, "range": "names"}
    assert row["summary"].startswith("Let hidden units sleep")
