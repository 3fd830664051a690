import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from rlplast.core.errors import Interrupted, RlplastError
from rlplast.training import checkpoint
from tests.core.toy import (
    HOOKS,
    STEPS,
    interrupted_and_resumed,
    killed,
    killed_and_resumed,
    loop,
    run,
    stopped_in_evaluation,
)
from tests.runs import Killed, at_step, final, flip, stop
from tests.training.test_best import about, kept
from tests.training.test_loop_when import reset_loop, when_loop

SOME = range(1, STEPS, 4)  # of its steps
every_loop = pytest.mark.parametrize("make", [when_loop, reset_loop])


@every_loop
def test_run_killed_after_any_step_and_resumed_equals_the_uninterrupted_one(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    through = tmp_path / "through"
    run(make(through))
    for step in (*SOME, STEPS):
        folder = tmp_path / str(step)
        killed_and_resumed(lambda folder=folder: make(folder), step)
        assert final(folder) == final(through), step
        assert kept(folder) == kept(through), step
        assert make is when_loop or about(folder) == about(through), step


@every_loop
def test_run_interrupted_at_every_step_equals_the_uninterrupted_one(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    run(make(tmp_path / "through"))
    folder = tmp_path / "run"
    interrupted_and_resumed(lambda: make(folder), STEPS - 1)
    assert final(folder) == final(tmp_path / "through")
    assert make is when_loop or kept(folder)[about(folder)["checkpoint"]] == 4


def test_run_stopped_in_every_evaluation_equals(tmp_path: Path, through: dict[str, Any]) -> None:
    for _ in range(3):
        stopped_in_evaluation(loop(tmp_path), 1)
        stopped_in_evaluation(loop(tmp_path), 1)
        run_until = loop(tmp_path)
        run_until.observer = at_step(1, stop)
        with contextlib.suppress(Interrupted):
            run(run_until)
    run(loop(tmp_path))
    assert final(tmp_path) == through
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert not any(name.startswith("branch-") for name in names)


def test_run_stopped_in_its_last_evaluation_is_extended_as_one_that_ended(tmp_path: Path) -> None:
    hooks = ({"method": "shrink_perturb", "every": "1 env_steps", "params": {"init": "fresh"}},)
    run(loop(tmp_path / "ended", hooks=hooks))
    stopped_in_evaluation(loop(tmp_path / "stopped", hooks=hooks), 3)
    for name in ("ended", "stopped"):
        run(loop(tmp_path / name, hooks=hooks, total="20 env_steps"))
    assert final(tmp_path / "stopped") == final(tmp_path / "ended")


def test_signal_at_the_last_step_lets_the_run_end_and_resuming_it_changes_nothing(
    tmp_path: Path, through: dict[str, Any]
) -> None:
    made = loop(tmp_path)
    made.observer = at_step(STEPS, stop)
    run(made)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").rglob("*")}
    assert final(tmp_path) == through
    run(loop(tmp_path))
    assert final(tmp_path) == through
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").rglob("*")} == before


def test_total_in_updates_is_saved_at_every_env_step_it_is_interrupted_at(tmp_path: Path) -> None:
    for steps in range(1, 9):  # several env_steps have the same number of updates
        made = loop(tmp_path, total="20 updates", hooks=(), save="20 updates", metrics=None)
        made.observer = stop
        with pytest.raises(Interrupted):
            run(made)
        _, state = checkpoint.load(checkpoint.newest(tmp_path / "checkpoints")[0])
        assert state["clock"]["updates"] + state["clock"]["env_steps"] == steps


# Every file operation.

WRITING = [
    (os, "fsync"),
    (os, "rename"),
    (os, "mkdir"),
    (Path, "write_text"),
    (safetensors.torch, "save_file"),
]
DELETING = [(os, "unlink"), (os, "rmdir"), (shutil, "rmtree")]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def failing_after(operations: int, where: list[tuple[Any, str]], error: BaseException) -> Any:
    """Let every file operation after so many of them fail; yields what says whether one did."""
    left = operations

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise error
            return original(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in where:
            patch.setattr(owner, name, failing(getattr(owner, name)))
        yield lambda: left < 0


@pytest.mark.parametrize("dies", [True, False], ids=["killed", "disk full"])
def test_run_that_fails_at_any_file_operation_is_resumed_and_equals(
    dies: bool, tmp_path: Path
) -> None:
    short: dict[str, Any] = {"total": "6 env_steps", "hooks": HOOKS[:1], "save": "3 env_steps"}
    run(loop(tmp_path / "through", metrics=None, **short))
    where, error = (WRITING + DELETING, Killed()) if dies else (WRITING, FULL)
    reached, operations = True, 0
    while reached:
        folder = tmp_path / str(operations)
        made = loop(folder, metrics=None, **short)
        with failing_after(operations, where, error) as failed:
            try:
                run(made)
            except Killed:
                assert dies
            except RlplastError as raised:
                assert not dies and "rlplast resume" in str(raised)
                assert "No space left on device" in str(raised)
            reached = failed()
        if not dies:  # half of one takes space too
            assert not list((folder / "checkpoints").glob(".*"))
        run(loop(folder, metrics=None, **short))
        assert final(folder) == final(tmp_path / "through"), operations
        assert len(list((folder / "checkpoints").iterdir())) == 2
        operations += 3
    assert operations > (50 if dies else 30)


def test_damaged_checkpoint_is_written_anew_and_its_lines_are_not_missed(
    tmp_path: Path, through: dict[str, Any]
) -> None:
    killed(loop(tmp_path), 20)
    newest, _ = checkpoint.newest(tmp_path / "checkpoints")
    flip(newest / "tensors.safetensors")
    run(loop(tmp_path))
    assert final(tmp_path) == through
