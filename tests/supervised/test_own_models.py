"""A classifier that a user's function makes."""

from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError
from rlplast.run import api
from tests.runs import check_resumes
from tests.supervised_runs import small_supervised

OWN = {"name": "tests.agents.own_nets:classifier"}


def test_killed_and_resumed_equals(tmp_path: Path) -> None:
    check_resumes(small_supervised(model=OWN), tmp_path)


def test_units_of_a_model_of_your_own_are_found(tmp_path: Path) -> None:
    hooks = [{"method": "redo", "every": "10 updates", "params": {"threshold": 0.5}}]
    run = api.train(small_supervised(model=OWN, hooks=hooks), tmp_path / "run")
    layers = {layer for row in run.lines("receipts") for layer in row.get("units", {})}
    assert layers == {"0", "4"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OWN | {"hidden": [3]}, r"model.hidden = \[3\]: .* does not read it"),
        ({"name": "tests.agents.own_nets:mlp"}, "raised TypeError: .* 'input_shape'"),
        ({"name": "tests.agents.own_nets:nothing"}, "has no function nothing"),
    ],
)
def test_what_is_no_classifier_is_refused(model: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        api.train(small_supervised(model=model), "/nonexistent/run")
