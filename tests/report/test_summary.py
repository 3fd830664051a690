"""A report's numbers, computed again by hand from the scores that the runs were written with."""

import csv
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlplast.report.gather import gather
from rlplast.report.run_data import measure
from rlplast.report.scores import scale_of
from rlplast.report.statistics import Estimate, curve_band
from rlplast.report.summary import ALL_TASKS, Summary, SummaryRow, csv_text, summarise
from tests.report.runs import metric_rows, receipt_row, smooth_score, write_run, write_study

KEY = "eval/return_mean"
SEEDS = (1, 2, 3)
FIVE = (1, 2, 3, 4, 5)


def summary_of(tmp_path: Path, **options: Any) -> Summary:
    return summarise(gather([write_study(tmp_path, **options)]))


def row(summary: Summary, arm: str, task: str = "asterix") -> SummaryRow:
    rows = [*summary.rows, *summary.aggregates]
    (found,) = [own for own in rows if (own.arm, own.task) == (arm, task)]
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Of one task, three arms and three seeds."""
    return summary_of(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Of two games, with five seeds."""

    def score(task: str, arm: str, seed: int, x: int) -> float:
        return smooth_score(task, arm, seed, x) + (seed * len(arm)) % 4

    folder = tmp_path_factory.mktemp("five")
    return summary_of(folder, tasks=("asterix", "breakout"), seeds=FIVE, score=score)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """The same of two games."""
    return summary_of(tmp_path_factory.mktemp("games"), tasks=("asterix", "breakout"))


@pytest.mark.parametrize(
    ("xs", "expected"),
    [
        (range(600, 6001, 600), 6000),  # the evaluation at 90% is not in it
        (range(60, 6001, 60), np.mean(range(5460, 6001, 60))),
        (range(60, 3001, 60), 3000),  # none so late: the last one
    ],
)
def test_the_final_score_is_that_of_the_last_tenth(
    tmp_path: Path, xs: range, expected: float
) -> None:
    (run,) = gather([write_run(tmp_path / "a", metric_rows(float, xs))]).runs
    assert measure(run, None).final == expected


@pytest.mark.parametrize(("share", "first"), [(1.0, 600), (0.8, 1800), (0.25, 4800), (1e-3, 6000)])
def test_the_final_score_is_that_of_the_share_that_the_config_says(
    tmp_path: Path, share: float, first: int
) -> None:
    config = {"evaluate": {"final": share}}
    xs = range(600, 6001, 600)  # one at the beginning of the share is not in it
    (run,) = gather([write_run(tmp_path / "a", metric_rows(float, xs), config=config)]).runs
    assert measure(run, None).final == np.mean(range(first, 6001, 600))


def test_final_scores_are_means_over_three_seeds(plain: Summary) -> None:
    """Of three values the IQM is the mean; at every 500 of 6000 two evaluations are late."""
    for arm in ("none", "fire", "full_reset"):
        late = [
            np.mean([smooth_score("asterix", arm, seed, x) for x in (5500, 6000)]) for seed in SEEDS
        ]
        final = row(plain, arm).final
        assert final.value == pytest.approx(np.mean(late))
        assert math.isnan(final.low) and math.isnan(final.high)  # of three seeds
        assert final.count == 3


def test_rows_say_what_they_are_of(plain: Summary) -> None:
    found = row(plain, "fire")
    assert plain.aggregates == ()  # of one task
    assert (found.score, found.unit, found.scale, found.seeds) == (KEY, "env_steps", "raw", 3)
    scale = scale_of("atari/Asterix", KEY)
    assert found.normalised.value == pytest.approx(scale.of(found.final.value))
    assert found.normalised_scale == scale.label == "human-normalised"


def test_arms_are_compared_with_the_baseline(plain: Summary) -> None:
    base, fire = row(plain, "none"), row(plain, "fire")
    assert base.improvement is None and base.difference is None
    assert math.isnan(fire.improvement.value)  # of three seeds it is not said
    assert fire.difference.value == pytest.approx(fire.final.value - base.final.value)


def test_five_seeds_that_all_win_say_how_likely_an_arm_wins(five: Summary) -> None:
    assert row(five, "none").improvement is None
    assert row(five, "fire").improvement.value == 1
    assert row(five, "fire", ALL_TASKS).improvement.value == 1


def test_a_difference_by_seed_is_surer_than_the_scores(five: Summary) -> None:
    base, fire = row(five, "none"), row(five, "fire")
    spread = fire.final.high - fire.final.low
    assert fire.difference.high - fire.difference.low < spread / 3
    assert fire.paired and fire.p_value < 0.05 and fire.difference.low > 0
    assert base.paired is base.p_value is base.p_holm is None


@pytest.mark.parametrize("tasks", [("asterix", "breakout", "mini"), ("asterix", "breakout")])
def test_verdicts_are_corrected_together(tmp_path: Path, tasks: tuple[str, ...]) -> None:
    """A family is every test that has a verdict: arms × tasks, or the arms over all tasks.

    The p-values of single tasks, where all tasks together decide, are a family of their own.
    """

    def score(task: str, arm: str, seed: int, x: int) -> float:
        noise = np.random.default_rng([seed, *arm.encode(), *task.encode()]).normal()
        return 10.0 * seed + 6 * float(noise) + 9 * (arm == "fire")

    absent = {(tasks[0], "late", 5): "failed"}  # so that this arm has no verdict over all
    arms = ("none", "fire", "full_reset", "late")
    summary = summary_of(tmp_path, tasks=tasks, arms=arms, seeds=FIVE, score=score, statuses=absent)
    over_all = {own.arm for own in summary.aggregates if own.p_value is not None}
    assert over_all == ({"fire", "full_reset"} if len(tasks) == 2 else set())
    tests = [own for own in (*summary.aggregates, *summary.rows) if own.p_value is not None]
    inside = [own for own in tests if own.task != ALL_TASKS and own.arm in over_all]
    judged = [own for own in tests if own not in inside]
    assert (len(judged), len(inside)) == ((3, 4) if over_all else (8, 0))
    for family in (judged, inside):
        family.sort(key=lambda own: own.p_value)
        floor = 0.0  # Holm's rule, step by step
        for number, own in enumerate(family):
            floor = max(floor, min(1.0, own.p_value * (len(family) - number)))
            assert own.p_holm == pytest.approx(floor)


def test_other_seeds_than_the_baselines_are_compared_without_pairs(tmp_path: Path) -> None:
    seeds = tuple(range(1, 10))  # 1 to 5 of the baseline, 4 to 9 of fire: two in common
    absent = {("asterix", "none", seed): "failed" for seed in seeds[5:]}
    absent |= {("asterix", "fire", seed): "failed" for seed in seeds[:3]}
    summary = summary_of(tmp_path, seeds=seeds, arms=("none", "fire"), statuses=absent)
    fire = row(summary, "fire")
    finals = {
        arm: [run.final for run in summary.runs if run.arm == arm] for arm in ("none", "fire")
    }
    welch = stats.ttest_ind(finals["fire"], finals["none"], equal_var=False)
    assert (fire.paired, fire.difference.count) == (False, 0)
    assert fire.p_value == pytest.approx(welch.pvalue)
    assert fire.difference.value == pytest.approx(np.mean(finals["fire"]) - np.mean(finals["none"]))
    statuses = absent | {("asterix", "fire", 9): "failed", ("asterix", "fire", 8): "failed"}
    few = row(summary_of(tmp_path / "few", seeds=seeds, statuses=statuses), "fire")
    assert (few.paired, few.difference.count, few.p_value, few.p_holm) == (True, 2, None, None)
    assert math.isnan(few.difference.low)


def test_all_tasks_need_five_seeds_each(tmp_path: Path) -> None:
    statuses = {("breakout", "fire", 5): "failed"}
    tasks = ("asterix", "breakout")
    summary = summary_of(tmp_path, tasks=tasks, seeds=FIVE, statuses=statuses)
    found = row(summary, "fire", ALL_TASKS)
    assert math.isnan(found.final.low) and math.isnan(found.improvement.low)
    assert found.p_value is None and row(summary, "fire").p_value is not None
    assert row(summary, "full_reset", ALL_TASKS).p_holm is not None


def test_a_lower_loss_is_an_improvement(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        key="eval/loss",
        seeds=FIVE,
        score=lambda task, arm, seed, x: (2.0 if arm == "none" else 1.0) + seed / 10 + (x == 3000),
    )
    fire = row(summary, "fire")
    assert fire.improvement.value == 1
    assert fire.difference.value == pytest.approx(-1)
    base = row(summary, "none")
    assert base.drop.value == pytest.approx(1)
    assert fire.normalised is None and fire.normalised_scale == ""


def test_areas_are_over_the_whole_curve_and_from_the_branch_on(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, branch=2500)
    for arm in ("none", "fire"):
        whole, after = [], []
        for seed in SEEDS:
            ys = {x: smooth_score("asterix", arm, seed, x) for x in range(500, 6001, 500)}
            trapezoids = [500 * (ys[x] + ys[x + 500]) / 2 for x in range(500, 6000, 500)]
            whole.append(sum(trapezoids) / 5500)
            after.append(sum(trapezoids[4:]) / 3500)
        found = row(summary, arm)
        assert found.auc.value == pytest.approx(np.mean(whole))
        assert found.auc_after.value == pytest.approx(np.mean(after))
    assert summary.starts == {"asterix": 2500}


def test_a_drop_and_its_recovery(tmp_path: Path) -> None:
    """Fire falls to 0 at 3000 for 1000, 1500 and 2000 steps; full_reset never comes back."""

    def score(task: str, arm: str, seed: int, x: int) -> float:
        back = {"none": 0, "fire": 3500 + 500 * seed, "full_reset": 10**9}[arm]
        return 10.0 + seed if x < 3000 or x >= back else 0.0

    summary = summary_of(tmp_path, score=score)
    fire, reset, base = (row(summary, arm) for arm in ("fire", "full_reset", "none"))
    assert fire.drop.value == pytest.approx(12)
    assert (fire.recovery, fire.recovered, fire.intervened) == (1500, 3, 3)
    assert reset.drop.value == pytest.approx(12)
    assert math.isnan(reset.recovery) and (reset.recovered, reset.intervened) == (0, 3)
    assert (base.drop.value, base.recovery) == (0, 0)


@pytest.mark.parametrize(
    ("seeds", "recovery", "recovered"),
    [((1, 2, 3), 2000, 2), ((1, 2), 2000, 2), ((1, 3), math.nan, 1)],  # of two the later
)
def test_recovery_is_the_median_where_some_never_recover(
    tmp_path: Path, seeds: tuple[int, ...], recovery: float, recovered: int
) -> None:
    def score(task: str, arm: str, seed: int, x: int) -> float:  # after 500, after 2000, never
        return 1.0 if x < 3000 or x >= 3000 + 500 * seed * seed else 0.0

    found = row(summary_of(tmp_path, score=score, seeds=seeds), "fire")
    assert found.recovery == pytest.approx(recovery, nan_ok=True)
    assert (found.recovered, found.intervened) == (recovered, len(seeds))


def test_runs_without_a_moment_have_no_drop(tmp_path: Path) -> None:
    rows = metric_rows(float, range(1000, 6001, 1000))
    receipts = [receipt_row("swr", x, norm=None) for x in (1000, 2000)]
    write_run(tmp_path / "a", rows, receipts, {"hooks": [{"method": "swr", "every": "1 updates"}]})
    summary = summarise(gather([tmp_path]))
    (found,) = summary.rows
    assert found.drop is None and math.isnan(found.recovery) and found.intervened == 0
    assert summary.starts == {"atari/Asterix": None}
    assert found.auc_after == found.auc


def test_time_is_counted_with_and_without_the_prefix(plain: Summary) -> None:
    """Runs are written with a second per 100 steps; a prefix's last line is at 2500 of 3000."""
    found = row(plain, "fire")
    assert (found.seconds, found.own_seconds, found.updates) == (60, 30, 3000)
    assert plain.prefix_seconds == {"asterix": 3 * 30}
    # 9 runs and 3 prefixes of 30 s and 1500 updates each, as arms leave at half
    assert plain.cost == (12 * 30, 12 * 1500)


def test_a_prefix_of_a_prefix_counts_its_own_part(tmp_path: Path) -> None:
    study = write_study(tmp_path, seeds=(1,))
    gathered = gather([study])
    (first,) = gathered.prefixes
    info = {"branched_from": {"run": f"../{first.folder.name}"}}
    folder = first.folder.with_name("prefix-75pct")
    second = dataclasses.replace(first, folder=folder, branch_seconds=20.0, info=info)
    both = dataclasses.replace(gathered, prefixes=(first, second))
    # 30 s up to where the arms leave the first; 25 s at the second's last line, 20 of them before
    assert summarise(both).prefix_seconds == {"asterix": 30 + 5}


# Over tasks


def test_scores_over_tasks_are_human_normalised(games: Summary) -> None:
    found = row(games, "fire", ALL_TASKS)
    ids = {"asterix": "atari/Asterix", "breakout": "atari/Breakout"}
    runs = [run for run in games.runs if run.arm == "fire"]
    scores = [scale_of(ids[run.task], KEY).of(run.final) for run in runs]
    middle = sorted(scores)[1:-1]  # the IQM of six
    assert found.final.value == pytest.approx(np.mean(middle))
    assert (found.scale, found.seeds) == ("human-normalised", 6)
    assert found.normalised == found.final
    assert found.difference.count == 6
    assert games.notes == ()


def test_a_drop_over_tasks_is_a_difference_on_their_scale(tmp_path: Path) -> None:
    games = {"asterix": (210.0, 8503.3), "breakout": (1.7, 30.5)}

    def score(task: str, arm: str, seed: int, x: int) -> float:
        random, human = games[task]
        return human if arm == "none" or x < 3000 else human - 0.25 * (human - random)

    summary = summary_of(tmp_path, score=score, tasks=tuple(games))
    found = row(summary, "fire", ALL_TASKS)
    assert found.drop.value == pytest.approx(0.25)
    assert found.difference.value == pytest.approx(-0.25)
    assert found.final.value == pytest.approx(0.75)


def test_raw_and_normalised_scores_are_never_mixed(tmp_path: Path) -> None:
    for tasks in (("asterix", "mini"), ("asterix", "walk"), ("mini", "other")):
        summary = summary_of(tmp_path / tasks[1], tasks=tasks, seeds=FIVE)
        assert "share no scale" in summary.notes[0]
        assert {own.arm for own in summary.aggregates} == {"fire", "full_reset"}
        for own in summary.aggregates:
            for estimate in (own.final, own.auc, own.auc_after, own.drop, own.difference):
                assert math.isnan(estimate.value)
            assert own.scale == "" and own.normalised is None
            # ranks need no scale
            assert own.improvement.value == 1


def test_an_arm_that_lacks_a_task_is_not_compared_over_tasks(tmp_path: Path) -> None:
    statuses = {("breakout", "fire", seed): "failed" for seed in SEEDS}
    summary = summary_of(tmp_path, tasks=("asterix", "breakout"), statuses=statuses)
    assert [own.arm for own in summary.aggregates] == ["none", "full_reset"]
    assert summary.notes == ("not in the rows over all tasks, for want of a score on some: fire",)
    assert [(own.task, own.arm) for own in summary.rows] == [
        ("asterix", "none"),
        ("asterix", "fire"),
        ("asterix", "full_reset"),
        ("breakout", "none"),
        ("breakout", "full_reset"),
    ]


# What scores can be


def test_intervals_of_shares_lie_within_what_shares_can_be(tmp_path: Path) -> None:
    """Student's would reach beyond 1, and the differences beyond ±1."""

    def score(task: str, arm: str, seed: int, x: int) -> float:
        return float((seed % 5 > 0) if arm == "none" else (seed % 5 == 1 and x > 3000))

    summary = summary_of(tmp_path, key="eval/accuracy", seeds=FIVE, score=score)
    least = {"difference": -1.0, "change": -1.0, "drop": -1.0}
    cut = 0
    for own in summary.rows:
        for field in dataclasses.fields(own):
            found = getattr(own, field.name)
            if isinstance(found, Estimate):
                low, high = least.get(field.name, 0.0), 1.0
                if field.name == "lost_area":
                    high = math.inf
                assert low <= found.low <= found.high <= high, (own.arm, field.name)
                cut += (found.low == low) + (found.high == high)
    assert cut >= 10


def test_a_band_of_shares_lies_within_0_and_1() -> None:
    scores = np.array([[0.0, 1.0, 1.0, 1.0, 1.0]]).T
    (value,), (low,), (high,) = curve_band(scores, (0.0, 1.0))
    assert 0 <= low < value == high == 1 < curve_band(scores)[2][0]


# What is missing


def test_an_unfinished_run_and_one_without_a_score_are_in_no_average(tmp_path: Path) -> None:
    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        return None if (arm, seed) == ("full_reset", 2) else 1.0 + seed

    statuses = {("asterix", "fire", 2): "running"}
    summary = summary_of(tmp_path, score=score, statuses=statuses)
    for arm in ("fire", "full_reset"):
        found = row(summary, arm)
        assert (found.seeds, found.final.count, found.difference.count) == (2, 2, 2)
        assert found.final.value == pytest.approx(3.0)
    assert summary.notes == (
        "asterix, full_reset, seed 2 has no score at its end: it is in no average",
    )


def test_single_null_scores_are_left_out_of_their_run(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, score=lambda *own: None if own[-1] == 5500 else float(own[-1]))
    assert row(summary, "fire").final.value == 6000


def test_a_run_whose_last_score_is_null_has_none(tmp_path: Path) -> None:
    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        return None if arm == "fire" and seed == 1 and x > 3500 else float(x)

    summary = summary_of(tmp_path, score=score)
    assert row(summary, "fire").seeds == len(SEEDS) - 1
    assert summary.notes == ("asterix, fire, seed 1 has no score at its end: it is in no average",)


def test_one_seed_has_numbers_without_intervals(tmp_path: Path) -> None:
    found = row(summary_of(tmp_path, seeds=(1,)), "fire")
    for estimate in (found.final, found.auc, found.difference, found.drop):
        assert math.isfinite(estimate.value)
        assert math.isnan(estimate.low) and math.isnan(estimate.high)
    assert math.isnan(found.improvement.value)


def test_one_evaluation_is_final_score_and_area(tmp_path: Path) -> None:
    found = row(summary_of(tmp_path, every=6000), "fire")
    assert found.final == found.auc == found.auc_after
    assert found.drop is None


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        ({"baseline": None}, ()),
        (
            {"statuses": {("asterix", "none", seed): "failed" for seed in SEEDS}},
            ("no run of the baseline none has a score: nothing is compared with it",),
        ),
    ],
)
def test_without_a_baseline_nothing_is_compared(
    tmp_path: Path, options: dict[str, Any], notes: tuple[str, ...]
) -> None:
    summary = summary_of(tmp_path, **options)
    assert (summary.baseline, summary.notes) == (None, notes)
    assert all(own.improvement is None and own.difference is None for own in summary.rows)


def test_arms_may_be_evaluated_at_other_points(tmp_path: Path) -> None:
    for name, every in (("a", 1000), ("b", 600)):
        rows = metric_rows(float, range(every, 6001, every))
        hooks = [{"method": "fire", "at": "50%"}] if name == "b" else []
        receipts = [receipt_row("fire", 3000)] if name == "b" else []
        write_run(tmp_path / name, rows, receipts, {"hooks": hooks})
    summary = summarise(gather([tmp_path]))
    base, fire = summary.rows
    assert base.auc_after.value == fire.auc_after.value == 4500  # of the line y = x from 3000 on
    assert fire.difference.value == 0


# The file


def test_the_file_has_a_line_per_row_with_plain_numbers(five: Summary) -> None:
    quoted = dataclasses.replace(five.rows[1], arm='fire at "25%, 50%"')
    summary = dataclasses.replace(five, rows=(*five.rows, quoted))
    lines = list(csv.DictReader(csv_text(summary).splitlines()))
    rows = [*summary.rows, *summary.aggregates]
    assert [(line["task"], line["arm"]) for line in lines] == [(r.task, r.arm) for r in rows]
    for line, own in zip(lines, rows, strict=True):
        assert float(line["final"]) == own.final.value
        assert float(line["final_low"]) == own.final.low
        assert float(line["auc_after_high"]) == own.auc_after.high
        assert int(line["seeds"]) == own.seeds
        if own.improvement is None:
            assert line["improvement"] == line["improvement_low"] == line["difference"] == ""
            assert line["p_value"] == line["p_holm"] == line["paired"] == ""
        else:
            assert (float(line["p_value"]), float(line["p_holm"])) == (own.p_value, own.p_holm)
            assert line["paired"] == "True"
            assert float(line["improvement"]) == own.improvement.value
    names = list(lines[0])
    start = names.index("difference_high") + 1
    assert names[start : start + 3] == ["paired", "p_value", "p_holm"]
    assert not {"nan", "inf", "None"} & {value for line in lines for value in line.values()}
