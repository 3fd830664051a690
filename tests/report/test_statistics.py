"""A report's numbers, against plain loops, SciPy, and what runs by hand were written with."""

import math
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rlplast.report import statistics as made
from rlplast.report.frame import Results, read
from rlplast.report.scores import scale_of
from tests.report.runs import metric_rows, receipt_row, smooth_score, write_run, write_study
from tests.report.test_estimators import slow_interval, slow_iqm

KEY = "eval/return_mean"
FIVE = (1, 2, 3, 4, 5)
nan, inf = math.nan, math.inf


def measured(*folders: Path) -> Results:
    return made.measure(read(folders))


def summary_of(folder: Path, **options: Any) -> made.Summary:
    return made.summarise(measured(write_study(folder, **options)))


def row(summary: made.Summary, arm: str, task: str = "asterix") -> Any:
    (found,) = summary.of(task)[summary.of(task).arm == arm].itertuples()
    return found


@pytest.mark.parametrize(
    ("share", "xs", "first"),
    [
        (0.1, range(600, 6001, 600), 6000),  # the evaluation at 90% is not in it
        (0.1, range(60, 6001, 60), 5460),
        (0.1, range(60, 3001, 60), 3000),  # none so late: the last one
        (0.8, range(600, 6001, 600), 1800),
    ],
)
def test_a_final_score_is_of_the_share_at_the_end(tmp_path: Path, share: float, xs: range, first):
    config = {"evaluate": {"final": share}} if share != 0.1 else {}
    runs = measured(write_run(tmp_path / "a", metric_rows(float, xs), config=config)).runs
    assert runs.final[0] == np.mean(range(first, xs[-1] + 1, xs.step))


def test_areas_and_costs_of_a_run(tmp_path: Path):
    """Arms leave at 2500, so that is where areas after it begin; runs have a second per 100."""
    study = write_study(tmp_path, branch=2500, seeds=(1, 2))
    for file in study.rglob("metrics.jsonl"):
        file.write_text(file.read_text().replace("time/", 'time/cpu_seconds": 7, "time/'))
    runs = measured(study).runs
    for run in runs[runs.arm != ""].itertuples():
        ys = {x: smooth_score("asterix", run.arm, run.seed, x) for x in range(500, 6001, 500)}
        trapezoids = [500 * (ys[x] + ys[x + 500]) / 2 for x in range(500, 6000, 500)]
        assert run.area == pytest.approx(sum(trapezoids) / 5500)
        assert run.area_after == pytest.approx(sum(trapezoids[4:]) / 3500)
        assert (run.seconds, run.own_seconds, run.cpu_seconds, run.updates) == (60, 35, 7, 3000)
        assert math.isnan(run.firing) if run.arm == "none" else run.firing == 2500


def test_arms_are_compared_from_the_first_firing_of_any_on_their_task(tmp_path: Path):
    for name, every, at in (("a", 1000, None), ("b", 600, 3000), ("late", 600, 5000)):
        fired = [receipt_row(name, x) for x in (at, 5500) if at is not None]
        config = {"hooks": [{"method": name, "at": "50%"}] if fired else []}
        write_run(tmp_path / name, metric_rows(float, range(every, 6001, every)), fired, config)
    other = {"env": {"id": "gym/other"}}
    rows = metric_rows(float, range(1000, 6001, 1000))
    write_run(tmp_path / "c", rows, [receipt_row("swr", 2000, norm=None)], other)
    runs = measured(tmp_path).runs
    assert sorted(runs.area_after) == [3500, 4500, 4500, 4500]  # of the line y = x
    assert sorted(runs.firing.dropna()) == [3000, 5000]


def test_a_run_that_goes_on_does_not_say_where_areas_begin(tmp_path: Path):
    runs = [tmp_path / name for name in "ab"]
    for folder, status, x in zip(runs, ("done", "running"), (3000, 1000), strict=True):
        rows = metric_rows(float, range(500, 6001, 500))
        write_run(folder, rows, [receipt_row("fire", x)], info={"status": status})
    assert measured(tmp_path).done.area_after.tolist() == [4500]


def test_a_change_is_the_last_tenth_minus_the_first_of_tasks_that_are_drawn_alike(tmp_path: Path):
    for name in ("random_labels", "continual_full"):
        stream = {"name": name, "phases": 20, "epochs": 5}
        config = {"kind": "supervised", "env": None, "total": "auto", "stream": stream}
        lines = [
            {"updates": 10 * k, "epochs": 5 * k, "phase": k - 1, "eval/accuracy": 1 - k**2 / 500}
            for k in range(1, 21)
        ]
        write_run(tmp_path / name, lines, (), config | {"data": {"name": name}})
    found = measured(tmp_path)
    change = (1 + 4) / 1000 - (19**2 + 20**2) / 1000
    assert found.runs.change.dropna().item() == pytest.approx(change)
    assert found.runs.change.isna().sum() == 1
    assert made.summarise(found).rows.change.dropna().item() == pytest.approx(change)


def score(x: int) -> float:
    """10; 4 from 1000 until before 2000; 13 from 3000 on; 8 from 5000 on."""
    return 10.0 - 6 * (1000 <= x < 2000) + 3 * (x >= 3000) - 5 * (x >= 5000)


def fired(folder: Path, receipts: list, key: str = KEY, **info: Any) -> list[tuple[Any, ...]]:
    sign = -1 if key == "eval/loss" else 1
    rows = metric_rows(lambda x: sign * score(x), range(500, 6001, 500), key)
    found = made.firings(read([write_run(folder / "run", rows, receipts, info=info)]))
    return list(found[["methods", "at", "drop", "recovered_after", "area"]].itertuples(False, None))


@pytest.mark.parametrize("key", [KEY, "eval/loss"])
def test_each_firing_between_scores_has_a_drop_a_recovery_and_an_area(key: str, tmp_path: Path):
    receipts = [receipt_row("fire", 100), receipt_row("fire", 1000)]
    receipts += [receipt_row("fire", 1000, "other"), receipt_row("swr", 1200, norm=None)]
    receipts += [receipt_row(own, x) for own, x in (("reset", 4700), ("fire", 4900), ("a", 6100))]
    assert fired(tmp_path, receipts, key) == [
        ("fire", 1000, 6, 1000, 6 * 500 + 6 * 500 / 2),
        ("reset, fire", 4700, 5, inf, 5 * 1300),
    ]


def test_of_a_run_that_left_a_prefix_only_what_came_after_counts_or_the_branch(tmp_path: Path):
    clock = {"updates": 1250, "env_steps": 2500}
    info = {"branched_from": {"run": "../p", "checkpoint": "c", "clock": clock, "seconds": 1.0}}
    before, after = receipt_row("fire", 1000), receipt_row("fire", 4700)
    assert fired(tmp_path / "a", [before, after], **info) == [("fire", 4700, 5, inf, 5 * 1300)]
    assert fired(tmp_path / "b", [before], **info) == [("", 2500, 0, 0, 0)]


def slow_firings(xs: list[int], ys: list[float], times: list[int]) -> list[tuple[float, ...]]:
    """Drop, recovery and area of a hook that fires often, score by score."""
    first = {}  # index of the first score from a firing on → its moment
    for time in times:
        after = sum(x < time for x in xs)
        if 0 < after < len(xs):
            first.setdefault(after, time)
    found = []
    for after, until in pairwise([*first, len(xs)]):
        level, moment = ys[after - 1], first[after]
        fall = level - ys[after]
        back = [x for x, y in zip(xs[after:until], ys[after:until], strict=True) if y >= level]
        lost, points = 0.0, [(moment, fall), *((xs[i], level - ys[i]) for i in range(after, until))]
        points.append((first.get(until, xs[-1]), points[-1][1]))  # flat until the next firing
        for (x, y), (right, top) in pairwise(points if fall > 0 else []):
            end = right if top > 0 else x + (right - x) * y / (y - top)
            lost += (end - x) * (y + max(top, 0)) / 2
            if top <= 0:
                break
        recovered = 0 if fall <= 0 else back[0] - moment if back else inf
        found.append((moment, fall, recovered, lost))
    return found


@pytest.mark.parametrize("every", [100, 300, 700, 1900])
def test_hooks_that_fire_often_are_followed_each_up_to_the_next(every: int, tmp_path: Path):
    rng = np.random.default_rng(every)
    values = {x: float(rng.integers(0, 9)) for x in range(300, 12_001, 300)}
    times = list(range(every, 12_001, every))
    receipts = [receipt_row("redo", x) for x in times]
    run = write_run(tmp_path / "run", metric_rows(values.get, list(values)), receipts)
    results = measured(run)
    found = made.firings(results)[["at", "drop", "recovered_after", "area"]]
    slow = slow_firings(list(values), list(values.values()), times)
    np.testing.assert_allclose(found.to_numpy(), slow)
    (arm,) = made.summarise(results).rows.itertuples()
    assert arm.drop == pytest.approx(np.mean(slow, axis=0)[1])
    middle = sorted(own[2] for own in slow)[len(slow) // 2]  # of two the later one
    assert arm.recovery == pytest.approx(middle if middle < inf else nan, nan_ok=True)
    assert (arm.recovered, arm.intervened) == (sum(own[2] < inf for own in slow), len(slow))


def test_a_return_of_training_at_the_firing_is_of_what_lay_before(tmp_path: Path):
    returns = {500: 10, 1000: 10, 1500: 4, 2000: 10, 2500: 10}
    rows = [{"updates": x // 2, "env_steps": x, "train/return": y} for x, y in returns.items()]
    run = write_run(tmp_path / "run", rows, [receipt_row("fire", 1000)])
    (found,) = made.firings(read([run])).itertuples()
    assert (found.at, found.drop, found.recovered_after) == (1000, 6, 1000)


def test_a_firing_between_the_scores_of_two_tasks_is_left_out(tmp_path: Path):
    """The last score of a phase has the updates of the firing that follows, not its phase."""
    env = {"sequence": ["gym/x", "gym/y"], "steps_per_task": "1k"}
    clocks = [{"updates": x, "env_steps": x, "phase": int(x > 1000)} for x in range(250, 2001, 250)]
    rows = [clock | {KEY: -float(clock["updates"])} for clock in clocks]
    receipts = [receipt_row("fire", 0) | {"clock": clocks[k]} for k in (1, 3, 6)]
    receipts[1]["clock"] = clocks[3] | {"phase": 1}
    found = made.firings(read([write_run(tmp_path / "run", rows, receipts, {"env": env})]))
    assert [(own.at, own.drop) for own in found.itertuples()] == [(500, 250), (1750, 250)]


def test_firings_of_a_run_without_a_score_at_its_end_are_in_no_average(tmp_path: Path):
    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        return None if (seed, x) == (2, 6000) else smooth_score(task, arm, seed, x)

    summary = summary_of(tmp_path, score=score)
    assert (row(summary, "fire").seeds, row(summary, "fire").intervened) == (2, 2)
    assert set(summary.firings.seed) == {1, 3}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Runs with ties and holes, of a loss too; of y there are other seeds, of z few."""
    rng = np.random.default_rng(0)
    seeds = {"none": range(8), "x": range(9), "y": range(6, 14), "z": range(3)}
    rows = [
        (task, arm, seed, score, float(rng.integers(0, 12)) + 4 * (arm == "x"))
        for task, score in (("a", KEY), ("b", "eval/loss"), ("c", KEY))
        for arm in seeds
        for seed in seeds[arm]
        if (task, arm) != ("c", "none")
    ]
    runs = pd.DataFrame(rows, columns=["task", "arm", "seed", "score", "final"])
    runs.loc[[2, 12, 30], "final"] = nan
    return runs.sample(frac=1, random_state=1)


def by_seed(runs: pd.DataFrame, task: str, arm: str) -> dict[int, float]:
    return {
        run.seed: run.final
        for run in runs.itertuples()
        if (run.task, run.arm) == (task, arm) and run.final == run.final
    }


def test_scores_are_estimated_by_task_and_arm(table: pd.DataFrame):
    found = made.final(table)
    assert len(found) == 11
    for own in found.itertuples():
        values = list(by_seed(table, own.task, own.arm).values())
        ends = slow_interval(values) if len(values) >= 5 else (nan, nan)
        assert (own.value, own.count) == (pytest.approx(slow_iqm(values)), len(values))
        assert (own.low, own.high) == pytest.approx(ends, nan_ok=True)


def test_arms_are_compared_with_the_baseline_of_their_task(table: pd.DataFrame):
    found = made.compare(table, "none")
    improved = made.improvement(table, "none").set_index(["task", "arm"])
    assert len(improved) == 6
    assert set(zip(found.task, found.arm, strict=True)) == {(t, a) for t in "ab" for a in "xyz"}
    for own in found.itertuples():
        ours, theirs = (by_seed(table, own.task, arm) for arm in (own.arm, "none"))
        pairs = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
        won = [np.sign(x - y) / 2 + 0.5 for x in ours.values() for y in theirs.values()]
        better = improved.loc[own.task, own.arm]
        assert better.value == pytest.approx(np.mean(won) if own.task == "a" else 1 - np.mean(won))
        assert (better.low <= better.value <= better.high) == (own.arm != "z")
        assert own.paired == (own.arm != "y")
        if own.arm == "y":
            welch = stats.ttest_ind(list(ours.values()), list(theirs.values()), equal_var=False)
            assert (own.p_value, own.count) == (pytest.approx(welch.pvalue), 0)
            assert (own.low, own.high) == pytest.approx(tuple(welch.confidence_interval()))
            continue
        assert (own.value, own.count) == (pytest.approx(slow_iqm(pairs)), len(pairs))
        if own.arm == "z":
            assert math.isnan(own.p_value) and math.isnan(own.low) and math.isnan(own.p_holm)
            continue
        assert (own.low, own.high) == pytest.approx(slow_interval(pairs))
        error = (own.high - own.low) / 2 / stats.t.isf(0.025, len(pairs) - 1)
        assert own.p_value == pytest.approx(2 * stats.t.sf(abs(own.value) / error, len(pairs) - 1))
    assert_holm(found.dropna(), 4)
    assert made.compare(table, "nothing").empty


def assert_holm(rows: pd.DataFrame, size: int) -> None:
    """That p_holm is the closed test: the largest Bonferroni p of all intersections of a row."""
    p_values = list(rows.p_value)
    sets = [own for n in range(size) for own in combinations(range(size), n + 1)]
    bonferroni = {own: min(1.0, len(own) * min(p_values[k] for k in own)) for own in sets}
    largest = [max(p for own, p in bonferroni.items() if k in own) for k in range(size)]
    assert list(rows.p_holm) == pytest.approx(largest)


def noisy(task: str, arm: str, seed: int, x: int) -> float:
    return smooth_score(task, arm, seed, x) + (seed * len(arm)) % 4


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, made.Summary]:
    """Of two games, with five seeds."""
    folder = tmp_path_factory.mktemp("five")
    found = measured(write_study(folder, tasks=("asterix", "breakout"), seeds=FIVE, score=noisy))
    return found, made.summarise(found)


def test_a_row_of_a_task_has_the_numbers_of_the_tables(five: tuple[Results, made.Summary]):
    results, summary = five
    done = results.done
    tables = {"final": made.final(done), "auc": made.final(done.assign(final=done.area))}
    tables["difference"] = made.compare(results.done, "none")
    tables["improvement"] = made.improvement(results.done, "none")
    for (task, arm), own in results.done.groupby(["task", "arm"]):
        found = row(summary, arm, task)
        for name, table in tables.items():
            here = table[(table.task == task) & (table.arm == arm)]
            expected = here[["value", "low", "high"]].iloc[0] if len(here) else [nan] * 3
            ends = [getattr(found, name + end) for end in ("", "_low", "_high")]
            np.testing.assert_allclose(ends, expected)
        scale = scale_of(f"atari/{task.title()}", KEY)
        assert found.normalised == pytest.approx(scale.of(found.final))
        assert (found.normalised_scale, found.scale) == ("human-normalised", "raw")
        assert (found.score, found.unit, found.seeds) == (KEY, "env_steps", 5)
        assert (found.final_mean, found.final_sd) == (own.final.mean(), own.final.std())
        assert (found.seconds, found.own_seconds, found.updates) == (60, 30, 3000)
        assert math.isnan(found.change)
        lost = summary.firings[(summary.firings.task == task) & (summary.firings.arm == arm)]
        assert found.lost_area == pytest.approx(slow_iqm(list(lost.area)))
        assert found.drop == pytest.approx(slow_iqm(list(lost["drop"])))
        assert (found.recovered, found.intervened) == (np.isfinite(lost.recovered_after).sum(), 5)
    base, fire = row(summary, "none"), row(summary, "fire")
    assert fire.paired and fire.p_holm >= fire.p_value and fire.difference_low > 0
    assert base.paired is None and math.isnan(base.p_value)


def test_a_row_of_all_tasks_is_of_scores_on_their_common_scale(five: tuple[Results, made.Summary]):
    results, summary = five
    found = row(summary, "fire", made.ALL_TASKS)
    finals: dict[str, list[float]] = {"none": [], "fire": [], "full_reset": []}
    falls = []
    for run in results.done.itertuples():
        scale = scale_of(f"atari/{run.task.title()}", KEY)
        finals[run.arm].append(scale.of(run.final))
        own = summary.firings[summary.firings.run == run.Index]["drop"]
        falls += [scale.length(own.mean())] * (run.arm == "fire")
    pairs = np.subtract(finals["fire"], finals["none"])
    assert found.final == found.normalised == pytest.approx(slow_iqm(finals["fire"]))
    assert (found.difference, found.drop) == pytest.approx((slow_iqm(list(pairs)), slow_iqm(falls)))
    assert (found.scale, found.seeds, found.improvement) == ("human-normalised", 10, 1)
    assert math.isnan(found.final_sd) and summary.notes == ()


@pytest.mark.parametrize("tasks", [("asterix", "breakout", "mini"), ("asterix", "breakout")])
def test_verdicts_are_corrected_together(tmp_path: Path, tasks: tuple[str, ...]):
    """A family is every test that has a verdict: arms × tasks, or the arms over all tasks.

    The p-values of single tasks, where all tasks together decide, are a family of their own.
    """

    def score(task: str, arm: str, seed: int, x: int) -> float:
        noise = np.random.default_rng([seed, *arm.encode(), *task.encode()]).normal()
        return 10.0 * seed + 6 * float(noise) + 9 * (arm == "fire")

    absent = {(tasks[0], "late", 5): "failed"}  # so that this arm has no verdict over all
    arms = ("none", "fire", "full_reset", "late")
    summary = summary_of(tmp_path, tasks=tasks, arms=arms, seeds=FIVE, score=score, statuses=absent)
    tests = summary.rows[summary.rows.p_value.notna()]
    over_all = set(tests.arm[tests.task == made.ALL_TASKS])
    assert over_all == ({"fire", "full_reset"} if len(tasks) == 2 else set())
    inside = (tests.task != made.ALL_TASKS) & tests.arm.isin(over_all)
    for family, size in ((~inside, 3 if over_all else 8), (inside, 2 * len(over_all))):
        assert_holm(tests[family], size)


def test_raw_and_normalised_scores_are_never_mixed(tmp_path: Path):
    for tasks in (("asterix", "walk"), ("mini", "other")):
        summary = summary_of(tmp_path / tasks[1], tasks=tasks, seeds=FIVE)
        assert "share no scale" in summary.notes[0]
        rows = summary.of(made.ALL_TASKS)
        assert list(rows.arm) == ["fire", "full_reset"]
        averages = ["final", "auc", "auc_after", "drop", "difference", "normalised", "p_value"]
        assert rows[averages].isna().all(axis=None)
        assert (rows.scale == "").all() and (rows.improvement == 1).all()  # ranks need no scale


def test_arms_without_a_task_or_with_few_seeds_on_it_are_not_compared_over_all(tmp_path: Path):
    statuses = {("breakout", "fire", seed): "failed" for seed in FIVE}
    statuses[("breakout", "full_reset", 5)] = "failed"
    tasks = ("asterix", "breakout")
    summary = summary_of(tmp_path, tasks=tasks, seeds=FIVE, statuses=statuses)
    assert list(summary.of(made.ALL_TASKS).arm) == ["none", "full_reset"]
    assert summary.notes == ("not in the rows over all tasks, for want of a score on some: fire",)
    found = row(summary, "full_reset", made.ALL_TASKS)
    assert math.isnan(found.final_low) and math.isnan(found.improvement)
    assert math.isnan(found.p_value) and row(summary, "full_reset").p_value < 0.05


def test_intervals_of_shares_lie_within_what_shares_can_be(tmp_path: Path):
    """Student's would reach beyond 1, and the differences beyond ±1."""

    def score(task: str, arm: str, seed: int, x: int) -> float:
        return float((seed % 5 > 0) if arm == "none" else (seed % 5 == 1 and x > 3000))

    rows = summary_of(tmp_path, key="eval/accuracy", seeds=FIVE, score=score).rows
    cut = 0
    for name in ("final", "normalised", "auc", "auc_after", "difference", "drop", "lost_area"):
        least, most = -1.0 * (name in ("difference", "drop")), inf if name == "lost_area" else 1.0
        low, high = rows[f"{name}_low"].dropna(), rows[f"{name}_high"].dropna()
        assert (least <= low).all() and (low <= high).all() and (high <= most).all(), name
        cut += (low == least).sum() + (high == most).sum()
    assert cut >= 10


def test_runs_without_a_score_at_their_end_are_in_no_average(tmp_path: Path):
    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        late = {("full_reset", 2): 0, ("fire", 1): 3500}.get((arm, seed), 9999)
        return None if x > late or x == 5500 else float(seed + x)

    statuses = {("asterix", "fire", 3): "running", ("asterix", "none", 4): "diverged"}
    study = write_study(tmp_path, score=score, statuses=statuses, seeds=FIVE)
    (diverged,) = (own for own in study.rglob("run.json") if '"diverged": true' in own.read_text())
    (diverged.parent / "metrics.jsonl").write_text("")  # before its first score
    results = measured(study)
    summary = made.summarise(results)
    for arm, seeds, lost in (("none", 4, (4,)), ("fire", 3, (1,)), ("full_reset", 4, (2,))):
        found = row(summary, arm)
        assert (found.seeds, found.diverged) == (seeds, 1)
        assert summary.diverged["asterix", arm] == lost
        assert math.isnan(found.final_low) and math.isnan(found.difference)
    assert row(summary, "fire").final == pytest.approx(6000 + (2 + 4 + 5) / 3)  # not of 5500
    counts = made.final(results.runs).set_index("arm")["count"]  # of runs, also those not done
    assert counts["fire"] == 3 and counts["none"] == 4
    first, second = (note.partition(" has no score")[0] for note in summary.notes)
    assert (first, second) == ("asterix, fire, seed 1", "asterix, full_reset, seed 2")
    none = replace(results, runs=results.runs.assign(final=nan))
    assert made.summarise(none).rows.empty and made.summarise(none).of("asterix").empty


def test_without_a_run_of_the_baseline_nothing_is_compared(tmp_path: Path):
    statuses = {("asterix", "none", seed): "failed" for seed in FIVE}
    summary = summary_of(tmp_path, seeds=FIVE, statuses=statuses)
    assert summary.baseline is None and "baseline none" in summary.notes[0]
    assert summary.rows[["improvement", "difference", "p_value"]].isna().all(axis=None)
