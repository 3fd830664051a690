"""Updates that are owed together: as one by one, wherever a block is cut."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.agents.compiled import CompiledUpdate
from rlplast.agents.off_policy import OffPolicyAgent
from rlplast.agents.ppo import PPO
from rlplast.run import api
from tests.agents.toy_env import trace_alone
from tests.marks import slow_but
from tests.ppo_runs import small_ppo
from tests.runs import TINY, final, interrupt
from tests.sac_runs import small_sac

SCHEDULES = {
    "log": {"every": "11 updates", "to": []},
    "metrics": {"every": "29 updates", "names": ["weight_norm"], "batch_size": 8},
    "evaluate": {"every": "37 updates", "episodes": 1},
    "checkpoint": {"every": "13 updates", "keep": 2},
    "hooks": [
        {"method": "shrink_perturb", "every": "17 updates", "first": "3 updates"},
        {"method": "redo", "at": ["50%", "23 updates"]},
        {"method": "cbp", "every": "1 updates", "params": {"maturity": 3}},
    ],
}
MINIBATCHES: dict[str, Any] = {"batch_size": 5, "epochs": 4}  # 16 updates a rollout
COMPILED: dict[str, Any] = {"accelerate": "compile"}


# A layer that changes with the updates, in code that collects its inputs per block.
LIFE = {"method": "lifecycle", "networks": ["critic"]}
LIFE |= {"params": {"life": [3, 6], "recovery": [1, 3]}}
REDQ = {"critics": 3, "critic_subset": 2, "actor_every": 3, "initial_updates": 9, "n_step": 2}
RUNS: dict[str, Any] = {
    # 7 updates after each step of both environments, to a number of updates
    "dqn": TINY
    | {"replay_ratio": 3.5, "total": "59 updates", "env": {"id": "gym/CartPole-v1", "num_envs": 2}}
    | {"agent": TINY["agent"] | {"network": "mlp_small"}},
    "redq": small_sac(total="36 env_steps", replay_ratio=7, agent=REDQ),
    "ppo": small_ppo(total="60 env_steps", agent=MINIBATCHES),
    "lifecycle": small_sac(total="36 env_steps", replay_ratio=9, agent=COMPILED, layers=[LIFE]),
}


@pytest.mark.parametrize("name", slow_but(("dqn", "redq", "ppo"), RUNS))
def test_blocks_equal_single_updates(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trace_alone(monkeypatch)
    config, sizes = RUNS[name] | SCHEDULES, []
    if config["kind"] != "dqn":  # no method is the same for all its networks
        config["hooks"] = [hook | {"networks": ["critic"]} for hook in config["hooks"]]
    kind: Any = PPO if config["kind"] == "ppo" else OffPolicyAgent
    update, owed = kind.update, kind.owed

    def noted(self: Any, count: int = 1) -> None:
        sizes.append(count)
        update(self, count)

    monkeypatch.setattr(kind, "update", noted)
    api.train(config, tmp_path / "blocks")
    assert max(sizes) > 2
    blocks, expected = len(sizes), final(tmp_path / "blocks")
    with monkeypatch.context() as patch:
        patch.setattr(kind, "owed", lambda self: min(owed(self), 1))
        api.train(config, tmp_path / "single")
    assert set(sizes[blocks:]) == {1} and sum(sizes[:blocks]) == sum(sizes[blocks:])
    assert final(tmp_path / "single") == expected
    if name == "dqn":
        interrupt(config, tmp_path / "interrupted", (13, 22, 27))  # inside blocks among them
        assert final(tmp_path / "interrupted") == expected


def test_attributes_that_a_module_sets_hold_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            self.seen = self.seen + x.sum()
            return (x * self.seen,)

    trace_alone(monkeypatch)
    module, found = Whole(), []
    update: Any = CompiledUpdate(module.forward, torch.device("cpu"), lambda seconds: None)
    for number in (1.0, 2.0, 3.0):
        found.append(update(torch.full((1,), number))[0].item())
        update = update.again if hasattr(update, "again") else update
    assert found == [1.0, 6.0, 18.0] and module.seen == 6
