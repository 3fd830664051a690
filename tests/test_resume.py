"""Invariant 5: interrupted and resumed equals uninterrupted, bit for bit; and what may go wrong.

Every step and every file operation of a toy run are in core/test_loop.py; here whole DQN runs
are interrupted, some of them in processes of their own.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.cli import api
from rlplast.core import checkpoint
from rlplast.core.errors import DamagedFile, Interrupted
from rlplast.core.loop import Loop
from rlplast.core.run_folder import RunFolder
from tests.cli.commands import command
from tests.core.toy import Killed
from tests.runs import TINY, final

MANY = {"checkpoint": {"every": "10%", "keep": 20}}


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run nobody interrupted, with every checkpoint kept; tests only read or copy it."""
    folder = tmp_path_factory.mktemp("resume") / "through"
    api.train(TINY | MANY, folder)
    return folder


@pytest.fixture(scope="module")
def expected(through: Path) -> dict[str, Any]:
    return final(through)


@pytest.fixture
def halfway(through: Path, tmp_path: Path) -> Path:
    """A copy of the run as it would be if killed after its checkpoint at 60 env_steps."""
    run = tmp_path / "run"
    shutil.copytree(through, run)
    forget(run, after=60)
    return run


def forget(run: Path, after: int) -> None:
    """Make a finished run look as if it had been killed after a checkpoint."""
    for path in (run / "checkpoints").iterdir():
        if int(path.name.split("-")[1]) > after:
            shutil.rmtree(path)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"status": "running"}))


def status(run: Path) -> str:
    return json.loads((run / "run.json").read_text())["status"]


def stop_after(steps: int, act: Callable[[], None]) -> Callable[[Loop], None]:
    """Return an observer that acts after so many steps."""
    left = steps

    def observe(loop: Loop) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()

    return observe


# Killed.


def test_run_has_every_kind_of_line(expected: dict[str, Any]) -> None:
    methods = {row["method"] for row in expected["receipts"]}
    assert methods == {"fire", "swr", "shrink_perturb", "head_reset"}
    keys = {key for row in expected["metrics"] for key in row}
    assert {"train/loss", "train/return", "eval/return_mean", "metric/srank/q"} <= keys


@pytest.mark.parametrize("env_steps", [0, 12, 36, 60, 108])
def test_resume_from_any_checkpoint_equals(
    env_steps: int, through: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(through, run)
    forget(run, after=env_steps)
    api.resume(run)
    assert final(run) == expected
    assert status(run) == "done"


@pytest.mark.parametrize("steps", [[1], [30, 1, 40], [109]])
def test_killed_between_steps_and_resumed_equals(
    steps: list[int], tmp_path: Path, expected: dict[str, Any]
) -> None:
    def kill() -> None:
        raise Killed

    run = tmp_path / "run"
    with pytest.raises(Killed):
        api.train(TINY, run, observer=stop_after(steps[0], kill))
    for count in steps[1:]:
        with pytest.raises(Killed):
            api.resume(run, observer=stop_after(count, kill))
    api.resume(run)
    assert final(run) == expected


def start(*words: object) -> subprocess.Popen[bytes]:
    """Start the command line in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "rlplast.cli.main", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    """Wait until the run is somewhere; it must not end before."""
    while not reached():
        assert process.poll() is None
        time.sleep(0.001)


def newest_step(run: Path) -> int:
    names = [p.name for p in (run / "checkpoints").glob("step-*")]
    return max((int(name.split("-")[1]) for name in names), default=-1)


def test_sigkill_to_run_and_workers_and_resume_equals(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(TINY | {"env": TINY["env"] | {"workers": 1}}))
    process = start("train", config, "--out", run)
    wait_for(process, lambda: newest_step(run) >= 24)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert status(run) == "running"

    process = start("resume", run)  # and once more, while it writes a checkpoint
    wait_for(process, lambda: bool(list((run / "checkpoints").glob(".step-*.tmp"))))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    api.resume(run)
    assert final(run) == expected
    assert status(run) == "done"


def test_killed_before_the_first_checkpoint_starts_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    def die(*args: object) -> None:
        raise Killed

    run = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoint, "save", die)
        api.train(TINY, run)
    (run / "run.json").unlink()  # killed even before this was written
    (run / "metrics.jsonl").write_text('{"updates": 3')
    said: list[str] = []
    api.resume(run, report=said.append)
    assert said == [f"{run} has no checkpoint yet: starting from the beginning"]
    assert final(run) == expected
    assert status(run) == "done"


def test_killed_after_the_last_checkpoint_only_the_status_is_missing(
    through: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(through, run)
    forget(run, after=120)
    before = sorted((run / "checkpoints").rglob("*"))
    api.resume(run)
    assert status(run) == "done"
    assert final(run) == expected
    assert sorted(p for p in (run / "checkpoints").rglob("*")) <= before


def test_leftovers_of_a_killed_process_are_removed(halfway: Path, expected: dict[str, Any]) -> None:
    checkpoints = halfway / "checkpoints"
    shutil.copytree(checkpoints / "step-60", checkpoints / ".step-72.tmp")
    (checkpoints / "step-12" / "COMPLETE").unlink()  # killed while deleting it
    (halfway / ".run.json.tmp").write_text("{")
    api.resume(halfway)
    assert final(halfway) == expected
    assert not list(checkpoints.glob(".*")) and not (checkpoints / "step-12").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"total": "40 updates", "replay_ratio": 1.5},
        {"env": {"id": "minatar/asterix", "num_envs": 1}},
        {"env": {"id": "minatar/freeway", "num_envs": 2}},
        {"env": {"id": "minatar/seaquest", "num_envs": 2}},
        {"env": {"id": "minatar/space_invaders", "num_envs": 2}},
        {
            "env": {"id": "gym/CartPole-v1", "num_envs": 3, "options": {"max_episode_steps": 20}},
            "agent": TINY["agent"] | {"network": "mlp", "policy": "target", "double": True},
        },
        {
            "env": {"id": "atari/Pong", "num_envs": 2, "options": {"max_episode_steps": 25}},
            "agent": TINY["agent"] | {"network": "nature", "batch_size": 2},
            "total": "60 env_steps",
        },
    ],
    ids=lambda change: change.get("env", change).get("id", change.get("total")),
)
def test_every_kind_of_environment_and_total_resumes(
    change: dict[str, Any], tmp_path: Path
) -> None:
    config, run = TINY | {"evaluate": {"every": None}} | change, tmp_path / "run"
    api.train(config | MANY, tmp_path / "through")
    shutil.copytree(tmp_path / "through", run)
    forget(run, after=int(config["total"].split()[0]) // 2)
    api.resume(run)
    assert final(run) == final(tmp_path / "through")


# Interrupted.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_a_checkpoint_of_the_very_step(
    number: signal.Signals, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run, clocks = tmp_path / "run", []

    def stop() -> None:
        os.kill(os.getpid(), number)

    observer = stop_after(77, stop)
    with pytest.raises(Interrupted, match="checkpoint saved: `rlplast resume"):
        api.train(
            TINY,
            run,
            observer=lambda loop: (observer(loop), clocks.append(loop.trainable.clock))[0],
        )
    assert len(clocks) == 77
    assert status(run) == "interrupted"
    _, state = checkpoint.load(checkpoint.newest(run / "checkpoints")[0])
    assert state["clock"] == vars(clocks[-1])
    api.resume(run)
    assert final(run) == expected


def test_sigterm_to_the_whole_group_exits_130_and_resume_equals(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(TINY | {"env": TINY["env"] | {"workers": 1}}))
    process = start("train", config, "--out", run)
    wait_for(process, lambda: newest_step(run) >= 24)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 130
    assert status(run) == "interrupted"
    outcome = command("resume", run)
    assert outcome.code == 0
    assert f"resuming {run} from step-" in outcome.err
    assert final(run) == expected


# Done, and extended.


def test_resume_of_a_run_that_is_done_says_so_in_one_line(through: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in through.rglob("*")}
    outcome = command("resume", through)
    assert outcome.code == 0
    said = (outcome.out + outcome.err).splitlines()
    assert said == [f"{through} is done: nothing to resume (a longer run: --total)"]
    assert {p: p.stat().st_mtime_ns for p in through.rglob("*")} == before


def test_total_extends_a_run_and_moves_nothing(
    through: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run, longer = tmp_path / "run", tmp_path / "longer"
    shutil.copytree(through, run)
    api.resume(run, "180 env_steps")
    extended = final(run)
    # The lines of the old run are still there, and percentages mean what they meant.
    for name in ("metrics", "receipts"):
        assert extended[name][: len(expected[name])] == expected[name]
    assert [r["clock"]["env_steps"] for r in extended["receipts"] if r["method"] == "fire"] == [60]

    api.train(TINY | {"total": "180 env_steps", "percentages_of": "120 env_steps"}, longer)
    planned = final(longer)
    names = {name for name in planned if name not in ("metrics", "receipts", "state.json")}
    assert names == extended.keys() - {"metrics", "receipts", "state.json"}
    for name in names - {"tensors.safetensors"}:
        assert extended[name] == planned[name]
    assert tensors_of(run) == tensors_of(longer)
    assert extended["state.json"]["clock"] == planned["state.json"]["clock"]
    ours, theirs = (
        [r for r in run["metrics"] if "eval/return_mean" in r and r["env_steps"] != 120]
        for run in (extended, planned)  # the end of the shorter run was evaluated too
    )
    assert ours == theirs
    assert api.load(run).config.total == "180 env_steps"
    assert command("resume", run).code == 0  # done again


def tensors_of(run: Path) -> dict[str, bytes]:
    """Return the bits of the networks' tensors in the newest checkpoint."""
    tensors, _ = checkpoint.load(checkpoint.newest(run / "checkpoints")[0])
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in tensors.items()
        if not name.startswith("state/")
    }


@pytest.mark.parametrize(
    ("total", "said"),
    [
        ("120 env_steps", "--total 120 env_steps: the run is already at 120 env_steps"),
        ("500 updates", "--total 500 updates: allowed is the unit of the run, env_steps"),
        ("soon", "--total = 'soon': allowed is a number with a unit"),
    ],
)
def test_total_that_does_not_extend_is_refused(total: str, said: str, through: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (through / "checkpoints").rglob("*")}
    outcome = command("resume", through, "--total", total)
    assert outcome.code == 2
    assert said in outcome.err
    assert {p: p.stat().st_mtime_ns for p in (through / "checkpoints").rglob("*")} == before
    assert status(through) == "done"


# Damaged.


def cut(path: Path) -> None:
    (path / "tensors.safetensors").write_bytes((path / "tensors.safetensors").read_bytes()[:999])


def flip(path: Path) -> None:
    data = bytearray((path / "state.json").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "state.json").write_bytes(data)


def lose_rows(path: Path) -> None:
    next((path / "replay").iterdir()).unlink()


def unseal(path: Path) -> None:
    (path / "COMPLETE").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "step-60/tensors.safetensors has 999 bytes, written were"),
        (flip, "step-60/state.json was altered after it was written"),
        (lose_rows, "is missing"),
        (unseal, "step-60 was not finished"),
    ],
)
def test_damaged_checkpoint_is_passed_over_with_its_reason(
    damage: Callable[[Path], None], reason: str, halfway: Path, expected: dict[str, Any]
) -> None:
    damage(halfway / "checkpoints" / "step-60")
    said: list[str] = []
    api.resume(halfway, report=said.append)
    assert len(said) == 2
    assert said[0].startswith("passed over: ") and reason in said[0]
    assert said[1] == f"resuming {halfway} from step-48"
    assert final(halfway) == expected


def test_no_usable_checkpoint_is_exit_1(halfway: Path) -> None:
    for path in (halfway / "checkpoints").iterdir():
        cut(path)
    outcome = command("resume", halfway)
    assert outcome.code == 1
    assert "no usable checkpoint in" in outcome.err
    for path in (halfway / "checkpoints").iterdir():
        assert f"{path.name}/tensors.safetensors has 999 bytes" in outcome.err


def test_damaged_run_json_is_exit_1(halfway: Path) -> None:
    (halfway / "run.json").write_text('{"status": ')
    outcome = command("resume", halfway)
    assert outcome.code == 1
    assert "run.json is no valid JSON" in outcome.err


def test_half_a_line_of_a_killed_run_does_not_hide_the_others(halfway: Path) -> None:
    rows = api.load(halfway).lines()
    with (halfway / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 4')
    assert api.load(halfway).lines() == rows


# A full disk.


def test_disk_that_is_full_ends_the_run_with_exit_1_and_resume_equals(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(TINY))
    # Before the first update there is no optimizer state; later checkpoints do not fit.
    limited = (
        "import resource, sys; from rlplast.cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000));"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "train", str(config), "--out", str(run)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "could not be written" in done.stderr and "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert status(run) == "failed"
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"step-0", "step-12"}
    api.resume(run)
    assert final(run) == expected


# In use, and not empty.


def test_folder_in_use_is_exit_2(halfway: Path) -> None:
    writer = RunFolder(halfway, tensorboard=False)
    try:
        outcome = command("resume", halfway)
    finally:
        writer.close()
    assert outcome.code == 2
    assert f"{halfway} is in use by another process" in outcome.err


@pytest.mark.parametrize("name", ["run.json", "notes.txt"])
def test_folder_that_is_not_empty_is_exit_2_naming_resume(name: str, tmp_path: Path) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(TINY))
    run.mkdir()
    (run / name).write_text("{}")
    outcome = command("train", config, "--out", run)
    assert outcome.code == 2
    assert f"--out {run} is not empty" in outcome.err and "rlplast resume" in outcome.err
    assert [p.name for p in run.iterdir()] == [name]


# What changes nothing in training.


@pytest.mark.parametrize(
    "change",
    [
        {"evaluate": {"every": None}},
        {"evaluate": {"every": "5%", "episodes": 3}},
        {"metrics": {"every": None}},
        {"metrics": {"every": "4%", "batch_size": 32}},
        {"log": {"every": "1%"}},
        {"checkpoint": {"every": "100%"}},
        {
            "hooks": [
                *TINY["hooks"],
                {"method": "head_reset", "every": "9999 frames", "params": {"init": "fresh"}},
            ]
        },
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_cadence_and_hooks_that_never_fire_change_nothing(
    change: dict[str, Any], through: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    api.train(TINY | change, tmp_path / "run")
    changed = final(tmp_path / "run")
    assert tensors_of(tmp_path / "run") == tensors_of(through)
    for name in expected.keys() - {"tensors.safetensors", "metrics", "receipts", "state.json"}:
        assert changed[name] == expected[name]  # the replay
    for key in ("clock", "trainable"):
        assert changed["state.json"][key] == expected["state.json"][key]


def test_damaged_file_error_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match="the folder has none"):
        checkpoint.newest(tmp_path)
