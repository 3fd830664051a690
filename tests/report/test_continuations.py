"""Shares of continuations that recover, against SciPy and against simulated branches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy

from rlplast.report import tables
from rlplast.report.continuations import recoveries, share_recovered
from rlplast.report.frame import read
from rlplast.report.statistics import measure
from rlplast.report.view import report_of
from rlplast.study.folder import read_study
from tests.report.runs import smooth_score, write_run, write_study


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
    # each seed's own share varies by the binomial's variance times 8/7
    assert alike.high - alike.low == pytest.approx(single.high - single.low, rel=0.08)
    sure = share_recovered([[True] * 20] * 6)
    assert sure.high == 1.0
    assert sure.low == pytest.approx(1 / (1 + scipy.stats.t.ppf(0.975, 5) ** 2 / 6))
    even = share_recovered([[True, False] * 4] * 6)  # at most as many as there are: 48
    quantile = scipy.stats.t.ppf(0.975, 5)
    assert even.high - even.low == pytest.approx(quantile / (48 + quantile**2) ** 0.5)


@pytest.mark.parametrize("alike", [0.5, 50.0])
def test_intervals_hold_the_true_share_in_nineteen_of_twenty_studies(alike: float):
    """Seeds' shares are drawn from a beta distribution: small `alike` is all or nothing."""
    rng, true, held, tries = np.random.default_rng(0), 0.7, 0, 400
    for _ in range(tries):
        shares = rng.beta(true * alike, (1 - true) * alike, size=10)
        found = share_recovered([list(rng.random(8) < own) for own in shares])
        held += found.low <= true <= found.high
    assert held / tries > 0.925


def continued(folder: Path, sign: int = 1, first: int = 500, **stored: Any) -> Path:
    """A study of two seeds, three times continued; number n of arm `fire` ends 40 n better."""
    key = "eval/return_mean" if sign > 0 else "eval/loss"

    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        return sign * smooth_score("asterix", "none", seed, x) if x >= first else None

    study = write_study(folder, ("none", "fire"), (1, 2), key=key, score=score)
    plan = read_study(study) | stored
    for cell in [own for own in plan["cells"] if own["kind"] == "arm"]:
        folder = study / cell["folder"]
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for number in (2, 3):
            for row in rows:
                if cell["arm"] == "fire" and key in row and row["env_steps"] > 3000:
                    row[key] += sign * 40.0
            more = {"key": f"{cell['key']}{number}", "continuation": number}
            plan["cells"].append(cell | more | {"folder": f"{cell['folder']}{number}"})
            info = json.loads((folder / "run.json").read_text())
            write_run(folder.with_name(f"{folder.name}{number}"), rows, (), {}, info)
    (study / "study.json").write_text(json.dumps(plan))
    return study


@pytest.mark.parametrize("sign", [1, -1])
def test_recovered_is_as_good_as_the_prefix_ever_was_or_as_the_study_says(
    tmp_path: Path, sign: int
):
    none, fire = found(continued(tmp_path / "best", sign)).itertuples()
    best = [sign * smooth_score("asterix", "none", seed, 2500) for seed in (1, 2)]
    for own, arm in ((none, "none"), (fire, "fire")):
        assert (own.arm, own.least, own.most) == (arm, min(best), max(best))
        assert (own.count, own.recovered, own.seeds) == (6, 6, 2)
    none, fire = found(continued(tmp_path / "level", sign, recovered=sign * 180.0)).itertuples()
    assert (none.recovered, none.value, fire.recovered, fire.value) == (0, 0, 2, 1 / 3)
    assert fire.recovered == 2 and fire.least == fire.most == sign * 180


def found(study: Path) -> pd.DataFrame:
    return recoveries(measure(read([study])))


def test_a_prefix_without_a_score_needs_a_level_and_other_runs_have_no_row(tmp_path: Path):
    assert found(continued(tmp_path / "best", first=3500)).empty
    assert len(found(continued(tmp_path / "level", first=3500, recovered=10.0))) == 2
    assert found(write_study(tmp_path)).empty


def test_the_costs_of_a_study_are_those_of_every_continuation(tmp_path: Path):
    """Twelve runs took 60 s, 30 s of them before they left one of two prefixes."""
    *_, words = tables.costs(report_of(read([continued(tmp_path)])))
    assert "would have taken 720 s" in words and "it took 410 s" in words  # 25 s by a prefix's line


def test_while_later_continuations_go_on_the_first_ones_are_shown(tmp_path: Path):
    study = continued(tmp_path)
    for cell in read_study(study)["cells"]:
        if cell.get("continuation", 1) > 1:
            path = study / cell["folder"] / "run.json"
            path.write_text(path.read_text().replace("done", "running"))
    assert found(study)["count"].tolist() == [2, 2]
