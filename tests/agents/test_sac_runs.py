"""Whole SAC runs in their folders: resumed bit for bit, and arms that share their first half."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.checkpoint import checkpoint
from rlplast.run import api
from tests.runs import final, forget
from tests.sac_runs import small_sac

CONFIGS = Path(__file__).parents[2] / "configs" / "sac" / "hooks"
HOOKS = [
    {"method": "fire", "at": "60%", "scope": "sac", "networks": ["actor", "critic"]},
    {"method": "full_reset", "at": "80%", "networks": ["temperature"]},
    {"method": "swr", "every": "1 updates", "from": "50%", "networks": ["critic"]},
]


# Interrupted + resumed = uninterrupted.

LONG = {"total": "300 env_steps", "replay_ratio": 0.3, "hooks": HOOKS, "log": {"every": "10%"}}
LONG |= {"checkpoint": {"every": "30%", "keep": 9}}
AFTER = 95  # of 300 env_steps: at least 205 follow the restore


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("env", "num_envs", "agent"),
    [
        ("gym/Pendulum-v1", 1, {"n_step": 3}),
        ("gym/Hopper-v5", 2, {"network": "mlp", "critic_blocks": 2, "learn_temperature": False}),
        ("dmc/cartpole-swingup", 1, {}),
        slow("gym/Pendulum-v1", 2, {"network": "mlp", "normalize_obs": False}),
        slow("gym/Hopper-v5", 1, {}),
        slow("gym/Humanoid-v5", 2, {"n_step": 2}),
        slow("dmc/cartpole-swingup", 2, {"n_step": 2}),
        slow("dmc/humanoid-walk", 1, {}),
        slow("dmc/reacher-easy", 2, {}),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(
    env: str, num_envs: int, agent: dict[str, Any], tmp_path: Path
):
    hooks = [h for h in HOOKS if agent.get("learn_temperature", True) or "at" not in h]
    config = small_sac(env, num_envs, **(LONG | {"agent": agent, "hooks": hooks}))
    config["env"]["options"] = {"max_episode_steps": 40, "action_repeat": 2}
    if env.startswith("gym/Pendulum"):
        del config["env"]["options"]["action_repeat"]
    resumed_equals(config, tmp_path)


def resumed_equals(config: dict[str, Any], folder: Path):
    """Restore the last checkpoint up to `AFTER` env_steps; everything at the end is compared.

    That is the environments, the replay with its rewards, the weights and moments, every stream
    and every line.
    """
    through, run = folder / "through", folder / "run"
    api.train(config, through)
    shutil.copytree(through, run)
    forget(run, after=AFTER)
    at = json.loads((checkpoint.newest(run / "checkpoints")[0] / "state.json").read_text())
    assert 50 < at["clock"]["env_steps"] <= AFTER
    assert at["clock"]["updates"] > 5
    api.resume(run)
    expected, found = final(through), final(run)
    assert found["state.json"]["clock"]["env_steps"] == 300
    for name, value in expected.items():
        assert found[name] == value, name
    assert found.keys() == expected.keys()
    assert len(found["receipts"]) >= (3 if config["hooks"] else 0)


# What changes nothing in training.


def tensors_of(run: Path) -> dict[str, bytes]:
    """The bits of networks and optimizers in the newest checkpoint."""
    tensors, _ = checkpoint.load(checkpoint.newest(run / "checkpoints")[0])
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in tensors.items()
        if not name.startswith("state/")
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sac") / "run"
    api.train(small_sac(checkpoint={"every": "100%"}), run)
    return run


@pytest.mark.parametrize(
    "change",
    [
        {"evaluate": {"every": None}, "metrics": {"every": None}},
        {"evaluate": {"every": "9%", "episodes": 2}, "log": {"every": "1%"}},
        {"metrics": {"every": "4%", "batch_size": 32}, "checkpoint": {"every": "10%"}},
        {"hooks": [{"method": "full_reset", "every": "999 frames"}]},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_cadence_and_hooks_that_never_fire_change_nothing(
    change: dict[str, Any], plain: Path, tmp_path: Path
):
    api.train(small_sac(**change), tmp_path / "run")
    changed, expected = final(tmp_path / "run"), final(plain)
    assert tensors_of(tmp_path / "run") == tensors_of(plain)
    for name in expected.keys() - {"tensors.safetensors", "metrics", "receipts", "state.json"}:
        assert changed[name] == expected[name]  # the replay
    for key in ("clock", "trainable"):
        assert changed["state.json"][key] == expected["state.json"][key]
