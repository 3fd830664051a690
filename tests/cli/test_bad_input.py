"""Whatever is wrong with what a user gives ends in one message, and leaves nothing behind."""

import copy
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.bad_values import OUT_OF_RANGE, SCHEDULES, UNKNOWN_KEYS, WRONG_TYPES
from tests.cli.commands import command
from tests.cli.runs import SMALL, files, refused, small_config

ROOT = Path(__file__).resolve().parents[2]


def hook(**keys: Any) -> list[dict[str, Any]]:
    return [{"method": "fire", "at": "50%"} | keys]


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
        (["--optimizer.lr"], "--optimizer.lr has no value"),
        (["--optimizer.lr="], "optimizer.lr = null: allowed is a number"),
        (["--optimizer.lr=[1"], "--optimizer.lr=[1 is no valid YAML: expected ',' or ']'"),
        (
            ["--optimizer.lr", "{[a]: b}"],
            "--optimizer.lr is no valid YAML: unhashable type: 'list'",
        ),
        (["--seed", "2024-02-30"], "--seed is no valid YAML: day is out of range for month"),
        (["--seed", "2024-02-03"], "--seed: Object of type date is not JSON serializable"),
        (["--total.x", "3"], "total = {'x': 3}: allowed is text"),
        (
            ["--hooks.1.method", "fire"],
            "'1' is no position in the list: allowed is a position from 0 to 0",
        ),
        (["--hooks.x.method", "fire"], "'x' is no position in the list"),
        (["--hooks.0", "3"], "hooks[0] = 3: allowed is a mapping"),
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


ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(  # 9 to the power of 8 entries
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n".encode() for a, b in pairwise("abcdefgh")
)


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
        (b"seed: &a [*a]\n", "own.yaml: line 1: YAML of more than 100000 entries"),
        (ALIASES, "own.yaml: line 6: YAML of more than 100000 entries"),
        (b"seed: " + b"9" * 400, "seed = 99999"),
        (b"replay_ratio: '" + b"9" * 400 + b"'", "replay_ratio = '99999"),
        (b"env: {id: '" + b"A" * 5000 + b"'}", "allowed is text of 4096 characters"),
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


# The program.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "there is no command 'trian': did you mean 'train'?"),
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
    assert done.stderr == "rlplast: replay_ratio = -1: allowed is (0, 1000000]\n"
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
