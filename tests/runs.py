"""A DQN run of a second with hooks of every kind, and what a run leaves behind."""

import json
from pathlib import Path
from typing import Any

from rlplast.core import checkpoint

__all__ = ["TINY", "final"]

TINY: dict[str, Any] = {
    "kind": "dqn",
    "seed": 3,
    "threads": 1,
    "device": "cpu",
    "total": "120 env_steps",
    "env": {"id": "minatar/breakout", "num_envs": 2, "options": {"max_episode_steps": 15}},
    "replay_ratio": 0.5,
    "agent": {
        "network": "minatar",
        "lr": 1e-3,
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
    "log": {"every": "7%"},
    "evaluate": {"every": "30%", "episodes": 2},
    "metrics": {"every": "25%", "names": ["weight_norm", "srank"], "batch_size": 8},
    "checkpoint": {"every": "10%", "keep": 2},
    "tensorboard": False,
}


def final(folder: Path) -> dict[str, Any]:
    """Return what a run left, ready for `==`: lines without wall-clock values, tensors, state."""
    found: dict[str, Any] = {}
    for name in ("metrics", "receipts"):
        rows = [json.loads(x) for x in (folder / f"{name}.jsonl").read_text().splitlines()]
        found[name] = [{k: v for k, v in r.items() if not k.startswith("time/")} for r in rows]
    path, problems = checkpoint.newest(folder / "checkpoints")
    assert not problems
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        if name == "state.json":
            state = json.loads(file.read_text())
            timed = ("time/seconds", "lengths")  # lengths count the digits of wall-clock values
            found[name] = {k: v for k, v in state.items() if k not in timed}
        elif file.is_file() and name != "COMPLETE":
            found[name] = file.read_bytes()
    return found
