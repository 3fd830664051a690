"""A checkpoint is written in a thread while training goes on."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from safetensors import SafetensorError

from rlplast.core.errors import Interrupted, RlplastError
from rlplast.training import checkpoint
from tests.core.toy import loop, run
from tests.runs import Killed, at_step, final


def before_write(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[checkpoint.Snapshot], Any]
) -> None:
    """Let something happen in the writing thread just before a checkpoint is written."""
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda taken: (act(taken), write(taken)))


def slow(taken: checkpoint.Snapshot) -> None:
    time.sleep(0.03)


def names(folder: Path) -> set[str]:
    return {path.name for path in checkpoint.complete(folder / "checkpoints")}


def test_steps_are_taken_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: dict[str, Any]
) -> None:
    go_on, seen = threading.Event(), []
    before_write(monkeypatch, lambda taken: taken.position[0] == 8 and go_on.wait(10))
    made = loop(tmp_path)

    def observe(loop: Any) -> None:
        if loop.saving and loop.trainable.clock.env_steps >= 8:
            seen.append((loop.trainable.clock, names(tmp_path)))
            if len(seen) == 5:
                go_on.set()
                raise Killed

    made.observer = observe
    with pytest.raises(Killed):
        run(made)
    assert len({clock for clock, _ in seen}) == 5
    assert all(there == {"step-0", "step-4"} for _, there in seen)
    assert names(tmp_path) == {"step-4", "step-8"}  # what was under way came to its end
    run(loop(tmp_path))
    assert final(tmp_path) == through


def test_next_checkpoint_waits_and_old_ones_go_only_once_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: dict[str, Any]
) -> None:
    events: list[Any] = []
    before_write(monkeypatch, slow)
    before_write(monkeypatch, lambda taken: events.append(taken.folder.name))
    prune = checkpoint.prune

    def noted(root: Path, keep: int, best: str | None = None) -> None:
        events.append(names(tmp_path))
        prune(root, keep, best)

    monkeypatch.setattr(checkpoint, "prune", noted)
    run(loop(tmp_path, save="2 env_steps", keep=1))
    pairs = [(f"step-{n}", {f"step-{max(n - 2, 0)}", f"step-{n}"}) for n in range(0, 17, 2)]
    assert events == [event for pair in pairs for event in pair]
    assert names(tmp_path) == {"step-16"}
    assert final(tmp_path) == through  # a slow disk changes nothing


def test_signal_while_a_checkpoint_is_written_waits_for_it_and_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_write(monkeypatch, slow)
    made = loop(tmp_path)
    writing: list[bool] = []
    made.observer = at_step(  # the update owed at 8 env_steps, just after step-8
        12, lambda: (writing.append(made.saving), os.kill(os.getpid(), signal.SIGINT))
    )
    with pytest.raises(Interrupted, match="checkpoint saved"):
        run(made)
    assert writing == [True]
    assert names(tmp_path) == {"step-8", "step-8-4-8-0-1"}
    newest, problems = checkpoint.newest(tmp_path / "checkpoints")
    assert not problems
    assert checkpoint.load(newest)[1]["clock"] == vars(made.trainable.clock)


def test_error_of_a_write_ends_the_run_and_the_checkpoint_before_is_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: dict[str, Any]
) -> None:
    save = safetensors.torch.save_file

    def full(tensors: Any, path: Path) -> None:
        if ".step-8." in str(path):
            raise SafetensorError("Error while serializing: I/O error: No space left on device")
        save(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        made = loop(tmp_path)
        with pytest.raises(RlplastError, match="step-8"):
            run(made)
        with pytest.raises(RlplastError, match="step-8"):  # the last write's is not lost
            run(loop(tmp_path / "short", total="8 env_steps"))
    assert made.trainable.clock.env_steps <= 12  # where it waits at the latest
    assert names(tmp_path) == {"step-0", "step-4"}
    assert not list((tmp_path / "checkpoints").glob(".*"))
    run(loop(tmp_path))
    assert final(tmp_path) == through


def test_lines_are_on_disk_before_the_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RlplastError, match=r"metrics\.jsonl"):
        run(loop(tmp_path))
    assert not list((tmp_path / "checkpoints").iterdir())
