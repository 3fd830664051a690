"""Published curves in a report: bands and verdicts, by hand, for a tiny study."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlplast.report import published
from rlplast.report.charts import Band
from rlplast.report.contents import write_report
from rlplast.report.gather import Gathered, gather
from rlplast.report.pictures import curves
from rlplast.report.summary import summarise
from rlplast.report.view import Report
from tests.report.drawn import svg
from tests.report.runs import write_study

# Evaluations each 10k up to 50k. At x the arm `none` returns x / 1000 + seed, and `fire` 0.
# So the mean over seeds 1 and 3, of the last two evaluations, is x / 1000 − 5 + 2.
CURVES = [
    {
        "task": "hop",
        "arm": "none",
        "source": "somebody2020",
        "points": [
            {"env_steps": 20_000, "seeds": 4, "mean": 16.0, "sd": 1.0},  # 15 to 17: 17 is inside
            {"env_steps": 40_000, "seeds": 9, "mean": 40.0, "sd": 3.0},  # 38 to 42: 37 is below
            {"env_steps": 50_000, "seeds": 9, "mean": 40.0, "sd": 3.0},  # 38 to 42: 47 is above
            {"env_steps": 60_000, "seeds": 9, "mean": 40.0, "sd": 3.0},  # not reached
        ],
    },
    {
        "task": "hop",
        "arm": "fire",
        "source": "other2021",
        "points": [{"env_steps": 20_000, "seeds": 4, "mean": 0.5, "sd": 1.0}],  # −0.5 to 1.5
    },
]


def score(task: str, arm: str, seed: int, x: int) -> float:
    return x / 1000 + seed if arm == "none" else 0.0


def made(folder: Path, curves: Any = CURVES, name: str = "demo", **keys: Any) -> Path:
    own: dict[str, Any] = {"score": score, "total": 50_000, "every": 10_000, "branch": 30_000}
    arms = ("none", "fire", "swr")
    study = write_study(folder, arms, (1, 3), ("hop",), name=name, **own | keys)
    stored = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps(stored | {"published": curves}))
    return study


def report_of(gathered: Gathered) -> Report:
    return Report(gathered, summarise(gathered))


def test_means_are_judged_where_they_were_published(tmp_path: Path) -> None:
    rows = published.compared(report_of(gather([made(tmp_path)])))
    found = [(row.arm, row.env_steps, row.seeds, row.mean, row.verdict) for row in rows]
    assert found == [
        ("none", 20_000, 2, 17.0, "inside"),
        ("none", 40_000, 2, 37.0, "below"),
        ("none", 50_000, 2, 47.0, "above"),
        ("fire", 20_000, 2, 0.0, "inside"),  # a return of 0 is a return
    ]
    assert [(row.published_low, row.published_high) for row in rows] == [
        (15.0, 17.0),
        (38.0, 42.0),
        (38.0, 42.0),
        (-0.5, 1.5),
    ]


def test_a_run_without_evaluations_before_the_moment_is_left_out(tmp_path: Path) -> None:
    study = made(tmp_path, every=25_000)  # evaluations at 25k and 50k only
    rows = published.compared(report_of(gather([study])))
    assert [(row.arm, row.env_steps, row.mean) for row in rows] == [
        ("none", 40_000, 27.0),
        ("none", 50_000, 52.0),
    ]


def test_an_arm_that_is_called_otherwise_in_a_report_of_two_studies_keeps_its_curve(
    tmp_path: Path,
) -> None:
    first = made(tmp_path, curves=[])
    second = made(tmp_path, name="late", config={"agent": {"lr": 1.0}})
    rows = published.compared(report_of(gather([first, second])))
    assert {row.arm for row in rows} == {"none (late)", "fire (late)"}


def test_the_page_says_it_in_words_in_a_table_and_in_a_file(tmp_path: Path, quick: None) -> None:
    gathered = gather([made(tmp_path)])
    page = write_report(gathered, summarise(gathered), tmp_path / "out").read_text()
    assert (
        "hop, none (2 seeds) and the published band (somebody2020, 4 to 9 seeds): inside at 20k; "
        "above at 50k; below at 40k env_steps." in page
    )
    assert "none: somebody2020, 4 to 9 seeds; fire: other2021, 4 seeds" in page
    assert '<td>below</td><td class="number">40k</td><td class="number">37.0</td>' in page
    assert re.search(r">40\.0</td><td [^>]*>\[38\.0,</td><td [^>]*>42\.0\]</td>", page)
    rows = list(csv.DictReader((tmp_path / "out" / "published.csv").read_text().splitlines()))
    assert [row["verdict"] for row in rows] == ["inside", "below", "above", "inside"]
    assert rows[1]["source"] == "somebody2020" and float(rows[1]["published_low"]) == 38


def test_without_published_curves_nothing_is_said_and_an_old_file_goes(
    tmp_path: Path, quick: None
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "published.csv").write_text("old")
    gathered = gather([made(tmp_path, curves=[])])
    page = write_report(gathered, summarise(gathered), tmp_path / "out").read_text()
    assert "Published" not in page and not (tmp_path / "out" / "published.csv").exists()


def test_the_chart_has_the_bands_as_far_as_ours_go(tmp_path: Path) -> None:
    report = report_of(gather([made(tmp_path)]))
    chart = curves(report, "hop")
    none, fire = chart.spec["datasets"]["bands"]
    assert (none["arm"], none["x"]) == ("none", [20_000, 40_000, 50_000])
    assert (none["low"], none["y"], none["high"]) == ([15, 38, 38], [16, 40, 40], [17, 42, 42])
    assert (fire["arm"], fire["words"]) == ("fire", "other2021, 4 seeds")
    assert "none, dotted: published by somebody2020, 4 to 9 seeds" in svg(chart.spec)


def test_the_band_lies_behind_the_curves_and_is_hidden_with_its_arm(tmp_path: Path) -> None:
    gathered = gather([made(tmp_path)])
    with_bands, without = (
        curves(report_of(own), "hop") for own in (gathered, replace(gathered, published=()))
    )
    dotted = 'stroke-dasharray="1,2"'
    drawing = svg(with_bands.spec)
    assert drawing.count(dotted) == 4 and dotted not in svg(without.spec)
    assert drawing.index(dotted) < drawing.index('stroke-width="1.8"')
    params = [
        own | {"value": ["none"]} if own["name"] == "shown" else own
        for own in with_bands.spec["params"]
    ]
    assert svg(with_bands.spec | {"params": params}).count(dotted) == 2


def test_curves_over_another_unit_have_no_bands(tmp_path: Path) -> None:
    gathered = gather([made(tmp_path, config={"total": "25000 updates"})])
    assert published.bands(report_of(gathered), "hop") == []
    assert published.compared(report_of(gathered))  # where the runs are known to have been


def test_a_caption_names_no_band_where_there_is_none(tmp_path: Path) -> None:
    report = report_of(gather([made(tmp_path)]))
    assert published.band_words(report, []) == ""
    band: Band = published.bands(report, "hop")[1]
    assert published.band_words(report, [band]).endswith("(fire: other2021, 4 seeds).")


@pytest.mark.parametrize("damage", [[{}], [3], [CURVES[0] | {"points": [{"x": 1}]}]])
def test_a_damaged_plan_is_named(damage: Any, tmp_path: Path) -> None:
    study = made(tmp_path, curves=damage)
    with pytest.raises(Exception, match=r"holds what nothing of ours wrote|study\.json: published"):
        gather([study])
