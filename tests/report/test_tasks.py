"""Runs on tasks, one after the other: their score, their axis, and what they lost."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast.report import pictures
from rlplast.report.contents import write_report
from rlplast.report.gather import gather
from rlplast.report.summary import csv_text, summarise
from rlplast.report.view import Report
from tests.report.runs import receipt_row, write_run

TASKS, EPOCHS = 20, 5


def config(name: str, **more: Any) -> dict[str, Any]:
    stream = {"name": name, "phases": TASKS, "epochs": EPOCHS} | more
    data = {"name": "bit_flipping" if name == "flipped_bits" else "digits"}
    return {"kind": "supervised", "env": None, "total": "auto", "data": data, "stream": stream}


def lines(seed: int, fall: float, keys: Mapping[str, float]) -> list[dict[str, Any]]:
    """Evaluations at each task's end; each key falls from its start by `fall` per task."""
    return [
        {"updates": 10 * k, "epochs": EPOCHS * k, "phase": k - 1}
        | {key: start + seed / 100 - fall * (k - 1) for key, start in keys.items()}
        for k in range(1, TASKS + 1)
    ]


def runs(folder: Path, name: str, keys: Mapping[str, float], **more: Any) -> Report:
    """Five seeds of a run that gets worse, and of one with a hook at each task that does not."""
    for seed in range(1, 6):
        own = config(name, **more) | {"seed": seed}
        write_run(folder / f"none-{seed}", lines(seed, 0.02, keys), config=own)
        fired = [
            receipt_row("full_reset", 0, "model")
            | {"clock": {"updates": 10 * k, "epochs": EPOCHS * k, "phase": k}}
            for k in range(1, TASKS)
        ]
        hooks = {"hooks": [{"method": "full_reset", "on": "phase_start"}]}
        write_run(folder / f"reset-{seed}", lines(seed, 0, keys), fired, own | hooks)
    gathered = gather([folder])
    return Report(gathered, summarise(gathered))


KEYS = {
    "random_labels": "eval/accuracy",
    "permuted_pixels": "eval/online_accuracy",
    "flipped_bits": "eval/online_loss",
}


@pytest.mark.parametrize(("name", "key"), KEYS.items())
def test_each_stream_of_tasks_is_judged_by_its_own_score(tmp_path: Path, name: str, key: str):
    others = dict.fromkeys(("eval/accuracy", "eval/loss", "eval/online_accuracy"), 0.5)
    report = runs(tmp_path, name, others | {key: 0.9})
    assert {run.score for run in report.gathered.runs} == {key}


def test_what_is_lost_is_the_last_tenth_minus_the_first(tmp_path: Path):
    report = runs(tmp_path, "random_labels", {"eval/accuracy": 0.9})
    none, reset = report.summary.rows
    assert (none.arm, reset.arm) == ("none", "full_reset on phase_start")
    last, first = [1 - 0.02 * k for k in (18, 19)], [1 - 0.02 * k for k in (0, 1)]
    change = float(np.mean(last) - np.mean(first))
    assert none.change is not None and reset.change is not None
    assert (none.change.value, none.change.low) == (pytest.approx(change), pytest.approx(change))
    assert reset.change.value == pytest.approx(0)
    assert f"{none.change.value}" in csv_text(report.summary)
    page = write_report(report.gathered, report.summary, tmp_path / "out").read_text()
    assert "change since the first tasks" in page and "-0.360</td>" in page


@pytest.mark.parametrize(("epochs", "step"), [(EPOCHS, EPOCHS), ([EPOCHS] * TASKS, 1)])
def test_curves_and_firings_are_drawn_over_the_tasks_done(tmp_path: Path, epochs: Any, step: int):
    report = runs(tmp_path, "random_labels", {"eval/accuracy": 0.9}, epochs=epochs)
    chart = pictures.curves(report, report.tasks[0])
    label = "tasks done" if step == EPOCHS else "epochs"
    assert f'"title": "{label}"' in json.dumps(chart.spec)
    ends = [EPOCHS / step * k for k in range(1, TASKS + 1)]
    data = chart.spec["datasets"]
    assert [row["x"] for row in data["curves"]] == [ends, ends]
    assert [row["x"] for row in data["firings"]] == [ends[:-1]]


def test_other_runs_have_no_change(tmp_path: Path):
    report = runs(tmp_path, "continual_full", {"eval/accuracy": 0.9})
    assert [row.change for row in report.summary.rows] == [None, None]
    page = write_report(report.gathered, report.summary, tmp_path / "out").read_text()
    assert "first tasks" not in page and "tasks done" not in page
