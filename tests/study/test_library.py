"""The studies that have every method as an arm."""

import pytest

from rlplast.core.registry import LISTS, rows
from rlplast.run.shipped import find_config
from rlplast.study.api import build_each, read_study_config, study_cells
from rlplast.study.smoke import smoke_study
from rlplast.study.spec import StudyConfig
from rlplast.training.config import read_yaml

STUDIES = ("study/library_minatar", "study/library_digits")
OF_TASKS = ("study/random_labels", "study/permuted_pixels")  # every method that applies


KNOWN = {
    (key, info.name)
    for key, family in LISTS.items()
    for info in rows(family)
    if info.target.__module__.startswith("rlplast.methods.")
}


def listed(study):
    """Return the methods of a study's arms, each with the list it is in."""
    return {
        (key, row["method"])
        for arm in study.arms.values()
        for key in LISTS
        for row in getattr(arm, key) or ()
    }


@pytest.mark.parametrize("name", STUDIES)
def test_every_method_has_an_arm_that_lists_it(name):
    study = StudyConfig.parse(read_yaml(find_config(name)))
    absent = {("layers", "stochastic_depth")} if name == "study/library_minatar" else set()
    assert listed(study) | absent == KNOWN
    assert {"adam_o", "muon", "upgd", "trac", "schedule_free"} <= set(study.arms)


@pytest.mark.parametrize("name", OF_TASKS)
def test_every_method_that_applies_has_an_arm(name):
    study = StudyConfig.parse(read_yaml(find_config(name)))
    # They return to θ0, want residual blocks, are made for one firing, imitate the last task's
    # answers, and are for critics.
    elsewhere = {"persistent", "stochastic_depth", "scale_weights", "distill", "unit_features"}
    # They came after the published runs.
    elsewhere |= {"infer", "l2_er", "activation", "aid", "drm", "restart_steps", "pfo", "sigreg"}
    elsewhere |= {"renew_weights"}
    assert {name for _, name in listed(study)} == {name for _, name in KNOWN} - elsewhere
    assert {"muon", "upgd", "trac", "schedule_free", "label_smoothing"} <= set(study.arms)
    assert study.seeds == 20 and study.baseline is None and "none" in study.arms


@pytest.mark.slow
@pytest.mark.parametrize("name", (STUDIES[0], OF_TASKS[0]))
def test_every_arm_is_built(name):
    keys, _, _ = smoke_study(read_study_config(name))
    build_each(study_cells(StudyConfig.parse(keys)))
