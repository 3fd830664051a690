"""What `--plan` says of steps and time, beside closed forms; and that it needs no data."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from rlplast.cli.tables import size
from rlplast.core.clock import Time
from rlplast.core.duration import duration
from rlplast.run.config_file import read_config
from rlplast.run.length import updates_at
from rlplast.study.api import read_study_config, study_cells
from rlplast.study.estimate import estimate
from rlplast.study.plan import PlannedRun, cost, plan
from tests.cli.commands import command
from tests.cli.runs import SMALL
from tests.cli.studies import TINY
from tests.study.inline import run_study, write_study

CLASSIFIER = {
    "kind": "supervised",
    "data": {"name": "mnist", "folder": "no/where"},
    "model": {"name": "mlp", "hidden": [100]},
    "stream": {"name": "warm_start", "fraction": 0.1, "epochs": [10, 2]},
    "batch_size": 100,
}


def test_updates_of_a_stream_follow_from_the_size_of_its_set() -> None:
    config = read_config(CLASSIFIER)
    assert updates_at(config, Time(1, "phase")) == 10 * 60
    assert updates_at(config, Time(11, "epochs")) == 10 * 60 + 600
    assert updates_at(config, config.total_time()) == 10 * 60 + 2 * 600


@pytest.mark.parametrize("when", [{"on": "phase_start"}, {"at": "10 epochs"}])
def test_a_shared_phase_counts_by_its_updates(when: dict[str, str]) -> None:
    configs = [read_config(CLASSIFIER | {"hooks": h}) for h in ([], [{"method": "redo"} | when])]
    cells = plan([PlannedRun("", 1, str(i), config) for i, config in enumerate(configs)])
    assert cost(cells) == (pytest.approx(1 / 3 + 2 * 2 / 3), 2)  # of 1800 updates it has 600


def test_a_cell_has_the_steps_of_its_part_of_the_run_and_takes_their_time(tmp_path: Path) -> None:
    """The lake's episodes have at most 2 env_steps; 16 updates follow each after the first 32."""
    hooks = [[], [{"method": "full_reset", "at": "25 episodes"}]]
    configs = [read_config("dqn/frozen_lake", {"total": "100 episodes", "hooks": h}) for h in hooks]
    cells = plan([PlannedRun("", 1, str(i), config) for i, config in enumerate(configs)])
    found, (words,) = estimate(cells, tmp_path)
    before, updates = 16 * (49 - 32), 16 * (200 - 49)  # those of the 50th come after the prefix
    assert [(found[cell.key]["env_steps"], found[cell.key]["updates"]) for cell in cells] == [
        (50, before),
        *[(150, updates)] * 2,
    ]
    each = {u: float(ms) for ms, u in re.findall(r"([\d.e+-]+) ms for (\w+)", words)}
    seconds = (150 * each["env_steps"] + updates * each["updates"]) / 1000
    assert found[cells[-1].key]["seconds"] == pytest.approx(seconds, rel=0.02)  # of 3 digits


def test_environments_that_step_together_are_timed_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rlplast.study.estimate.paced", lambda sides, _: {key: [8.0] for key in sides}
    )
    config = read_config(SMALL, {"env.num_envs": 8, "hooks": []})
    found, _ = estimate(plan([PlannedRun("", 1, "none", config)]), tmp_path)
    (own,) = found.values()
    assert own["seconds"] == 8 * own["updates"] + own["env_steps"]  # 8 s a step of all, 1 s of one


def test_cells_that_have_run_say_what_others_take(tmp_path: Path) -> None:
    ratio = {"replay_ratio": [{"value": 1}, {"from": "50%", "value": 3}]}
    arms = {"none": {}, "fire": {"hooks": [{"method": "fire", "at": "50%"}]}}
    config, out = write_study(tmp_path, TINY | ratio, arms), tmp_path / "study"
    run_study(config, out)
    arm = next(out.glob("cells/*/none*"))
    began = json.loads((arm / "run.json").read_text())["branched_from"]["clock"]
    ended = json.loads((arm / "metrics.jsonl").read_text().splitlines()[-1])
    shutil.rmtree(next(out.glob("cells/*/fire*")))  # its price is that of the others
    lines = [json.loads(path.read_text().splitlines()[-1]) for path in out.glob("cells/*/*/m*l")]
    each = sum(line["time/seconds"] for line in lines) / sum(line["updates"] for line in lines)
    cells = study_cells(read_study_config(str(config)))
    found, words = estimate(cells, out)
    for cell, *made in zip(cells, (began, ended, ended), ({}, began, began), strict=True):
        for unit in ("env_steps", "updates"):
            assert found[cell.key][unit] == made[0][unit] - made[1].get(unit, 0), cell.name
    assert [f"from cells in {out}" in line for line in words] == [True]
    for own in found.values():
        assert own["seconds"] == pytest.approx(own["updates"] * each) and own["updates"] > 0


def test_plan_without_data_counts_and_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    arms = {"none": {"hooks": []}, "fire": {"hooks": [{"method": "fire", "on": "phase_start"}]}}
    smoke = {"data": {"name": "random", "folder": None}}
    path.write_text(yaml.safe_dump({"base": CLASSIFIER | {"smoke": smoke}, "arms": arms}))
    outcome = command("study", path, "--plan", "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "prefix to 1 phase  600 updates\n" in outcome.out
    assert "estimate: 3,000 updates, one cell" in outcome.out
    assert "no estimate of time: data.folder = 'no/where'" in outcome.out
    assert "not there yet: no/where (data.folder)" in outcome.out
    assert not (tmp_path / "out").exists()


def test_times_and_sizes_in_words() -> None:
    assert [duration(s) for s in (42, 600, 7200, 1e6)] == ["42 s", "10 min", "2.0 h", "11.6 days"]
    assert [size(n) for n in (999, 2.5e6, 7.1e9)] == ["1 kB", "2 MB", "7.1 GB"]
