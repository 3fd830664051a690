"""The TD3 of the documents: an agent of one's own is its networks, losses and update."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.runs import check_resumes

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SMALL = {
    "kind": "td3",
    "total": "120 env_steps",
    "agent": {"initial_steps": 40, "batch_size": 16, "width": 24, "accelerate": "off"},
    "log": {"to": []},
}


@pytest.fixture(autouse=True)
def td3(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlplast.training import kinds

    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "td3", raising=False)
    __import__("td3")


def naive_update(nets: dict[str, Any], batch: Any, with_actor: bool) -> None:
    """Do one update of the paper's Algorithm 1, with its constants."""
    obs, action, reward, discount, obs_next = batch
    with torch.no_grad():
        noise = torch.clip(0.2 * torch.randn(action.shape), -0.5, 0.5)
        next_action = torch.clip(torch.tanh(nets["actor_target"](obs_next)) + noise, -1, 1)
        following = torch.minimum(*nets["critic_target"](obs_next, next_action))
        y = reward + discount * following
    q1, q2 = nets["critic"](obs, action)
    nets["critic_adam"].zero_grad()
    ((q1 - y).pow(2).mean() + (q2 - y).pow(2).mean()).backward()
    nets["critic_adam"].step()
    if with_actor:
        nets["actor_adam"].zero_grad()
        (-nets["critic"](obs, torch.tanh(nets["actor"](obs)))[0]).mean().backward()
        nets["actor_adam"].step()
        for name in ("actor", "critic"):
            pairs = zip(nets[f"{name}_target"].parameters(), nets[name].parameters(), strict=True)
            for theirs, mine in pairs:
                theirs.data = 0.995 * theirs.data + 0.005 * mine.data


def test_its_updates_are_the_papers() -> None:
    agent: Any = build(read_config(SMALL))[0]
    modules = {
        name: (network.module, network.followers["target"].module)
        for name, network in agent.networks.items()
    }
    nets: dict[str, Any] = {}
    for name, (module, target) in modules.items():
        nets |= {name: copy.deepcopy(module), f"{name}_target": copy.deepcopy(target)}
        nets[f"{name}_adam"] = torch.optim.Adam(nets[name].parameters(), lr=1e-3)
    make = agent._batch

    def noted(drawn: Any) -> Any:
        batch = make(drawn)
        with torch.random.fork_rng():  # the same noise
            naive_update(nets, batch, (agent.clock.updates + 1) % 2 == 0)
        return batch

    agent._batch = noted
    while agent.clock.updates < 20:
        agent.step()
    for name, (module, target) in modules.items():
        for found, key in ((module, name), (target, f"{name}_target")):
            expected = dict(nets[key].named_parameters())
            torch.testing.assert_close(
                dict(found.named_parameters()), expected, rtol=1e-4, atol=1e-6
            )
    agent.close()


def test_hooks_probes_and_a_resume_work_in_it(tmp_path: Path) -> None:
    changes = {
        "hooks": [
            {"method": "redo", "at": "60%", "networks": ["critic"]},
            {"method": "swr", "every": "1 updates", "networks": ["actor"]},
            {"method": "cbp", "every": "1 updates", "networks": ["actor"]},
        ],
        "penalties": [{"method": "l2_init", "params": {"coef": 1e-3}}],
        "metrics": {"every": "50%", "batch_size": 8},
        "evaluate": {"every": "50%", "episodes": 1},
    }
    found = check_resumes(SMALL | changes, tmp_path)
    assert {line["method"] for line in found["receipts"]} == {"redo", "swr", "cbp"}
    assert {"metric/dormant_ratio/critic", "train/q"} <= set().union(*found["metrics"])
