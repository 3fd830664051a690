"""What a report finds in folders: studies, runs, what is unfinished and what is damaged."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.report.arms import differences, label_of, task_of
from rlplast.report.gather import (
    RunData,
    curve,
    first_after,
    gather,
    higher_is_better,
    hook_time,
    score_key,
)
from tests.report.runs import metric_rows, receipt_row, smooth_score, write_run, write_study

KEY = "eval/return_mean"
FIRE = [{"method": "fire", "at": "50%"}]


def rows(score: float = 1.0, xs: range = range(1000, 6001, 1000)) -> list[dict]:
    return metric_rows(lambda x: score, xs)


def only(folder: Path) -> RunData:
    (run,) = gather([folder]).runs
    return run


# Studies


def test_a_study_is_its_finished_arms_in_its_own_order(tmp_path: Path) -> None:
    study = write_study(tmp_path, arms=("none", "swr", "fire"), tasks=("breakout", "asterix"))
    found = gather([study])
    assert (found.name, found.baseline, found.missing, found.notes) == ("demo", "none", (), ())
    assert found.arms == ("none", "swr", "fire")
    assert found.tasks == ("breakout", "asterix")
    cells = [(run.task, run.arm, run.seed) for run in found.runs]
    assert cells == [
        (task, arm, seed) for task in found.tasks for arm in found.arms for seed in (1, 2, 3)
    ]


def test_a_branched_run_says_where_it_left_its_prefix(tmp_path: Path) -> None:
    found = gather([write_study(tmp_path)])
    run = found.runs[-1]
    assert (run.unit, run.total, run.status) == ("env_steps", 6000, "done")
    assert run.branch == {"updates": 1500, "env_steps": 3000}
    assert run.branch_seconds == 30
    assert run.config["seed"] == run.seed == 3
    assert run.info["git_revision"] == "abc1234"
    assert [(p.arm, p.seed, p.branch) for p in found.prefixes] == [
        ("prefix", seed, None) for seed in (1, 2, 3)
    ]


def test_cells_that_are_not_done_are_named_and_left_out(tmp_path: Path) -> None:
    statuses = {
        ("asterix", "fire", 1): "failed",
        ("asterix", "fire", 2): "running",
        ("asterix", "none", 3): "absent",
        ("asterix", "none", 1): "interrupted",
    }
    found = gather([write_study(tmp_path, statuses=statuses)])
    assert len(found.runs) == 9 - 4
    assert sorted(found.missing) == [
        "asterix/seed-1/fire: failed with exit 1 at attempt 1",
        "asterix/seed-1/none: interrupted",
        "asterix/seed-2/fire: running, or killed",
        "asterix/seed-3/none: not started",
    ]


def test_a_study_without_tasks_is_named_by_what_it_trains_on(tmp_path: Path) -> None:
    study = write_study(tmp_path, arms=("none",), seeds=(1,))
    said = json.loads((study / "study.json").read_text())
    for cell in said["cells"]:
        cell["task"] = ""
    (study / "study.json").write_text(json.dumps(said | {"tasks": [""]}))
    found = gather([study])
    assert found.tasks == ("atari/Asterix",)
    assert found.runs[0].task == "atari/Asterix"


def test_a_study_that_has_nothing_finished_is_refused(tmp_path: Path) -> None:
    study = write_study(
        tmp_path, arms=("none",), seeds=(1,), statuses={("asterix", "none", 1): "running"}
    )
    with pytest.raises(ConfigError, match="no run is finished yet: asterix/seed-1/none: running"):
        gather([study])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 1, "name": "demo", "cells": [', "study.json is no valid JSON"),
        ("[]", "holds list"),
        ('{"format": 2}', "format 2: this rlplast reads 1"),
        ('{"format": 1, "cells": [{"key": "a"}]}', "no list of cells"),
        ('{"format": 1, "cells": 3}', "no list of cells"),
    ],
)
def test_a_damaged_plan_names_its_file(tmp_path: Path, text: str, message: str) -> None:
    study = write_study(tmp_path, arms=("none",), seeds=(1,))
    (study / "study.json").write_text(text)
    with pytest.raises(DamagedFile, match=message) as caught:
        gather([study])
    assert "study.json" in str(caught.value)


# Runs and folders of runs


def test_plain_runs_are_called_by_their_hooks(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"a{seed}", rows(), config={"seed": seed, "hooks": FIRE})
        write_run(tmp_path / "deep" / f"b{seed}", rows(), config={"seed": seed})
    found = gather([tmp_path])
    assert found.arms == ("none", "fire at 50%")
    assert found.baseline == "none"
    assert found.tasks == ("atari/Asterix",)
    assert len(found.runs) == 4
    assert found.name == tmp_path.name


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"hooks": [{"method": "fire", "on": "phase_start"}]}, "fire on phase_start"),
        ({"hooks": [{"method": "swr", "every": "1 updates", "at": None}]}, "swr every 1 updates"),
        (
            {
                "hooks": [
                    {"method": "fire", "at": ["25%", "50%"]},
                    {"method": "redo", "every": "5%", "from": "10%"},
                ]
            },
            "fire at 25%, 50% + redo every 5% from 10%",
        ),
        (
            {"layers": [{"method": "lifecycle"}], "penalties": [{"method": "l2_init"}]},
            "lifecycle + l2_init",
        ),
        ({"hooks": None}, "none"),
    ],
)
def test_labels(config: dict, label: str) -> None:
    assert label_of(config) == label


def test_tasks_of_other_kinds() -> None:
    digits = {"kind": "supervised", "data": {"name": "digits"}, "stream": {"name": "warm_start"}}
    assert task_of(digits) == "digits warm_start"
    assert task_of({"kind": "gpt", "corpora": {"a": "x.bin", "b": "y.bin"}}) == "a + b"


def test_a_second_config_of_one_label_gets_a_number_and_a_note(tmp_path: Path) -> None:
    for number, lr in enumerate((1e-3, 1e-4)):
        for seed in (1, 2):
            config = {"seed": seed, "hooks": FIRE, "agent": {"lr": lr}}
            write_run(tmp_path / f"{number}-{seed}", rows(lr), config=config)
    found = gather([tmp_path])
    assert found.arms == ("fire at 50%", "fire at 50% (2)")
    assert found.baseline is None
    assert {(run.arm, run.config["agent"]["lr"]) for run in found.runs} == {
        ("fire at 50%", 1e-4),
        ("fire at 50% (2)", 1e-3),
    }
    (note,) = found.notes
    assert "agent.lr 0.0001, 0.001" in note


def test_runs_of_one_arm_may_be_measured_differently(tmp_path: Path) -> None:
    one = {"seed": 1, "threads": 1, "evaluate": {"every": "10%"}}
    other = {"seed": 2, "threads": 4, "evaluate": {"every": "5%"}, "device": "cuda"}
    write_run(tmp_path / "a", rows(), config=one)
    write_run(tmp_path / "b", rows(xs=range(500, 6001, 500)), config=other)
    assert gather([tmp_path]).arms == ("none",)
    assert differences(one, other) == []


def test_a_repeated_run_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows(1.0))
    write_run(tmp_path / "b", rows(2.0))
    found = gather([tmp_path])
    assert [run.folder.name for run in found.runs] == ["a"]
    assert "b repeats task, arm and seed" in found.notes[0]
    twice = gather([tmp_path / "a", tmp_path / "a", tmp_path])
    assert len(twice.runs) == 1 and len(twice.notes) == 1


def test_unfinished_runs_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows())
    write_run(tmp_path / "b", rows(), info={"status": "interrupted"})
    found = gather([tmp_path])
    assert len(found.runs) == 1
    assert found.missing == (f"{tmp_path / 'b'}: interrupted",)


def test_one_run_is_a_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rows())
    assert only(folder).folder == folder


def test_nothing_found_says_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no study and no run is in there"):
        gather([tmp_path])
    with pytest.raises(ConfigError, match="is no folder"):
        gather([tmp_path / "absent"])


# Several at once


def test_arms_of_equal_configs_are_merged_over_studies(tmp_path: Path) -> None:
    first = write_study(tmp_path, seeds=(1, 2), name="first")
    second = write_study(tmp_path, seeds=(3, 4), name="second")
    found = gather([first, second])
    assert found.name == "first + second"
    assert found.arms == ("none", "fire", "full_reset")
    assert {run.seed for run in found.runs if run.arm == "fire"} == {1, 2, 3, 4}


def test_arms_of_other_configs_stay_apart(tmp_path: Path) -> None:
    first = write_study(tmp_path, seeds=(1, 2), name="first")
    other = {"agent": {"lr": 1e-3}}
    second = write_study(tmp_path, arms=("none",), seeds=(1, 2), name="second", config=other)
    found = gather([first, second])
    assert found.arms == ("none", "fire", "full_reset", "none (second)")
    assert len([run for run in found.runs if run.arm == "none (second)"]) == 2
    assert found.baseline == "none"
    assert "none (second) has another config than none" in found.notes[0]


def test_on_tasks_of_one_study_each_only_what_is_done_to_them_is_compared(tmp_path: Path) -> None:
    first = write_study(tmp_path, tasks=("asterix",), name="first")
    other = {"agent": {"lr": 1e-3}}  # other games, other learning rates
    second = write_study(tmp_path, tasks=("breakout",), name="second", config=other)
    found = gather([first, second])
    assert found.arms == ("none", "fire", "full_reset")
    hooked = {"hooks": [{"method": "swr", "at": "50%"}]}
    third = write_study(tmp_path, arms=("fire",), tasks=("walk",), name="third", config=hooked)
    assert gather([first, third]).arms[-1] == "fire (third)"


def test_a_folder_of_studies_and_runs_is_searched(tmp_path: Path) -> None:
    write_study(tmp_path / "x", seeds=(1,), name="first")
    write_run(tmp_path / "y" / "run", rows(), config={"env": {"id": "gym/CartPole-v1"}})
    found = gather([tmp_path])
    assert found.tasks == ("asterix", "gym/CartPole-v1")
    assert len(found.runs) == 4  # of the study only what it lists, and no prefix as a run


def test_a_study_and_a_run_of_it_count_the_run_once(tmp_path: Path) -> None:
    study = write_study(tmp_path, seeds=(1,))
    inside = gather([study]).runs[0].folder
    assert len(gather([inside, study]).runs) == 3


def test_runs_of_one_task_must_have_one_unit_and_one_score(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows())
    write_run(tmp_path / "b", rows(), config={"total": "3000 updates", "seed": 2})
    with pytest.raises(ConfigError, match=r"a counts env_steps, .*b updates"):
        gather([tmp_path])
    other = metric_rows(lambda x: 1.0, range(1000, 6001, 1000), "eval/accuracy")
    write_run(tmp_path / "apart" / "a", rows())
    write_run(tmp_path / "apart" / "b", other, config={"seed": 2})
    with pytest.raises(ConfigError, match=r"b is judged by eval/accuracy, .*a eval/return_mean"):
        gather([tmp_path / "apart"])


def test_tasks_may_differ_in_unit_and_score(tmp_path: Path) -> None:
    other = metric_rows(lambda x: 1.0, range(1000, 6001, 1000), "eval/accuracy")
    write_run(tmp_path / "a", rows())
    supervised = {
        "kind": "supervised",
        "env": None,
        "data": {"name": "digits"},
        "total": "3k updates",
    }
    write_run(tmp_path / "b", other, config=supervised)
    found = gather([tmp_path])
    assert found.tasks == ("atari/Asterix", "digits")
    assert {run.unit for run in found.runs} == {"env_steps", "updates"}


# Damage


def test_a_last_line_that_is_cut_is_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rows())
    whole = len(only(folder).metrics)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 3000, "env_st')
    assert len(only(folder).metrics) == whole


@pytest.mark.parametrize("line", ["{broken", "[1]", "", "\x00\x00", '"text"'])
def test_another_damaged_line_names_file_and_line(tmp_path: Path, line: str) -> None:
    folder = write_run(tmp_path / "a", rows())
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], line, *lines[5:]]) + "\n")
    with pytest.raises(DamagedFile, match=r"metrics\.jsonl, line 5 "):
        gather([folder])


def test_lines_must_count_upwards(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [*rows(), {"updates": 1, "env_steps": 2, KEY: 1.0}])
    with pytest.raises(DamagedFile, match=r"line 19: env_steps = 2, expected .* at least 6000"):
        gather([folder])
    other = write_run(tmp_path / "b", rows(), [{"method": "fire", "norm_after": 1.0}])
    with pytest.raises(DamagedFile, match=r"receipts\.jsonl, line 1: env_steps = None"):
        gather([other])


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "metrics.jsonl", "receipts.jsonl"])
def test_files_that_are_damaged_are_named(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "a", rows())
    (folder / name).write_text("{not: [closed\n{}\n")
    with pytest.raises(DamagedFile, match=name.replace(".", r"\.")):
        gather([folder])


@pytest.mark.parametrize(
    "said", ["x", {"clock": {"updates": 3}}, {"clock": {"env_steps": 3}, "seconds": "x"}]
)
def test_a_damaged_branch_is_named(tmp_path: Path, said: object) -> None:
    folder = write_run(tmp_path / "a", rows(), info={"branched_from": said})
    with pytest.raises(DamagedFile, match=r"run\.json"):
        gather([folder])


def test_text_where_a_number_belongs_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [{"updates": 1, "env_steps": 2, KEY: "much"}])
    with pytest.raises(DamagedFile, match="eval/return_mean = 'much' at 2 env_steps"):
        curve(only(folder), KEY)


# Scores and curves


def test_the_score_is_of_evaluations_if_there_are_any() -> None:
    names = [KEY, "eval/accuracy", "eval/loss", "eval/a/loss", "eval/b/loss"]
    names += ["train/return", "train/accuracy", "train/loss"]
    for index, name in enumerate(names):
        measured = [{"updates": 1, other: 1.0} for other in reversed(names[index:])]
        assert score_key(measured) == name
    with pytest.raises(ConfigError, match=r"evaluate\.every"):
        score_key([{"updates": 1, "metric/weight_norm/q": 1.0}])


def test_losses_and_calibration_errors_are_better_when_low() -> None:
    lower = [
        key
        for key in (KEY, "eval/accuracy", "eval/loss", "eval/a/loss", "train/loss", "eval/ece")
        if not higher_is_better(key)
    ]
    assert lower == ["eval/loss", "eval/a/loss", "train/loss", "eval/ece"]


def test_a_curve_has_no_point_where_there_is_no_number(tmp_path: Path) -> None:
    scores = {1000: 1.0, 2000: None, 3000: 3.0, 4000: math.nan, 5000: 5, 6000: None}
    run = only(write_run(tmp_path / "a", metric_rows(scores.__getitem__, list(scores))))
    xs, ys = curve(run, KEY)
    np.testing.assert_array_equal(xs, [1000, 3000, 5000])
    np.testing.assert_array_equal(ys, [1, 3, 5])
    assert xs.dtype == ys.dtype == float
    assert all(len(values) == 0 for values in curve(run, "eval/accuracy"))


def test_phases_say_how_long_a_run_is(tmp_path: Path) -> None:
    lines = [{"updates": 10 * n, "epochs": n, "phase": 0, "eval/accuracy": 0.5} for n in (1, 2, 3)]
    config = {"kind": "supervised", "total": "auto", "env": None, "data": {"name": "digits"}}
    run = only(write_run(tmp_path / "a", lines, config=config))
    assert (run.unit, run.total) == ("epochs", 3)
    config = {"kind": "gpt", "total": "auto", "env": None, "corpora": {"a": "x"}}
    run = only(write_run(tmp_path / "b", lines, config=config))
    assert (run.unit, run.total) == ("updates", 30)


# Where the intervention is


def test_a_hook_is_where_it_first_fired(tmp_path: Path) -> None:
    fired = [receipt_row("swr", 500, norm=None), *(receipt_row("fire", x) for x in (2000, 4000))]
    run = only(write_run(tmp_path / "a", rows(), fired))
    assert hook_time(run) == 2000
    assert hook_time(dataclasses.replace(run, receipts=fired[:1])) is None


def test_what_fired_in_the_prefix_is_common_to_all_arms(tmp_path: Path) -> None:
    fired = [receipt_row("full_reset", 1000), receipt_row("fire", 3000)]
    info = {"branched_from": {"run": "..", "clock": {"updates": 1500, "env_steps": 3000}}}
    run = only(write_run(tmp_path / "a", rows(), fired, info=info))
    assert hook_time(run) == 3000
    assert hook_time(dataclasses.replace(run, receipts=fired[:1])) == 3000


def test_an_arm_without_hooks_is_compared_where_it_left_the_prefix(tmp_path: Path) -> None:
    found = gather([write_study(tmp_path, branch=2500)])
    assert {hook_time(run) for run in found.runs} == {2500}
    assert hook_time(found.prefixes[0]) is None


def test_an_evaluation_at_the_clock_of_the_hook_is_after_it(tmp_path: Path) -> None:
    """The loop fires hooks before it evaluates."""
    study = write_study(tmp_path, seeds=(1,), branch=3000, every=500)
    for run in gather([study]).runs:
        index = first_after(run, KEY)
        assert index is not None
        assert curve(run, KEY)[0][index - 1 : index + 1].tolist() == [2500, 3000]


def test_the_last_evaluation_of_a_phase_is_before_the_hook_of_the_next(tmp_path: Path) -> None:
    """It has the same updates and epochs as the start of the next phase."""
    clocks = [(20, 2, 0), (30, 3, 0), (40, 4, 1)]
    lines = [
        {"updates": u, "epochs": e, "phase": p, "eval/accuracy": 0.1 * e} for u, e, p in clocks
    ]
    fired = receipt_row("fire", 0) | {"clock": {"updates": 30, "epochs": 3, "phase": 1}}
    config = {"kind": "supervised", "total": "4 epochs", "env": None, "data": {"name": "digits"}}
    run = only(write_run(tmp_path / "a", lines, [fired], config))
    assert hook_time(run) == 3
    assert first_after(run, "eval/accuracy") == 2


def test_first_after_is_none_without_a_hook_and_the_end_after_the_last_point(
    tmp_path: Path,
) -> None:
    run = only(write_run(tmp_path / "a", rows()))
    assert first_after(run, KEY) is None
    late = dataclasses.replace(run, receipts=[receipt_row("fire", 7000)])
    assert first_after(late, KEY) == 6


def test_written_studies_follow_their_score(tmp_path: Path) -> None:
    """Of the helper that writes the folders of these tests."""
    run = gather([write_study(tmp_path)]).runs[4]
    xs, ys = curve(run, KEY)
    assert ys.tolist() == [smooth_score(run.task, run.arm, run.seed, int(x)) for x in xs]
