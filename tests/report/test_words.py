"""What a report says of its numbers, and that a simulation bears out the trust in them."""

import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlplast.report import words as made
from rlplast.report.frame import Results, read
from rlplast.report.statistics import measure, summarise
from tests.report.runs import write_study

SCRIPT = Path(__file__).parents[2] / "scripts" / "coverage.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Kind of estimate → how many of 100 intervals of 5 seeds hold the true value, at least and at most
COVERAGE = {
    "final score": (86, 97),
    "difference": (92, 96),
    "all tasks": (73, 100),
    "improvement": (93, 97),
}


@pytest.mark.parametrize("kind", COVERAGE)
def test_intervals_hold_the_true_value_as_often_as_the_docs_say(script: ModuleType, kind: str):
    """Of 1000 studies three standard errors are 2 to 4 points."""
    (ends,) = script.ranges(script.coverage(1000, (5,), [kind]))[kind].values()
    low, high = COVERAGE[kind]
    assert ends == (pytest.approx(low, abs=4), pytest.approx(high, abs=2))


@pytest.mark.parametrize("scores", ["normal", "20% of seeds fail", "ties (11 values)"])
def test_of_studies_without_differences_few_call_an_arm_better_or_worse(script: Any, scores: str):
    """As the card says. 1000 studies: three standard errors are 2 points."""
    alone, _, joint, better = script.called(script.distributions()[scores], 10, 1000, 4, 10)
    assert joint < 5 + 2 and better < joint
    assert alone > 2 * joint


@pytest.mark.parametrize("returns", ["normal", "heavy tails (t, 3)"])
def test_intervals_of_few_episodes_hold_the_mean_where_the_bootstrap_did_not(
    script: ModuleType, returns: str
):
    """Of 2000 studies three standard errors are 2 points."""
    new, old = script.of_episodes(script.distributions()[returns], 5, 2000)
    assert new > 91 and old < new - 3


@pytest.mark.parametrize(
    ("p", "gain", "won", "sense", "lost", "expected"),
    [
        (0.049, 3, 0.9, 1, (0, 1), "better"),
        (0.049, -3, 0.1, 1, (1, 0), "worse"),
        (0.049, 3, 0.1, -1, (1, 0), "worse"),  # a loss that is higher
        (0.049, -3, 0.9, -1, (0, 1), "better"),
        (0.049, 3, 0.5, 1, (0, 0), "mixed"),
        (0.049, -3, 0.9, 1, (0, 0), "mixed"),
        (0.049, 3, 0.9, 1, (1, 0), "withheld"),
        (0.049, 3, 0.1, -1, (0, 1), "withheld"),
        (0.05, 3, 0.9, 1, (1, 1), "unclear"),
        (math.nan, 3, 0.9, 1, (0, 0), "untested"),
        (math.nan, 3, math.nan, 1, (0, 0), "too few seeds"),
    ],
)
def test_a_verdict_has_the_corrected_p_value_the_sign_and_who_diverged(
    p: float, gain: float, won: float, sense: int, lost: tuple[int, int], expected: str
):
    row = {"p_holm": p, "difference": gain, "improvement": won, "improvement_low": won}
    assert made.verdict(row | {"diverged": lost[0]}, sense, lost[1]) == expected


def study(folder: Path, scores: Any, seeds: int = 6, **changes: Any) -> Results:
    """Arms whose seeds score so much more than `none`; a list has the score of each seed."""

    def score(task: str, arm: str, seed: int, x: int) -> float:
        own = scores.get(arm, 0.0)
        own = own[task] if isinstance(own, dict) else own
        noise = 0.2 * ((seed * sum(map(ord, arm))) % 5)  # of each arm its own
        return 10.0 + (own[seed] if isinstance(own, list) else own + seed + noise)

    arms = tuple(dict.fromkeys(("none", *scores)))
    return measure(read([write_study(folder, arms, range(seeds), score=score, **changes)]))


def lost(arm: str, count: int, how: str, task: str = "asterix") -> dict[str, Any]:
    return {"statuses": {(task, arm, seed): how for seed in range(count)}}


UP, BOTH = {"high": 9.0}, {"high": 9.0, "low": -9.0}
TWO, LOSS = {"tasks": ("asterix", "breakout")}, {"key": "eval/loss"}
NONE = [0.1 * (k % 9) for k in range(10)]
# fmt: off
WORDS: list[tuple[dict[str, Any], int, dict[str, Any], str]] = [
    (BOTH | {"same": 0.0}, 6, {}, r"^high is better than none by 9\.\d+ \[8.*?, 9.*?\] \(p < 0.001"
     r", Holm, 6 seeds, 2 of 3 arms differ\)\. low is worse .*by \d\.\d+ \[\d.*?\] \(p < 0.0"
     r"01\)\. No clear difference from none: same \(p = \S+\)\. This does not show"),
    (UP, 6, LOSS, r"^high is worse than none by 9\S* \[8"),  # the words have the sign
    (UP, 6, {"baseline": None}, "no baseline"),
    (BOTH, 6, lost("low", 4, "failed"), r"high is better .*Too few .*low \(at least 5"),
    (UP, 10, lost("high", 5, "failed"), r"^high is better .* \(p < 0.001, Holm, 5 to 10 seeds, 1"),
    (BOTH, 9, lost("none", 3, "diverged"), r"^high is .* No verdict against none: low \(worse by"),
    (UP, 10, lost("high", 3, "diverged"), r"^No verdict against none: high.* \(better by .*?, p < "
     r"0\.001\)"),
    (UP, 5, lost("high", 5, "diverged"), r"5 runs diverged, and .*: 5 of asterix, high\.$"),
    ({"none": NONE, "high": [k + 3 for k in NONE]}, 6, {}, r"^Not tested against none: high\."),
    # on several tasks
    (UP, 5, {"tasks": ("asterix", "mini")}, "^asterix: high is better.*mini: high is better"),
    ({"high": {"asterix": -99.0, "breakout": 900.0}}, 5, TWO,
     "^Mean over these 2 tasks: high is mixed against none: its mean differs"),
    (UP, 5, TWO | lost("none", 5, "failed", "breakout"),
     "asterix: high is better.*breakout: Nothing is compared, as no run of the baseline none"),
    (UP, 5, TWO | lost("high", 5, "failed", "breakout"), "^asterix: high is better than none by"),
    (UP, 9, TWO | lost("high", 1, "diverged", "breakout"), "^Mean over these 2 tasks: No verdict "
     r"against none: high.* \(better"),
    ({}, 5, {"tasks": ("asterix", "mini")} | lost("none", 5, "absent", "mini"), "mini: No run has"),
    (UP, 5, {"tasks": (*TWO["tasks"], "mini"), "statuses": {("mini", arm, seed): "absent"
     for arm in ("none", "high") for seed in range(5)}}, "^Mean over these 2 tasks: high is b"),
]
# fmt: on


@pytest.mark.parametrize(("scores", "seeds", "changes", "expected"), WORDS)
def test_words_on_arms(scores: Any, seeds: int, changes: Any, expected: str, tmp_path: Path):
    results = study(tmp_path, scores, seeds, **changes)
    found = " ".join(made.verdict_words(results, summarise(results)))
    assert re.search(expected, found, re.DOTALL), found


def card_of(folder: Path, *about: Any, **changes: Any) -> made.Card:
    results = study(folder, *about, **changes)
    return made.card(results, results, summarise(results))


def test_the_card_says_who_is_better_how_sure_and_at_what_cost(tmp_path: Path):
    found = card_of(tmp_path, {"some": 3.0, "most": 9.0, "never": 0.0}, 5)
    assert [line.arm for line in found.lines if line.arm] == ["most", "some"]  # the best first
    assert found.lines[0].certainty == "p < 0.001, Holm, 5 seeds, 2 of 3 arms differ"
    assert found.facts["Seeds"] == "5: 0, 1, 2, 3, 4"
    # 20 runs after the branch, of 30 s and 1500 updates each, and 5 prefixes of 25 s and 1250
    assert found.facts["Cost"] == "12 min of wall time, 36,250 updates, in all cells"
    assert found.folded["How sure?"] == [made.HOLM, made.COVERAGE]
    alone = card_of(tmp_path / "one", {}, 5)
    (line,) = alone.lines
    assert line.words.startswith("none ends at 12.") and line.certainty.endswith("5 seeds")
    assert alone.folded["How sure?"] == [made.COVERAGE]


def test_the_card_names_what_went_wrong_and_what_is_left(tmp_path: Path):
    statuses = lost("high", 2, "diverged")["statuses"] | {("asterix", "none", 0): "absent"}
    found = card_of(tmp_path, UP, 8, statuses=statuses)
    assert found.bad == [
        "3 cells not done, and in no number below; 2 of them failed.",
        "2 runs diverged, and no average has them: 2 of asterix, high.",
    ]
    assert len(found.folded["Which cells are missing, and why"]) == 3
    assert found.facts["Left"] == "0 running, 1 to start"


def test_many_tasks_leave_the_card_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(made, "LINES", 2)
    tasks = [f"task{number}" for number in range(made.LINES + 1)]
    found = card_of(tmp_path, UP, 5, tasks=tasks)
    assert [line.about for line in found.lines] == tasks[: made.LINES]
    assert [own.split(":")[0] for own in found.folded["More arms and tasks"]] == tasks[made.LINES :]
