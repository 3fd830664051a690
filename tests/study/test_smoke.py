"""Studies made small: every shipped one, without data; and what `--smoke` says of faults."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import dump_config, merged, read_config
from rlplast.run.length import length
from rlplast.run.shipped import shipped_configs
from rlplast.study.api import read_study_config, study_cells
from rlplast.study.smoke import run_smoke, small, smoke_study
from rlplast.study.spec import StudyConfig
from rlplast.supervised.models import build_model
from tests.cli.commands import command
from tests.marks import slow, slow_but
from tests.study.inline import inline
from tests.supervised.small_models import library

STUDIES = [name for name in shipped_configs() if name.startswith("study/")]
FAST = (
    "study/demo",
    "study/random_labels",
    "study/fire/fig3",
    "study/fire/fig4a",
    "study/swr/fig1",
)
MOST = {"updates": 512, "env_steps": 400, "epochs": 4}  # of a cell
DIGITS = {
    "kind": "supervised",
    "model": {"name": "mlp", "hidden": [8]},
    "stream": {"name": "warm_start", "epochs": [100, 50]},
    "log": {"to": []},
}
BREAKOUT = {"kind": "dqn", "env": {"id": "minatar/breakout"}, "total": "500k env_steps"}


@pytest.mark.parametrize("name", slow_but(FAST, STUDIES))
def test_a_shipped_study_made_small_has_every_arm_and_is_short(name: str) -> None:
    study = read_study_config(name)
    keys, same, _ = smoke_study(study)
    cells = study_cells(StudyConfig.parse(keys))  # a hook that is never due is refused
    names = {f"{cell.task}/{cell.arm}".strip("/") for cell in cells if cell.arm is not None}
    arms = {name.removeprefix(f"{task}/") for name in names | {*same} for task in keys["tasks"]}
    assert all(
        re.search(rf"^{re.escape(str(arm))}( |$)", "\n".join(arms), re.M) for arm in study.arms
    )
    assert {name.partition("/")[0] for name in names | {*same}} >= {
        task.partition("/")[0] for task in study.task_list() if task
    }
    for cell in cells:
        end = length(cell.config)
        assert all(end.get(unit, 0) <= most for unit, most in MOST.items()), end


@pytest.mark.parametrize(
    "name",
    [
        slow(name)
        for name, path in shipped_configs().items()
        if re.search("^kind: ", path.read_text(), re.M)
    ],
)
def test_a_shipped_config_made_small_is_built_without_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small(read_config(name), merged(name).get("smoke", {}))
    try:
        build(config)[0].close()
    except ConfigError as error:
        if "install" not in str(error):
            raise
        pytest.skip(str(error))


def test_times_keep_their_place_in_the_run() -> None:
    hooks = [
        {"method": "full_reset", "at": ["250k env_steps", "75%"]},
        {"method": "redo", "every": "100k updates", "from": "100k env_steps"},
        {"method": "swr", "every": "1 updates"},
        {"method": "fire", "every": "100k updates", "first": "60k updates"},
    ]
    config = read_config(BREAKOUT, {"hooks": hooks})
    run: Any = small(config, {})
    whole, updates = run.total_time().value, run.horizon().updates
    reset, redo, swr, fire = run.hooks
    assert reset["at"] == [f"{whole // 2} env_steps", "75%"]
    period = int(100_000 * updates / config.horizon().updates)
    assert redo["every"] == fire["every"] == f"{period} updates"
    assert redo["from"] == f"{whole // 5} env_steps"
    assert swr["every"] == "1 updates"
    assert Time.parse(fire["first"]).value == int(0.6 * period)


def test_a_total_in_episodes_is_small_too() -> None:
    lake: Any = small(read_config("dqn/frozen_lake"), {})
    assert lake.total_time().unit == "episodes"
    assert lake.total_time().value > lake.agent.initial_steps  # each has an env_step at least


def test_a_run_that_ends_before_its_phases_do_still_starts_a_second_one() -> None:
    """2000 of 22 800 updates: the third of 30 tasks has begun."""
    hooks = [{"method": "fire", "on": "phase_start"}, {"method": "fire", "at": "1000 updates"}]
    config = read_config("supervised/random_labels", {"total": "2k updates", "hooks": hooks})
    run: Any = small(config, {})
    assert run.total == "auto" and run.stream.num_phases() == 2
    assert Time.parse(run.hooks[1]["at"]).value == length(run)["updates"] // 2


@pytest.mark.parametrize("side", ["above", "below"])
def test_a_condition_holds_at_once(side: str) -> None:
    when = {"metric": "dormant_ratio", side: 0.9, "cooldown": "50k env_steps"}
    config = read_config(BREAKOUT, {"hooks": [{"method": "redo", "when": when}]})
    [row] = small(config, {}).hooks
    assert abs(row["when"][side]) > 1e37 and (row["when"][side] < 0) == (side == "above")
    assert Time.parse(row["when"]["cooldown"]).value == 0.1 * 128 // 1


def test_the_key_smoke_says_what_is_used_instead_and_changes_no_other_run() -> None:
    plain = DIGITS | {"data": {"name": "cifar100", "folder": "c", "corrupted": "d"}}
    smoke = {"data": {"name": "random", "folder": None, "corrupted": None}, "batch_size": 64}
    config = read_config(plain | {"smoke": smoke}, {"smoke.model": {"hidden": [4]}})
    assert config == read_config(plain) and "smoke" not in dump_config(config)
    keys = {"base": plain | {"smoke": smoke}, "arms": {"a": {"overrides": {"smoke.seed": 3}}}}
    found, _, replaced = smoke_study(StudyConfig.parse(keys))
    run = found["arms"]["a"]["tasks"][""]
    assert (run["data"]["name"], run["batch_size"], found["seeds"]) == ("random", 64, [1])
    assert replaced == {"cifar100": "data.name", "c": "data.folder", "d": "data.corrupted"}
    with pytest.raises(ConfigError, match="smoke = 3: allowed is a mapping"):
        read_config(plain | {"smoke": 3})
    keys["base"] = plain | {"smoke": {"batchsize": 3}}
    with pytest.raises(ConfigError, match=r"arm 'a', made small .*'batchsize'"):
        smoke_study(StudyConfig.parse(keys))


def write(folder: Path, arms: Any, **keys: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"base": DIGITS, "seeds": 3, "arms": arms} | keys))
    return path


@pytest.mark.slow
def test_smoke_runs_every_arm_once_and_reports(tmp_path: Path) -> None:
    fire = [{"method": "fire", "on": "phase_start"}]
    data = {"data.name": "mnist", "data.folder": "no/where"}
    smoke = {"smoke.data": {"name": "digits", "folder": None}}
    arms = {
        "none": {"hooks": [], "overrides": data | smoke},
        "fire": {"hooks": fire, "grid": {"hooks.0.params.iterations": [2, 5]}},
        "swr": {"hooks": [{"method": "swr", "every": "1 updates"}]},
        "small": {"hooks": fire, "overrides": {"batch_size": 300, "hooks.0.params.iterations": 2}},
    }
    out = tmp_path / "out"
    with inline():
        outcome = command("study", write(tmp_path, arms), "--smoke", "--out", out)
    assert outcome.code == 0, outcome.out + outcome.err
    cells = json.loads((out / "study.json").read_text())["cells"]
    names = [cell["arm"] for cell in cells if cell["arm"]]
    assert sorted(names) == ["fire iterations=2", "none", "swr"]
    assert "nothing in it is a result" in (out / "report" / "report.html").read_text()
    assert "every arm runs" in outcome.out
    assert "the same as fire iterations=2" in outcome.out
    assert "data.folder: no/where" in outcome.out  # which was not tried
    again = command("study", write(tmp_path, arms), "--smoke", "--out", out)
    assert again.code == 2 and "choose another one" in again.err


def test_smoke_names_metrics_that_nobody_measured_and_hooks_that_left_no_receipt(
    tmp_path: Path,
) -> None:
    metrics = {"metrics.names": ["weight_norm", "unit_age", "balancedness"]}
    model = {"model": {"name": "resnet18", "width": 4}}  # it branches: no chain to balance
    row = {"method": "full_reset", "when": {"metric": "balancedness", "above": 1}}
    arms = {"none": {"hooks": [row], "overrides": metrics | model}}
    with inline():
        rows, faults = run_smoke(str(write(tmp_path, arms)), tmp_path / "out")
    assert faults == 2
    assert rows[0][2].startswith("no receipt of full_reset when")
    assert ("never measured", None, "balancedness") in rows


# Of every kind of run, with different data, environments and networks.
TRAINED = """demo atari_demo replay_ratio/lake_recovery minatar_sequence dmc_pixels
replay_ratio/sr_sac_dmc15 cartpole_shifted gpt_stdlib fire/fig3 changing_regression fire/fig5b
lcl/table_3 persistent/figures_6_7_8 swr/code_variants""".split()


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"study/{name}" for name in TRAINED])
def test_the_last_arm_of_a_shipped_study_made_small_trains(name: str, tmp_path: Path) -> None:
    cells = study_cells(StudyConfig.parse(smoke_study(read_study_config(name))[0]))
    try:
        api.train(dataclasses.asdict(cells[-1].config), tmp_path / "run")
    except ConfigError as error:
        if "not installed" in str(error) or "pip install" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("study", ["study/lcl/table_3", "study/lcl/tables_1_2_efficientnetv2_s"])
def test_small_networks_of_timm_have_the_layers_that_arms_name(study: str) -> None:
    library("timm")
    for cell in study_cells(StudyConfig.parse(smoke_study(read_study_config(study))[0])):
        config: Any = cell.config
        module = build_model(config.model, (3, 32, 32), 10)
        assert sum(p.numel() for p in module.parameters()) < 500_000
        for row in config.layers:
            for layer in row["params"].get("layers", []):
                assert module.get_submodule(layer)
