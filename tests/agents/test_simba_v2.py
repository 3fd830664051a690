from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.agents.categorical import ValuesConfig
from rlplast.agents.running_statistics import ReturnScale
from rlplast.agents.sac import SAC
from tests.agents.test_sac import check_weights, critic_weights, updates_of
from tests.agents.toy_control import ACTION_DIM, sac
from tests.agents.toy_env import advanced, everything, hooked, same
from tests.naive.simba_v2 import SimbaV2Twin, reward_divisor_twin
from tests.runs import check_resumes
from tests.sac_runs import small_sac

UPDATES = 5
pytestmark = pytest.mark.usefixtures("slide")
ROWS = ("fc1.weight", "fc2.weight", "input.weight")


def simba_v2(**options: Any) -> SAC:
    usual: dict[str, Any] = {
        "network": "simba_v2",
        "name": "adam",
        "lr": 1e-2,
        "weight_decay": 0.0,
        "critic_blocks": 2,
        "tau": 0.1,
        "scale_rewards": 5.0,
        "values": ValuesConfig("c51", bins=11, low=-5.0, high=5.0),
    }
    return sac(**({"num_envs": 2} | usual | options))


def rows_of(module: torch.nn.Module) -> torch.Tensor:
    """The length of every row of every weight of a linear layer."""
    weights = [p for n, p in module.named_parameters() if n.endswith(ROWS)]
    return torch.cat([w.detach().norm(dim=-1).flatten() for w in weights])


def test_training_is_the_update_of_the_official_code(monkeypatch: pytest.MonkeyPatch):
    agent = simba_v2(lr=1e-3)
    settings = {
        "lr": 1e-3,
        "tau": 0.1,
        "initial_temperature": agent.config.agent.initial_temperature,
        "target_entropy": -0.5 * ACTION_DIM,
        "bins": 11,
        "bound": 5.0,
    }
    twin = SimbaV2Twin(agent.actor.state_dict(), critic_weights(agent, agent.critic), settings)
    for batch, seen, statistics in updates_of(agent, UPDATES, monkeypatch):
        steps = [(s.reward.tolist(), (s.terminated | s.truncated).tolist()) for *_, s in seen]
        divisor = reward_divisor_twin(steps, 0.99, 5.0)
        assert float(agent.return_scale.factor) == pytest.approx(1 / divisor, rel=1e-6)
        twin.update(batch.transitions, batch.noise, statistics, divisor)
        check_weights(agent, twin, 1e-5 if agent.clock.updates == 1 else 1e-4)
    moved = everything(agent)["critic"]["head.fc2.bias"]
    assert moved.abs().max() > 0.004


def test_rows_have_length_one_from_the_start_on_and_after_resets_and_updates():
    hook = {"method": "full_reset", "at": "50%", "params": {"init": "fresh"}}
    agent = simba_v2(total="60 env_steps", hooks=[hook])
    for _ in range(2):
        for module in (agent.actor, agent.critic):
            torch.testing.assert_close(rows_of(module), torch.ones_like(rows_of(module)))
        advanced(agent, 9)
    hooked(agent, hook).fire(None, agent.clock)
    for module in (agent.actor, agent.critic, agent.target):
        torch.testing.assert_close(rows_of(module), torch.ones_like(rows_of(module)))
    agent = advanced(simba_v2(), 9)
    assert (rows_of(agent.target) < 1).any()  # an average of points on a sphere lies inside


METHODS: list[dict[str, Any]] = [
    {"method": "redo", "at": "50%", "params": {"threshold": 1e9}},
    {"method": "head_reset", "at": "50%", "params": {"init": "fresh"}},
    {"method": "shrink_perturb", "at": "50%"},
    {"method": "fire", "at": "50%"},
    {"method": "plasticity_injection", "at": "50%"},
    {"method": "hypersphere_project", "every": "1 updates"},
]


@pytest.mark.parametrize("network", ["simba_v2", "bro"])
def test_methods_act_on_it_and_units_are_reset_with_what_lies_between(network: str):
    hooks = [row | {"networks": ["critic"]} for row in METHODS]
    agent = advanced(simba_v2(network=network, total="60 env_steps", hooks=hooks), 9)
    between = "blocks.0.scaler" if network == "simba_v2" else "blocks.0.norm1"
    group = agent.networks["critic"].units().groups[0]
    assert str(group.norms[0]) == f"[0].{between}.weight[i]"
    for row in hooks[:-1]:
        before = everything(agent)["critic"]
        (receipt,) = hooked(agent, row).fire(None, agent.clock)
        assert receipt.sfe > 0
        if row["method"] == "redo":
            scale = agent.critic.get_parameter(f"{between}.weight")
            start = (2 / scale.shape[-1]) ** 0.5 if network == "simba_v2" else 1.0
            torch.testing.assert_close(scale.detach(), torch.full_like(scale, start))
            assert (agent.critic.get_parameter("blocks.0.fc2.weight") == 0).all()
        if row["method"] == "head_reset":
            changed = {n for n, t in everything(agent)["critic"].items() if not same(t, before[n])}
            last = "head.fc2" if network == "simba_v2" else "head"
            assert {name.rpartition(".")[0] for name in changed} == {last}
    advanced(agent, 12)


def test_rewards_are_divided_by_the_spread_of_returns_or_by_more_where_one_is_too_large():
    rng, scale = np.random.default_rng(0), ReturnScale(3, 0.9, 5.0)
    factor, steps = scale.factor, []
    for i in range(60):
        reward = rng.standard_normal(3) * (40 if i == 30 else 1)
        ended = rng.random(3) < 0.1
        scale.update(reward, ended)
        steps.append((reward.tolist(), ended.tolist()))
        divisor = reward_divisor_twin(steps, 0.9, 5.0)
        assert float(scale.factor) == pytest.approx(1 / divisor, rel=1e-6)
    assert scale.factor is factor
    again = ReturnScale(3, 0.9, 5.0)
    again.load_state_dict(scale.state_dict())
    for other in (scale, again):
        other.update(np.ones(3), np.zeros(3, bool))
    assert same(scale.state_dict(), again.state_dict())
    assert torch.equal(scale.factor, again.factor)
    scale.cut()
    assert (scale.state_dict()["returns"] == 0).all()
    scale.restart()
    assert scale.factor is factor and float(factor) == 1


def test_values_in_evaluations_are_in_units_of_the_reward():
    agent = advanced(simba_v2(), 9)
    obs, action = np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32)
    found = agent._q(obs, action) * float(agent.return_scale.factor)
    scaled = agent.categorical.mean(
        agent.critic(agent.statistics.normalise(torch.zeros(4, 3)), torch.zeros(4, 2))
    )
    np.testing.assert_allclose(found, scaled.detach().mean(0).numpy(), rtol=1e-5)
    assert float(agent.return_scale.factor) < 0.5


def test_runs_resume_up_to_the_last_bit(tmp_path: Path):
    hooks = [
        {"method": "full_reset", "at": "40%", "params": {"init": "fresh"}},
        {"method": "swr", "every": "1 updates", "from": "60%"},
    ]
    values = {"kind": "c51", "bins": 11, "low": -5, "high": 5}
    agent = {"network": "simba_v2", "scale_rewards": 5, "values": values}
    check_resumes(small_sac(num_envs=2, agent=agent, hooks=hooks), tmp_path)
