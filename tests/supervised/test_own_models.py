"""A classifier that a user's function makes."""

from pathlib import Path

from rlplast.run import api
from tests.refused import check_refused
from tests.runs import check_resumes
from tests.supervised_runs import small_supervised

OWN = {"name": "tests.agents.own_nets:classifier"}


def test_units_of_a_model_of_your_own_are_found_and_a_killed_run_resumes(tmp_path: Path) -> None:
    hooks = [{"method": "redo", "every": "10 updates", "params": {"threshold": 0.5}}]
    left = check_resumes(small_supervised(model=OWN, hooks=hooks), tmp_path)
    assert {layer for row in left["receipts"] for layer in row.get("units", {})} == {"0", "4"}


def test_what_is_no_classifier_is_refused() -> None:
    rows = [
        (OWN | {"hidden": [3]}, "model.hidden = [3]"),
        ({"name": "tests.agents.own_nets:mlp"}, "raised TypeError"),
        ({"name": "tests.agents.own_nets:nothing"}, "has no function nothing"),
    ]
    check_refused(lambda own: api.train(small_supervised(model=own), "/nonexistent/run"), rows)
