import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

import rlplast
from rlplast.cli import train_command
from tests.cli.commands import command
from tests.cli.runs import files, jsonl, small_config, trained, untimed

ROOT = Path(__file__).resolve().parents[2]
CLOCK = ["updates", "env_steps", "frames"]
RECEIPT = {
    *("method", "clock", "network", "crossings", "entries_touched", "sfe", "sfe_normalized"),
    *("dfi_before", "dfi_after", "norm_before", "norm_after", "optimizer_policy", "followers"),
    "time/seconds",
}
SHORT = {"total": "80 env_steps", "evaluate": {"every": None}, "metrics": {"every": None}}


# A run's folder.


def test_folder_holds_what_the_contract_names(small: Path):
    names = {path.name.split(".out.")[0] for path in small.iterdir() if path.name != ".lock"}
    wanted = {"config.yaml", "run.json", "metrics.jsonl", "receipts.jsonl", "events", "checkpoints"}
    assert names - {"plot.png"} == wanted
    steps = sorted(path.name for path in (small / "checkpoints").iterdir())
    assert steps == ["step-150", "step-200"]
    for step in steps:
        inside = {path.name for path in (small / "checkpoints" / step).iterdir()}
        tensors = {"tensors.safetensors", "initial.safetensors"}
        assert inside == tensors | {"state.json", "replay", "COMPLETE"}
        assert list((small / "checkpoints" / step / "replay").glob("*.npy"))
    info = rlplast.load(str(small)).info
    assert info["status"] == "done"
    assert (info["seed"], info["threads"]) == (3, 1)
    assert isinstance(info["command"], list)
    assert {"python", "torch", "numpy", "gymnasium"} <= info["versions"].keys()
    assert {"git_revision", "host"} <= info.keys()


def test_metrics_are_flat_lines_of_the_clock_and_what_is_due_there(small: Path):
    rows = jsonl(small / "metrics.jsonl")
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
    periods = {"train/epsilon": 20, "eval/return_mean": 100, "metric/weight_norm/q": 100}
    for key, period in periods.items():
        points = [row["env_steps"] for row in rows if key in row]
        assert points == list(range(period, 201, period)), key


def test_receipt_has_every_field_of_the_contract(small: Path):
    (receipt,) = jsonl(small / "receipts.jsonl")
    assert receipt.keys() >= RECEIPT
    assert (receipt["method"], receipt["network"], receipt["crossings"]) == ("fire", "q", 1)
    # Due at an env_step, it fires before the updates that step owes.
    assert receipt["clock"] == {"updates": 29, "env_steps": 100, "frames": 100}
    assert receipt["sfe"] > 0
    assert receipt["dfi_after"] < receipt["dfi_before"]


@pytest.mark.usefixtures("pictures")
def test_receipts_and_picture_are_there_even_if_empty(tmp_path: Path):
    run = trained(tmp_path, hooks=[], **SHORT, log={"every": "50%", "to": []})
    assert (run / "receipts.jsonl").read_bytes() == b""
    assert not list(run.glob("events.*"))
    assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")


# The same run again.


def test_config_of_a_run_repeats_it_bit_for_bit_in_python(small: Path, tmp_path: Path):
    again, config = tmp_path / "again", str(small / "config.yaml")
    finished = rlplast.train(config, str(again), optimizer__lr=1e-3)
    for name in ("metrics.jsonl", "receipts.jsonl"):
        assert untimed(jsonl(again / name)) == untimed(jsonl(small / name))
    first, second = files(small / "checkpoints"), files(again / "checkpoints")
    assert first.keys() == second.keys()
    timed = ("state.json", "COMPLETE")  # they hold seconds
    assert all(first[name] == second[name] for name in first if not name.endswith(timed))
    assert (again / "config.yaml").read_text() == (small / "config.yaml").read_text()
    obs = np.array([[0.1, 0.0, -0.1, 0.0], [0.0, 1.0, 0.1, -1.0]], np.float32)
    assert rlplast.load(str(small)).act(obs).tolist() == finished.act(obs).tolist()
    other = rlplast.train(config, str(tmp_path / "other"), seed=4, total="60 env_steps")
    start = next(name for name in first if name.endswith("initial.safetensors"))
    (theirs,) = {own.read_bytes() for own in other.path.rglob("initial.safetensors")}
    assert other.info["seed"] == 4 and theirs != first[start]


# Configs and overrides.


def test_printed_config_is_read_back_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = small_config(tmp_path)
    printed = command("train", config, "--print_config", "--optimizer.lr", "2e-3")
    assert (printed.code, printed.err) == (0, "")
    assert yaml.safe_load(printed.out)["optimizer"]["lr"] == 2e-3
    (tmp_path / "printed.yaml").write_text(printed.out)
    assert command("train", "printed.yaml", "--print_config").out == printed.out
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", "printed.yaml"}


OVERRIDES: list[tuple[str, str, object]] = [
    ("--seed=7", "seed", 7),
    ("--seed -1", "seed", -1),
    ("--seed 5 --seed 6", "seed", 6),
    ("--optimizer.lr 1e-5", "optimizer.lr", 1e-5),
    ("--agent.clip_rewards null", "agent.clip_rewards", None),
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


# Folders, and what is said at the end.


def test_default_folder_is_a_new_one_below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        outcome = command("train", small_config(tmp_path, **SHORT, hooks=[]))
        assert (outcome.code, outcome.err) == (0, "")  # no progress bar where there is no terminal
    made = list((tmp_path / "runs").iterdir())
    assert len(made) == 2
    assert all(re.match(r"gym-CartPole-v1-seed3-\d{8}-\d{6}(-1)?$", path.name) for path in made)


def test_receipts_at_the_end_are_whole_in_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hooks = [{"method": "shrink_perturb", "at": "50%"}, {"method": "full_reset", "at": "50%"}]
    changes = SHORT | {"hooks": hooks, "evaluate": {"every": "100%", "episodes": 1}}
    config = small_config(tmp_path, **changes)
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("train", config, "--out", tmp_path / ("long" * 30)).out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("shrink", "full"))]
    at = ["q", "40", "env_steps"]
    assert [row[:4] for row in rows] == [["shrink_perturb", *at], ["full_reset", *at]]
    assert [len(row) for row in rows] == [5, 5]  # without seconds
    assert any(line.endswith(" over 1 episode") for line in lines)


def test_the_end_of_a_run_names_hooks_that_never_fired_units_and_what_it_does_not_show(
    tmp_path: Path,
):
    never = {
        "dormant_ratio": ({"above": 2}, "metric/dormant_ratio/q", max),
        "metric/dormant_ratio/q": ({"below": -1}, "metric/dormant_ratio/q", min),
        "eval/return_mean": ({"above": 1e9}, "eval/return_mean", max),
    }
    whens = [{"metric": metric} | bound for metric, (bound, _, _) in never.items()]
    held = {"metric": "dormant_ratio", "above": -1}  # an equal method, whose condition holds
    hooks: list[dict] = [{"method": "redo", "when": when} for when in (held, *whens)]
    hooks += [{"method": "head_reset", "every": "7 env_steps"}]
    params = {"replacement_rate": 0.05, "maturity": 5}
    hooks += [{"method": "cbp", "every": "1 updates", "params": params}]
    outcome = command("train", small_config(tmp_path, hooks=hooks), "--out", tmp_path / "run")
    rows = jsonl(tmp_path / "run" / "metrics.jsonl")
    lines = [line for line in outcome.out.splitlines() if "never fired" in line]
    for i, (metric, (_, key, nearest)) in enumerate(never.items(), 1):
        values = [row[key] for row in rows if key in row]
        (line,) = [x for x in lines if x.startswith(f"hooks[{i}] (redo) never fired: {metric} ")]
        assert line.endswith(
            f"measured {len(values)} times in the run, the nearest was {nearest(values):.4g}"
        )
    assert len(lines) == len(never)
    receipts = jsonl(tmp_path / "run" / "receipts.jsonl")
    inside = [row for row in receipts if row["norm_after"] is None and row["units"]]
    units, updates = (
        sum(sum(r["units"].values()) for r in inside),
        sum(r["firings"] for r in inside),
    )
    assert units > 0 and f"cbp in {updates} updates of q: {units:,} units reset" in outcome.out
    count = sum(row["norm_after"] is not None for row in receipts)
    assert count > 20 == len(re.findall(r"(?m)^(?:head_reset|redo) ", outcome.out))
    assert f"these are the last 20 of {count} receipts" in outcome.out.splitlines()


def test_the_last_evaluation_of_a_sequence_is_said_to_be_of_its_task(tmp_path: Path):
    env = ("--env.tasks", "2", "--env.steps_per_task", "40", "--agent.initial_steps", "20")
    rest = ("--evaluate.episodes", "1", "--metrics.every", "null", "--log.to", "[]")
    outcome = command("train", "dqn/cartpole_permuted", *env, *rest, "--out", tmp_path / "run")
    assert "evaluation of task-1 after 80 env_steps: mean return" in outcome.out
