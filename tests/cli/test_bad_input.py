"""Whatever is wrong with what a user gives ends in one message, and leaves nothing behind."""

import copy
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.cli import api
from tests.cli.commands import Outcome, command
from tests.cli.runs import SMALL, files, jsonl, small_config

ROOT = Path(__file__).resolve().parents[2]


def refused(outcome: Outcome, code: int = 2) -> str:
    """Check the form of a refusal; returns its message."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("rlplast: ")
    return lines[0].removeprefix("rlplast: ")


def hook(**keys: Any) -> list[dict[str, Any]]:
    return [{"method": "fire", "at": "50%"} | keys]


# Keys and values: (dotted key, value) → what the message says.

UNKNOWN_KEYS = [
    ("replya_ratio", 1, "'replya_ratio': did you mean 'replay_ratio'?"),
    ("agent.lrr", 1, "config.agent has an unknown key 'lrr': did you mean 'lr'?"),
    ("env.idd", "x", "config.env has an unknown key 'idd': did you mean 'id'?"),
    ("log.evry", "1%", "config.log has an unknown key 'evry': did you mean 'every'?"),
    ("metrics.name", [], "config.metrics has an unknown key 'name': did you mean 'names'?"),
    ("checkpoint.keeep", 2, "did you mean 'keep'?"),
    ("hooks.0.methd", "fire", "hooks[0] has an unknown key 'methd': did you mean 'method'?"),
    ("hooks.0.method", "fier", "intervention 'fier' is unknown: did you mean 'fire'?"),
    ("hooks.0.params.iteratons", 3, "'iteratons': did you mean 'iterations'?"),
    ("hooks.0.networks", ["qq"], "hooks[0] (fire).networks: 'qq': did you mean 'q'?"),
    ("hooks.0.scope", "dqm", "hooks[0] (fire).scope = 'dqm': did you mean 'dqn'?"),
    ("hooks.0.optimizer", "kepp", "did you mean 'keep'?"),
    ("hooks.0.followers", "copi", "did you mean 'copy'?"),
    ("hooks.0.at", "50 env_step%", "unit 'env_step%': did you mean 'env_steps'?"),
    ("kind", "dqnn", "kind = 'dqnn': did you mean 'dqn'?"),
    (
        "env.id",
        "gym/CartPol-v1",
        "env id 'gym/CartPol-v1' is unknown: did you mean 'gym/CartPole-v1'?",
    ),
    ("env.id", "atari/Asterx", "env id 'atari/Asterx' is unknown: did you mean 'atari/Asterix'?"),
    ("env.id", "minatar/breakot", "did you mean 'minatar/breakout'?"),
    ("env.options.max_steps", 3, "did you mean 'max_episode_steps'?"),
    ("metrics.names", ["srnk"], "metric 'srnk' is unknown: did you mean 'srank'?"),
    ("agent.network", "mpl", "agent.network = 'mpl': did you mean 'mlp'?"),
    ("agent.policy", "onlin", "agent.policy = 'onlin': did you mean 'online'?"),
    ("agent.accelerate", "compil", "agent.accelerate = 'compil': did you mean 'compile'?"),
]
WRONG_TYPES = [
    ("agent.lr", "abc", "agent.lr = 'abc': allowed is a number"),
    ("agent.lr", True, "agent.lr = True: allowed is a number"),
    ("agent.lr", None, "agent.lr = null: allowed is a number"),
    ("agent.lr", [1], "agent.lr = [1]: allowed is a number"),
    (
        "agent.batch_size",
        1e6,
        "agent.batch_size = 1000000.0: allowed is a whole number, such as 32",
    ),
    ("agent.double", "maybe", "agent.double = 'maybe': allowed is true or false"),
    ("agent.clip_rewards", 3, "agent.clip_rewards = 3: allowed is true, false or null"),
    ("agent.max_grad_norm", "x", "agent.max_grad_norm = 'x': allowed is a number or null"),
    ("agent", 3, "config.agent = 3: allowed is a mapping of DQNAgentConfig's keys"),
    ("agent", None, "config.agent = None: allowed is a mapping"),
    ("env", "gym/CartPole-v1", "config.env = 'gym/CartPole-v1': allowed is a mapping"),
    ("env.id", None, "env.id = null: allowed is text"),
    ("env.options", [], "env.options = []: allowed is a mapping"),
    ("seed", 1.5, "seed = 1.5: allowed is a whole number"),
    ("seed", True, "seed = True: allowed is a whole number"),
    ("seed", {"x": 3}, "seed = {'x': 3}: allowed is a whole number"),
    ("total", 5, "total = 5: allowed is text, such as '200k env_steps'"),
    ("total", "5", "total = '5': allowed is a number with a unit"),
    ("total", "10 bananas", "total = '10 bananas': unit 'bananas': allowed: env_steps"),
    ("total", None, "total = null"),
    ("log.every", 5, "log.every = 5: allowed is text, such as '1%'"),
    ("log.every", "often", "log.every = 'often': allowed is a number with a unit"),
    ("evaluate.every", 5, "evaluate.every = 5: allowed is text, such as '10%' or null"),
    ("hooks", 3, "hooks = 3: allowed is a list of mappings"),
    ("hooks", None, "hooks = null: allowed is a list of mappings"),
    ("hooks", {"method": "fire"}, "hooks = {'method': 'fire'}: allowed is a list of mappings"),
    ("hooks", ["fire"], "hooks = ['fire']: allowed is a list of mappings"),
    ("hooks", [3], "hooks = [3]: allowed is a list of mappings"),
    ("hooks.0.params", 3, "hooks[0] (fire).params = 3: allowed is a mapping"),
    ("hooks.0.params.iterations", "many", "fire.iterations = 'many': allowed is [1, 1000]"),
    ("hooks.0.params.iterations", 2.5, "fire.iterations = 2.5: allowed is a whole number"),
    ("hooks.0.scope", 3, "hooks[0] (fire).scope = 3"),
    ("hooks.0.networks", "q", "hooks[0] (fire).networks = 'q': allowed is a list"),
    ("hooks.0.networks", [["q"]], "hooks[0] (fire).networks"),
    ("hooks.0.method", [1], "intervention [1] is unknown"),
    ("hooks.0.method", None, "intervention None is unknown"),
    ("hooks.0.optimizer", [1], "hooks[0] (fire).optimizer = [1]"),
    ("hooks.0.followers", 3, "hooks[0] (fire).followers = 3"),
    ("hooks.0.at", {"x": 1}, "hooks[0] (fire).at = {'x': 1}"),
    ("hooks.0.at", [None], "hooks[0] (fire).at = None"),
    ("hooks.0.at", True, "hooks[0] (fire).at = True"),
    ("hooks.0.params", {"iterations": [1]}, "fire.iterations = [1]: allowed is [1, 1000]"),
    ("hooks.0.params", {"polynomial": [1]}, "fire.polynomial = [1]"),
    ("hooks.0.params", {"polynomial": None}, "fire.polynomial = None"),
    ("metrics.names", [None], "metrics.names = [None]: allowed is a list of text"),
    ("device", "", "device = ''"),
    ("device", None, "device = null"),
    ("hooks.0.at", None, "hooks[0] (fire) has no rule"),
    ("hooks.0.at", "half", "hooks[0] (fire).at = 'half': allowed is a number with a unit"),
    ("metrics.names", "srank", "metrics.names = 'srank': allowed is a list of text"),
    ("kind", 3, "kind = 3: allowed"),
    ("kind", [1], "kind = [1]: allowed"),
]
OUT_OF_RANGE = [
    ("replay_ratio", 0, "replay_ratio = 0.0: allowed is (0, inf)"),
    ("replay_ratio", -1, "replay_ratio = -1.0: allowed is (0, inf)"),
    ("replay_ratio", math.nan, "replay_ratio = nan: allowed is (0, inf)"),
    ("replay_ratio", math.inf, "replay_ratio = inf: allowed is (0, inf)"),
    ("agent.lr", 0, "agent.lr = 0.0: allowed is (0, inf)"),
    ("agent.lr", -1e-3, "agent.lr = -0.001: allowed is (0, inf)"),
    ("agent.lr", math.nan, "agent.lr = nan: allowed is (0, inf)"),
    ("agent.gamma", 1.1, "agent.gamma = 1.1: allowed is [0, 1]"),
    ("agent.batch_size", 0, "agent.batch_size = 0: allowed is [1, inf)"),
    ("agent.buffer_size", 3, "agent.buffer_size = 3: allowed is at least"),
    ("agent.n_step", 0, "agent.n_step = 0: allowed is [1, 1000]"),
    ("agent.target_every", 0, "agent.target_every = 0: allowed is [1, inf)"),
    ("agent.epsilon_end", 2, "agent.epsilon_end = 2.0: allowed is [0, 1]"),
    ("agent.max_grad_norm", 0, "agent.max_grad_norm = 0.0: allowed is (0, inf)"),
    (
        "agent.initial_steps",
        1,
        "agent.initial_steps = 1: allowed is at least num_envs * (n_step + 1)",
    ),
    ("agent.initial_steps", 200, "agent.initial_steps = 200: allowed is less than the total"),
    ("agent.network", "minatar", "'minatar' needs image observations"),
    ("env.num_envs", 0, "env.num_envs = 0: allowed is [1, inf)"),
    ("env.workers", -1, "env.workers = -1: allowed is [0, 2]"),
    ("env.workers", 3, "env.workers = 3: allowed is [0, 2]"),
    (
        "env.options.max_episode_steps",
        0,
        "'max_episode_steps' of env 'gym/CartPole-v1' is 0: allowed is integer >= 1",
    ),
    ("threads", 0, "threads = 0: allowed is at least 1"),
    ("total", "0 env_steps", "total = '0 env_steps': allowed is a positive number with a unit"),
    ("total", "50%", "total = '50%': allowed is a positive number with a unit"),
    ("total", "100k frames", "total = '100k frames': a dqn run counts env_steps or updates"),
    ("evaluate.episodes", 0, "evaluate.episodes = 0: allowed is at least 1"),
    ("metrics.batch_size", 0, "metrics.batch_size = 0: allowed is at least 1"),
    ("checkpoint.keep", 0, "checkpoint.keep = 0: allowed is at least 1"),
    ("log.every", "0%", "log.every = 0 env_steps: allowed is at least 1 env_steps"),
    (
        "metrics.names",
        ["feature_covariance_distance"],
        "compares two models: use `rlplast measure`",
    ),
    ("hooks.0.params.iterations", 0, "fire.iterations = 0: allowed is [1, 1000]"),
]
SCHEDULES = [
    ({"at": "100%"}, "hooks[0] (fire).at = 200 env_steps is at or past the end of the run"),
    (
        {"at": "900k env_steps"},
        "at = 900000 env_steps is at or past the end of the run (200 env_steps)",
    ),
    ({"at": ["25%", "150%"]}, "at = 300 env_steps is at or past the end"),
    ({"at": "90 updates"}, "at = 90 updates is at or past the end of the run (80 updates)"),
    ({"every": "201 env_steps"}, "every = 201 env_steps is longer than the run"),
    ({"every": "0 updates"}, "every = 0 updates: allowed is at least 1 updates"),
    ({"every": "10%", "from": "300 env_steps"}, "from = 300 env_steps is at or past the end"),
    ({"every": "10%", "from": "60%", "until": "40%"}, "until = 80 env_steps comes before from"),
    ({"every": "90%", "until": "50%"}, "it would never be due"),
    ({"every": "10 tokens"}, "counts tokens: this run counts env_steps, frames, updates"),
    ({"on": "phase_stat"}, "did you mean 'phase_start'?"),
    ({"at": "50%", "every": "10%"}, "has at and every: exactly one of at, every, on is needed"),
    ({}, "has no rule: exactly one of at, every, on is needed"),
    ({"at": []}, "at has no point"),
    ({"at": "-5 updates"}, "at = '-5 updates': allowed is a number with a unit"),
]


def nested(key: str, value: Any) -> dict[str, Any]:
    """`SMALL` with the value at a dotted key, as YAML would hold it."""
    config = copy.deepcopy(SMALL)
    here: Any = config
    *parents, last = key.split(".")
    for name in parents:
        here = here[int(name)] if isinstance(here, list) else here.setdefault(name, {})
    here[last] = value
    return config


@pytest.mark.parametrize(
    ("key", "value", "says"), UNKNOWN_KEYS + WRONG_TYPES + OUT_OF_RANGE, ids=lambda v: str(v)[:30]
)
def test_key_value_and_what_is_allowed_are_named(key: str, value: Any, says: str, tmp_path: Path):
    config = small_config(tmp_path, **nested(key, value))
    assert says in refused(command("train", config, "--out", tmp_path / "run"))
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


@pytest.mark.parametrize(("rule", "says"), SCHEDULES, ids=lambda v: str(v)[:40])
def test_schedules_that_would_do_nothing_are_refused(
    rule: dict[str, Any], says: str, tmp_path: Path
):
    config = small_config(tmp_path, hooks=[{"method": "fire"} | rule])
    message = refused(command("train", config, "--out", tmp_path / "run"))
    assert "hooks[0]" in message
    assert says in message
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_second_of_two_hooks_is_named_by_its_place(tmp_path: Path):
    config = small_config(tmp_path, hooks=[*hook(), {"method": "swr", "at": "100%"}])
    assert "hooks[1] (swr).at" in refused(command("train", config, "--out", tmp_path / "run"))


def test_reset_at_half_is_allowed(tmp_path: Path):
    config = small_config(tmp_path, hooks=hook(at="50%"), metrics={"every": None})
    assert command("train", config, "--out", tmp_path / "run").code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "cuda:97"], "device = 'cuda:97' is not there: torch sees"),
        (["--device", "tpu"], "device = 'tpu': allowed are auto, cpu, cuda, cuda:N"),
        (["--device", "cpu:x"], "device = 'cpu:x': allowed are auto, cpu, cuda, cuda:N"),
        (["extra"], "unexpected argument 'extra': keys are set with --dotted.key VALUE"),
        (["--agent.lr"], "--agent.lr has no value"),
        (["--agent.lr="], "agent.lr = null: allowed is a number"),
        (["--agent.lr=[1"], "--agent.lr=[1 is no valid YAML: expected ',' or ']'"),
        (["--agent.lr", "{[a]: b}"], "--agent.lr is no valid YAML: unhashable type: 'list'"),
        (["--seed", "2024-02-30"], "--seed is no valid YAML: day is out of range for month"),
        (["--seed", "2024-02-03"], "--seed: Object of type date is not JSON serializable"),
        (["--total.x", "3"], "total = {'x': 3}: allowed is text"),
        (
            ["--hooks.1.method", "fire"],
            "'1' is no position in the list: allowed is a position from 0 to 0",
        ),
        (["--hooks.x.method", "fire"], "'x' is no position in the list"),
        (["--hooks.0", "3"], "hooks = [3]: allowed is a list of mappings"),
        (["--metrics.names.0.x", "3"], "metrics.names"),
        (["--", "3"], "unexpected argument"),
        (["--.", "3"], "config has an unknown key ''"),
        (["--seed", "5", "--dice", "6"], "config has an unknown key 'dice'"),
    ],
)
def test_overrides_that_do_not_fit_are_named(words: list[str], says: str, tmp_path: Path):
    config = small_config(tmp_path)
    outcome = command("train", config, "--out", tmp_path / "run", *words)
    assert says in refused(outcome)
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


# Files.


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds nothing: allowed is a mapping of keys"),
        (b"# only a comment\n", "holds nothing: allowed is a mapping of keys"),
        (b"- kind: dqn\n", "holds a list: allowed is a mapping of keys"),
        (b"just words\n", "holds a str: allowed is a mapping of keys"),
        (b"seed: [1\n", "is no valid YAML: expected ',' or ']'"),
        (
            b"seed: 1: 2\n",
            "is no valid YAML: mapping values are not allowed here, line 1, column 8",
        ),
        (b"agent: {lr: 1e-3\n", "is no valid YAML"),
        (b"\tseed: 1\n", "is no valid YAML"),
        (b"seed: 1\nseed: 2\n", "key 'seed' is given twice, line 2"),
        (b"seed: !!python/object/apply:os.getcwd []\n", "is no valid YAML: could not determine"),
        (b"\x00\x01\x02", "is no valid YAML: unacceptable character"),
        (b"\xff\xfe\xfa\x80", "cannot be read: 'utf-8' codec can't decode"),
        (b"seed: &a [*a]\n", "found unconstructable recursive node"),
        (b"x: " + b"[" * 20_000, "is no valid YAML"),
        (b"1: 2\n", "config has an unknown key '1'"),
        (b"{}", None),
    ],
    ids=lambda v: str(v)[:24],
)
def test_files_that_are_no_config_are_named(content: bytes, says: str | None, tmp_path: Path):
    config = tmp_path / "own.yaml"
    config.write_bytes(content)
    if says is None:  # all defaults
        assert command("train", config, "--print_config").code == 0
        return
    message = refused(command("train", config, "--out", tmp_path / "run"))
    assert says in message
    assert str(config) in message or "key" in message
    assert not (tmp_path / "run").exists()


def test_random_bytes_never_end_in_a_traceback(tmp_path: Path):
    config, rng = tmp_path / "own.yaml", np.random.default_rng(0)
    for size in range(1, 120):
        config.write_bytes(rng.integers(256, size=size, dtype=np.uint8).tobytes())
        assert command("train", config, "--out", tmp_path / "run").code == 2
    text = list("[]{}:,&*!|>-?'\"%@` ab1\n#<~.")
    for size in range(1, 120):
        config.write_text("".join(rng.choice(text, size=size)))
        assert command("train", config, "--out", tmp_path / "run").code == 2
    assert not (tmp_path / "run").exists()


def test_absent_config_names_the_nearest_shipped_one(tmp_path: Path):
    says = refused(command("train", "dqn/asterx", "--out", tmp_path / "run"))
    assert says.endswith("did you mean 'dqn/asterix'?")
    says = refused(command("train", tmp_path / "no.yaml", "--out", tmp_path / "run"))
    assert "neither a file nor a shipped config" in says
    assert list(tmp_path.iterdir()) == []


def test_config_that_is_a_folder_is_refused(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    assert "neither a file" in refused(command("train", tmp_path / "folder"))


def test_folder_that_cannot_be_written_is_named(tmp_path: Path):
    config = small_config(tmp_path)
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file" / "run", tmp_path / "file"):
        message = refused(command("train", config, "--out", out))
        assert str(out) in message
    assert files(tmp_path).keys() == {"file", "small.yaml"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_named(tmp_path: Path):
    config = small_config(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    message = refused(command("train", config, "--out", tmp_path / "closed" / "run"))
    assert "closed/run cannot be written" in message


# Environments.


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("frame_skip", 0, "'frame_skip' of env 'atari/Pong' is 0: allowed is integer >= 1"),
        ("frame_skip", 2.5, "'frame_skip' of env 'atari/Pong' is 2.5"),
        ("sticky", 1.0, "'sticky' of env 'atari/Pong' is 1.0: allowed is [0, 1)"),
        ("sticky", "often", "'sticky' of env 'atari/Pong' is 'often'"),
        (
            "full_action_space",
            1,
            "'full_action_space' of env 'atari/Pong' is 1: allowed is true or false",
        ),
        ("max_episode_steps", -1, "'max_episode_steps' of env 'atari/Pong' is -1"),
        ("frameskip", 4, "did you mean 'frame_skip'?"),
    ],
)
def test_options_of_atari_are_checked(option: str, value: Any, says: str, tmp_path: Path):
    config = small_config(tmp_path, env={"id": "atari/Pong", "options": {option: value}})
    assert says in refused(command("train", config, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("module", "env", "install"),
    [("minatar", "minatar/breakout", "rlplast[minatar]"), ("ale_py", "atari/Pong", "ale-py")],
)
def test_missing_package_ends_with_what_to_install(
    module: str, env: str, install: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, module, None)
    config = small_config(tmp_path, env={"id": env})
    message = refused(command("train", config, "--out", tmp_path / "run"))
    assert message.endswith(f"the package '{module}' is not installed: pip install '{install}'")
    assert not (tmp_path / "run").exists()


# Runs that fail on the way.

DIVERGING = {
    "agent": SMALL["agent"] | {"lr": 1e38},
    "hooks": [],
    "metrics": {"every": None},
    "evaluate": {"every": None},
}


def failed(tmp_path: Path, **changes: Any) -> str:
    """Run to an expected failure; checks what is left, returns the message."""
    run = tmp_path / "run"
    outcome = command("train", small_config(tmp_path, **(DIVERGING | changes)), "--out", run)
    message = refused(outcome, code=1)
    assert api.load(run).info["status"] == "failed"
    for row in jsonl(run / "metrics.jsonl"):
        assert row["env_steps"] > 0
    for tensor in api.load(run).agent().online.parameters():
        assert torch.isfinite(tensor).all()  # the last good checkpoint is kept
    return message


def test_diverged_loss_ends_the_run(tmp_path: Path):
    message = failed(tmp_path, log={"every": "10%"}, checkpoint={"every": "100%"})
    assert "train/loss = nan" in message
    assert "agent.lr" in message


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path):
    message = failed(tmp_path, log={"every": "100%"}, checkpoint={"every": "25%"})
    assert message.startswith("q.fc1.weight is not finite")


@pytest.mark.parametrize("method", ["fire", "shrink_perturb"])
def test_hook_on_weights_that_are_not_finite_names_the_tensor(method: str, tmp_path: Path):
    hooks = [{"method": method, "at": "50%"}]
    quiet = {"log": {"every": "100%"}, "checkpoint": {"every": "100%"}}
    message = failed(tmp_path, hooks=hooks, **quiet)
    assert "q.fc1.weight" in message
    assert jsonl(tmp_path / "run" / "receipts.jsonl") == []


def test_full_reset_cures_weights_that_are_not_finite(tmp_path: Path):
    quiet = {"log": {"every": "100%"}, "checkpoint": {"every": "100%"}}
    hooks = [{"method": "full_reset", "at": "50%"}]
    config = small_config(tmp_path, **(DIVERGING | quiet | {"hooks": hooks}))
    outcome = command("train", config, "--out", tmp_path / "run")
    assert outcome.code in (0, 1)
    assert len(jsonl(tmp_path / "run" / "receipts.jsonl")) == 1


def test_metrics_of_weights_that_are_not_finite_are_null_not_nan(tmp_path: Path):
    metrics = {"every": "30%", "batch_size": 8}
    failed(tmp_path, metrics=metrics, log={"every": "100%"}, checkpoint={"every": "100%"})
    rows = [row for row in jsonl(tmp_path / "run" / "metrics.jsonl") if "metric/srank/q" in row]
    assert rows[-1]["metric/weight_norm/q"] is None


def test_very_large_learning_rate_is_survived_or_reported(tmp_path: Path):
    config = small_config(tmp_path, agent=SMALL["agent"] | {"lr": 1e6})
    outcome = command("train", config, "--out", tmp_path / "run")
    assert outcome.code == 0 or "diverged" in refused(outcome, code=1)


# The program.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "the following arguments are required: CONFIG"),
        (["resume"], "the following arguments are required: RUN"),
        (["train", "dqn/asterix", "--out"], "argument --out: expected one argument"),
    ],
)
def test_bad_usage_names_the_argument(words: list[str], says: str):
    outcome = command(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert says in outcome.err.splitlines()[-1]


def test_program_ends_with_the_message_and_its_code(tmp_path: Path):
    config = small_config(tmp_path, replay_ratio=-1)
    words = [sys.executable, "-m", "rlplast.cli.main", "train", str(config)]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rlplast: replay_ratio = -1.0: allowed is (0, inf)\n"
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
