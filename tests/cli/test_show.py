"""`rlplast show`: of runs and studies, whole and damaged, in rows that fit."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from rlplast.run import api
from rlplast.run.info import status
from tests.cli.commands import command, printed
from tests.cli.runs import refused
from tests.cli.terminals import LONG
from tests.every_kind import KINDS
from tests.report.runs import metric_rows, receipt_row, smooth_score, write_run
from tests.report.runs import write_study as write_finished_study


def shown(folder: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what is shown, by the name at the beginning of each row."""
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = command("show", folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(cell_len, outcome.out.splitlines())) <= columns
    found: dict[str, str] = {}
    name = ""
    for line in outcome.out.splitlines():
        name = line[:13].strip() or name
        found[name] = f"{found.get(name, '')} {line[13:].strip()}".strip()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_each_kind_is_shown(
    kind: str, run_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    found = shown(run_of(kind), 60, monkeypatch)
    assert found["status"].startswith("done since 20")
    assert found["progress"].startswith("100%, ") and "so far" in found["progress"]
    assert found["next firing"] == "none"
    assert "loss" in found["training"] and found["evaluation"] != "none yet"
    assert "step-" in found["checkpoints"]


def test_a_run_ended_when_run_json_says(small: Path, tmp_path: Path):
    run = Path(shutil.copytree(small, tmp_path / "run"))
    os.utime(run / "run.json", (0, 0))  # whatever touched the file
    info, found = api.load(run).info, printed("show", run)
    assert (found["what"], found["status"], found["kind"]) == ("run", "done", "dqn")
    assert found["since"] == info["ended"]
    assert found["receipts"]["newest"][0]["method"] == "fire"
    with status(run, info | {"diverged": True}):  # as a resume begins
        begun = api.load(run).info
    assert begun["status"] == "running" and not {"ended", "diverged"} & begun.keys()


def test_names_are_no_markup_and_rare_firings_are_beside_frequent_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    receipts = [receipt_row(f"[red]{LONG}[/x]", 3000 + i) for i in range(8)]
    run = write_run(tmp_path / "long", metric_rows(float, [1000]), receipts)
    monkeypatch.setenv("COLUMNS", "80")
    out = command("show", run).out
    assert max(map(cell_len, out.splitlines())) <= 80
    assert "[red]" in out and "8 of [red]" in " ".join(out.split())
    receipts = [receipt_row("fire", 1000)]
    receipts += [receipt_row("swr", 1000 + i) | {"norm_after": None} for i in range(40)]
    run = write_run(tmp_path / "rare", metric_rows(float, [1000]), receipts)
    assert shown(run, 80, monkeypatch)["receipts"] == "1 of fire, 40 of swr"
    newest = printed("show", run)["receipts"]["newest"]
    assert [row["method"] for row in newest] == ["fire", *5 * ["swr"]]


def test_what_each_firing_cost_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = metric_rows(lambda x: 4.0 if 1000 <= x < 2000 else 10.0, range(500, 3001, 500))
    run = write_run(tmp_path / "run", rows, [receipt_row("fire", 1000)])
    (row,) = printed("show", run)["cost"]["firings"]
    assert row == {
        "methods": ["fire"],
        "at": 1000,
        "drop": 6,
        "recovered_after": 1000,
        "area": 4500,
    }
    monkeypatch.setenv("COLUMNS", "60")
    shown_rows = [line.split() for line in command("show", run).out.splitlines()]
    assert ["fire", "1,000", "6", "1,000", "4500"] in shown_rows


def test_a_finished_study_counts_its_cells_and_a_cell_names_its_log(
    finished: Path, monkeypatch: pytest.MonkeyPatch
):
    found = shown(finished, 80, monkeypatch)
    assert found["cells"] == "5 done; 5 in all"
    assert found["files"].startswith("logs")
    cells = json.loads((finished / "study.json").read_text())["cells"]
    assert Path(printed("show", finished / cells[-1]["folder"])["files"]["log"]).is_file()


def failed_study(folder: Path) -> Path:
    """A study of six arms' cells, of which one failed, one runs elsewhere and one is missing."""
    statuses = {("asterix", "fire", 1): "failed", ("asterix", "fire", 2): "running"}
    statuses |= {("asterix", "none", 1): "absent"}
    study = write_finished_study(folder, ("none", "fire"), (1, 2), statuses=statuses)
    for path in (study / "claims").iterdir():
        row = json.loads(path.read_text())
        path.write_text(json.dumps(row | {"reason": f"[why] {LONG}"}))
    plan: dict[str, Any] = json.loads((study / "study.json").read_text())
    for cell in plan["cells"]:
        cell["name"] = f"seed-{cell['seed']}/{cell['arm']}"
    plan["versions"] = {}
    (study / "study.json").write_text(json.dumps(plan))
    return study


def test_a_study_says_what_runs_and_what_failed_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    study = failed_study(tmp_path)
    found = shown(study, 60, monkeypatch)
    assert found["cells"] == "3 done, 1 failed, 1 running, 1 waiting; 6 in all"
    assert found["failed"].replace(" ", "").startswith("seed-1/fire:[why]a_method_of")
    data = printed("show", study)
    assert data["cells"] == {"done": 3, "failed": 1, "running": 1, "waiting": 1}
    assert data["failures"][0]["reason"] == f"[why] {LONG}"
    assert [cell["name"] for cell in data["running"]] == ["seed-2/fire"]
    (arm,) = data["arms"]
    assert (arm["arm"], arm["seeds"], arm["final_low"]) == ("none", 1, None)
    last = [smooth_score("asterix", "none", 2, x) for x in (5500, 6000)]  # the last tenth
    assert arm["final"] == pytest.approx(sum(last) / 2)


def test_a_study_with_a_damaged_run_is_shown_all_the_same(tmp_path: Path):
    study = failed_study(tmp_path)
    (lines,) = study.glob("cells/asterix/seed-2/none-*/metrics.jsonl")
    lines.write_bytes(b"{\n{\n")
    data = printed("show", study)
    assert data["cells"]["done"] == 3 and data["arms"] == []
    assert f"{lines}, line 1" in data["verdict"][0]


def test_what_was_meant_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("fire", "plain"):
        write_run(Path("runs") / name, metric_rows(float, [1000]))
    ends = {
        "runs/plian": "there is no such folder; did you mean 'runs/plain'?",
        "plain": "there is no such folder; did you mean 'runs/plain'?",
        "nothing": "there is no such folder; allowed: runs/fire, runs/plain",
        "runs": "; allowed: runs/fire, runs/plain",
        "dqn/demo": "; a config is shown by `rlplast train dqn/demo --print_config`",
    }
    for given, end in ends.items():
        assert refused(command("show", given)).endswith(end)
        assert refused(command("evaluate", given)).endswith(end)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert refused(command("show", "nothing")).endswith("a study: there is no such folder")
    Path("file").write_text("")
    for name in ("", "file"):
        assert "is no folder of a run or a study" in refused(command("show", Path(name).resolve()))
