"""A study says which of its environments cannot be resumed exactly."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from tests.cli.commands import command
from tests.envs import hiding


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("CState", "after an interruption: replayed: open episodes are played again"),
        ("Clock", "after the shared prefix each arm begins a new episode"),
        ("Saved", None),
    ],
)
def test_the_plan_says_the_level(
    kind: str, says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gymnasium, "registry", dict(gymnasium.registry))
    monkeypatch.setattr("gymnasium.envs.registration.registry", gymnasium.registry)
    hiding.register()
    keys: dict[str, Any] = {
        "total": "400 env_steps",
        "env": {"id": f"gym/{hiding.PREFIX}{kind}-v0", "num_envs": 1},
        "agent": {"network": "mlp", "initial_steps": 50},
        "evaluate.every": None,
    }
    arms = {"none": {"hooks": []}, "reset": {"hooks": [{"method": "full_reset", "at": "50%"}]}}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"base": "dqn/demo", "overrides": keys, "arms": arms}))
    outcome = command("study", path, "--plan")
    assert outcome.code == 0, outcome
    words = " ".join(outcome.out.split())
    assert (says in words) if says else ("interruption" not in words)
