"""Studies made small: every shipped one by rule, and what `--smoke` says of faults."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from torch import nn

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.schedule import KEYS, Schedule
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from rlplast.run.length import length
from rlplast.run.shipped import find_config, shipped_configs
from rlplast.run.shrink import EPOCHS, UPDATES, make_start, shrunk, sources
from rlplast.study import smoke
from rlplast.study.api import read_study_config
from rlplast.study.plan import plan
from rlplast.study.smoke import shrunk_study, smoke_runs
from rlplast.supervised.data import load_data
from rlplast.supervised.models import build_model
from rlplast.training.best import find_checkpoint
from rlplast.training.checkpoint import load
from rlplast.training.config import read_yaml
from tests.cli.commands import command
from tests.marks import slow_but
from tests.runs import TINY
from tests.supervised.small_models import library

STUDIES = [name for name in shipped_configs() if name.startswith("study/")]
FAST = (
    "study/demo",
    "study/random_labels",
    "study/fire/fig3",
    "study/fire/fig4a",
    "study/swr/fig1",
)
MOST = {"updates": 512, "env_steps": 2000, "epochs": 2 * EPOCHS, "phase": 20}  # of a cell
DIGITS = {
    "kind": "supervised",
    "model": {"name": "mlp", "hidden": [8]},
    "stream": {"name": "warm_start", "epochs": [100, 50]},
    "log": {"to": []},
}


def base_of(name):
    study = read_study_config(name)
    return study, shrunk_study(study)


@pytest.mark.parametrize("name", slow_but(FAST, STUDIES))
def test_a_shipped_study_made_small_is_short_and_every_hook_is_due(name, tmp_path):
    study, small = base_of(name)
    runs, same = smoke_runs(small, tmp_path)
    assert plan(runs)
    tasks = {run.task for run in runs} | {n.split("/seed-")[0] for n in same}
    assert tasks >= set(study.task_list())
    assert {str(arm) for arm in study.arms} == {
        next(a for a in map(str, study.arms) if label == a or label.startswith(f"{a} "))
        for label in [r.arm for r in runs] + [n.rsplit("/", 1)[-1] for n in same]
    }
    for run in runs:
        end = run.config.horizon()
        assert all(end[unit] <= most for unit, most in MOST.items())
        total = run.config.reference_time()
        for row in run.config.hooks:  # what is never due is refused
            Schedule.parse({k: row.get(k) for k in KEYS}, total, "hook", end)


def test_times_keep_their_place_in_the_run(tmp_path):
    hooks = [
        {"method": "full_reset", "at": "250k env_steps"},
        {"method": "full_reset", "at": "75%"},
        {"method": "redo", "every": "100k updates", "from": "100k env_steps"},
        {"method": "swr", "every": "1 updates"},
        {"method": "fire", "every": "100k updates", "first": "60k updates"},
    ]
    config = read_config(
        {"kind": "dqn", "env": {"id": "minatar/breakout"}, "total": "500k env_steps"},
        {"hooks": hooks, "agent.target_every": 5000},
    )
    small: Any = shrunk(config, tmp_path)
    whole = small.total_time().value
    half, share, redo, swr, fire = small.hooks
    assert small.horizon().updates == UPDATES
    assert Time.parse(half["at"]).value == round(whole / 2)
    assert share["at"] == "75%"
    assert 2 <= Time.parse(redo["every"]).value < UPDATES / 2
    assert Time.parse(redo["from"]).value == round(whole / 5)
    assert swr["every"] == "1 updates"
    assert fire["first"] == fire["every"] == redo["every"]
    assert small.agent.target_every == round(5000 * whole / 500_000) == 1


def test_ratios_that_change_keep_their_order_and_totals_in_episodes_their_unit(tmp_path):
    ratios = [{"value": 4}, {"from": "1%", "value": 2}, {"from": "250k env_steps", "value": 8}]
    agent = {"initial_updates": 10**6, "hidden": [300, 20]}
    config = read_config(
        {"kind": "dqn", "env": {"id": "gym/CartPole-v1"}, "total": "500k env_steps"},
        {"replay_ratio": ratios, "agent": agent},
    )
    small: Any = shrunk(config, tmp_path)
    (zero, first), (one, second), (half, third) = small.update_plan().ratios
    assert (first, second, third) == (4, 2, 8)
    assert 0 == zero < one < half == round(small.total_time().value / 2)
    assert small.agent.initial_updates <= UPDATES
    assert small.agent.hidden == [16, 16]
    lake: Any = shrunk(read_config("dqn/frozen_lake"), tmp_path)
    assert lake.total_time().unit == "episodes"
    assert lake.total_time().value > lake.agent.initial_steps  # each has an env_step at least


def test_episodes_of_a_sequence_are_short_whatever_its_environments_have_for_options(tmp_path):
    sequence = ["gym/CartPole-v1", {"id": "gym/MountainCar-v0", "options": {"gravity": 1.5}}]
    env = {"sequence": sequence, "options": {"gravity": 2.0}, "steps_per_task": 6000}
    config = read_config({"kind": "dqn", "env": env, "agent": {"initial_steps": 100}})
    small: Any = shrunk(config, tmp_path)
    assert small.env.options == {"gravity": 2.0, "max_episode_steps": 50}


def test_a_run_that_ends_before_its_phases_do_still_starts_a_second_one(tmp_path):
    """2000 of 22 800 updates: the third of 30 tasks has begun."""
    hooks = [{"method": "fire", "on": "phase_start"}, {"method": "fire", "at": "1000 updates"}]
    config = read_config(
        read_yaml(find_config("supervised/random_labels")),
        {"total": "2k updates", "hooks": hooks},
    )
    small: Any = shrunk(config, tmp_path)
    assert small.total == "auto" and small.stream.num_phases() == 2
    half = length(small)["updates"] / 2
    assert Time.parse(small.hooks[1]["at"]).value == pytest.approx(half, abs=1)


def test_a_condition_holds_at_once(tmp_path):
    when = {"metric": "dormant_ratio", "above": 0.9, "cooldown": "50k env_steps"}
    config = read_config(
        {"kind": "dqn", "env": {"id": "minatar/breakout"}, "total": "500k env_steps"},
        {"hooks": [{"method": "redo", "when": when}]},
    )
    [row] = shrunk(config, tmp_path).hooks
    assert row["when"]["above"] < -1e37
    assert Time.parse(row["when"]["cooldown"]).value <= 6


def test_data_that_need_files_become_data_that_need_none(tmp_path):
    data = {"name": "cifar100", "folder": "c", "corrupted": "d", "validation": 0.1}
    pictures = {"name": "huggingface", "huggingface": {"path": "a/b", "in_memory": False}}
    weights = {"model": {"name": "vit_tiny", "pretrained": True}}
    first = read_config(DIGITS | {"data": data, "checkpoint": {"best": "mca"}})
    second = read_config(DIGITS | {"data": pictures} | weights)
    assert sources(first) == {"data.folder": "c", "data.corrupted": "d"}
    assert sources(second) == {"data.huggingface.path": "a/b", "model.pretrained": "true"}
    for config, like in ((first, "cifar100"), (second, "cifar10")):
        small: Any = shrunk(config, tmp_path)
        assert (small.data.name, small.data.like, small.data.corrupted) == ("random", like, None)
        assert not small.data.stored and not small.model.pretrained
        build(small)[0].close()
    assert len(load_data(shrunk(first, tmp_path).data, 1).test) == 40  # one of 5 of a class


def test_a_gpt_made_small_starts_from_a_run_that_is_made(tmp_path):
    keys = {"start.run": "elsewhere", "start.checkpoint": "best-30000"}
    config = read_config("gpt/fire_a42_phase2", keys)
    small: Any = shrunk(config, tmp_path)
    assert set(small.corpora.values()) == {"embedded/stdlib"}
    assert sources(config).keys() == {"corpora.openwebtext", "corpora.wikitext", "start.run"}
    make_start(small)
    trainable, _ = build(small)
    tensors, _ = load(find_checkpoint(Path(small.start.run), "newest", "start.checkpoint"))
    network = trainable.networks["gpt"]
    block = next(b for b in network.blocks if b.kind == "linear")
    assert block.view.equal(tensors[network.qualified(block)])
    trainable.close()


def write(folder: Path, arms, **keys) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"base": DIGITS, "seeds": 3, "arms": arms} | keys))
    return path


@pytest.mark.slow
def test_smoke_runs_every_arm_once_and_reports(tmp_path):
    arms = {
        "none": {"hooks": []},
        "fire": {
            "hooks": [{"method": "fire", "on": "phase_start"}],
            "grid": {"hooks.0.params.iterations": [2, 5]},
        },
        "swr": {"hooks": [{"method": "swr", "every": "1 updates"}]},
    }
    arms["none"]["overrides"] = {"data": {"name": "mnist", "folder": "nowhere"}}
    out = tmp_path / "out"
    outcome = command("study", write(tmp_path, arms), "--smoke", "--out", out)
    assert outcome.code == 0, outcome.out + outcome.err
    cells = json.loads((out / "study.json").read_text())["cells"]
    names = [cell["arm"] for cell in cells if cell["arm"]]
    assert sorted(names) == ["fire iterations=2", "none", "swr"]
    assert "nothing in it is a result" in (out / "report" / "report.html").read_text()
    assert "every arm runs" in outcome.out
    assert "data.folder: nowhere" in outcome.out  # which was not tried
    again = command("study", write(tmp_path, arms), "--smoke", "--out", out)
    assert again.code == 2 and "choose another one" in again.err


@pytest.mark.slow
def test_of_two_hooks_with_one_method_the_one_that_did_not_fire_is_named(tmp_path):
    twice = [{"method": "full_reset", "at": "50%"}] * 2
    config = read_config(TINY | {"hooks": [*twice, {"method": "full_reset", "at": "75%"}]})
    keys = config.hook_keys()
    assert keys == ["full_reset at=50%", "full_reset at=50% #2", "full_reset at=75%"]
    row = {"method": "full_reset", "clock": {"updates": 3}}
    lines = [json.dumps(row | {"hook": key}) for key in (keys[0], keys[2])]
    (tmp_path / "receipts.jsonl").write_text("\n".join(lines) + "\n")
    cell = SimpleNamespace(config=config, folder=".")
    assert smoke._faults_of(cell, tmp_path) == ["hooks[1] (full_reset) did not fire"]


def test_smoke_names_a_metric_that_nobody_measured(tmp_path):
    metrics = {"metrics.names": ["weight_norm", "unit_age", "balancedness"]}
    model = {"model": {"name": "resnet18"}}  # it branches: no chain of layers to balance
    path = write(tmp_path, {"none": {"hooks": [], "overrides": metrics | model}})
    outcome = command("study", path, "--smoke", "--out", tmp_path / "out")
    assert outcome.code == 1
    assert "never measured: balancedness" in outcome.out


def test_an_absent_package_is_named_before_anything_is_trained(tmp_path):
    pytest.importorskip("gymnasium")
    base = {"kind": "sac", "env": {"id": "humanoid_bench/h1-walk-v0", "num_envs": 1}}
    path = write(tmp_path, {"none": {"hooks": []}}, base=base)
    try:
        import humanoid_bench  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        outcome = command("study", path, "--smoke", "--out", tmp_path / "out")
        assert outcome.code == 2
        assert "install_humanoid_bench.sh" in outcome.err
        assert not (tmp_path / "out").exists()


# One study of each base config.
BASE = re.compile(r"^base: .*", re.M)
OF_BASES = {BASE.findall(shipped_configs()[name].read_text())[0]: name for name in STUDIES}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OF_BASES.values()))
def test_the_last_arm_of_a_shipped_study_made_small_trains(name, tmp_path):
    runs, _ = smoke_runs(base_of(name)[1], tmp_path)
    config = runs[-1].config
    make_start(config)
    try:
        api.train(config, tmp_path / "run")
    except ConfigError as error:
        if "not installed" in str(error) or "pip install" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.slow
def test_smoke_of_a_shipped_study(tmp_path):
    outcome = command("study", "study/digits_warm_start", "--smoke", "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.parametrize("study", ["study/lcl/table_3", "study/lcl/tables_1_2_efficientnetv2_s"])
def test_networks_of_timm_are_made_narrow_and_keep_the_names_of_their_layers(study, tmp_path):
    """Swin-B takes pictures of 224 pixels and has 88 M weights, trials have pictures of 32."""
    library("timm")
    runs, _ = smoke_runs(shrunk_study(read_study_config(study)), tmp_path)
    models: Any = {run.task: vars(run.config)["model"] for run in runs if run.arm == "lcl"}
    for task, model in models.items():
        module = build_model(model, (3, 32, 32), 10)  # what is frozen has its name in it
        assert sum(p.numel() for p in module.parameters()) < 300_000, task
        (layer,) = [
            row["params"]["layers"]
            for run in runs
            for row in run.config.layers
            if (run.task, run.arm) == (task, "lcl")
        ]
        assert isinstance(module.get_submodule(layer[0]), nn.Linear)
