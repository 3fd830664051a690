"""Numbers of runs through tasks, against closed forms and runs by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlplast.report import sequences as ours
from rlplast.report.frame import Results, read
from tests.report.runs import write_run

GAMES = {"sequence": ["gym/x", {"id": "gym/y"}], "steps_per_task": "1k", "cycles": 2}
NAMES = ["gym/x", "gym/y", "gym/x", "gym/y"]
nan = math.nan


def of(names: str, **columns: list[float]) -> pd.DataFrame:
    """Visits of a run, a letter per task."""
    return pd.DataFrame({"phase": range(len(names)), "name": list(names), **columns})


def test_later_visits_are_compared_with_the_first_of_their_task():
    assert ours.revisits(of("abab", mean=[10, 1, 7, 3])) == ((7 - 10) + (3 - 1)) / 2
    assert ours.revisits(of("ababa", mean=[10, 1, 7, 3, 4])) == ((7 - 10) + (4 - 10) + (3 - 1)) / 3
    assert ours.revisits(of("abab", mean=[10, nan, 7, 3])) == 7 - 10  # not measured
    assert math.isnan(ours.revisits(of("ab", mean=[1, 2])))


def test_the_second_half_is_compared_with_the_first_task_where_none_comes_again():
    assert ours.late_change(of("abc", mean=[5, 4, 2])) == 2 - 5
    assert ours.late_change(of("abcd", mean=[5, 9, 2, 1])) == (-3 - 4) / 2
    assert math.isnan(ours.late_change(of("abab", mean=[5, 4, 2, 1])))
    assert math.isnan(ours.late_change(of("a", mean=[5])))


def test_plasticity_loss_is_what_a_new_agent_has_more_after_the_first_task():
    assert ours.plasticity_loss(of("abc", end=[1, 5, 6]), of("abc", end=[9, 7, 6.5])) == 2.5 / 2
    assert ours.plasticity_loss(of("ab", end=[1, 5]), of("abc", end=[9, 7, 100])) == 2  # shorter
    assert math.isnan(ours.plasticity_loss(of("a", end=[1]), of("a", end=[9])))


def test_forward_transfer_is_over_first_visits_and_a_share_of_what_was_left():
    run, oracle = (of("abab", mean=own) for own in ([0.2, 0.6, 0.9, 0.1], [0.8, 0.5, 0.0, 0.0]))
    assert ours.forward_transfer(run, oracle, False) == pytest.approx(0.1)
    assert ours.forward_transfer(run, oracle, True) == pytest.approx(0.1 / 0.5)
    # nothing is left to gain where the new agent is perfect
    assert math.isnan(ours.forward_transfer(run, of("abab", mean=[0, 1, 0, 0]), True))


def test_forgetting_is_of_all_tasks_but_the_one_trained_last():
    assert ours.forgetting(of("abab", end=[1, 2, 10, 3], last=[4, 9, 4, 9])) == 10 - 4
    assert ours.forgetting(of("abc", end=[3, 5, 0], last=[1, 6, 9])) == 0.5
    assert math.isnan(ours.forgetting(of("aa", end=[1, 2], last=[0, 0])))


# Runs by hand: evaluations of the current task four times a phase, of all seen tasks at its end.


def score(arm: str, seed: int, phase: int, share: float) -> float:
    return 100 * share + (2 * seed if arm == "oracle" else seed - 10 * phase)


def study(folder: Path, sign: int = 1, key: str = "return_mean", until: int = 4000) -> Results:
    """Five seeds of two arms, the second of which begins every task with a new agent."""
    for seed in (1, 2, 3, 4, 5):
        for arm in ("none", "oracle"):
            rows: list[dict[str, Any]] = []
            for x in range(250, until + 1, 250):
                phase = (x - 1) // 1000
                value = score(arm, seed, phase, (x - 1000 * phase) / 1000)
                row = {"updates": x, "env_steps": x, "phase": phase, f"eval/{key}": sign * value}
                for seen in set(NAMES[: phase + 1]) if x % 1000 == 0 else ():
                    here = value if seen == NAMES[phase] else 50.0 - phase
                    row[f"eval/{seen}/{key}"] = sign * here
                rows.append(row)
            config = {"seed": seed, "env": GAMES, "total": "4000 env_steps"}
            config |= {"hooks": [{"method": arm}] if arm == "oracle" else []}
            write_run(folder / f"{arm}-{seed}", rows, (), config)
    return read([folder])


def test_the_tasks_of_a_run_follow_from_its_config():
    shifted = {"id": "gym/x", "shift": {"name": "gravity"}, "tasks": 2, "steps_per_task": 8}
    assert ours.tasks_in({"env": shifted}) == ["task-0", "task-1"]
    assert ours.tasks_in({"env": {"id": "gym/x"}}) == []
    assert ours.tasks_in({"stream": {"name": "warm_start"}}) == []


@pytest.mark.parametrize(("sign", "key"), [(1, "return_mean"), (-1, "loss")])
def test_visits_are_read_from_the_lines_of_a_run(tmp_path: Path, sign: int, key: str):
    games = study(tmp_path / "whole", sign, key)
    (run,) = games.runs.index[(games.runs.arm == "none") & (games.runs.seed == 2)]
    found = ours.visits(games, [run])
    assert list(found.name) == NAMES
    # by trapezoids from a quarter of a phase to its end: 62.5 on average
    assert list(found["mean"]) == pytest.approx([64.5, 54.5, 44.5, 34.5])
    assert list(found.end) == pytest.approx([102, 92, 82, 72])
    assert list(found["last"]) == [47, 72, 47, 72]
    xs, ys = ours.task_curve(games, run, "gym/y")
    assert list(xs) == [1250, 1500, 1750, 2000, 3000, 3250, 3500, 3750, 4000]
    assert list(sign * ys) == [17, 42, 67, 92, 48, -3, 22, 47, 72]
    both = {"gym/x": [(0, 1000), (2000, 3000)], "gym/y": [(1000, 2000), (3000, 4000)]}
    assert ours.trained(games, run) == both
    early = ours.visits(study(tmp_path / "early", sign, key, until=1500), [0])
    assert list(early.name) == NAMES[:2]  # what it began
    assert early.end[1] == score("none", 1, 1, 0.5) and math.isnan(early["last"][0])


def test_arms_are_estimated_over_seeds_and_paired_with_the_oracle(tmp_path: Path):
    games = study(tmp_path)
    arms = games.runs.arm.where(games.runs.arm == "none", "oracle")
    found = ours.visits(replace(games, runs=games.runs.assign(arm=arms)), games.runs.index)
    none, oracle = ours.sequence(found, False).itertuples()
    assert (none.revisits, none.revisits_low, none.seeds) == (-20, -20, 5)
    # the oracle ends at 100 + 2 seed in every phase, the arm at 100 + seed − 10 phase
    assert none.plasticity_loss == pytest.approx(20 + 3)
    assert none.plasticity_loss_low < none.plasticity_loss
    assert none.forward_transfer == pytest.approx(-10 - 3)
    assert none.forgetting == pytest.approx(83 - 47)
    assert math.isnan(none.late_change) and math.isnan(oracle.plasticity_loss)
    assert math.isnan(ours.sequence(found[found.arm == "none"], False).plasticity_loss[0])
