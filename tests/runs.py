"""A DQN run of a second with hooks of every kind, and what a run leaves behind."""

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from rlplast.core.clock import Clock
from rlplast.core.errors import Interrupted
from rlplast.run import api
from rlplast.training import checkpoint
from rlplast.training.loop import Loop

TINY: dict[str, Any] = {
    "kind": "dqn",
    "seed": 3,
    "threads": 1,
    "device": "cpu",
    "total": "120 env_steps",
    "env": {"id": "minatar/breakout", "num_envs": 2, "options": {"max_episode_steps": 15}},
    "replay_ratio": 0.5,
    "optimizer": {"lr": 1e-3},
    "agent": {
        "network": "minatar",
        "batch_size": 8,
        "buffer_size": 80,
        "initial_steps": 20,
        "n_step": 2,
        "target_every": 10,
        "epsilon_decay": 0.5,
    },
    "hooks": [
        {"method": "fire", "at": "50%", "scope": "dqn", "params": {"iterations": 3}},
        {"method": "swr", "every": "1 updates", "from": "20%", "params": {"coef": 1e-3}},
        {"method": "shrink_perturb", "at": ["30%", "80%"], "followers": "same_edit"},
        {"method": "head_reset", "every": "13 updates", "params": {"init": "fresh"}},
    ],
    "log": {"every": "7%", "to": []},
    "evaluate": {"every": "30%", "episodes": 2},
    "metrics": {"every": "25%", "names": ["weight_norm", "srank"], "batch_size": 8},
    "checkpoint": {"every": "10%", "keep": 2},
}

MANY: dict[str, Any] = {"checkpoint": {"every": "10%", "keep": 20}}


class Killed(BaseException):
    """Stands for a process that ends without another word."""


def kill() -> None:
    raise Killed


def stop(*ignored: Any) -> None:
    """Send this process a SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def killed_at_rename(number: int) -> Iterator[None]:
    """Expect that what the block does is killed where it renames a file for the n-th time."""
    left, rename = number, Path.rename

    def die(path: Path, target: Path) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return rename(path, target)

    with mock.patch.object(Path, "rename", die), pytest.raises(Killed):
        yield


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def at_step(number: int, act: Callable[[], None]) -> Callable[[Loop], None]:
    """Return an observer that acts after the given step."""
    left = number

    def observe(loop: Loop) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()

    return observe


def interrupt(config: dict[str, Any], run: Path, steps: Iterable[int]) -> None:
    """Train, stopped by a signal after each of the given steps of a run, and resumed."""
    done = 0
    for step in steps:
        observer = at_step(step - done, stop)
        with pytest.raises(Interrupted):
            if done:
                api.resume(run, observer=observer)
            else:
                api.train(config, run, observer=observer)
        done = step
    api.resume(run)


def kill_at(config: dict[str, Any], run: Path, moments: Iterable[Callable[[Clock], bool]]) -> None:
    """Train, killed after a checkpoint at the first step of which each holds, and resumed."""
    for number, when in enumerate(moments):

        def observe(loop: Loop, when: Callable[[Clock], bool] = when) -> None:
            if when(loop.trainable.clock):
                loop._checkpoint()
                loop._settle()
                kill()

        with pytest.raises(Killed):
            if number:
                api.resume(run, observer=observe)
            else:
                api.train(config, run, observer=observe)
    api.resume(run)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl or receipts.jsonl, without wall-clock values."""
    rows = [json.loads(x) for x in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if not k.startswith("time/")} for r in rows]


def final(folder: Path) -> dict[str, Any]:
    """Return what a run left, ready for `==`: lines without wall-clock values, tensors, state."""
    found: dict[str, Any] = {name: lines(folder, name) for name in ("metrics", "receipts")}
    path, problems = checkpoint.newest(folder / "checkpoints")
    assert not problems
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        if name == "state.json":
            state = json.loads(file.read_text())
            timed = ("time/", "lengths")  # they see wall-clock values
            found[name] = {k: v for k, v in state.items() if not k.startswith(timed)}
        elif name.startswith("replay/"):
            continue
        elif file.is_file() and name != "COMPLETE":
            found[name] = file.read_bytes()
    return found | _replay(path / "replay", found["state.json"])


def _replay(folder: Path, state: dict[str, Any]) -> dict[str, bytes]:
    """Return the rows in a replay's memory: which file holds which depends on earlier saves."""
    found: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.npy")):
        env, kind, first, stop = file.stem.split("-")
        about = state["trainable"]["experience"]["replay"]
        oldest = about["rows_written"][int(env[3:])] - about["layout"]["rows_per_env"]
        rows = np.load(file)[max(oldest - int(first), 0) :]
        assert len(rows) == int(stop) - max(oldest, int(first))
        found[f"replay/{env}-{kind}"] = found.get(f"replay/{env}-{kind}", b"") + rows.tobytes()
    return found


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def forget(run: Path, after: int) -> None:
    """Make a finished run look as if it had been killed after a checkpoint."""
    for path in (run / "checkpoints").iterdir():
        if int(path.name.split("-")[1]) > after:
            shutil.rmtree(path)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"status": "running"}))


def check_resumes(
    config: dict[str, Any], folder: Path, share: float = 0.5, **keys: Any
) -> dict[str, Any]:
    """Check that a run goes on from a checkpoint in its middle as if nobody had killed it.

    Args:
        config: of the run.
        folder: a new one, in which the run is `through`.
        share: of the checkpoints that the killed run still has.
        **keys: of the config that are others.

    Returns:
        What both left.
    """
    through, run = folder / "through", folder / "run"
    keys |= {"checkpoint.every": "10%", "checkpoint.keep": 99}
    api.train(api.read_config(config, keys), through)
    shutil.copytree(through, run)
    steps = sorted(int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("step-*"))
    forget(run, after=steps[round(share * (len(steps) - 1))])
    api.resume(run)
    expected = final(through)
    assert final(run) == expected
    return expected


def status(run: Path) -> str:
    return json.loads((run / "run.json").read_text())["status"]
