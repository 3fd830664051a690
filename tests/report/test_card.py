"""The card of a report: who is better by how much, how sure, at what cost, and what it folds."""

from pathlib import Path
from typing import Any

from rlplast.report.card import CLAIMED, LINES, card
from rlplast.report.gather import gather
from rlplast.report.numbers import estimate
from rlplast.report.page import Card
from rlplast.report.summary import summarise
from rlplast.report.trust import coverage_words
from rlplast.report.view import Report
from tests.report.runs import write_study


def report_of(folder: Path, **changes: Any) -> Report:
    found = gather([write_study(folder, **changes)])
    return Report(found, summarise(found))


def folded(own: Card) -> dict[str, tuple[str, ...]]:
    return dict(own.folded)


def test_it_says_who_is_better_by_how_much_how_sure_and_at_what_cost(tmp_path: Path):
    report = report_of(tmp_path, seeds=range(5))
    found = card(report)
    rows = {row.arm: row for row in report.summary.rows}
    words = [f"{arm} is better than none by" for arm in ("full_reset", "fire")]  # the best first
    assert [line.words for line in found.lines] == [
        f"{said} {estimate(rows[said.split()[0]].difference)}" for said in words
    ]
    assert found.lines[0].certainty == "p < 0.001, Holm, 5 seeds, 2 of 2 arms differ"
    assert found.lines[1].certainty == "p < 0.001"
    assert [line.arm for line in found.lines] == [2, 1]  # they are hidden with their arms
    facts = dict(found.facts)
    assert (facts["Arms"], facts["Seeds"]) == ("3: none, fire, full_reset", "5: 0, 1, 2, 3, 4")
    # 15 runs and 5 prefixes of 30 s and 1500 updates each
    assert facts["Cost"] == "10 min of wall time, 30k updates, in all cells"
    (holm, coverage) = folded(found)["How sure?"]
    assert "Holm" in holm
    assert coverage == coverage_words(5, ["final score", "difference", "improvement"])


def test_an_arm_that_is_not_clearly_better_is_no_headline(tmp_path: Path):
    def score(task: str, arm: str, seed: int, x: int) -> float:
        return 100.0 * seed + (seed % 2) * len(arm)

    found = card(report_of(tmp_path, arms=("none", "fire"), seeds=range(6), score=score))
    assert found.lines[0].words == "No arm clearly differs from none"
    assert found.lines[0].certainty.startswith("smallest p = ")
    assert "0 of 1 arm differs" in found.lines[0].certainty


def test_a_single_arm_says_how_it_ends(tmp_path: Path):
    report = report_of(tmp_path, arms=("none",), seeds=range(5))
    (line,) = card(report).lines
    (row,) = report.summary.rows
    assert line.words == f"none ends at {estimate(row.final)}"
    assert line.certainty == "eval/return_mean, 5 seeds"


def test_many_arms_and_tasks_leave_the_card_small(tmp_path: Path):
    arms = ("none", *("a" * length for length in range(1, 8)))
    found = card(report_of(tmp_path / "arms", arms=arms, seeds=range(5)))
    assert len(found.lines) == CLAIMED
    assert len(folded(found)["Other arms"]) == len(arms) - 1 - CLAIMED
    tasks = tuple(f"task{number}" for number in range(LINES + 2))
    found = card(report_of(tmp_path / "tasks", arms=("none", "fire"), seeds=range(5), tasks=tasks))
    assert [line.about for line in found.lines] == list(tasks[:LINES])
    assert [own.split(":")[0] for own in folded(found)["Other arms"]] == list(tasks[LINES:])
