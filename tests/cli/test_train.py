import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import rlplast
from rlplast.cli import train_command
from rlplast.cli.main import main
from rlplast.run.config_file import read_config
from tests.cli.commands import command
from tests.cli.runs import SMALL, files, jsonl, small_config, trained, untimed

ROOT = Path(__file__).resolve().parents[2]
CLOCK = ["updates", "env_steps", "frames"]
RECEIPT = {
    "method",
    "clock",
    "network",
    "crossings",
    "entries_touched",
    "sfe",
    "sfe_normalized",
    "dfi_before",
    "dfi_after",
    "norm_before",
    "norm_after",
    "optimizer_policy",
    "followers",
    "time/seconds",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("train"), "--log.to", "[tensorboard]")


# A run's folder.


def test_folder_holds_what_the_contract_names(run: Path):
    names = {path.name.split(".out.")[0] for path in run.iterdir() if path.name != ".lock"}
    wanted = {"config.yaml", "run.json", "metrics.jsonl", "receipts.jsonl", "events", "checkpoints"}
    assert names - {"plot.png"} == wanted
    steps = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert steps == ["step-150", "step-200"]
    for step in steps:
        inside = {path.name for path in (run / "checkpoints" / step).iterdir()}
        tensors = {"tensors.safetensors", "initial.safetensors"}
        assert inside == tensors | {"state.json", "replay", "COMPLETE"}
        assert list((run / "checkpoints" / step / "replay").glob("*.npy"))


def test_run_json_says_what_ran_where(run: Path):
    info = rlplast.load(str(run)).info
    assert info["status"] == "done"
    assert (info["seed"], info["threads"]) == (3, 1)
    assert isinstance(info["command"], list)
    assert {"python", "torch", "numpy", "gymnasium"} <= info["versions"].keys()
    assert {"git_revision", "host"} <= info.keys()


def test_metrics_are_flat_lines_that_begin_with_the_clock(run: Path):
    rows = jsonl(run / "metrics.jsonl")
    for row in rows:
        assert list(row)[:3] == CLOCK
        assert all(isinstance(row[unit], int) for unit in CLOCK)
        assert all(v is None or isinstance(v, int | float) for v in row.values())
        prefixes = {key.split("/")[0] for key in row if key not in CLOCK}
        assert prefixes <= {"train", "eval", "metric", "time"}
    clocks = [tuple(row[unit] for unit in CLOCK) for row in rows]
    assert clocks == sorted(clocks)
    assert clocks[-1] == (80, 200, 200)
    names = set().union(*rows)
    assert {"train/loss", "train/return", "eval/return_mean", "time/seconds"} <= names
    assert {"metric/weight_norm/q", "metric/weight_norm/q/fc1.weight", "metric/srank/q"} <= names
    assert {"metric/dormant_ratio/q", "metric/weight_difference/q"} <= names


def test_logs_evaluations_and_metrics_come_at_their_periods(run: Path):
    rows = jsonl(run / "metrics.jsonl")
    periods = {"train/epsilon": 20, "eval/return_mean": 100, "metric/weight_norm/q": 100}
    for key, period in periods.items():
        points = [row["env_steps"] for row in rows if key in row]
        assert points == list(range(period, 201, period)), key


def test_receipt_has_every_field_of_the_contract(run: Path):
    (receipt,) = jsonl(run / "receipts.jsonl")
    assert receipt.keys() >= RECEIPT
    assert (receipt["method"], receipt["network"], receipt["crossings"]) == ("fire", "q", 1)
    # Due at an env_step, it fires before the updates that step owes.
    assert receipt["clock"] == {"updates": 29, "env_steps": 100, "frames": 100}
    assert receipt["sfe"] > 0
    assert receipt["dfi_after"] < receipt["dfi_before"]


def test_receipts_are_there_even_if_empty(tmp_path: Path):
    run = trained(tmp_path, hooks=[], total="80 env_steps", log={"every": "50%", "to": []})
    assert (run / "receipts.jsonl").read_bytes() == b""
    assert not list(run.glob("events.*"))  # log.to: []


@pytest.mark.usefixtures("pictures")
def test_picture_is_drawn_whatever_was_measured(tmp_path: Path):
    run = trained(
        tmp_path,
        evaluate={"every": None},
        metrics={"every": None},
        total="80 env_steps",
        log={"every": "50%"},
    )
    assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")


# The same run again.


def test_config_of_a_run_repeats_it_bit_for_bit(run: Path, tmp_path: Path):
    again = tmp_path / "again"
    assert command("train", run / "config.yaml", "--out", again).code == 0
    for name in ("metrics.jsonl", "receipts.jsonl"):
        assert untimed(jsonl(again / name)) == untimed(jsonl(run / name))
    first, second = files(run / "checkpoints"), files(again / "checkpoints")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == [
        name
        for name in first
        if name.endswith(("state.json", "COMPLETE"))  # they hold seconds
    ]
    assert (again / "config.yaml").read_text() == (run / "config.yaml").read_text()


def test_another_seed_is_another_run(run: Path, tmp_path: Path):
    other = tmp_path / "other"
    assert command("train", run / "config.yaml", "--seed", 4, "--out", other).code == 0
    assert untimed(jsonl(other / "metrics.jsonl")) != untimed(jsonl(run / "metrics.jsonl"))
    assert rlplast.load(str(other)).info["seed"] == 4


# Python.


def test_python_trains_and_acts_as_the_command_does(run: Path, tmp_path: Path):
    finished = rlplast.train(str(run / "config.yaml"), str(tmp_path / "python"), optimizer__lr=1e-3)
    assert untimed(finished.lines()) == untimed(jsonl(run / "metrics.jsonl"))
    agent = rlplast.load(str(run))
    obs = [[0.1, 0.0, -0.1, 0.0], [0.0, 1.0, 0.1, -1.0]]
    actions = agent.act(np.array(obs, np.float32))
    assert actions.tolist() == finished.act(np.array(obs, np.float32)).tolist()
    assert set(actions.tolist()) <= {0, 1}


# Configs and overrides.


def test_printed_config_is_read_back_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = small_config(tmp_path)
    printed = command("train", config, "--print_config", "--optimizer.lr", "2e-3")
    assert (printed.code, printed.err) == (0, "")
    assert yaml.safe_load(printed.out)["optimizer"]["lr"] == 2e-3
    again = tmp_path / "printed.yaml"
    again.write_text(printed.out)
    assert command("train", again, "--print_config").out == printed.out
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", "printed.yaml"}


def test_every_shipped_config_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for path in sorted(ROOT.glob("configs/dqn/*.yaml")):
        outcome = command("train", f"dqn/{path.stem}", "--print_config")
        assert (outcome.code, outcome.err) == (0, ""), path
        assert yaml.safe_load(outcome.out)["kind"] == "dqn"
    assert list(tmp_path.iterdir()) == []


OVERRIDES: list[tuple[str, str, object]] = [
    ("--seed 7", "seed", 7),
    ("--seed=7", "seed", 7),
    ("--seed -1", "seed", -1),
    ("--seed 5 --seed 6", "seed", 6),
    ("--optimizer.lr 1e-5", "optimizer.lr", 1e-5),
    ("--optimizer.lr 1", "optimizer.lr", 1.0),
    ("--agent.clip_rewards null", "agent.clip_rewards", None),
    ("--agent.double true", "agent.double", True),
    ("--hooks []", "hooks", []),
    ("--hooks.0.params.iterations=9", "hooks.0.params.iterations", 9),
    ("--env.options.max_episode_steps 10", "env.options.max_episode_steps", 10),
    ("--env {id:\xa0minatar/breakout}", "env.num_envs", 4),
]


def test_dotted_keys_override(tmp_path: Path):
    for line, key, value in OVERRIDES:
        words = [word.replace("\xa0", " ") for word in line.split(" ")]
        outcome = command("train", small_config(tmp_path), "--print_config", *words)
        assert (outcome.code, outcome.err) == (0, ""), line
        found = yaml.safe_load(outcome.out)
        for name in key.split("."):
            found = found[int(name)] if isinstance(found, list) else found[name]
        assert found == value, line


def test_hooks_and_layers_may_lie_in_files(tmp_path: Path):
    hooks = [{"method": "fire", "at": "50%"}, {"method": "swr", "every": "1 updates"}]
    (tmp_path / "hooks.yaml").write_text(yaml.safe_dump(hooks))
    (tmp_path / "layers.yaml").write_text("- method: lifecycle\n")
    words = ("--hooks", tmp_path / "hooks.yaml", "--layers", tmp_path / "layers.yaml")
    printed = command("train", small_config(tmp_path), "--print_config", *words)
    assert (printed.code, printed.err) == (0, "")
    found = yaml.safe_load(printed.out)
    assert (found["hooks"], found["layers"]) == (hooks, [{"method": "lifecycle"}])
    (tmp_path / "hooks.yaml").write_text("method: fire\n")
    refusal = command("train", small_config(tmp_path), "--print_config", *words)
    assert refusal.err.endswith("hooks.yaml' holds a dict: allowed is a list of mappings\n")


def test_examples_of_the_help_are_configs():
    lines = (train_command.__doc__ or "").splitlines()
    examples = [shlex.split(line) for line in lines if line.startswith("  rlplast train")]
    assert len(examples) == 3
    for words in examples:
        words = [str(ROOT / word) if word.endswith(".yaml") else word for word in words]
        outcome = command(*words[1:], "--print_config")
        assert (outcome.code, outcome.err) == (0, "")


def test_mappings_in_a_config_are_never_made_into_objects():
    thing = {"class_path": "pathlib.Path", "init_args": {}}
    hooks = [{"method": "fire", "at": "50%", "params": thing}, thing]
    env = {"id": "gym/CartPole-v1", "options": thing | {"more": [thing]}}
    config = read_config(SMALL | {"hooks": hooks, "env": env})
    assert config.hooks == hooks
    assert dataclasses.asdict(config)["env"]["options"] == env["options"]


# Folders.


def test_folder_that_is_not_empty_is_refused_naming_resume(run: Path, tmp_path: Path):
    before = files(run)
    outcome = command("train", run / "config.yaml", "--out", run)
    assert outcome.code == 2
    assert "resume" in outcome.err
    assert files(run) == before
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    outcome = command("train", run / "config.yaml", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "resume" in outcome.err
    assert files(tmp_path / "out") == {"mine.txt": b"mine"}


def test_default_folder_is_a_new_one_below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ("--total", "80 env_steps", "--log.every", "50%", "--metrics.every", "null")
    for _ in range(2):
        outcome = command("train", small_config(tmp_path), *words)
        assert (outcome.code, outcome.err) == (0, "")
    made = list((tmp_path / "runs").iterdir())
    assert len(made) == 2
    assert all(re.match(r"gym-CartPole-v1-seed3-\d{8}-\d{6}(-2)?$", path.name) for path in made)


def test_end_of_a_run_says_where_it_is_and_what_it_scored(run: Path, tmp_path: Path):
    outcome = command("train", run / "config.yaml", "--out", tmp_path / "again")
    assert str(tmp_path / "again") in outcome.out
    assert "mean return" in outcome.out
    assert "fire" in outcome.out
    assert outcome.err == ""  # no progress bar where there is no terminal


def test_receipts_at_the_end_are_whole_in_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    hooks = [{"method": "shrink_perturb", "at": "50%"}, {"method": "full_reset", "at": "50%"}]
    config = small_config(tmp_path, hooks=hooks, evaluate={"every": "100%", "episodes": 1})
    lines = command("train", config, "--out", tmp_path / ("long" * 30)).out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("shrink", "full"))]
    assert [row[:4] for row in rows] == [
        ["shrink_perturb", "q", "100", "env_steps"],
        ["full_reset", "q", "100", "env_steps"],
    ]
    assert [len(row) for row in rows] == [5, 5]  # one number, no seconds
    assert any(line.endswith(" over 1 episode") for line in lines)
    monkeypatch.setenv("COLUMNS", "120")
    config = small_config(tmp_path, hooks=hooks)
    assert "seconds" in command("train", config, "--out", tmp_path / "wide").out


@pytest.mark.slow
def test_end_of_a_run_says_how_many_receipts_are_not_shown(tmp_path: Path):
    hooks = [{"method": "head_reset", "every": "7 env_steps"}]
    config = small_config(tmp_path, hooks=hooks)
    lines = command("train", config, "--out", tmp_path / "run").out.splitlines()
    count = len(jsonl(tmp_path / "run" / "receipts.jsonl"))
    assert count > 20 == sum(line.startswith("head_reset ") for line in lines)
    assert f"these are the last 20 of {count} receipts" in lines


def test_program_trains_in_worker_processes_without_a_warning(tmp_path: Path):
    config = small_config(tmp_path, total="80 env_steps", evaluate={"every": None})
    words = [sys.executable, "-W", "error", "-m", "rlplast.cli.main", "train", str(config)]
    words += ["--out", str(tmp_path / "one"), "--env.workers", "1", "--log.to", "[tensorboard]"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    progress = ("starting, ", "training: ", "measuring: ", "saving: ", "done in ")  # of a slow one
    lines = [line for line in done.stderr.splitlines() if not line.startswith(progress)]
    assert (done.returncode, lines) == (0, [])
    assert command("train", config, "--out", tmp_path / "two").code == 0
    rows = [untimed(jsonl(tmp_path / name / "metrics.jsonl")) for name in ("one", "two")]
    assert rows[0] == rows[1]


def test_import_loads_a_module_with_methods_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_methods_of_mine.py").write_text("LOADED = True\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--import", "own_methods_of_mine", "list", "layers"]) == 0
    assert sys.modules.pop("own_methods_of_mine").LOADED
    assert main(["--import", "no_such_module_here", "list", "layers"]) == 2
    assert "--import no_such_module_here" in capsys.readouterr().err


def test_units_reset_inside_updates_are_counted_at_the_end(tmp_path: Path):
    params = {"replacement_rate": 0.05, "maturity": 5}
    hooks = [{"method": "cbp", "every": "1 updates", "params": params}]
    config = small_config(tmp_path, hooks=hooks)
    outcome = command("train", config, "--out", tmp_path / "run")
    rows = [row for row in jsonl(tmp_path / "run" / "receipts.jsonl") if row["units"]]
    units = sum(sum(row["units"].values()) for row in rows)
    assert units > 0
    updates = sum(row["firings"] for row in rows)
    assert f"cbp in {updates} updates of q: {units} units reset" in outcome.out


def test_hooks_whose_conditions_never_held_are_named(tmp_path: Path):
    never = {
        "dormant_ratio": ({"above": 2}, "metric/dormant_ratio/q", max),
        "metric/dormant_ratio/q": ({"below": -1}, "metric/dormant_ratio/q", min),
        "eval/return_mean": ({"above": 1e9}, "eval/return_mean", max),
    }
    whens = [{"metric": metric} | bound for metric, (bound, _, _) in never.items()]
    held = {"metric": "dormant_ratio", "above": -1}  # an equal method, whose condition holds
    hooks = [{"method": "redo", "when": when} for when in (held, *whens)]
    outcome = command("train", small_config(tmp_path, hooks=hooks), "--out", tmp_path / "run")
    rows = jsonl(tmp_path / "run" / "metrics.jsonl")
    lines = [line for line in outcome.out.splitlines() if "never fired" in line]
    for i, (metric, (_, key, nearest)) in enumerate(never.items(), 1):
        values = [row[key] for row in rows if key in row]
        (line,) = [x for x in lines if x.startswith(f"hooks[{i}] (redo) never fired: {metric} ")]
        assert line.endswith(f"measured {len(values)} times, the nearest was {nearest(values):.4g}")
    assert len(lines) == len(never)


def test_the_last_evaluation_of_a_sequence_is_said_to_be_of_its_task(tmp_path: Path):
    env = ("--env.tasks", "2", "--env.steps_per_task", "40", "--agent.initial_steps", "20")
    rest = ("--evaluate.episodes", "1", "--metrics.every", "null", "--log.to", "[]")
    outcome = command("train", "dqn/cartpole_permuted", *env, *rest, "--out", tmp_path / "run")
    assert "evaluation of task-1 after 80 env_steps: mean return" in outcome.out


def test_an_interrupt_while_the_program_is_imported_ends_it_in_one_line():
    code = (
        "import os, signal, sys\n"
        "class Package:\n"
        "    def find_spec(self, name, *others):\n"
        "        if name == 'numpy':\n"
        "            try: os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt: raise ImportError('hidden')\n"
        "sys.meta_path.insert(0, Package())\n"
        "from rlplast.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "measure"], cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"rlplast: interrupted before it began\n")
