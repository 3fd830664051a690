from typing import Any

import pytest
import torch

from rlplast.agents.dqn import DQN
from rlplast.core.method.hooks import Hooks
from tests.agents.toy_env import (
    dqn,
    everything,
    exploration_state,
    hooked,
    same,
    without_weights,
)
from tests.cases import CASES, method_of
from tests.marks import slow

pytestmark = pytest.mark.usefixtures("wheel")
METHODS = [{"method": name, "params": dict(case.params)} for name, case in CASES.items()]
TOTAL = 120
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])


def run(agent: DQN, hooks: Hooks, until: int) -> list:
    """Drive the agent as the loop does; returns the receipts."""
    agent.after_update, agent.recorded = hooks.after_update, hooks.recorded()
    receipts = []
    while agent.clock.env_steps < until or agent.owes():
        previous = agent.clock
        agent.step()
        receipts += hooks.fire(previous, agent.clock)
    return receipts


def trained(method: dict[str, Any], **options: Any) -> DQN:
    hooks = [method | {"at": "50%"}]
    agent = dqn(num_envs=2, total=f"{TOTAL} env_steps", hooks=hooks, **options)
    run(agent, hooked(agent), TOTAL // 2)
    return agent


@every_method
def test_firing_changes_the_network_and_nothing_around_it(method: dict[str, Any]):
    agent = trained(method)
    hooks = hooked(agent, method | {"at": "50%", "optimizer": "keep", "followers": "leave"})
    before, rest = everything(agent), without_weights(agent)
    (receipt,) = hooks.fire(None, agent.clock)
    after = everything(agent)
    assert same(without_weights(agent), rest)
    edits = not CASES[method["method"]].follows  # else it has followed no update
    assert (receipt.sfe > 0) is edits
    # Methods that read moments forget some of their own accord.
    own = {"q optimizer"} if "moments" in method_of(method["method"]).reads else set()
    changed = {key for key in before if not same(before[key], after[key])}
    assert changed == ({"q"} if edits else set()) | own


WHOLE = ("full_reset", "persistent", "distill")  # of whom an edited target equals a copy


@every_method
def test_the_same_edit_is_made_of_the_target(method: dict[str, Any]):
    agent = trained(method, lr=0.01, target_every=13)
    before = everything(agent)
    assert not same(before["q"], before["target"])
    hooked(agent, method | {"at": "50%", "followers": "same_edit"}).fire(None, agent.clock)
    after = everything(agent)
    assert same(after["q"], after["target"]) == (method["method"] in WHOLE)
    assert same(before["target"], after["target"]) == CASES[method["method"]].follows


def test_hook_due_at_an_env_step_fires_before_the_updates_it_owes():
    agent = dqn(num_envs=4, total=f"{TOTAL} env_steps", replay_ratio=2)
    (receipt,) = run(agent, hooked(agent, {"method": "fire", "at": "50%"}), TOTAL)
    assert receipt.clock.env_steps == 60
    assert receipt.clock.updates == 2 * (56 - 24)


@pytest.mark.parametrize("method", [m for m, case in CASES.items() if case.made_for_every_update])
def test_every_update_hook_fires_once_in_each_update(method: str):
    agent = dqn(num_envs=2, total=f"{TOTAL} env_steps")
    row = {"method": method, "every": "1 updates", "params": dict(CASES[method].params)}
    hooks = hooked(agent, row)
    assert run(agent, hooks, TOTAL) == []
    (receipt,) = hooks.flush(agent.clock)
    assert receipt.firings == agent.clock.updates == TOTAL - 24
    assert receipt.sfe > 0
    assert hooks.flush(agent.clock) == []


@pytest.mark.parametrize(
    "method",
    [m if m["method"] in ("fire", "redo", "plasticity_injection") else slow(m) for m in METHODS],
    ids=lambda method: method["method"],
)
def test_training_goes_on_after_a_firing(method: dict[str, Any]):
    once = method_of(method["method"]).fires_once
    row = method | {"at" if once else "every": "20%"}
    agent, plain = (dqn(2, total=f"{TOTAL} env_steps", hooks=hooks) for hooks in ([row], []))
    assert len(run(agent, hooked(agent, row), TOTAL)) == (1 if once else 4)
    run(plain, hooked(plain), TOTAL)
    # The streams do not depend on what the networks prefer, so arms stay paired.
    assert same(exploration_state(agent), exploration_state(plain))
    assert agent.clock.env_steps == plain.clock.env_steps == TOTAL
    assert agent.clock.updates == plain.clock.updates == TOTAL - 24
    assert not same(list(agent.online.parameters()), list(plain.online.parameters()))
    assert all(torch.isfinite(p).all() for p in agent.online.parameters())
    assert torch.isfinite(agent.sums).all()
