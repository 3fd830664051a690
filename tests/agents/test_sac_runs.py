from pathlib import Path
from typing import Any

import pytest

from rlplast.run import api
from tests.marks import slow
from tests.runs import check_resumes
from tests.sac_runs import small_sac

HOOKS = [
    {"method": "fire", "at": "60%", "scope": "sac", "networks": ["actor", "critic"]},
    {"method": "full_reset", "at": "80%", "networks": ["temperature"]},
    {"method": "swr", "every": "1 updates", "from": "50%", "networks": ["critic"]},
]


LONG = {"total": "200 env_steps", "replay_ratio": 0.3, "hooks": HOOKS, "log": {"every": "10%"}}


@pytest.mark.parametrize(
    ("env", "num_envs", "agent"),
    [
        ("gym/Pendulum-v1", 1, {"n_step": 3}),
        slow(
            "gym/Hopper-v5", 2, {"network": "mlp", "critic_blocks": 2, "learn_temperature": False}
        ),
        slow("dmc/humanoid-walk", 1, {}),
        slow("gym/Pendulum-v1", 2, {"network": "mlp", "normalize_obs": False}),
        slow("gym/Humanoid-v5", 2, {"n_step": 2}),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(
    env: str, num_envs: int, agent: dict[str, Any], tmp_path: Path
):
    hooks = [h for h in HOOKS if agent.get("learn_temperature", True) or "at" not in h]
    config = small_sac(env, num_envs, **(LONG | {"agent": agent, "hooks": hooks}))
    config["env"]["options"] = {"max_episode_steps": 40, "action_repeat": 2}
    found = check_resumes(config, tmp_path, 0.3)
    assert found["state.json"]["clock"]["env_steps"] == 200
    assert len(found["receipts"]) >= (3 if config["hooks"] else 0)


@pytest.mark.parametrize("method", ["cbp", "snr"])
def test_a_method_that_reads_activations_rests_in_updates_without_those_of_the_actor(
    method: str, tmp_path: Path
) -> None:
    row = {"method": method, "every": "1 updates", "from": "4 updates"}
    agent = {"agent": {"actor_every": 3}, "total": "60 env_steps", "hooks": [row]}
    run = api.train(small_sac(**agent), tmp_path)
    (receipt,) = [r for r in run.lines("receipts") if r["network"] == "actor"][-1:]
    assert receipt["method"] == method
