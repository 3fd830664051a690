"""What a report finds in folders: studies, runs, what is unfinished and what is damaged."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.report.arms import differences, label_of
from rlplast.report.contents import write_waiting
from rlplast.report.gather import NothingDone, gather
from rlplast.report.run_data import RunData, curve, first_after, hook_time
from tests.report.runs import metric_rows, receipt_row, write_run, write_study

KEY = "eval/return_mean"
FIRE = [{"method": "fire", "at": "50%"}]


def rows(score: float = 1.0, xs: range = range(1000, 6001, 1000), key: str = KEY) -> list[dict]:
    return metric_rows(lambda x: score, xs, key)


def only(folder: Path) -> RunData:
    (run,) = gather([folder]).runs
    return run


DIGITS = {"kind": "supervised", "env": None, "data": {"name": "digits"}}


# Studies


def test_a_study_is_its_finished_arms_in_its_own_order(tmp_path: Path) -> None:
    arms, tasks, seeds = ("none", "swr", "fire"), ("breakout", "asterix"), (1, 2, 3)
    found = gather([write_study(tmp_path, arms=arms, tasks=tasks)])
    assert (found.name, found.baseline, found.missing, found.notes) == ("demo", "none", (), ())
    assert (found.arms, found.tasks) == (arms, tasks)
    cells = [(run.task, run.arm, run.seed) for run in found.runs]
    assert cells == list(itertools.product(tasks, arms, seeds))
    run = found.runs[-1]
    assert (run.unit, run.total) == ("env_steps", 6000)
    assert run.branch == {"updates": 1500, "env_steps": 3000}
    assert run.branch_seconds == 30
    assert run.config["seed"] == run.seed == 3
    assert run.info["git_revision"] == "abc1234"
    prefixes = [(run.task, run.arm, run.seed, run.branch) for run in found.prefixes]
    assert prefixes == list(itertools.product(tasks, ["prefix"], seeds, [None]))


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
    stored = json.loads((study / "study.json").read_text())
    for cell in stored["cells"]:
        cell["task"] = ""
    (study / "study.json").write_text(json.dumps(stored | {"tasks": [""]}))
    found = gather([study])
    assert found.tasks == ("atari/Asterix",)
    assert found.runs[0].task == "atari/Asterix"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 1, "name": "demo", "cells": [', "study.json is no valid JSON"),
        ("[]", "holds list"),
        ('{"format": 2}', "format 2, written by rlplast another version: this version reads 1"),
        ('{"format": 1, "name": "demo"}', "study.json is damaged: versions is None"),
        (
            '{"format": 1, "versions": {}, "cells": []}',
            "holds what nothing of ours wrote: KeyError",
        ),
    ],
)
def test_a_damaged_plan_names_its_file(tmp_path: Path, text: str, message: str) -> None:
    study = write_study(tmp_path, arms=("none",), seeds=(1,))
    (study / "study.json").write_text(text)
    with pytest.raises(RlplastError, match=message) as caught:
        gather([study])
    assert str(study) in str(caught.value)


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
    ("hooks", "label"),
    [
        ([{"method": "fire", "on": "phase_start"}], "fire on phase_start"),
        ([{"method": "swr", "every": "1 updates", "at": None}], "swr every 1 updates"),
        (
            [
                {"method": "fire", "at": ["25%", "50%"]},
                {"method": "redo", "every": "5%", "from": "10%"},
            ],
            "fire at 25%, 50% + redo every 5% from 10%",
        ),
        (None, "none"),
    ],
)
def test_labels(hooks: list | None, label: str) -> None:
    assert label_of({"hooks": hooks}) == label
    others = {"layers": [{"method": "lifecycle"}], "penalties": [{"method": "l2_init"}]}
    parts = [label] * bool(hooks) + ["lifecycle", "l2_init"]
    assert label_of({"hooks": hooks} | others) == " + ".join(parts)
    windowed = {"penalties": [{"method": "parseval", "from": "phase 1"}]}
    assert label_of(windowed) == "parseval from phase 1"


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


def test_links_to_runs_are_followed_once(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere" / "a1", rows(), config={"seed": 1})
    write_run(tmp_path / "runs" / "a2", rows(), config={"seed": 2})
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs")
    assert [run.seed for run in gather([tmp_path / "runs"]).runs] == [1, 2]


def test_a_repeated_run_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows(1.0))
    write_run(tmp_path / "b", rows(2.0))
    found = gather([tmp_path])
    assert [run.folder.name for run in found.runs] == ["a"]
    assert "b repeats task, arm and seed" in found.notes[0]
    twice = gather([tmp_path / "a", tmp_path / "a", tmp_path])
    assert len(twice.runs) == 1 and len(twice.notes) == 1
    study = write_study(tmp_path, seeds=(1,))
    inside = gather([study]).runs[0].folder
    assert len(gather([inside, study]).runs) == 3


def test_one_run_is_a_report_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rows())
    assert only(folder).folder == folder
    write_run(tmp_path / "b", rows(), info={"status": "interrupted"})
    found = gather([tmp_path])
    assert len(found.runs) == 1
    assert found.missing == (f"{tmp_path / 'b'}: interrupted",)


def test_a_run_without_a_score_is_left_out_and_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows())
    write_run(tmp_path / "b", [], config={"seed": 2})
    found = gather([tmp_path])
    assert [run.seed for run in found.runs] == [1]
    assert found.missing == (f"{tmp_path / 'b'}: no score was measured",)


def test_nothing_found_says_what_is_looked_for(tmp_path: Path) -> None:
    statuses = {("asterix", "none", 1): "running"}
    study = write_study(tmp_path / "a", arms=("none",), seeds=(1,), statuses=statuses)
    with pytest.raises(ConfigError, match="no run is finished yet: asterix/seed-1/none: running"):
        gather([study])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no study and no run is in there"):
        gather([tmp_path / "empty"])
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


@pytest.mark.parametrize(
    ("key", "total", "message"),
    [
        (KEY, "3000 updates", r"a counts env_steps, .*b updates"),
        ("eval/accuracy", "6000 env_steps", r"b is judged by eval/accuracy, .*a eval/return_mean"),
    ],
)
def test_runs_of_one_task_must_have_one_unit_and_one_score(
    tmp_path: Path, key: str, total: str, message: str
) -> None:
    write_run(tmp_path / "a", rows())
    write_run(tmp_path / "b", rows(key=key), config={"total": total, "seed": 2})
    with pytest.raises(ConfigError, match=message):
        gather([tmp_path])


def test_tasks_may_differ_in_unit_and_score(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows())
    other = rows(key="eval/accuracy")
    write_run(tmp_path / "b", other, config=DIGITS | {"total": "3k updates"})
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rows": [*rows(), {"updates": 1, "env_steps": 2, KEY: 1.0}]},
            r"metrics\.jsonl, line 19: env_steps = 2, expected .* at least 6000",
        ),
        (
            {"receipts": [{"method": "fire", "norm_after": 1.0}]},
            r"receipts\.jsonl, line 1 has no clock",
        ),
        (
            {"info": {"branched_from": {"run": "a", "clock": {"updates": 3}, "seconds": 1.0}}},
            r"run\.json.* env_steps = None",
        ),
        ({"config": {"total": "some"}}, r"config\.yaml: .*some"),
        ({"info": {"branched_from": 5}}, "run.json: branched_from = 5: allowed is a mapping"),
        (
            {"rows": [rows()[0] | {KEY: "high"}]},
            r"metrics\.jsonl, line 1: eval/return_mean = 'high': allowed is a number or null",
        ),
    ],
)
def test_a_run_altered_by_hand_is_named_with_file_and_line(
    tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(DamagedFile, match=message):
        gather([write_run(tmp_path / "a", **{"rows": rows()} | changes)])


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "metrics.jsonl", "receipts.jsonl"])
def test_files_that_are_damaged_are_named(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "a", rows())
    (folder / name).write_text("{not: [closed\n{}\n")
    with pytest.raises(DamagedFile, match=name.replace(".", r"\.")):
        gather([folder])


# Scores and curves


def test_the_score_is_of_evaluations_if_there_are_any(tmp_path: Path) -> None:
    names = [KEY, "eval/accuracy", "eval/loss", "eval/a/loss", "eval/b/loss"]
    names += ["train/return", "train/accuracy", "train/loss"]
    clock = {"updates": 1, "env_steps": 1}
    for index, name in enumerate(names):
        measured = [clock | {other: 1.0} for other in reversed(names[index:])]
        assert only(write_run(tmp_path / str(index), measured)).score == name
    nothing = write_run(tmp_path / "nothing", [clock | {"metric/weight_norm/q": 1.0}])
    with pytest.raises(ConfigError, match=r"nothing: .*evaluate\.every"):
        gather([nothing])


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
    run = only(write_run(tmp_path / "a", lines, config=DIGITS | {"total": "auto"}))
    assert (run.unit, run.total) == ("epochs", 3)
    config = {"kind": "gpt", "total": "auto", "env": None, "corpora": {"a": "x"}}
    run = only(write_run(tmp_path / "b", lines, config=config))
    assert (run.unit, run.total) == ("updates", 30)


# Where the intervention is


FIRED = [receipt_row("swr", 500, norm=None), receipt_row("fire", 2000), receipt_row("fire", 4000)]
BRANCHED = {"branched_from": {"run": "..", "clock": {"updates": 1500, "env_steps": 3000}}}


@pytest.mark.parametrize(
    ("receipts", "info", "expected"),
    [
        (FIRED, {}, 2000),  # where a scheduled hook first fired
        (FIRED[:1], {}, None),
        (FIRED, BRANCHED, 4000),  # what fired in the prefix is common to all arms
        (FIRED[:2], BRANCHED, 3000),
        ([], BRANCHED, 3000),  # an arm without hooks is compared where it left the prefix
    ],
)
def test_the_intervention_is_the_first_firing_or_the_branch(
    tmp_path: Path, receipts: list[dict], info: dict, expected: float | None
) -> None:
    assert hook_time(only(write_run(tmp_path / "a", rows(), receipts, info=info))) == expected


def test_an_evaluation_at_the_clock_of_the_hook_is_after_it(tmp_path: Path) -> None:
    """The loop fires hooks before it evaluates."""
    for run in gather([write_study(tmp_path, seeds=(1,), branch=3000, every=500)]).runs:
        index = first_after(run)
        assert curve(run, KEY)[0][index - 1 : index + 1].tolist() == [2500, 3000]
        late = dataclasses.replace(run, receipts=[receipt_row("fire", 7000)])
        assert first_after(late) == len(curve(run, KEY)[0])


def test_the_last_evaluation_of_a_phase_is_before_the_hook_of_the_next(tmp_path: Path) -> None:
    """It has the same updates and epochs as the start of the next phase."""
    clocks = [{"updates": 10 * n, "epochs": n, "phase": n // 4} for n in (2, 3, 4)]
    lines = [clock | {"eval/accuracy": 0.5} for clock in clocks]
    fired = receipt_row("fire", 0) | {"clock": clocks[1] | {"phase": 1}}
    run = only(write_run(tmp_path / "a", lines, [fired], DIGITS | {"total": "4 epochs"}))
    assert (hook_time(run), first_after(run)) == (3, 2)


def test_runs_that_go_on_have_curves_and_a_share_that_is_left(tmp_path: Path) -> None:
    statuses = {("asterix", "fire", 1): "running", ("asterix", "fire", 2): "absent"}
    statuses |= {("asterix", "full_reset", 1): "failed"}
    study = write_study(tmp_path, seeds=(1, 2), statuses=statuses)
    (folder,) = study.glob("cells/asterix/seed-1/fire-*")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    cut = [line for line in lines if json.loads(line)["env_steps"] <= 4500]
    (folder / "metrics.jsonl").write_text("\n".join(cut) + '\n{"updates": 23')  # half a line
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(info | {"length": {"total": "6000 env_steps"}}))
    found = gather([study])
    assert [(run.arm, run.seed) for run in found.running] == [("fire", 1)]
    assert found.running[0].metrics[-1]["env_steps"] == 4500
    assert found.left == ((True, 0.5), (False, 1.0))  # of the half after the branch; not failed
    assert len(found.missing) == 3
    (folder / "metrics.jsonl").write_text("[]\n[]\n")  # such a run is left out until it is whole
    assert gather([study]).running == ()


def test_page_of_a_study_without_tasks_shows_curves_before_a_run_is_done(tmp_path: Path) -> None:
    statuses = {("asterix", "none", 1): "running", ("asterix", "fire", 1): "running"}
    study = write_study(tmp_path, arms=("none", "fire"), seeds=(1,), statuses=statuses)
    about = json.loads((study / "study.json").read_text())
    cells = [cell | {"task": ""} for cell in about["cells"]]
    (study / "study.json").write_text(json.dumps(about | {"cells": cells, "tasks": []}))
    with pytest.raises(NothingDone) as raised:
        gather([study])
    write_waiting(raised.value.gathered, tmp_path / "page")
    text = (tmp_path / "page" / "report.html").read_text()
    assert "No run is done yet" in text and "chart-curve-atari-asterix" in text.lower()


def test_runs_that_go_on_are_found_without_a_study(tmp_path: Path) -> None:
    rows = [{"updates": 5, "env_steps": x, "eval/return_mean": 1.0} for x in (500, 1500)]
    write_run(tmp_path / "a", rows)
    write_run(tmp_path / "b", rows, config={"seed": 2}, info={"status": "running"})
    found = gather([tmp_path])
    assert [(run.task, run.arm, run.seed) for run in found.running] == [
        ("atari/Asterix", "none", 2)
    ]
    assert found.left == ((True, 0.75),)
