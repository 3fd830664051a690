"""Invariant 5: interrupted and resumed equals uninterrupted, bit for bit; and what may go wrong.

Every step and every file operation of a toy run are in tests/training; here whole DQN runs
are interrupted, some of them in processes of their own.
"""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile, Interrupted
from rlplast.run import api
from rlplast.training import checkpoint
from rlplast.training.loop import Loop
from tests.cli.commands import command
from tests.marks import slow
from tests.runs import (
    TINY,
    Killed,
    at_step,
    check_resumes,
    final,
    forget,
    kill,
    killed_at_rename,
    status,
    stop,
)

# Killed.


@pytest.fixture
def copied(through: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be resumed or spoilt."""
    return Path(shutil.copytree(through, tmp_path / "run"))


@pytest.mark.parametrize("env_steps", [0, 36, 108])
def test_resume_from_any_checkpoint_equals(
    env_steps: int, copied: Path, expected: dict[str, Any]
) -> None:
    forget(copied, after=env_steps)
    api.resume(copied)
    assert final(copied) == expected
    assert status(copied) == "done"


def test_killed_between_steps_and_resumed_equals(tmp_path: Path, expected: dict[str, Any]) -> None:
    methods = {row["method"] for row in expected["receipts"]}
    assert methods == {"fire", "swr", "shrink_perturb", "head_reset"}
    keys = {key for row in expected["metrics"] for key in row}
    assert {"train/loss", "train/return", "eval/return_mean", "metric/srank/q"} <= keys
    run = tmp_path / "run"
    with pytest.raises(Killed):
        api.train(TINY, run, observer=at_step(1, kill))
    for count in (30, 1, 50):
        with pytest.raises(Killed):
            api.resume(run, observer=at_step(count, kill))
    api.resume(run)
    assert final(run) == expected


# The command line in a process group of its own, which it kills when a file is being put on
# disk, as happens inside a checkpoint.
KILLED = """
import os, signal, sys
from rlplast.cli.main import main

left, fsync = int(sys.argv[1]), os.fsync

def dying(descriptor):
    global left
    left -= 1
    if left == 0:
        os.killpg(0, signal.SIGKILL)
    fsync(descriptor)

os.fsync = dying
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_sigkill_then_sigterm_to_run_and_worker_and_resume_equals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(TINY | {"env": TINY["env"] | {"workers": 1}}))
    words = [sys.executable, "-c", KILLED, "63", "train", str(config), "--out", str(run)]
    dead = subprocess.run(words, capture_output=True, start_new_session=True, check=False)
    assert dead.returncode == -signal.SIGKILL
    assert status(run) == "running"
    assert [p.name for p in (run / "checkpoints").glob(".*")] == [".step-36.tmp"]

    def stop_all() -> None:
        for worker in multiprocessing.active_children():
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGTERM)
        stop()

    after_step, signalled = Loop._after_step, at_step(50, stop_all)

    def counted(loop: Loop, *clocks: Clock) -> None:
        after_step(loop, *clocks)
        signalled(loop)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_after_step", counted)
        outcome = command("resume", run)
    assert outcome.code == 130
    assert f"resuming {run} from step-24" in outcome.err
    assert status(run) == "interrupted"
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
        patch.setattr(checkpoint, "write", die)
        api.train(TINY, run)
    (run / "run.json").unlink()  # killed even before this was written
    (run / "metrics.jsonl").write_text('{"updates": 3')
    messages: list[str] = []
    api.resume(run, report=messages.append)
    assert messages[0] == f"{run} has no checkpoint yet: starting from the beginning"
    assert messages[1:] == [f"what it had written before is kept in {run / 'metrics.jsonl.1'}"]
    assert (run / "metrics.jsonl.1").read_text() == '{"updates": 3'
    assert final(run) == expected
    assert status(run) == "done"


def test_lines_of_a_run_whose_checkpoints_are_gone_are_kept(
    copied: Path, expected: dict[str, Any]
) -> None:
    (copied / "metrics.jsonl.1").write_text("of an earlier time")
    forget(copied, after=-1)
    before = {name: (copied / f"{name}.jsonl").read_bytes() for name in ("metrics", "receipts")}
    api.resume(copied)
    assert (copied / "metrics.jsonl.1").read_text() == "of an earlier time"
    assert (copied / "metrics.jsonl.2").read_bytes() == before["metrics"]
    assert (copied / "receipts.jsonl.1").read_bytes() == before["receipts"]
    assert final(copied) == expected


@pytest.mark.parametrize("writes", [1, 2])
def test_train_that_died_before_its_first_file_starts_again(
    writes: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """Killed while config.yaml is written beside its place, or once run.json is."""
    run = tmp_path / "run"
    with killed_at_rename(writes):
        api.train(TINY, run)
    if writes == 1:
        assert {p.name for p in run.iterdir()} > {".config.yaml.tmp", "metrics.jsonl"}
        api.train(TINY, run)
    else:
        with pytest.raises(ConfigError, match="rlplast resume"):
            api.train(TINY, run)
        api.resume(run)
    assert final(run) == expected


def test_checkpoint_of_another_run_is_refused_by_name(through: Path, copied: Path) -> None:
    about = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(about | {"id": "b" * 32, "status": "running"}))
    newest, _ = checkpoint.newest(copied / "checkpoints")
    for call in (lambda: api.resume(copied), lambda: api.load(copied).agent()):
        with pytest.raises(DamagedFile, match=f"{newest} is a checkpoint of another run"):
            call()
    (copied / "run.json").unlink()  # whose it is, nobody knows: it goes on
    api.resume(copied)
    assert api.load(through).agent() is not None


def test_killed_after_the_last_checkpoint_only_the_status_is_missing(
    copied: Path, expected: dict[str, Any]
) -> None:
    forget(copied, after=120)
    before = sorted((copied / "checkpoints").rglob("*"))
    api.resume(copied)
    assert status(copied) == "done"
    assert final(copied) == expected
    assert sorted(p for p in (copied / "checkpoints").rglob("*")) <= before


def env_of(env_id: str, num_envs: int = 2, **options: Any) -> dict[str, Any]:
    return {"env": {"id": env_id, "num_envs": num_envs, "options": options}}


def agent_of(**keys: Any) -> dict[str, Any]:
    return {"agent": TINY["agent"] | keys}


NATURE: dict[str, Any] = {"network": "nature", "batch_size": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"total": "40 updates", "replay_ratio": 1.5},
        env_of("minatar/asterix", 1),
        *(slow(env_of(f"minatar/{name}")) for name in ("freeway", "seaquest", "space_invaders")),
        env_of("gym/CartPole-v1", 3, max_episode_steps=20)
        | agent_of(network="mlp", policy="target", double=True),
        slow(env_of("atari/Pong", max_episode_steps=25) | agent_of(**NATURE)),
        env_of(
            "atari/Asterix",
            sticky=0.6,
            sticky_steps=True,
            grey_last=True,
            repeat_first=True,
            max_episode_steps=7,
        )
        | agent_of(exploration="shared", **NATURE),
    ],
    ids=lambda change: change.get("env", change).get("id", change.get("total")),
)
def test_every_kind_of_environment_and_total_resumes(
    change: dict[str, Any], tmp_path: Path
) -> None:
    config = TINY | {"total": "60 env_steps", "evaluate": {"every": None}} | change
    check_resumes(config, tmp_path)


# Interrupted.


def test_signals_leave_a_checkpoint_of_the_very_step(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    run, clocks = tmp_path / "run", []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        observer = at_step(29, lambda number=number: os.kill(os.getpid(), number))

        def observe(loop: Loop, observer: Any = observer) -> None:
            observer(loop)
            clocks.append(loop.trainable.clock)

        with pytest.raises(Interrupted, match="rlplast resume"):
            if clocks:
                api.resume(run, observer=observe)
            else:
                api.train(TINY, run, observer=observe)
        assert len(clocks) % 29 == 0
        assert status(run) == "interrupted"
        _, state = checkpoint.load(checkpoint.newest(run / "checkpoints")[0])
        assert state["clock"] == vars(clocks[-1])
    api.resume(run)
    assert final(run) == expected


# Done, and extended.


def test_resume_of_a_run_that_is_done_says_so_in_one_line(through: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in through.rglob("*")}
    outcome = command("resume", through)
    assert outcome.code == 0
    output = (outcome.out + outcome.err).splitlines()
    assert output == [f"{through} is done: nothing to resume (a longer run: --total)"]
    assert {p: p.stat().st_mtime_ns for p in through.rglob("*")} == before


def test_total_extends_a_run_and_moves_nothing(
    copied: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run, longer = copied, tmp_path / "longer"
    api.resume(run, "180 env_steps")
    extended = final(run)
    # The lines of the old run are still there, and percentages mean what they meant.
    for name in ("metrics", "receipts"):
        assert extended[name][: len(expected[name])] == expected[name]
    assert [r["clock"]["env_steps"] for r in extended["receipts"] if r["method"] == "fire"] == [60]

    api.train(TINY | {"total": "180 env_steps", "percentages_of": "120 env_steps"}, longer)
    planned = final(longer)
    assert planned.keys() == extended.keys()
    for name in planned.keys() - NOT_REPLAY:
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


def test_command_that_extends_a_run_can_be_repeated_until_it_is_done(copied: Path) -> None:
    for _ in range(2):
        with pytest.raises(Interrupted):
            api.resume(copied, "150 env_steps", observer=at_step(9, stop))
    api.resume(copied, "150 env_steps")
    assert api.load(copied).config.percentages_of == "120 env_steps"
    assert command("resume", copied, "--total", "150 env_steps").code == 2
    api.resume(copied, "180 env_steps")
    assert api.load(copied).config.percentages_of == "120 env_steps"


NOT_REPLAY = {"tensors.safetensors", "metrics", "receipts", "state.json"}


def tensors_of(run: Path) -> dict[str, bytes]:
    """Return the bits of the networks' tensors in the newest checkpoint."""
    tensors, _ = checkpoint.load(checkpoint.newest(run / "checkpoints")[0])
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in tensors.items()
        if not name.startswith("state/")
    }


def test_total_that_does_not_extend_is_refused(through: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (through / "checkpoints").rglob("*")}
    for total in ("120 env_steps", "500 updates", "soon"):
        outcome = command("resume", through, "--total", total)
        assert outcome.code == 2
        assert total in outcome.err
    assert {p: p.stat().st_mtime_ns for p in (through / "checkpoints").rglob("*")} == before
    assert status(through) == "done"


# What changes nothing in training.


@pytest.mark.parametrize(
    "change",
    [
        {"evaluate": {"every": "5%", "episodes": 3}, "metrics": {"every": None}},
        {"evaluate": {"every": None}, "metrics": {"every": "4%", "batch_size": 32}},
        slow({"log": {"every": "1%"}, "checkpoint": {"every": "100%"}}),
        {"hooks": [*TINY["hooks"], {"method": "head_reset", "every": "9999 frames"}]},
    ],
    ids=lambda change: " ".join(change),
)
def test_cadence_and_hooks_that_never_fire_change_nothing(
    change: dict[str, Any], through: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    api.train(TINY | change, tmp_path / "run")
    changed = final(tmp_path / "run")
    assert tensors_of(tmp_path / "run") == tensors_of(through)
    for name in expected.keys() - NOT_REPLAY:
        assert changed[name] == expected[name]
    for key in ("clock", "trainable"):
        assert changed["state.json"][key] == expected["state.json"][key]
