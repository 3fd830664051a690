"""Whatever is wrong with what a user gives ends in one message, and leaves nothing behind.

Wrong types, ranges, choices and names of keys: tests/run/test_schema_inputs.py.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.cli.commands import command
from tests.cli.runs import SMALL, files, refused, small_config
from tests.cli.test_supervised_and_gpt import GPT
from tests.sac_runs import QUIET, small_sac
from tests.supervised_runs import small_supervised

Rules = list[tuple[str, Any, str]]  # key, value, what the message says
DQN: Rules = [
    ("env.id", "gym/CartPol-v1", "'gym/CartPole-v1'"),
    ("env.id", "gym/Pendulum-v1", "use kind: sac"),
    ("env.id", "A" * 5000, "4096 characters"),
    ("env.workers", 3, "[0, 2]"),
    ("metrics.names", ["feature_covariance_distance"], "feature_covariance_distance"),
    ("total", "5", "a number with a unit"),
    ("total", "50%", "positive"),
    ("log.every", "0%", "at least 1 env_steps"),
    ("evaluate.every", 2.5, "'2.5%'"),
    ("evaluate.steps", 9, "evaluate.episodes = 3"),
    ("checkpoint.every", "9 epochs", "this run counts"),
    ("checkpoint.every", "201 env_steps", "never be due"),
    ("agent.buffer_size", 3, "at least"),
    ("agent.initial_steps", 1, "num_envs * (n_step + 1)"),
    ("agent.initial_steps", 200, "less than the total"),
    ("agent.network", "minatar", "image observations"),
    ("agent.critics", 2, "for kind: sac"),
    ("env.options.max_steps", 3, "max_episode_steps"),
    ("device", "cuda:97", "is not there"),
    ("optimizer", {"name": "sgd", "params": {"nesterov": True}}, "momentum above 0"),
    ("optimizer.params.alpha", 10**400, "optimizer.params.alpha = 1000"),
    ("layers", [{"method": "fire"}], "layers[0].method = 'fire'"),
    ("hooks.0.at", "90 updates", "(80 updates)"),
    ("hooks.0", {"method": "fire", "every": "10 tokens"}, "counts tokens"),
    (
        "hooks.0",
        {"method": "fire", "every": "10%", "from": "60%", "until": "40%"},
        "hooks[0] (fire): until = 80 env_steps",
    ),
    ("hooks", [*SMALL["hooks"], {"method": "swr", "at": "100%"}], "hooks[1] (swr).at"),
]
FIRE = {"method": "fire", "at": "50%"}
SAC: Rules = [
    ("agent.hidden", [8], "at least one layer, with"),
    ("agent.critic_subset", 3, "agent.critics = 2"),
    ("agent.log_std_min", 2.0, "less than agent.log_std_max"),
    ("hooks", [FIRE | {"networks": ["critics"]}], "'critic'"),
    ("hooks", [FIRE | {"networks": ["actor", "temperature"]}], "network 'temperature'"),
    ("env", {"id": "gym/CartPole-v1"}, "use kind: dqn"),
    ("env", {"id": "gym/Drift-v0"}, "--import MODULE"),
]
CLASSIFIER: Rules = [
    ("model", {"name": "mlp", "patch": 4}, "mlp does not read it"),
    ("stream", {"name": "class_incremental", "phases": 3, "epochs": 1}, "phases"),
]
LANGUAGE: Rules = [
    ("model.context", 10**7, "context"),
    ("model.vocab_size", 100, "vocab"),
    ("precision", "fp16", "fp16 needs CUDA"),
    ("hooks", [{"method": "swr", "every": "1 updates"}], "tied"),
    ("total", "4 updates", "at most all phases"),
]
BASES = [(SMALL, DQN), (small_sac(), SAC), (small_supervised(), CLASSIFIER), (GPT, LANGUAGE)]


@pytest.mark.parametrize(("base", "rules"), BASES, ids=[base["kind"] for base, _ in BASES])
def test_what_does_not_fit_together_is_named(base: dict[str, Any], rules: Rules) -> None:
    for key, value, word in rules:
        try:
            build(read_config(base, {key: value}))
            message = "accepted"
        except ConfigError as error:
            message = str(error)
        assert word in message, (key, value, message)


def test_a_temperature_is_left_out_of_fire_and_a_frozen_one_of_resets(tmp_path: Path):
    frozen = {"agent": {"learn_temperature": False}, "total": "50 env_steps"} | QUIET
    named = [{"method": "full_reset", "at": "50%", "networks": ["temperature"]}]
    with pytest.raises(ConfigError, match="network 'temperature'"):
        api.train(small_sac(hooks=named, **frozen), tmp_path / "run")
    hooks = [FIRE | {"scope": "sac"}, {"method": "full_reset", "at": "60%"}]
    run = api.train(small_sac(hooks=hooks, **frozen), tmp_path / "run")
    assert [row["network"] for row in run.lines("receipts")] == 2 * ["actor", "critic"]
    values = [row["train/temperature"] for row in run.lines() if "train/temperature" in row]
    assert values and values == pytest.approx([0.01] * len(values))


OVERRIDES = [
    (["extra"], "unexpected argument 'extra'"),
    (["--optimizer.lr"], "--optimizer.lr has no value"),
    (["--", "3"], "unexpected argument"),
    (["--optimizer.lr", "{[a]: b}"], "keys must be str"),
    (["--seed", "2024-02-03"], "--seed: Object of type date"),
    (["--total.x", "3"], "total = {'x': 3}"),
    (["--hooks.1.method", "fire"], "a position from 0 to 0"),
    (["--metrics.names.0.x", "3"], "metrics.names"),
    (["--.", "3"], "unknown key ''"),
]


def test_overrides_that_do_not_fit_are_named_and_leave_nothing(tmp_path: Path):
    config = small_config(tmp_path)
    for words, says in OVERRIDES:
        assert says in refused(command("train", config, "--out", tmp_path / "run", *words))
        assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"], words
    assert "there is no command 'trian': did you mean 'train'?" in command("trian").err


# Files.


FILES = [
    (b"", "holds nothing"),
    (b"- kind: dqn\n", "holds a list"),
    (b"seed: 1: 2\n", "line 1, column 8"),
    (b"seed: !!python/object/apply:os.getcwd []\n", "no valid YAML: could not determine"),
    (b"\xff\xfe\xfa\x80", "cannot be read: 'utf-8' codec"),
    (b"seed: &a [*a]\n", "Circular reference"),
    (b"seed: " + b"9" * 400, "seed = 99999"),
    (b"1: 2\n", "unknown key '1'"),
]


def test_files_that_are_no_config_are_named(tmp_path: Path):
    config = tmp_path / "own.yaml"
    for content, says in FILES:
        config.write_bytes(content)
        message = refused(command("train", config, "--out", tmp_path / "run"))
        assert says in message
        assert str(config) in message or "key" in message
    config.write_bytes(b"x: " + b"[" * 2_000)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)  # the usual 1,000 take seconds
    try:
        assert "no valid YAML" in refused(command("train", config, "--out", tmp_path / "run"))
    finally:
        sys.setrecursionlimit(limit)
    config.write_text("{}")  # all defaults
    assert command("train", config, "--print_config").code == 0
    rng, text = np.random.default_rng(0), list("[]{}:,&*!|>-?'\"%@` ab1\n#<~.")
    for size in range(1, 60, 12):
        for random in (rng.integers(256, size=size, dtype=np.uint8).tobytes(), None):
            config.write_bytes(random or "".join(rng.choice(text, size=size)).encode())
            assert command("train", config, "--out", tmp_path / "run").code == 2
    assert not (tmp_path / "run").exists()


def test_folders_that_cannot_be_read_or_written_are_named(tmp_path: Path):
    config = small_config(tmp_path)
    (tmp_path / "folder").mkdir()
    for absent in (tmp_path / "no.yaml", tmp_path / "folder"):
        says = refused(command("train", absent, "--out", tmp_path / "run"))
        assert "neither a file nor a shipped config" in says
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file" / "run", tmp_path / "file"):
        assert str(out) in refused(command("train", config, "--out", out))
    assert files(tmp_path).keys() == {"file", "small.yaml"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_named(tmp_path: Path):
    config = small_config(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    message = refused(command("train", config, "--out", tmp_path / "closed" / "run"))
    assert "closed/run cannot be written" in message
