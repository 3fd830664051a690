"""What a study's YAML says, and what it must not."""

import itertools
from typing import Any

import numpy as np
import pytest

from rlplast.core.errors import ConfigError
from rlplast.study.spec import ArmRun, StudyConfig, runs_of
from tests.refused import check_refused

ARMS: dict[str, Any] = {"none": {"hooks": []}, "fire": {"hooks": "dqn/hooks/fire"}}


def parse(arms: Any = None, **keys: Any) -> StudyConfig:
    return StudyConfig.parse({"base": "dqn/demo", "arms": ARMS if arms is None else arms} | keys)


def values(run: ArmRun) -> dict[str, Any]:
    """What a run ends up with, if its keys do not overlap."""
    return {key: value for layer in run.overrides for key, value in layer.items()}


def names(arms: Any, **keys: Any) -> list[str]:
    return [run.arm for run in runs_of(parse(arms, **keys))]


# Runs.


def test_every_task_and_seed_has_every_arm_in_the_order_of_the_file():
    tasks = {"b": {"env.id": "x"}, "a": {"env.id": "y"}}
    runs = runs_of(parse(tasks=tasks, seeds=[5, 2]))
    expected = itertools.product(["b", "a"], [5, 2], ["none", "fire"])
    assert [(run.task, run.seed, run.arm) for run in runs] == list(expected)
    assert [values(run)["env.id"] for run in runs] == 4 * ["x"] + 4 * ["y"]
    assert [values(run)["seed"] for run in runs] == [5, 5, 2, 2, 5, 5, 2, 2]


def test_number_of_seeds_stands_for_the_first_ones():
    assert parse(seeds=3).seed_list() == [1, 2, 3]


def test_list_of_tasks_is_of_environments():
    runs = runs_of(parse(tasks=["minatar/breakout", "minatar/asterix"]))
    assert {(run.task, values(run)["env.id"]) for run in runs} == {
        ("minatar/breakout", "minatar/breakout"),
        ("minatar/asterix", "minatar/asterix"),
    }


def test_without_tasks_there_is_one_without_a_name():
    assert {run.task for run in runs_of(parse())} == {""}


def test_what_is_said_nearer_to_the_arm_is_set_later():
    (run,) = runs_of(
        parse(
            {"a": {"hooks": [{"method": "fire"}], "overrides": {"x": "arm", "hooks.0.at": "5%"}}},
            overrides={"x": "all", "hooks": "some/file", "optimizer.lr": 1},
            tasks={"t": {"x": "task", "hooks.0.method": "swr"}},
            threads=2,
        )
    )
    assert run.overrides == (
        {"x": "all", "hooks": "some/file", "optimizer.lr": 1},
        {"x": "task", "hooks.0.method": "swr"},
        {"hooks": [{"method": "fire"}], "x": "arm", "hooks.0.at": "5%"},
        {"threads": 2, "seed": 1},
    )


def test_an_arm_has_values_of_its_own_in_single_tasks_and_runs_not_where_it_has_none():
    tasks = {"a": {"env.id": "x"}, "b": {"env.id": "y"}, 3: {"env.id": "z"}}
    own = {"b": {"hooks.0.params.coef": 0.8}, 3: None}
    runs = runs_of(parse({"none": {}, "s": {"hooks": "h", "tasks": own}}, tasks=tasks))
    assert [(run.task, run.arm) for run in runs] == [
        ("a", "none"),
        ("a", "s"),
        ("b", "none"),
        ("b", "s"),
        ("3", "none"),
    ]
    assert runs[1].overrides == ({}, {"env.id": "x"}, {"hooks": "h"}, {"seed": 1})
    assert runs[3].overrides[2:] == ({"hooks": "h"}, {"hooks.0.params.coef": 0.8}, {"seed": 1})


def test_a_grid_in_a_task_goes_over_the_arms_own_values_there():
    arm = {"hooks": "h", "grid": {"x": [1, 2]}, "tasks": {"a": {"x": 3, "y": 4}}}
    runs = runs_of(parse({"s": arm}, tasks={"a": {}}))
    assert [run.overrides[2:-1] for run in runs] == [
        ({"hooks": "h"}, {"x": 3, "y": 4}, {"x": 1}),
        ({"hooks": "h"}, {"x": 3, "y": 4}, {"x": 2}),
    ]


# Grids and samples.


def test_grid_makes_an_arm_of_every_combination():
    grid = {"hooks.0.params.coef": [1e-3, 0.01], "hooks.0.at": ["25%", "50%"], "optimizer.lr": [1]}
    runs = runs_of(parse({"swr": {"hooks": "x", "grid": grid}}))
    assert [run.arm for run in runs] == [
        "swr coef=0.001 at=25% lr=1",
        "swr coef=0.001 at=50% lr=1",
        "swr coef=0.01 at=25% lr=1",
        "swr coef=0.01 at=50% lr=1",
    ]
    for run, combination in zip(runs, itertools.product(*grid.values()), strict=True):
        assert tuple(values(run)[key] for key in grid) == combination
        assert values(run)["hooks"] == "x"


def test_keys_in_names_are_as_short_as_they_can_be_told_apart():
    grid = {"hooks.0.params.coef": [1], "hooks.1.params.coef": [2], "coef": [3], "lr": [4]}
    (name,) = names({"a": {"grid": grid}})
    assert name == "a 0.params.coef=1 1.params.coef=2 coef=3 lr=4"


def test_numbers_that_are_nearly_equal_have_names_of_their_own():
    assert names({"a": {"grid": {"optimizer.lr": [0.12345678, 0.12345679, 1.0]}}}) == [
        "a lr=0.12345678",
        "a lr=0.12345679",
        "a lr=1",
    ]


def sample(count: int, seed: int = 0, **keys: Any) -> list[dict[str, Any]]:
    sampled = {"count": count, "seed": seed, "keys": keys}
    runs = runs_of(parse({"a": {"sample": sampled}}))
    assert [run.arm for run in runs] == [f"a #{i + 1}" for i in range(count)]
    return [{key: values(run)[key] for key in keys} for run in runs]


RANGES: dict[str, Any] = {
    "lr": {"low": 1e-5, "high": 1e-1, "log": True},
    "width": {"low": 3, "high": 9, "integer": True},
    "share": {"low": -1, "high": 2},
    "at": ["25%", "50%"],
}


def test_samples_repeat_and_more_of_them_begin_alike():
    assert sample(20, **RANGES) == sample(20, **RANGES)
    assert sample(20, **RANGES)[:5] == sample(5, **RANGES)
    assert sample(5, seed=1, **RANGES) != sample(5, **RANGES)


def test_samples_are_spread_as_they_should_be():
    found = sample(2000, **RANGES)
    lr, share = (np.array([row[key] for row in found]) for key in ("lr", "share"))
    for values in ((np.log10(lr) + 5) / 4, (share + 1) / 3):  # uniform in [0, 1]
        assert 0 <= values.min() < 0.01
        assert 0.99 < values.max() <= 1
        # The largest distance of 2000 uniform draws' distribution exceeds this once in 10⁶.
        assert np.abs(np.sort(values) - np.arange(2000) / 2000).max() < 0.061
    assert {row["width"] for row in found} == set(range(3, 10))
    assert all(type(row["width"]) is int for row in found)
    assert {row["at"] for row in found} == {"25%", "50%"}


def test_samples_are_all_different():
    found = sample(6, x=[1, 2, 3], y=[1, 2])
    assert sorted((row["x"], row["y"]) for row in found) == list(
        itertools.product([1, 2, 3], [1, 2])
    )
    with pytest.raises(
        ConfigError, match=r"arms.a.sample.count = 7: its keys have but 6 different"
    ):
        sample(7, x=[1, 2, 3], y=[1, 2])


# What is refused; wrong values of single keys: tests/run/test_schema_inputs.py.


X = {"count": 2, "keys": {"x": [1]}}


def chosen(**choice: Any) -> dict[str, Any]:
    return {"arms": {"a": {"sample": {"count": 2, "keys": {"x": choice}}}}}


def arm(**keys: Any) -> dict[str, Any]:
    return {"arms": {"none": {}, "a": keys}, "tasks": {"breakout": {}}}


TWICE: list[dict[Any, Any]] = [
    {"a x=1": {}, "a": {"grid": {"x": [1]}}},
    {"a": {"grid": {"x": [1, 1]}}},
    {"a": {"grid": {"x": [1, 1.0]}}},
    {"a #1": {}, "a": {"sample": {"count": 1, "keys": {"x": [1]}}}},
    {1: {}, "1": {}},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"arms": {}}, "no arms"),
    ({"seed": 3}, "'seeds'"),
    ({3: 4}, "'3'"),
    ({"tasks": {"all tasks": {}}}, "choose another name"),
    ({"seeds": 0}, "seeds = 0"),
    ({"seeds": -2}, "seeds = -2"),
    ({"seeds": [1, 1]}, "each once"),
    ({"baseline": "nome"}, "'none'"),
    ({"baseline": 3}, "baseline = '3'"),
    ({"overrides": {"seed": 3}}, "overrides.seed: seeds"),
    ({"tasks": {}}, "tasks is empty"),
    ({"tasks": ["a", "a"]}, "each once"),
    ({"tasks": {"a": 3}}, "tasks = {'a': 3}: allowed is a mapping"),
    ({"tasks": {"a": {"seed": 3}}}, "tasks.a.seed: seeds"),
    (arm(overrides={"seed": 3}), "arms.a.overrides.seed: seeds"),
    (arm(grid={"seed": [3]}), "arms.a.grid.seed: seeds"),
    (arm(grid={"x": 3}), "arms.a.grid.x = 3"),
    (arm(grid={"x": []}), "arms.a.grid.x = []"),
    (arm(grid={"x": [1]}, sample=X), "grid and sample"),
    (arm(sample={"count": 2}), "no keys"),
    (arm(sample={"count": 2, "keys": {"seed": [1]}}), "arms.a.sample.keys.seed: seeds"),
    (arm(tasks={"breakuot": {}}), "'breakout'"),
    (arm(tasks={"breakout": 3}), "arms.a.tasks.breakout = 3"),
    (arm(tasks={"breakout": {"seed": 3}}), "arms.a.tasks.breakout.seed: seeds"),
    (arm(tasks={"breakout": None}), "arms.a.tasks: null in every task"),
    (arm(sample={"count": 2, "keys": {"x": 3}}), "keys.x = 3"),
    (arm(sample={"count": 2, "keys": {"x": []}}), "keys.x = []"),
    (chosen(low=1), "no high"),
    (chosen(low=2, high=2), "low = 2, high = 2"),
    (chosen(low=1, high=float("inf")), "high = inf"),
    (chosen(low="1", high=2), "low = '1'"),
    (chosen(low=-1.7e308, high=1.7e308), "within 1e+300 of 0"),
    (chosen(low=1, high=10**30, integer=True), "within 1e+18 of 0"),
    (chosen(low=1, high=2.5, integer=True), "whole numbers"),
    (chosen(low=0, high=2, log=True), "numbers above 0"),
    (chosen(low=1, high=2, log=True, integer=True), "without integer"),
    (chosen(low=1, high=2, log="yes"), "keys.x.log = 'yes'"),
    (chosen(low=1, higth=2), "'high'"),
    ({"continuations": 200_000}, "continuations: 200000 of them"),
    ({"recovered": 3.0}, "recovered = 3: it is a score of continuations"),
    *(({"arms": {name: {}}}, "a name with a letter or a digit") for name in ("", " ", "--", "…")),
    *(({"arms": arms}, "two arms are called") for arms in TWICE),
]


def test_what_does_not_fit_together_is_named() -> None:
    check_refused(
        lambda keys: StudyConfig.parse({"base": "dqn/demo", "arms": ARMS} | keys), REFUSED
    )
    whole = [(None, "mapping"), ([1], "mapping"), ({}, "no base")]
    whole.append(({"kind": "dqn", "total": "5 updates"}, "`rlplast train`"))
    check_refused(StudyConfig.parse, whole)


def test_baseline_may_be_one_of_a_grid():
    assert parse({"a": {"grid": {"x": [1, 2]}}}, baseline="a x=2").baseline == "a x=2"
    assert parse({1: {}, 2: {}}, baseline=1).baseline == "1"
