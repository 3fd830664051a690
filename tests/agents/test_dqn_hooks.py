"""What hooks do inside a DQN, and what they leave alone."""

from typing import Any

import pytest
import torch

from rlplast.agents.dqn import DQN
from rlplast.core.method.hooks import Hooks
from tests.agents.toy_env import (
    dqn,
    everything,
    exploration_state,
    same,
    use_wheel,
    without_weights,
)

METHODS = [
    {"method": "full_reset"},
    {"method": "fire"},
    {"method": "shrink_perturb", "params": {"coef": 0.5}},
]
TOTAL = 120


@pytest.fixture(autouse=True)
def wheel(monkeypatch: pytest.MonkeyPatch):
    use_wheel(monkeypatch)


def hooked(agent: DQN, *configs: dict[str, Any]) -> Hooks:
    config = agent.config
    return Hooks(configs, agent.networks, config.total, config.seed, agent.units, config.horizon())


def run(agent: DQN, hooks: Hooks, until: int) -> list:
    """Drive the agent as the loop does; returns the receipts."""
    agent.after_update = hooks.after_update
    receipts = []
    while agent.clock.env_steps < until or agent.owes():
        previous = agent.clock
        agent.step()
        receipts += hooks.fire(previous, agent.clock)
    return receipts


def trained(**options: Any) -> DQN:
    agent = dqn(num_envs=2, total=f"{TOTAL} env_steps", **options)
    run(agent, hooked(agent), TOTAL // 2)
    return agent


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
def test_firing_changes_the_network_and_nothing_around_it(method: dict[str, Any]):
    agent = trained()
    before, rest = everything(agent), without_weights(agent)
    hooks = hooked(agent, method | {"at": "50%", "optimizer": "keep", "followers": "leave"})
    (receipt,) = hooks.fire(None, agent.clock)
    after = everything(agent)
    assert same(without_weights(agent), rest)
    assert receipt.sfe > 0
    changed = {
        name for name in before["online"] if not same(before["online"][name], after["online"][name])
    }
    assert {"fc1.weight", "fc2.weight"} <= changed
    assert {key for key in before if not same(before[key], after[key])} == {"online"}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
@pytest.mark.parametrize("policy", ["copy", "same_edit", "leave"])
def test_target_obeys_its_policy(method: dict[str, Any], policy: str):
    agent = trained(lr=0.01, target_every=13)
    before = everything(agent)
    assert not same(before["online"], before["target"])
    hooks = hooked(agent, method | {"at": "50%", "followers": policy})
    hooks.fire(None, agent.clock)
    after = everything(agent)
    assert same(after["online"], after["target"]) == (
        policy == "copy" or (policy == "same_edit" and method["method"] == "full_reset")
    )
    assert same(before["target"], after["target"]) == (policy == "leave")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
def test_default_policies_reset_the_optimizer_and_copy_to_the_target(method: dict[str, Any]):
    agent = trained()
    hooked(agent, method | {"at": "50%"}).fire(None, agent.clock)
    after = everything(agent)
    assert same(after["online"], after["target"])
    assert not any(tensor.any() for state in after["optimizer"] for tensor in state.values())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
def test_arm_with_a_hook_at_half_is_the_arm_without_it_until_then(method: dict[str, Any]):
    plain, arm = (dqn(num_envs=2, total=f"{TOTAL} env_steps", n_step=2) for _ in range(2))
    hooks, none = hooked(arm, method | {"at": "50%"}), hooked(plain)
    while arm.clock.env_steps < TOTAL // 2 - 2 or arm.owes():
        previous = arm.clock
        arm.step()
        plain.step()
        assert hooks.fire(previous, arm.clock) == []
    assert same(everything(arm), everything(plain))
    receipts = run(arm, hooks, TOTAL)
    run(plain, none, TOTAL)
    assert [(r.clock.env_steps, r.clock.updates) for r in receipts] == [(60, 60 - 2 - 24)]
    assert not same(everything(arm)["online"], everything(plain)["online"])
    # The streams do not depend on what the networks prefer, so the arms stay paired.
    assert same(exploration_state(arm), exploration_state(plain))
    assert arm.clock == plain.clock


def test_hook_due_at_an_env_step_fires_before_the_updates_it_owes():
    agent = dqn(num_envs=4, total=f"{TOTAL} env_steps", replay_ratio=2)
    (receipt,) = run(agent, hooked(agent, {"method": "fire", "at": "50%"}), TOTAL)
    assert receipt.clock.env_steps == 60
    assert receipt.clock.updates == 2 * (56 - 24)


def test_every_update_hook_fires_once_in_each_update():
    agent = dqn(num_envs=2, total=f"{TOTAL} env_steps")
    swr = {"method": "swr", "every": "1 updates", "params": {"coef": 0.01}}
    hooks = hooked(agent, swr)
    assert run(agent, hooks, TOTAL) == []
    (receipt,) = hooks.flush(agent.clock)
    assert receipt.firings == agent.clock.updates == TOTAL - 24
    assert hooks.flush(agent.clock) == []


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
def test_training_goes_on_after_a_firing(method: dict[str, Any]):
    agent = dqn(num_envs=2, total=f"{TOTAL} env_steps")
    run(agent, hooked(agent, method | {"every": "20%"}), TOTAL)
    assert agent.clock.updates == TOTAL - 24
    assert all(torch.isfinite(p).all() for p in agent.online.parameters())
    assert torch.isfinite(agent.sums).all()
