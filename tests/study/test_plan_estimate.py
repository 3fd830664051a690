"""What `--plan` says of time and disk, beside closed forms; and that it needs no data."""

import json
import shutil
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from rlplast.cli.tables import size
from rlplast.core.clock import Time
from rlplast.core.duration import duration
from rlplast.run.config_file import read_config
from rlplast.run.length import env_steps_at, updates_at
from rlplast.run.rates import _of_others, timed_here
from rlplast.study.api import read_study_config, study_cells
from rlplast.study.estimate import estimate
from rlplast.study.plan import PlannedRun, cost, plan
from rlplast.training.config import RunConfig
from tests.cli.commands import command
from tests.cli.studies import TINY
from tests.study.inline import run_study, write_study

CLASSIFIER = {
    "kind": "supervised",
    "data": {"name": "mnist", "folder": "nowhere"},
    "model": {"name": "mlp", "hidden": [100]},
    "stream": {"name": "warm_start", "fraction": 0.1, "epochs": [10, 2]},
    "batch_size": 100,
}


def test_updates_of_a_stream_follow_from_the_size_of_its_set():
    config = read_config(CLASSIFIER)
    assert updates_at(config, Time(1, "phase")) == 10 * 60
    assert updates_at(config, Time(11, "epochs")) == 10 * 60 + 600
    assert updates_at(config, config.total_time()) == 10 * 60 + 2 * 600


def test_a_shared_phase_counts_by_its_updates():
    hooks = [[], [{"method": "full_reset", "on": "phase_start"}]]
    configs = [read_config(CLASSIFIER | {"hooks": rows}) for rows in hooks]
    cells = plan([PlannedRun("", 1, str(i), config) for i, config in enumerate(configs)])
    assert cost(cells) == (pytest.approx(1 / 3 + 2 * 2 / 3), 2)  # of 1800 updates it has 600


def test_counts_of_cells_are_those_of_their_runs(tmp_path):
    """The lake's episodes have at most 2 env_steps; 16 updates follow each after the first 32."""
    hooks = [[], [{"method": "full_reset", "at": "50 episodes"}]]
    configs = [read_config("dqn/frozen_lake", {"total": "100 episodes", "hooks": h}) for h in hooks]
    cells = plan([PlannedRun("", 1, str(i), config) for i, config in enumerate(configs)])
    found = estimate(cells, tmp_path)[0]
    prefix = 100, 16 * (100 - 32)
    assert [(found[cell.key]["env_steps"], found[cell.key]["updates"]) for cell in cells] == [
        prefix,
        *[(100, 16 * 100)] * 2,
    ]


def test_counts_of_a_schedule_of_replay_ratios():
    ratios = {"replay_ratio": [{"value": 1}, {"from": "150 env_steps", "value": 3}]}
    config = read_config("dqn/frozen_lake", {"total": "200 env_steps", **ratios})
    assert updates_at(config, Time(160, "env_steps")) == 150 - 32 + 3 * 10
    assert updates_at(config, config.total_time()) == 150 - 32 + 3 * 50
    assert env_steps_at(config, Time(150 - 32 + 3 * 10, "updates")) == 160
    assert env_steps_at(read_config(CLASSIFIER), Time(10, "updates")) == 0
    other = RunConfig(kind="of a plug-in", total="100 updates")
    assert updates_at(other, other.total_time()) == 100
    assert updates_at(other, Time(10, "epochs")) == 0  # not known


def test_a_cell_costs_its_steps_and_leaves_its_checkpoints(tmp_path, monkeypatch):
    rates = {"env_steps": 2.0, "updates": 3.0, "checkpoint": 1000.0}
    rates |= {"initial": 100.0, "row": 10.0}
    monkeypatch.setattr("rlplast.study.estimate.timed_here", lambda config: rates)
    keys = {"total": "200 env_steps", "replay_ratio": 1, "checkpoint": {"keep": 3}}
    hooks = [{"method": "full_reset", "at": "100 env_steps"}]
    configs = [read_config("dqn/frozen_lake", keys | {"hooks": own}) for own in ([], hooks)]
    cells = plan([PlannedRun("", 1, str(i), config) for i, config in enumerate(configs)])
    whole, basis = estimate(cells, tmp_path)
    found = [whole[cell.key] for cell in cells]
    assert [own["seconds"] for own in found] == [2 * 100 + 3 * 68, *[2 * 100 + 3 * 100] * 2]
    assert [own["disk"] for own in found] == [1100 + 10 * 100, *[3000 + 10 * 100] * 2]
    assert "1 of 1 configs timed here" in basis
    assert "2e+03 ms for env_steps; 3e+03 ms for updates" in basis


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({"kind": "supervised", "data": {"name": "digits"}, "model": {"hidden": [9]}}, 3),
        ({"kind": "dqn", "env": {"id": "gym/CartPole-v1"}, "agent": {"hidden": [9]}}, 4),
    ],
)
def test_bytes_are_those_of_a_checkpoint(keys, kept):
    """Weights and two moments of Adam, of a DQN its target's weights too, 4 bytes each."""
    found = timed_here(read_config(keys))
    inputs, outputs = (64, 10) if keys["kind"] == "supervised" else (4, 2)
    weights = 4 * (inputs * 9 + 9 + 9 * outputs + outputs)
    assert 0 <= found["checkpoint"] - kept * weights < 50  # Adam's counts of steps
    assert found["initial"] == weights
    assert found["updates"] > 0
    if keys["kind"] == "dqn":
        assert found["env_steps"] > 0
        assert found["row"] == 4 * 4 + 14  # and action, reward, discount, two bytes


def test_an_update_too_long_to_wait_for_is_priced_by_some_of_its_samples():
    class Slow:
        config = SimpleNamespace(batch_size=1000, total_time=lambda: None)
        networks: ClassVar = {"model": None}

        def sample(self, count: int, number: int) -> int:
            return count

        def loss(self, network: str, batch: int) -> Any:
            return SimpleNamespace(backward=lambda: time.sleep(0.02 * batch))

    assert 20 <= _of_others(Slow())["updates"] < 100


def test_cells_that_have_run_say_what_others_take(tmp_path):
    arms = {"none": {}, "fire": {"hooks": [{"method": "fire", "at": "50%"}]}}
    config, out = write_study(tmp_path, TINY, arms), tmp_path / "study"
    run_study(config, out)
    shutil.rmtree(next(out.glob("cells/*/fire*")))  # its price is that of the others
    cells = study_cells(read_study_config(str(config)))
    found, basis = estimate(cells, out)
    assert basis.startswith(f"basis: 1 of 1 configs from cells of {out}; ")
    none = next(out.glob("cells/*/none*"))  # no line of the prefix has an update
    last = json.loads((none / "metrics.jsonl").read_text().splitlines()[-1])
    origin = json.loads((none / "run.json").read_text())["branched_from"]
    seconds = last["time/seconds"] - origin["seconds"]
    updates = last["updates"] - origin["clock"]["updates"]
    for cell in cells:
        own = found[cell.key]
        assert own["updates"] > 0
        assert own["seconds"] == pytest.approx(own["updates"] * seconds / updates)


def test_plan_without_data_counts_and_says_what_is_missing(tmp_path):
    path = tmp_path / "study.yaml"
    arms = {"none": {"hooks": []}, "fire": {"hooks": [{"method": "fire", "on": "phase_start"}]}}
    path.write_text(yaml.safe_dump({"base": CLASSIFIER, "arms": arms}))
    outcome = command("study", path, "--plan", "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "prefix to 1 phase  600 updates\n" in outcome.out
    assert "estimate: 3,000 updates, one cell" in outcome.out
    assert "no estimate of time and disk: data.folder = 'nowhere'" in outcome.out
    assert "not there yet: nowhere (data.folder)" in outcome.out
    assert not (tmp_path / "out").exists()


def test_times_and_sizes_in_words():
    assert [duration(s) for s in (42, 600, 7200, 1e6)] == ["42 s", "10 min", "2.0 h", "11.6 days"]
    assert [size(n) for n in (999, 2.5e6, 7.1e9)] == ["1 kB", "2 MB", "7.1 GB"]
