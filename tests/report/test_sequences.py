"""Sequences of tasks: numbers against closed forms, and what the page says of runs by hand."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast.report.arms import task_of
from rlplast.report.contents import write_report
from rlplast.report.gather import Gathered, gather
from rlplast.report.run_data import RunData, measure
from rlplast.report.scores import reference_id
from rlplast.report.sequences import (
    by_task,
    forgetting,
    forward_transfer,
    late_change,
    plasticity_loss,
    revisits,
    sequence_rows,
    task_curve,
    tasks_of,
    visits,
)
from rlplast.report.summary import summarise
from tests.report.runs import write_run
from tests.report.test_page import Page

TWICE = ("a", "b", "a", "b")
GAMES = {"sequence": ["gym/x", {"id": "gym/y"}], "steps_per_task": "1k", "cycles": 2}
NAMES = ("gym/x", "gym/y", "gym/x", "gym/y")
EACH, EVERY = 1000, 250
Score = Callable[[str, int, int, float], float]  # of task, seed, phase, share of the phase


def array(*values: float) -> np.ndarray:
    return np.array(values)


def test_later_visits_are_compared_with_the_first_of_their_task():
    assert revisits(TWICE, array(10, 1, 7, 3)) == ((7 - 10) + (3 - 1)) / 2
    assert revisits((*TWICE, "a"), array(10, 1, 7, 3, 4)) == ((7 - 10) + (4 - 10) + (3 - 1)) / 3
    assert math.isnan(revisits(("a", "b"), array(1, 2)))


def test_the_second_half_is_compared_with_the_first_task_where_none_comes_again():
    assert late_change(("a", "b", "c"), array(5, 4, 2)) == 2 - 5
    assert late_change(("a", "b", "c", "d"), array(5, 9, 2, 1)) == (-3 - 4) / 2
    assert math.isnan(late_change(TWICE, array(5, 4, 2, 1)))
    assert math.isnan(late_change(("a",), array(5)))


def test_plasticity_loss_is_what_a_new_agent_has_more_after_the_first_task():
    assert plasticity_loss(array(1, 5, 6), array(9, 7, 6.5)) == (2 + 0.5) / 2
    assert plasticity_loss(array(1, 5), array(9, 7, 100)) == 2  # a run that is shorter
    assert math.isnan(plasticity_loss(array(1), array(9)))


def test_forward_transfer_is_over_first_visits_and_a_share_of_what_was_left():
    means, oracle = array(0.2, 0.6, 0.9, 0.1), array(0.8, 0.5, 0.0, 0.0)
    assert forward_transfer(TWICE, means, oracle, False) == pytest.approx(0.1)
    assert forward_transfer(TWICE, means, oracle, True) == pytest.approx(0.1 / 0.5)
    # Nothing is left to gain where the new agent is perfect.
    assert math.isnan(forward_transfer(TWICE, means, array(0, 1, 0, 0), True))


def test_forgetting_is_of_all_tasks_but_the_one_trained_last():
    finals = {"a": 4.0, "b": 100.0}
    assert forgetting(TWICE, array(1, 2, 10, 3), finals) == 10 - 4
    assert forgetting(("a", "b", "c"), array(3, 5, 0), {"a": 1.0, "b": 6.0, "c": 9.0}) == 0.5
    assert math.isnan(forgetting(("a", "a"), array(1, 2), {"a": 0.0}))


def test_what_was_not_measured_is_in_no_mean():
    assert revisits(TWICE, array(10, math.nan, 7, 3)) == -3
    assert {k: list(v) for k, v in by_task(TWICE, array(1, 2, 3, 4)).items()} == {
        "a": [1, 3],
        "b": [2, 4],
    }


# Runs by hand: evaluations of the current task four times a phase, of all seen tasks at its end.


def lines(score: Score, seed: int, names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    rows = []
    for phase, task in enumerate(names):
        for step in range(EVERY, EACH + 1, EVERY):
            x = phase * EACH + step
            row = {"updates": x, "env_steps": x, "phase": phase}
            row["eval/return_mean"] = score(task, seed, phase, step / EACH)
            if step == EACH:
                for seen in dict.fromkeys(names[: phase + 1]):
                    row[f"eval/{seen}/return_mean"] = (
                        score(task, seed, phase, 1.0) if seen == task else 50.0 - phase
                    )
            rows.append(row)
    return rows


def none(task: str, seed: int, phase: int, share: float) -> float:
    return 100 * share + seed - 10 * phase


def oracle(task: str, seed: int, phase: int, share: float) -> float:
    return 100 * share + 2 * seed


def study(folder: Path, env: dict[str, Any], names: tuple[str, ...] = NAMES) -> Gathered:
    """Five seeds of two arms, the second of which begins every task with a new agent."""
    for seed in (1, 2, 3, 4, 5):
        for arm, score in (("none", none), ("oracle", oracle)):
            config = {"seed": seed, "env": env, "total": f"{EACH * len(names)} env_steps"}
            config |= {"hooks": [{"method": arm, "at": "50%"}] if arm == "oracle" else []}
            write_run(folder / f"{arm}-{seed}", lines(score, seed, names), (), config)
    found = gather([folder])
    arms = {"oracle at 50%": "oracle"}
    runs = tuple(RunData(**{**vars(run), "arm": arms.get(run.arm, run.arm)}) for run in found.runs)
    return Gathered(**{**vars(found), "runs": runs, "arms": ("none", "oracle")})


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return study(tmp_path_factory.mktemp("games"), GAMES)


def test_the_tasks_of_a_run_follow_from_its_config():
    assert tuple(tasks_of({"env": GAMES})) == NAMES
    shifted = {"id": "gym/x", "shift": {"name": "gravity"}, "tasks": 2, "steps_per_task": 8}
    assert tasks_of({"env": shifted}) == ["task-0", "task-1"]
    two = {"sequence": ["gym/x", {"id": "gym/x", "options": {"a": 1}}], "steps_per_task": 8}
    assert tasks_of({"env": two}) == ["gym/x", "gym/x-2"]
    assert task_of({"env": shifted}) == "gym/x gravity"
    assert task_of({"env": GAMES}) == "gym/x → gym/y, 2 times"
    assert tasks_of({"env": {"id": "gym/x"}}) == tasks_of({"stream": {"name": "warm_start"}}) == []
    assert reference_id({"env": {"id": "atari/Asterix"}}) == "atari/Asterix"
    assert reference_id({"env": {"id": "atari/Asterix", **GAMES}}) == ""


def test_visits_are_read_from_the_lines_of_a_run(games: Gathered):
    run = next(run for run in games.runs if (run.arm, run.seed) == ("none", 2))
    found = visits(run)
    assert found.tasks == NAMES
    # By trapezoids from a quarter of a phase to its end: 62.5 on average.
    assert found.means == pytest.approx([64.5, 54.5, 44.5, 34.5])
    assert found.ends == pytest.approx([102, 92, 82, 72])
    assert found.finals == {"gym/x": 47.0, "gym/y": 72.0}
    xs, ys = task_curve(run, "gym/y")
    assert list(xs) == [1250, 1500, 1750, 2000, 3000, 3250, 3500, 3750, 4000]
    assert list(ys) == [17, 42, 67, 92, 48, -3, 22, 47, 72]


def test_a_run_that_stopped_early_has_the_visits_it_began(games: Gathered):
    run = next(run for run in games.runs if run.arm == "none")
    half = RunData(**{**vars(run), "metrics": run.metrics[:6]})
    assert visits(half).tasks == NAMES[:2]
    assert visits(half).ends[1] == run.metrics[5]["eval/return_mean"]


def test_losses_count_with_a_minus(games: Gathered):
    run = next(run for run in games.runs if run.arm == "none")
    renamed = [
        {key.replace("return_mean", "loss"): value for key, value in row.items()}
        for row in run.metrics
    ]
    loss = RunData(**{**vars(run), "metrics": renamed, "score": "eval/loss"})
    assert visits(loss).ends == pytest.approx(-visits(run).ends)
    assert visits(loss).finals["gym/x"] == -visits(run).finals["gym/x"]


def test_arms_are_estimated_over_seeds_and_paired_with_the_oracle(games: Gathered):
    found = {
        arm: {run.seed: visits(run) for run in games.runs if run.arm == arm} for arm in games.arms
    }
    rows = sequence_rows(found, False)
    none_row = rows["none"]
    assert none_row.revisits is not None
    assert (none_row.revisits.value, none_row.revisits.low) == (-20, -20)
    # The oracle ends at 100 + 2 seed in every phase, the arm at 100 + seed − 10 phase.
    assert none_row.plasticity_loss is not None
    assert none_row.plasticity_loss.value == pytest.approx(20 + 3)
    assert none_row.plasticity_loss.count == 5
    assert none_row.forward_transfer is not None
    assert none_row.forward_transfer.value == pytest.approx(-10 - 3)
    assert none_row.forgetting is not None
    assert none_row.forgetting.value == pytest.approx(83 - 47)
    assert none_row.late_change is None
    assert rows["oracle"].plasticity_loss is None
    assert [own and own.value for own in none_row.by_visit["gym/y"]] == [55.5, -20]
    assert none_row.lost["gym/y"] is None


def test_the_page_says_it_in_pictures_and_tables(games: Gathered, tmp_path: Path, quick: None):
    page = Page(write_report(games, summarise(games), tmp_path).read_text())
    name = "gym/x → gym/y, 2 times"
    table = page.under(name + ", each visit")
    assert table[0] == ["arm", "task", "visit 1", "visit 2 − visit 1", "forgetting"]
    assert table[1][:2] == ["none", "gym/x"]
    numbers = next(rows for own, rows in page.tables if own == name and "forgetting" in rows[0])
    head = ["arm", "seeds", "later visits − first", "plasticity loss"]
    assert numbers[0] == [*head, "forward transfer", "forgetting"]
    assert numbers[1][2] == "-20.0 [-20.0, -20.0]"
    assert numbers[2][3:5] == ["–", "–"]
    found = page.text
    assert "a plain difference" in found
    assert f"{name}, task after task" in found
    assert f"{name}, each task" in found


def test_a_drop_compares_scores_of_one_task(games: Gathered):
    run = next(run for run in games.runs if run.arm == "none")

    def drop_at(steps: int, phase: int) -> float | None:
        clock = {"updates": steps, "env_steps": steps, "frames": steps, "phase": phase}
        fired = [{"clock": clock, "norm_after": 1.0}]
        drop = measure(RunData(**{**vars(run), "receipts": fired}), None).drop
        return drop and drop.drop

    scores = {row["env_steps"]: row["eval/return_mean"] for row in run.metrics}
    assert drop_at(1500, 1) == scores[1250] - scores[1500]
    assert drop_at(1000, 1) is None  # before is one game, after another


def test_equally_hard_tasks_are_compared_with_the_first(tmp_path: Path, quick: None):
    names = tuple(f"task-{k}" for k in range(13))
    env = {"id": "gym/x", "shift": "permuted_observations", "tasks": 13, "steps_per_task": 1000}
    found = study(tmp_path / "runs", env, names)
    page = Page(write_report(found, summarise(found), tmp_path / "out").read_text())
    name = "gym/x permuted_observations"
    numbers = next(rows for own, rows in page.tables if own == name and "forgetting" in rows[0])
    assert numbers[0][2] == "second half − first task"
    assert numbers[1][2] == estimate_of(-10 * np.mean(range(7, 13)))
    assert ", each task" not in page.text  # more tasks than panels
    assert ", each visit" not in page.text


def estimate_of(value: float) -> str:
    return f"{value:#.3g} [{value:#.3g}, {value:#.3g}]"


def test_a_stream_of_tasks_has_the_section_where_there_is_an_oracle(tmp_path: Path, quick: None):
    stream = {"name": "random_labels", "phases": 4}
    for arm in ("none", "oracle"):
        rows = [
            {"updates": k, "epochs": k, "phase": k, "eval/accuracy": 0.8 if arm == "none" else 0.6}
            for k in range(4)
        ]
        config = {"kind": "supervised", "env": None, "stream": stream, "total": "4 epochs"}
        config |= {"hooks": [{"method": arm}]}
        write_run(tmp_path / "runs" / arm, rows, (), config)
    found = gather([tmp_path / "runs"])
    runs = tuple(RunData(**{**vars(run), "arm": run.folder.name}) for run in found.runs)
    for kept, shown in ((runs, True), (runs[:1], False)):
        some = Gathered(**{**vars(found), "runs": kept, "arms": ("none", "oracle")})
        text = write_report(some, summarise(some), tmp_path / "out").read_text()
        assert ("Sequence of tasks" in text) == shown
        # Continual World's form: (0.8 − 0.6) / (1 − 0.6)
        assert ("over 1 − oracle" in text and '<td class="number">0.500</td>' in text) == shown


def test_a_run_of_one_task_has_no_such_section(tmp_path: Path, quick: None):
    row = {"updates": 1, "env_steps": 100, "eval/return_mean": 1.0}
    found = gather([write_run(tmp_path / "run", [row])])
    page = write_report(found, summarise(found), tmp_path / "out").read_text()
    assert "Sequence of tasks" not in page
