"""What is said of the trust in numbers, and that a simulation bears it out."""

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlplast.report.gather import gather
from rlplast.report.summary import SummaryRow, summarise
from rlplast.report.trust import COVERAGE, Kind, coverage_words, verdict, verdict_words
from tests.report.runs import write_study

SCRIPT = Path(__file__).parents[2] / "scripts" / "coverage.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", COVERAGE)
def test_the_table_of_coverage_is_what_a_simulation_gives(script: ModuleType, kind: str) -> None:
    """Of 2000 studies three standard errors are 1.5 to 3 points; the table has whole numbers."""
    found = script.ranges(script.coverage(2000, (5, 10, 20), [kind]))[kind]
    for seeds, (low, high) in found.items():
        assert COVERAGE[kind][seeds] == (pytest.approx(low, abs=3), pytest.approx(high, abs=2))


def test_all_kinds_are_in_the_table_at_the_same_numbers_of_seeds(script: ModuleType) -> None:
    assert tuple(COVERAGE) == script.KINDS
    assert {tuple(own) for own in COVERAGE.values()} == {(5, 7, 10, 15, 20)}


def test_words_are_of_the_simulated_number_of_seeds_below() -> None:
    kinds: tuple[Kind, ...] = ("final score", "difference", "improvement")
    words = [coverage_words(count, kinds) for count in (10, 14)]
    assert words[0] == words[1]
    shares = re.findall(r"\d+", words[0].partition("held")[2])
    assert shares == [str(share) for kind in kinds for share in COVERAGE[kind][10]]
    low, high = COVERAGE["all tasks"][10]
    assert f"of a mean over tasks in {low} to {high}" in coverage_words(10, ["all tasks"])
    assert "with 20 seeds" in coverage_words(1000)
    assert "no intervals" in coverage_words(4)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SummaryRow]:
    summary = summarise(gather([write_study(tmp_path_factory.mktemp("study"), seeds=range(5))]))
    return {row.arm: row for row in summary.rows}


@pytest.mark.parametrize(
    ("p", "sign", "sense", "expected"),
    [
        (0.04, 1, 1, "better"),
        (0.04, -1, 1, "worse"),
        (0.04, 1, -1, "worse"),  # a loss that is higher
        (0.04, -1, -1, "better"),
        (0.05, 1, 1, "unclear"),
        (0.9, -1, 1, "unclear"),
        (None, 1, 1, "untested"),
    ],
)
def test_a_verdict_has_the_corrected_p_value_and_the_sign(
    rows: dict[str, SummaryRow], p: float | None, sign: int, sense: int, expected: str
) -> None:
    row = rows["fire"]
    assert row.difference is not None
    difference = dataclasses.replace(row.difference, value=sign * 3.0)
    assert row.improvement is not None
    won = dataclasses.replace(row.improvement, value=0.9 if sign == sense else 0.1)
    own = dataclasses.replace(row, p_holm=p, p_value=0.001, difference=difference)
    own = dataclasses.replace(own, improvement=won)
    assert verdict(own, sense) == expected
    if expected in ("better", "worse"):  # but most pairs say the opposite
        lost = dataclasses.replace(won, value=1 - won.value)
        assert verdict(dataclasses.replace(own, improvement=lost), sense) == "mixed"


def test_few_seeds_have_no_verdict_and_neither_has_the_baseline(
    rows: dict[str, SummaryRow], tmp_path: Path
) -> None:
    summary = summarise(gather([write_study(tmp_path, seeds=range(4))]))
    assert [verdict(row, 1) for row in summary.rows[1:]] == ["too few seeds"] * 2
    with pytest.raises(ValueError, match="asterix, none: there is no comparison"):
        verdict(rows["none"], 1)


def verdict_text(tmp_path: Path, scores: dict[str, float], seeds: int = 6, **changes: Any) -> str:
    """The words on arms whose seeds score that much more or less, on average, than the baseline."""

    def score(task: str, arm: str, seed: int, x: int) -> float:
        noise = 0.2 * ((seed * sum(map(ord, arm))) % 5)  # of each arm its own
        return 10.0 + seed + scores.get(arm, 0.0) + noise

    arms = ("none", *scores)
    study = write_study(tmp_path, arms=arms, seeds=range(seeds), score=score, **changes)
    return " ".join(verdict_words(summarise(gather([study]))))


def test_words_name_what_is_better_worse_and_unclear(tmp_path: Path):
    words = verdict_text(tmp_path, {"high": 9.0, "low": -9.0, "same": 0.0})
    sure = r"\(p < 0.001, Holm, 6 seeds, 2 of 3 arms differ\)"
    assert re.search(rf"high is better than none by 9\.\d+ \[8.*?, 9.*?\] {sure}", words)
    assert re.search(r"low is worse than none by \d\.\d+ \[\d.*?\] \(p < 0.001\)", words)
    assert "No clear difference from none: same. This does not show that they are equal." in words


def test_words_of_losses_are_turned_round(tmp_path: Path):
    words = verdict_text(tmp_path, {"high": 9.0, "low": -9.0}, key="eval/loss")
    assert "high is worse than none by" in words
    assert "low is better than none by" in words
    assert "by -" not in words and "[-" not in words  # the words have the sign


def test_few_seeds_and_no_baseline_are_said(tmp_path: Path):
    words = verdict_text(tmp_path / "a", {"high": 9.0}, seeds=4)
    assert words == "Too few seeds to judge against none (4; at least 5)."
    assert "no baseline" in verdict_text(tmp_path / "b", {"high": 9.0}, baseline=None)


def test_arms_with_too_few_seeds_are_named_where_others_have_enough(tmp_path: Path):
    failed = {("asterix", "low", seed): "failed" for seed in range(4)}
    words = verdict_text(tmp_path, {"high": 9.0, "low": -9.0}, statuses=failed)
    assert "high is better than none" in words
    assert "Too few seeds to judge against none: low (2; at least 5)." in words


def by_task(tmp_path: Path, scores: dict[str, float], **changes: Any) -> list[str]:
    """The words on one arm, `fire`, that scores so much more on each task."""

    def score(task: str, arm: str, seed: int, x: int) -> float:
        return 10.0 + seed + (arm == "fire") * (scores[task] + 0.01 * seed)

    names = tuple(scores)
    study = write_study(tmp_path, ("none", "fire"), range(5), names, score=score, **changes)
    return verdict_words(summarise(gather([study])))


def test_a_mean_over_tasks_that_one_task_decides_is_called_mixed(tmp_path: Path):
    (words,) = by_task(tmp_path, {"asterix": -99.0, "breakout": 900.0})
    assert words.startswith("Mean over these 2 tasks: fire is mixed against none: its mean differs")


def test_seeds_that_differ_alike_are_not_tested(tmp_path: Path):
    def score(task: str, arm: str, seed: int, x: int) -> float:
        return float(seed + 3 * (arm == "fire"))

    study = write_study(tmp_path, ("none", "fire"), range(5), score=score)
    (words,) = verdict_words(summarise(gather([study])))
    assert words.startswith("Not tested against none: fire.")


def test_a_task_without_the_baseline_is_named(tmp_path: Path):
    absent = {("pong", "none", seed): "failed" for seed in range(5)}
    words = by_task(tmp_path, {"asterix": 9.0, "pong": 9.0}, statuses=absent)
    assert words[0].startswith("asterix: fire is better than none by 9.0")
    assert words[1] == "pong: Nothing is compared, as no run of the baseline none has a score."


def test_an_arm_that_is_not_on_all_tasks_is_compared_on_its_own(tmp_path: Path):
    absent = {("pong", "fire", seed): "failed" for seed in range(5)}
    words = by_task(tmp_path, {"asterix": 9.0, "pong": 9.0}, statuses=absent)
    assert words[0].startswith("asterix: fire is better than none by 9.0")


def test_an_arm_that_lost_seeds_says_how_many_are_left(tmp_path: Path):
    failed = {("asterix", "high", seed): "failed" for seed in range(5)}
    words = verdict_text(tmp_path, {"high": 9.0}, seeds=10, statuses=failed)
    assert "(p < 0.001, 5 runs with a score, where others have 10, Holm" in words


def lost(arm: str, seeds: range, task: str = "asterix") -> dict[tuple[str, str, int], str]:
    return {(task, arm, seed): "diverged" for seed in seeds}


@pytest.mark.parametrize("sense", [1, -1])
@pytest.mark.parametrize("side", ["high", "none"])
def test_no_verdict_is_given_in_favour_of_a_side_that_has_runs_that_diverged(
    tmp_path: Path, side: str, sense: int
):
    """`high` is better and `low` worse than the baseline, in the score's own sense."""
    scores = {"high": 9.0 * sense, "low": -9.0 * sense}
    key = "eval/return_mean" if sense > 0 else "eval/loss"
    words = verdict_text(tmp_path, scores, 10, key=key, statuses=lost(side, range(3)))
    own, other = ("high", "low") if side == "high" else ("low", "high")
    claim = "better" if side == "high" else "worse"
    assert f"{own} is" not in words
    assert re.search(rf"No verdict against none: {own} \({claim} by \d.*?, p < 0.001", words)
    kept = "worse" if side == "high" else "better"
    assert f"{other} is {kept} than none by" in words
    assert f"Diverged, and in no average: {side} (3 of 10 runs)." in words


def test_verdicts_over_all_tasks_count_runs_that_diverged_on_one(tmp_path: Path):
    statuses = lost("fire", range(1), "breakout")
    scores = {"asterix": 900.0, "breakout": 90.0}

    def score(task: str, arm: str, seed: int, x: int) -> float:
        return 10.0 + seed + (arm == "fire") * (scores[task] + 0.01 * seed)

    study = write_study(
        tmp_path, ("none", "fire"), range(9), tuple(scores), score=score, statuses=statuses
    )
    words = verdict_words(summarise(gather([study])))
    assert words[0].startswith("Mean over these 2 tasks: No verdict against none: fire (better by")
    assert words[1] == "breakout: Diverged, and in no average: fire (1 of 9 runs)."


def test_an_arm_of_which_all_runs_diverged_is_named_and_so_is_a_run_without_an_end(tmp_path: Path):
    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        return None if (arm, seed, x) == ("fire", 2, 6000) else 1.0 + seed + x

    arms = ("none", "fire", "full_reset")
    study = write_study(
        tmp_path, arms, range(5), score=score, statuses=lost("full_reset", range(5))
    )
    summary = summarise(gather([study]))
    (words,) = verdict_words(summary)
    assert "Diverged, and in no average: full_reset (5 of 5 runs), fire (1 of 5 runs)." in words
    assert {row.arm: row.diverged for row in summary.rows} == {"none": 0, "fire": 1}


def test_tasks_without_a_common_scale_have_a_sentence_each(tmp_path: Path):
    words = verdict_text(tmp_path, {"high": 9.0}, tasks=("asterix", "mini"))
    assert "asterix: high is better than none" in words
    assert "mini: high is better than none" in words
    assert "all tasks" not in words


@pytest.mark.parametrize("scores", ["normal", "20% of seeds fail", "ties (11 values)"])
def test_of_studies_without_differences_few_call_an_arm_better_or_worse(
    script: ModuleType, scores: str
) -> None:
    """As the card says. 2000 studies: three standard errors are 1.5 points."""
    alone, _, joint, better = script.called(script.distributions()[scores], 10, 2000, 4, 10)
    assert joint < 5 + 1.5 and better < joint
    assert alone > 2 * joint


@pytest.mark.parametrize("returns", ["normal", "heavy tails (t, 3)"])
def test_intervals_of_few_episodes_hold_the_mean_where_the_bootstrap_did_not(
    script: ModuleType, returns: str
) -> None:
    """Of 2000 studies three standard errors are 2 points."""
    new, old = script.of_episodes(script.distributions()[returns], 5, 2000)
    assert new > 91 and old < new - 3
