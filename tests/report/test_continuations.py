"""Shares of continuations that recover, against SciPy and against simulated branches."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

from rlplast.report.contents import report
from rlplast.report.continuations import joined, recoveries, share_recovered
from rlplast.report.gather import gather
from rlplast.report.run_data import curve, measure, read_run
from rlplast.study.folder import read_study
from tests.report.runs import metric_rows, smooth_score, write_run, write_study

BRANCH = {"clock": {"updates": 1500, "env_steps": 3000}, "seconds": 30.0}


def write_continued(folder: Path, count: int = 3, **keys: Any) -> Path:
    """Write a study each of whose arms is continued; number n of arm `fire` ends 40 n higher."""
    study = write_study(folder, ("none", "fire"), seeds=keys.pop("seeds", (1, 2)), **keys)
    plan = read_study(study)
    for cell in [own for own in plan["cells"] if own["kind"] == "arm"]:
        cell["continuation"] = 1
        for number in range(2, count + 1):
            own = cell | {"key": f"{cell['key']}{number}", "continuation": number}
            own["folder"] = f"{cell['folder']}{number}"
            rise = 40.0 * (number - 1) * (cell["arm"] == "fire")

            def score(x: int, seed: int = cell["seed"], rise: float = rise) -> float:
                return smooth_score("asterix", "none", seed, x) + rise * (x > 3000)

            config = {"seed": cell["seed"], "continuation": number}
            rows = metric_rows(score, range(500, 6001, 500))
            origin = {"run": "../prefix", "checkpoint": "step-3000", **BRANCH}
            write_run(study / own["folder"], rows, (), config, {"branched_from": origin})
            plan["cells"].append(own)
    (study / "study.json").write_text(json.dumps(plan))
    return study


@pytest.mark.parametrize(("recovered", "count"), [(0, 8), (3, 10), (7, 7), (1, 1), (20, 40)])
def test_the_interval_of_one_branch_is_wilsons(recovered: int, count: int):
    found = share_recovered([[i < recovered for i in range(count)]])
    theirs = scipy.stats.binomtest(recovered, count).proportion_ci(method="wilson")
    assert (found.value, found.count) == (recovered / count, count)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_seeds_that_all_recover_or_never_count_as_one_run_each():
    alike = share_recovered([[number < 4] * 20 for number in range(8)])
    single = share_recovered([[number < 4] for number in range(8)])
    assert alike.value == single.value == 0.5
    # Each seed's own share varies by the binomial's variance times 8/7.
    assert alike.high - alike.low == pytest.approx(single.high - single.low, rel=0.08)
    sure = share_recovered([[True] * 20] * 6)
    assert sure.high == 1.0
    assert sure.low == pytest.approx(1 / (1 + scipy.stats.t.ppf(0.975, 5) ** 2 / 6))


@pytest.mark.parametrize("alike", [0.5, 3.0, 50.0])
def test_intervals_hold_the_true_share_in_nineteen_of_twenty_studies(alike: float):
    """Seeds' shares are drawn from a beta distribution: small `alike` is all or nothing."""
    rng, true, held, tries = np.random.default_rng(0), 0.7, 0, 600
    for _ in range(tries):
        shares = rng.beta(true * alike, (1 - true) * alike, size=10)
        found = share_recovered([list(rng.random(8) < own) for own in shares])
        held += found.low <= true <= found.high
    assert held / tries > 0.925


def test_a_seeds_continuations_are_their_mean(tmp_path: Path):
    study = write_continued(tmp_path)
    found = gather([study])
    assert [(run.arm, run.seed) for run in found.runs] == [
        ("none", 1),
        ("none", 2),
        ("fire", 1),
        ("fire", 2),
    ]
    assert len(found.continued) == len(found.single) == 12
    fire = next(run for run in found.runs if run.arm == "fire")
    own = [run for run in found.continued if (run.arm, run.seed) == ("fire", fire.seed)]
    _, ys = curve(fire, fire.score)
    assert ys == pytest.approx(np.mean([curve(run, run.score)[1] for run in own], axis=0))
    finals = [measure(run, None).final for run in own]
    assert measure(fire, None).final == pytest.approx(np.mean(finals))
    assert joined(own[:1]) is own[0]


def test_lines_of_one_x_are_averaged_each_with_its_own(tmp_path: Path):
    study = write_continued(tmp_path)
    own = [run for run in gather([study]).continued if (run.arm, run.seed) == ("none", 1)]
    for number, run in enumerate(own):
        clock = {"updates": 3000, "env_steps": 6000}
        run.metrics.extend(clock | {"train/loss": float(i + number)} for i in range(9))
    tail = [line["train/loss"] for line in joined(own).metrics[-9:]]
    assert tail == [i + 1.0 for i in range(9)]


def test_studies_of_other_levels_are_not_put_together_without_a_word(tmp_path: Path):
    one, other = (write_continued(tmp_path / name) for name in ("one", "other"))
    for study, level in ((one, 145.0), (other, 180.0)):
        (study / "study.json").write_text(json.dumps(read_study(study) | {"recovered": level}))
    found = gather([one, other])
    assert found.recovered == 145.0
    assert "continuations recover from 145; elsewhere from 180" in found.notes


def test_a_value_that_is_missing_in_one_continuation_is_missing_in_the_mean(tmp_path: Path):
    study = write_continued(tmp_path)
    own = [run for run in gather([study]).continued if (run.arm, run.seed) == ("none", 1)]
    own[1].metrics[-2][own[1].score] = math.nan
    assert joined(own).metrics[-2][own[0].score] is None
    assert math.isnan(measure(joined(own), None).final)


def test_recovered_is_as_good_as_the_prefix_ever_was_or_as_the_study_says(tmp_path: Path):
    study = write_continued(tmp_path)
    runs = gather([study]).continued
    best = {seed: smooth_score("asterix", "none", seed, 2500) for seed in (1, 2)}
    none, fire = recoveries(runs)
    assert (none.arm, fire.arm) == ("none", "fire")
    assert none.levels == fire.levels == pytest.approx(best)
    assert none.seeds == {1: [True] * 3, 2: [True] * 3}  # it rises all the time
    none, fire = recoveries(runs, 180.0)
    assert none.seeds == {1: [False] * 3, 2: [False] * 3}
    assert fire.seeds[1][1:] == [False, True]
    losses = [dataclasses.replace(run, score="train/loss") for run in runs]  # less is better
    assert recoveries(losses, 1e-3)[0].seeds[1] == [True] * 3
    assert recoveries(losses, 1e-5)[0].seeds[1] == [False] * 3


def test_a_prefix_without_a_score_needs_a_level(tmp_path: Path):
    run = read_run(
        write_run(
            tmp_path / "run",
            metric_rows(lambda x: float(x), range(3500, 6001, 500)),
            info={"branched_from": {"run": "../p", "checkpoint": "step-1", **BRANCH}},
        ),
        "asterix",
        "fire",
        1,
    )
    assert recoveries([run]) == []
    assert recoveries([run], 10.0)[0].seeds == {1: [True]}


def test_the_page_has_the_shares_and_their_chart(tmp_path: Path):
    study = write_continued(tmp_path)
    plan = read_study(study) | {"recovered": 145.0}
    (study / "study.json").write_text(json.dumps(plan))
    written = report(study, out=tmp_path / "out", live=True)
    text = (tmp_path / "out" / "report.html").read_text()
    assert "share that recovers" in text
    assert "the score that the study names" in text
    assert "12 runs are done" in text
    seconds, updates = written.summary.cost
    assert seconds == pytest.approx(12 * 30 + 2 * 30)  # each continuation and each prefix once
    assert updates == 12 * 1500 + 2 * 1500


def test_a_study_without_continuations_has_no_such_section(tmp_path: Path):
    study = write_study(tmp_path)
    assert gather([study]).continued == ()
    report(study, out=tmp_path / "out", live=True)
    assert "share that recovers" not in (tmp_path / "out" / "report.html").read_text()
