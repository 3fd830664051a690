"""What is read of folders: tables against loops over the files, what is missing, and damage."""

import itertools
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.report.frame import (
    IDENTITY,
    PREFIX,
    NothingDone,
    Results,
    averaged,
    comparable,
    frame,
    read,
    read_run,
    runs,
)
from rlplast.study.folder import config_path
from tests.report.runs import metric_rows, receipt_row, smooth_score, write_run, write_study

KEY = "eval/return_mean"
XS = range(1000, 6001, 1000)
DIGITS = {"kind": "supervised", "env": None, "data": {"name": "digits"}}
FIRE = {"hooks": [{"method": "fire", "at": "50%"}]}
BRANCHED = {"branched_from": {"run": "..", "clock": {"updates": 1500, "env_steps": 3000}}}
CLOCK = {"updates": 1, "env_steps": 1}


def rows(score: float = 1.0, xs: range = XS, key: str = KEY) -> list[dict[str, Any]]:
    return metric_rows(lambda x: score, xs, key)


def alter(path: Path, **keys: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def cells_of(study: Path) -> list[dict[str, Any]]:
    return json.loads((study / "study.json").read_text())["cells"]


def lines_of(folder: Path, name: str = "metrics") -> list[dict[str, Any]]:
    """Return the whole lines of a file."""
    text = (folder / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def write_continued(folder: Path, count: int = 3, **keys: Any) -> Path:
    """Write a study of two seeds each of whose arms is continued, and ends `number` higher."""
    study = write_study(folder, ("none", "fire"), (1, 2), **keys)
    cells = cells_of(study)
    for cell in [own for own in cells if own["kind"] == "arm"]:
        for number in range(2, count + 1):
            own = cell | {"key": f"{cell['key']}{number}", "continuation": number}
            own["folder"] = f"{cell['folder']}{number}"

            def score(x: int, seed: int = cell["seed"], number: int = number) -> float:
                return smooth_score("asterix", "none", seed, x) + number * (x > 3000)

            config = {"seed": cell["seed"], "continuation": number}
            write_run(study / own["folder"], metric_rows(score, XS), (), config, BRANCHED)
            cells.append(own)
    alter(study / "study.json", cells=cells)
    return study


# Tables against loops over the files


def rows_of(study: Path, arms: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `frame` in its order, but for that of the names within a line."""
    cells = [cell for cell in cells_of(study) if cell["arm"] is not None]
    order = {arm: number for number, arm in enumerate(arms)}
    for cell in sorted(cells, key=lambda own: (own["task"], order[own["arm"]], own["seed"])):
        folder = study / cell["folder"]
        if not folder.exists():
            continue
        status = json.loads((folder / "run.json").read_text())["status"]
        about = ("demo", cell["task"], cell["arm"], cell["seed"], cell.get("continuation", 1))
        for line in lines_of(folder):
            for name in sorted(line.keys() - CLOCK):
                value = math.nan if line[name] is None else float(line[name])
                counts = (line["updates"], line["env_steps"])
                yield (*about, status, *counts, name, value if math.isfinite(value) else None)


def test_a_frame_is_a_loop_over_the_lines_of_all_runs_that_have_begun(tmp_path: Path):
    arms, odd = ("none", "swr", "fire"), {2000: None, 3500: math.nan, 4000: math.inf}
    states = ("running", "failed", "absent", "interrupted")
    statuses = {("asterix", "swr", seed): own for seed, own in enumerate(states)}

    def score(task: str, arm: str, seed: int, x: int) -> float | None:
        return odd[x] if x in odd and seed == 1 else smooth_score(task, arm, seed, x)

    study = write_study(
        tmp_path, arms, range(5), ("asterix", "walk"), score=score, statuses=statuses
    )
    (running,) = study.glob("cells/asterix/seed-0/swr-*")
    with (running / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 9')  # which is being written
    found = frame(study)
    head = ["study", "task", "arm", "seed", "continuation", "status", "updates", "env_steps"]
    assert list(found) == [*head, "name", "value"]
    ours = [
        (*row[:-1], None if math.isnan(row[-1]) else row[-1])
        for row in found.itertuples(index=False, name=None)
    ]
    theirs = list(rows_of(study, arms))
    assert [row[:8] for row in ours] == [row[:8] for row in theirs]
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)
    assert set(found.status) == {"done", "running", "failed", "interrupted"}
    assert (found.name == KEY).sum() > found.value[found.name == KEY].count()
    assert list(found.arm.cat.categories) == list(arms)  # colours of a plot go by them


def test_a_row_of_runs_is_a_loop_over_the_lines_of_one(tmp_path: Path):
    """Networks that fire at one moment count once; a row of receipts may sum firings up."""

    def changing(x: int) -> float:
        return math.sin(x)

    lines = metric_rows(changing, range(500, 6001, 500))
    for row in lines:
        row |= {"time/cpu_seconds": row["time/seconds"] * 2} if "time/seconds" in row else {}
    receipts = [receipt_row("fire", x, network) for x in (1000, 2000) for network in "qp"]
    receipts += [receipt_row("swr", x, norm=None) | {"firings": 30} for x in (3000, 6000)]
    receipts.insert(-1, receipt_row("swr", 3000) | {"hook": "swr at=50%"})  # at a log line
    log, plain = {"log": {"every": "5%"}}, {"agent": {"lr": 1e-3}, "evaluate": {"final": 0.5}}
    write_run(tmp_path / "a", lines, receipts, FIRE | log, BRANCHED)
    cut = [row for row in lines if row["env_steps"] < 4000]
    write_run(tmp_path / "b", cut, (), {"seed": 2} | plain, {"status": "running"})
    best = {"metric": KEY, "value": 1.0, "checkpoint": "best", "clock": lines[3]}
    (tmp_path / "a" / "checkpoints").mkdir()
    clock = {unit: lines[3][unit] for unit in CLOCK}
    (tmp_path / "a" / "checkpoints" / "best.json").write_text(json.dumps(best | {"clock": clock}))
    found = runs(tmp_path).set_index("seed")
    for seed, folder, share in ((1, "a", 0.1), (2, "b", 0.5)):
        points = [(row["env_steps"], row[KEY]) for row in lines_of(tmp_path / folder) if KEY in row]
        ends = [y for x, y in points if x > 6000 - 6000 * share]
        area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
        row, last = found.loc[seed], points[-1][0]
        assert row.final == pytest.approx(np.mean(ends))
        assert row.area == pytest.approx(area / (last - points[0][0]))
        assert (row.updates, row.seconds, row.cpu_seconds) == (last / 2, last / 100, last / 50)
        assert (row.kind, row.score, row.unit, row.total) == ("dqn", KEY, "env_steps", 6000)
        assert (row.study, row.task, row.continuation) == ("", "atari/Asterix", 1)
        assert row.folder == str(tmp_path / folder)
    one, other = found.loc[1], found.loc[2]
    assert (one.status, one.arm, other.status, other.arm) == (
        *("done", "fire at 50%"),
        *("running", "none"),
    )
    assert (one["fired/fire"], one["fired/swr"], other["fired/fire"]) == (2, 61, 0)
    assert one.best_at == clock["env_steps"] and math.isnan(other.best_at)
    assert (one["agent.lr"], other["agent.lr"]) == ("0.0001", "0.001")
    assert one["hooks.0.method"] == "fire" and pd.isna(other["hooks.0.method"])
    assert not {"log.every", "evaluate.final", "env.id"} & set(found)  # free, or equal


def test_what_a_run_does_not_count_is_0_and_counts_are_exact(tmp_path: Path):
    large = 2**53 + 1  # no float
    lines = [{"updates": 1, "epochs": n, "phase": n, "eval/accuracy": n / 4} for n in (0, large)]
    write_run(tmp_path / "a", lines, (), DIGITS | {"total": "auto"})
    write_run(tmp_path / "b", rows(xs=range(1000, 1001)))
    found = frame(tmp_path)
    assert not {"tokens", "frames", "episodes"} & set(found)
    digits, other = found[found.task == "digits"], found[found.task != "digits"]
    assert digits.epochs.tolist() == digits.phase.tolist() == [0, large]
    assert set(digits.env_steps) == set(other.epochs) == {0}
    assert set(other.env_steps) == {1000}


def test_numbers_of_one_run_are_looked_up(tmp_path: Path):
    scores = {1000: 1.0, 2000: None, 3000: 3.0, 4000: math.nan, 5000: 5, 6000: None}
    write_run(tmp_path / "a", metric_rows(scores.__getitem__, list(scores)))
    write_run(tmp_path / "b", rows(), config={"seed": 2})
    found = read([tmp_path])
    xs, ys = found.curve(0, KEY)
    assert (xs.tolist(), ys.tolist()) == ([1000, 3000, 5000], [1, 3, 5])
    assert xs.dtype == ys.dtype == float
    assert found.named(KEY, 0).env_steps.tolist() == list(scores)
    assert len(found.named("eval/accuracy", 1)) == len(found.curve(1, "eval/accuracy")[0]) == 0


# Studies


def test_a_study_is_its_arms_in_its_own_order(tmp_path: Path):
    arms, tasks, seeds = ("none", "swr", "fire"), ("breakout", "asterix"), (1, 2, 3)
    found = read([write_study(tmp_path, arms, seeds, tasks)])
    assert (found.name, found.baseline, found.missing, found.notes) == ("demo", "none", (), ())
    assert (found.arms, found.tasks) == (arms, tasks)
    cells = found.done[["task", "arm", "seed"]].itertuples(index=False, name=None)
    assert list(cells) == list(itertools.product(tasks, arms, seeds))
    last = found.done.iloc[-1]
    assert (last.branch, last.branch_updates, last.seconds_before) == (3000, 1500, 30)
    assert found.configs[last.name]["seed"] == 3
    assert found.infos[last.name]["git_revision"] == "abc1234"
    assert [row["method"] for row in found.receipts[last.name]] == ["fire"]
    prefixes = found.runs[found.runs.arm == PREFIX]
    assert len(prefixes) == 6 and prefixes.branch.isna().all()
    assert found.of("asterix").arm.tolist() == [arm for arm in arms for _ in seeds]
    assert found.of("asterix", "swr").seed.tolist() == [1, 2, 3]


def test_cells_that_are_not_done_are_named(tmp_path: Path):
    states = ("failed", "running", "interrupted", "absent", "diverged", "done", "running")
    statuses = {("asterix", "fire", seed): own for seed, own in enumerate(states)}
    study = write_study(tmp_path, ("none", "fire"), range(7), statuses=statuses)
    key = {own["seed"]: own["key"] for own in cells_of(study) if own["arm"] == "fire"}
    killed = {"end": "failed", "exit": 137, "reason": "killed"}  # its run.json says running
    (study / "claims" / f"{key[6]}.1").write_text(json.dumps(killed))
    alter(study / "study.json", smoke=True)
    found = read([study])
    assert len(found.done) == 8
    assert found.missing == (
        "asterix/seed-0/fire: failed at attempt 1",
        "asterix/seed-1/fire: running, or killed",
        "asterix/seed-2/fire: interrupted",
        "asterix/seed-3/fire: not started",
        "asterix/seed-4/fire: failed at attempt 1",
        "asterix/seed-6/fire: failed at attempt 1 (killed)",
    )
    assert [note.startswith("this is a smoke") for note in found.notes] == [True]
    assert found.left == ("running", "interrupted", "absent")
    assert found.going.seed.tolist() == [1, 2]


def test_a_study_without_tasks_is_named_by_what_it_trains_on(tmp_path: Path):
    study = write_study(tmp_path, ("none",), (1,))
    alter(study / "study.json", tasks=[""], cells=[c | {"task": ""} for c in cells_of(study)])
    found = read([study])
    assert found.tasks == ("atari/Asterix",)
    assert set(found.runs.task) == {"atari/Asterix"}


def test_a_damaged_plan_names_its_file(tmp_path: Path):
    study = write_study(tmp_path, ("none",), (1,))
    (study / "study.json").write_text('{"format": 1, "versions": {}, "cells": []}')
    with pytest.raises(RlplastError, match=rf"{study} .*what nothing of ours wrote: KeyError"):
        read([study])


# Runs and folders of runs


def test_plain_runs_are_called_by_their_hooks_and_numbered_by_their_configs(tmp_path: Path):
    for seed in (1, 2):
        write_run(tmp_path / f"a{seed}", rows(), config={"seed": seed} | FIRE)
        write_run(tmp_path / "deep" / f"b{seed}", rows(), config={"seed": seed})
        own = {"seed": seed, "agent": {"lr": 1e-5}} | FIRE
        write_run(tmp_path / f"c{seed}", rows(), config=own | {"evaluate": {"every": "5%"}})
    found = read([tmp_path])
    assert (found.arms, found.baseline) == (("none", "fire at 50%", "fire at 50% (2)"), "none")
    assert (found.name, found.tasks) == (tmp_path.name, ("atari/Asterix",))
    assert found.runs.seed.tolist() == [1, 2] * 3
    rates = [found.configs[run]["agent"]["lr"] for run in found.runs.index]
    assert rates == [1e-4, 1e-4, 1e-4, 1e-4, 1e-5, 1e-5]
    assert ["agent.lr 0.0001, 1e-05" in note for note in found.notes] == [True]


def test_links_are_followed_once_and_hidden_folders_not(tmp_path: Path):
    write_run(tmp_path / "elsewhere" / "a1", rows(), config={"seed": 1})
    write_run(tmp_path / "runs" / "a2", rows(), config={"seed": 2})
    write_run(tmp_path / "runs" / ".old" / "a3", rows(), config={"seed": 3})
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs")
    assert read([tmp_path / "runs"]).runs.seed.tolist() == [1, 2]


def test_a_repeated_run_counts_once(tmp_path: Path):
    write_run(tmp_path / "a", rows(1.0))
    write_run(tmp_path / "b", rows(2.0))
    found = read([tmp_path])
    assert [folder.name for folder in found.runs.folder] == ["a"]
    assert set(found.named(KEY, 0).value) == {1.0}
    assert "b repeats task, arm and seed" in found.notes[0]
    twice = read([tmp_path / "a", tmp_path / "a", tmp_path])
    assert len(twice.runs) == 1 and len(twice.notes) == 1
    study = write_study(tmp_path, seeds=(1,))
    inside = read([study]).done.folder.iloc[0]
    assert len(read([inside, study]).done) == 3


def test_runs_that_have_not_ended_are_found_without_a_study(tmp_path: Path):
    write_run(tmp_path / "a", rows())
    cut = rows(xs=range(500, 1501, 500))
    write_run(tmp_path / "b", cut, config={"seed": 2}, info={"status": "running"})
    write_run(tmp_path / "c", cut, config={"seed": 3}, info={"status": "failed", "diverged": True})
    found = read([tmp_path])
    assert (found.done.seed.tolist(), found.going.seed.tolist()) == ([1], [2])
    assert found.left == ("running",)
    write_run(tmp_path / "again" / "b", cut, config={"seed": 2}, info={"status": "running"})
    assert read([tmp_path]).going.seed.tolist() == [2, 2]  # which will count is not known yet
    shutil.rmtree(tmp_path / "again")
    assert found.missing == (f"{tmp_path / 'b'}: running, or killed", f"{tmp_path / 'c'}: failed")
    assert set(frame(tmp_path).status) == {"done", "running", "failed"}


def test_a_folder_of_studies_and_runs_is_searched(tmp_path: Path):
    write_study(tmp_path / "x", seeds=(1,), name="first")
    write_run(tmp_path / "y" / "run", rows(), config={"env": {"id": "gym/CartPole-v1"}})
    of_study = {"study": {"study": "first", "task": "", "seed": 1, "arm": "prefix"}}
    other = {"env": {"id": "gym/A-v1"}}
    write_run(tmp_path / "y" / "prefix-50pct", rows(), config=other, info=of_study)
    write_run(tmp_path / "y" / "prefix-mine", rows(), config={"env": {"id": "gym/B-v1"}})
    write_run(tmp_path / "x" / "first" / "cells" / "mine", rows())  # which the plan does not list
    found = read([tmp_path])
    assert found.tasks == ("asterix", "gym/B-v1", "gym/CartPole-v1")
    assert len(found.done) == 5
    assert frame(tmp_path).study.value_counts().keys().tolist() == ["first", ""]
    assert read([tmp_path / "y" / "prefix-50pct"]).tasks == ("gym/A-v1",)


def test_nothing_found_says_what_is_looked_for(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no study and no run is in there"):
        frame(tmp_path / "empty")
    with pytest.raises(ConfigError, match="nothing: no study"):
        frame()


def test_runs_without_a_line_have_a_row_and_no_numbers(tmp_path: Path):
    write_run(tmp_path / "a", [], info={"status": "running"})
    (row,) = runs(tmp_path).itertuples()
    assert (row.status, row.score, row.updates, row.seconds) == ("running", "", 0, 0)
    assert math.isnan(row.final) and math.isnan(row.area)
    found = frame(tmp_path)
    assert found.empty and list(found)[-2:] == ["name", "value"]


# Several at once


def test_a_study_of_which_nothing_has_begun_has_no_rows(tmp_path: Path):
    study = write_study(tmp_path, ("none",), (1,))
    shutil.rmtree(study / "cells")
    assert frame(study).columns.tolist() == [*IDENTITY, "name", "value"]
    assert frame(study).empty and runs(study).empty and "final" in runs(study)


def test_arms_of_equal_configs_are_merged_over_studies(tmp_path: Path):
    first = write_study(tmp_path, seeds=(1, 2), name="first")
    second = write_study(tmp_path, seeds=(3, 4), name="second", baseline="fire")
    found = read([first, second])
    assert (found.name, found.baseline) == ("first + second", "none")
    assert found.arms == ("none", "fire", "full_reset")
    assert found.of("asterix", "fire").seed.tolist() == [1, 2, 3, 4]
    assert found.of("asterix", "fire").study.tolist() == [*2 * ["first"], *2 * ["second"]]
    assert found.notes == ("baseline is none; fire is one elsewhere",)


def test_arms_of_one_name_with_other_configs_are_not_compared(tmp_path: Path):
    first = write_study(tmp_path / "a", seeds=(1, 2))
    config: dict[str, Any] = {"agent": {"lr": 1e-3}}
    second = write_study(tmp_path / "b", ("none",), (3,), config=config)
    assert set(frame(first, second).seed) == {1, 2, 3}
    with pytest.raises(ConfigError, match=r"arm none .*agent\.lr 0\.0001, 0\.001: report .* apart"):
        comparable(read([first, second]))
    other = write_study(tmp_path / "c", ("none",), (3,), ("breakout",), config=config)
    assert len(comparable(read([first, other])).done) == 7  # another task may have another config


@pytest.mark.parametrize("other", ["first/seed-{seed}", "second/seed-{seed}"])
def test_studies_split_by_seed_are_compared_by_the_configs_they_were_given(
    other: str, tmp_path: Path
):
    """A run's own config names the folder and the checkpoint that were found for its seed."""
    studies = []
    for seed, run in ((1, "first/seed-{seed}"), (2, other)):
        found = {"run": run.format(seed=seed), "checkpoint": f"best-{7 * seed}"}
        studies.append(
            write_study(tmp_path / str(seed), ("none",), (seed,), config={"start": found})
        )
        given = {"seed": seed, "start": {"run": run, "checkpoint": "best"}}
        (studies[-1] / "configs").mkdir()
        for cell in cells_of(studies[-1]):
            config_path(studies[-1], cell["key"]).write_text(json.dumps(given))
    if other.startswith("first"):
        assert comparable(read(studies)).done.seed.tolist() == [1, 2]
    else:
        with pytest.raises(ConfigError, match=r"start\.run first/seed-\{seed\}, second/"):
            comparable(read(studies))


# What can be compared


@pytest.mark.parametrize(
    ("key", "config", "message"),
    [
        (KEY, {"total": "3000 updates"}, r"a counts env_steps, .*b updates"),
        ("eval/accuracy", {}, r"b is judged by eval/accuracy, .*a eval/return_mean"),
        (KEY, {"evaluate": {"final": 0.5}}, r"b has evaluate\.final 0\.5, .*a 0\.1"),
    ],
)
def test_runs_of_one_task_must_have_one_unit_and_one_score(
    tmp_path: Path, key: str, config: dict[str, Any], message: str
):
    write_run(tmp_path / "a", rows())
    write_run(tmp_path / "b", rows(key=key), config={"seed": 2} | config)
    with pytest.raises(ConfigError, match=message):
        comparable(read([tmp_path]))
    table = runs(tmp_path)
    assert len(table) == 2 and table.columns.is_unique


def test_only_finished_runs_with_a_score_are_compared(tmp_path: Path):
    other = DIGITS | {"total": "3k updates"}  # tasks may differ in unit and score
    write_run(tmp_path / "a", rows(key="eval/accuracy"), config=other)
    write_run(tmp_path / "b", [], config={"seed": 2})
    going = write_run(tmp_path / "c", rows(), info={"status": "running"})
    found = comparable(read([tmp_path]))
    assert (found.done.task.tolist(), found.going.seed.tolist()) == (["digits"], [1])
    assert f"{tmp_path / 'b'}: no score was measured" in found.missing
    with pytest.raises(ConfigError, match=r"b: nothing to compare .*evaluate\.every"):
        comparable(read([tmp_path / "b"]))
    with pytest.raises(NothingDone, match=r"no run is finished yet: .*c: running"):
        comparable(read([going]))


# Damage


def changed(**keys: Any) -> list[dict[str, Any]]:
    """Return rows of which the third one has other keys."""
    return [row | (keys if number == 2 else {}) for number, row in enumerate(rows())]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rows": [*rows(), CLOCK | {KEY: 1.0}]},
            r"metrics\.jsonl, line 19: env_steps = 1, expected .* at least 6000",
        ),
        ({"rows": changed(env_steps=None)}, r"metrics\.jsonl, line 3: env_steps = None"),
        ({"rows": changed(epochs=2**63)}, r"metrics\.jsonl, line 3: epochs = 9\d+, .*count"),
        ({"receipts": [{"method": "fire", "norm_after": 1.0}]}, "receipts.*line 1 has no clock"),
        (
            {"receipts": [receipt_row("fire", 1) | {"clock": {"updates": 1}}]},
            r"receipts\.jsonl, line 1: env_steps = None",
        ),
        (
            {"info": {"branched_from": {"run": "a", "clock": {"updates": 3}, "seconds": 1.0}}},
            r"run\.json.* env_steps = None",
        ),
        ({"config": {"total": "some"}}, r"config\.yaml: .*some"),
    ],
)
def test_a_run_altered_by_hand_is_named_with_file_and_line(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    folder = write_run(tmp_path / "a", **{"rows": rows()} | changes)
    with pytest.raises(DamagedFile, match=message):
        frame(folder)


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "metrics.jsonl", "receipts.jsonl"])
def test_files_that_are_damaged_are_named_unless_their_run_goes_on(tmp_path: Path, name: str):
    write_run(tmp_path / "whole", rows())
    folder = write_run(tmp_path / "a", rows(), config={"seed": 2})
    (folder / name).write_text("{not: [closed\n{}\n")
    with pytest.raises(DamagedFile, match=name.replace(".", r"\.")):
        read([tmp_path])
    if name != "run.json":
        alter(folder / "run.json", status="running")
        assert read([tmp_path]).runs.seed.tolist() == [1]
        alter(folder / "run.json", status="failed", diverged=True)  # it counts in verdicts
        with pytest.raises(DamagedFile, match=name.replace(".", r"\.")):
            read([tmp_path])


# Scores and lengths


def test_the_score_is_of_evaluations_if_there_are_any(tmp_path: Path):
    names = [KEY, "eval/accuracy", "eval/loss", "eval/a/loss", "eval/b/loss"]
    names += ["train/return", "train/accuracy", "train/loss"]
    for index, name in enumerate(names):
        measured = [CLOCK | {other: 1.0} for other in reversed(names[index:])]
        folder = write_run(tmp_path / str(index), measured)
        assert read_run(folder).runs.score[0] == name
    nothing = write_run(tmp_path / "nothing", [CLOCK | {"metric/weight_norm/q": 1.0}])
    assert read_run(nothing).runs.score[0] == ""


@pytest.mark.parametrize(
    ("stream", "key"),
    [
        ("random_labels", "eval/accuracy"),
        ("permuted_pixels", "eval/online_accuracy"),
        ("flipped_bits", "eval/online_loss"),
        ("continual_full", "eval/accuracy"),
    ],
)
def test_each_stream_of_tasks_is_judged_by_its_own_score(tmp_path: Path, stream: str, key: str):
    names = ("eval/accuracy", "eval/loss", "eval/online_accuracy", "eval/online_loss")
    config = DIGITS | {"total": "auto", "stream": {"name": stream}}
    lines = [{"updates": 1, "epochs": 1, "phase": 0} | dict.fromkeys(names, 0.5)]
    assert read_run(write_run(tmp_path / "run", lines, config=config)).runs.score[0] == key


def test_phases_say_how_long_a_run_is(tmp_path: Path):
    lines = [{"updates": 10 * n, "epochs": n, "phase": 0, "eval/accuracy": 0.5} for n in (1, 2, 3)]
    gpt = {"kind": "gpt", "env": None, "corpora": {"a": "x"}}
    for name, config, expected in (("a", DIGITS, ("epochs", 3)), ("b", gpt, ("updates", 30))):
        folder = write_run(tmp_path / name, lines, config=config | {"total": "auto"})
        about = read_run(folder).runs.loc[0]
        assert (about.unit, about.total) == expected
    config = DIGITS | {"total": "2 phase"}  # too long to be an axis
    assert read_run(write_run(tmp_path / "c", lines, config=config)).runs.unit[0] == "epochs"


def test_a_run_that_goes_on_is_read_as_far_as_it_is(tmp_path: Path):
    study = write_study(tmp_path, seeds=(1,), statuses={("asterix", "fire", 1): "running"})
    (folder,) = study.glob("cells/asterix/seed-1/fire-*")
    cut = [json.dumps(line) for line in lines_of(folder) if line["env_steps"] <= 4500]
    (folder / "metrics.jsonl").write_text("\n".join(cut) + '\n{"updates": 23')  # half a line
    found = read([study])
    (run,) = found.going.index
    assert found.curve(run, KEY)[0][-1] == 4500
    (folder / "metrics.jsonl").write_text("[]\n[]\n")  # such a run is left out until it is whole
    assert read([study]).going.empty


# Continuations


def by_x(found: Results, run: int, name: str) -> Mapping[int, list[float]]:
    """Return the values of a number at each x, in order."""
    values: dict[int, list[float]] = {}
    for row in found.named(name, run).itertuples():
        values.setdefault(row.env_steps, []).append(row.value)
    return values


def test_a_seeds_continuations_are_their_mean_where_all_have_a_number(tmp_path: Path):
    """One has more lines, one has a null, and several have lines of one x."""
    study = write_continued(tmp_path)
    single = read([study])
    assert single.done.continuation.tolist() == [1, 2, 3] * 4
    one, two, three = (single.done.folder.iloc[n] for n in (6, 7, 8))  # of fire, seed 1
    for number, folder in enumerate((one, two, three)):
        end = CLOCK | {"updates": 3000 + number, "env_steps": 6000}
        lines = [*lines_of(folder), *(end | {"train/loss": i + number} for i in range(3 + number))]
        if folder == two:
            next(line for line in lines if line["env_steps"] == 5000 and KEY in line)[KEY] = None
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    single = read([study])
    found = averaged(single)
    assert (found.done.arm + found.done.seed.map(str)).tolist() == [
        *("none1", "none2"),
        *("fire1", "fire2"),
    ]
    assert found.done.folder.tolist() == single.done.folder.iloc[::3].tolist()
    for (_, _, seed), own in single.done.groupby(["task", "arm", "seed"]).groups.items():
        for name in (KEY, "train/loss", "metric/weight_norm/q", "time/seconds"):
            theirs = [by_x(single, run, name) for run in own]
            mean = {
                x: [float(np.mean(values)) for values in zip(*(t[x] for t in theirs), strict=False)]
                for x in theirs[0]
                if all(x in t for t in theirs)
            }
            ours = by_x(found, own[0], name)
            assert list(ours) == sorted(mean), (seed, name)
            for x, values in mean.items():
                assert ours[x] == pytest.approx(values, nan_ok=True)
    fire = found.done.index[2]
    assert math.isnan(by_x(found, fire, KEY)[5000][0])
    assert found.named("train/loss", fire).updates.tolist()[-3:] == [3001] * 3
    assert found.receipts[fire] == single.receipts[fire]


def test_runs_that_are_not_continued_are_what_they_were(tmp_path: Path):
    found = read([write_study(tmp_path)])
    assert averaged(found) is found


def test_a_seed_that_two_studies_continue_is_that_of_the_first(tmp_path: Path):
    for name, count in (("one", 2), ("two", 3)):
        write_continued(tmp_path, count, name=name)
    found = read([tmp_path])
    assert found.done[["study", "continuation"]].to_numpy().tolist() == [["one", 1], ["one", 2]] * 4
    assert sum("left out" in note for note in found.notes) == 12
