import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.agents.dqn import DQN
from rlplast.core.method.hooks import Hooks
from rlplast.core.rng import torch_stream
from tests.agents.toy_env import dqn, everything, hooked, same

wheel = pytest.mark.usefixtures("wheel")


def run(agent: DQN, hooks: Hooks, until: int) -> list:
    """Drive the agent as the loop does; returns the receipts."""
    agent.attach(hooks)
    receipts = []
    while agent.clock.env_steps < until or agent.owes():
        previous = agent.clock
        agent.step()
        receipts += hooks.fire(previous, agent.clock)
    return receipts


@wheel
def test_hook_due_at_an_env_step_fires_before_the_updates_it_owes():
    agent = dqn(num_envs=4, total="120 env_steps", replay_ratio=2)
    (receipt,) = run(agent, hooked(agent, {"method": "fire", "at": "50%"}), 120)
    assert receipt.clock.env_steps == 60
    assert receipt.clock.updates == 2 * (56 - 24)


# Hooks that name layers: the encoder moved half way back and a new head, at one moment.

MOMENT = 40  # env_steps
PERTURB = {
    "method": "shrink_perturb",
    "layers": ["conv*"],
    "params": {"coef": 0.5, "init": "fresh"},
}
RESET = {"method": "full_reset", "params": {"init": "fresh"}}


def of_pictures(hooks: list[dict[str, Any]]) -> DQN:
    keys = {"network": "minatar", "buffer_size": 80, "initial_steps": 16, "target_every": 7}
    run = {"total": "80 env_steps", "env": "minatar/breakout", "hooks": hooks}
    return dqn(1, **keys, **run, eps=1e-8, lr=1e-4)


def fresh(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Xavier's law for a weight, and zero for a bias."""
    if weight.ndim == 1:
        return torch.zeros_like(weight)
    area = math.prod(weight.shape[2:])
    bound = math.sqrt(6 / (area * (weight.shape[0] + weight.shape[1])))
    return torch.empty(weight.shape).uniform_(-bound, bound, generator=generator)


@torch.no_grad()
def by_hand(agent: DQN, hooks: list[dict[str, Any]]) -> None:
    """Do to an agent without hooks what the two rows are to do, in plain torch."""
    (optimizer,) = agent.networks["q"].optimizers
    for row, layer in zip(hooks, ("conv1", "head"), strict=True):
        name = f"{row['method']} at={MOMENT} env_steps"
        generator = torch_stream(3, "hook", name, "q", 1)
        for part in (f"{layer}.weight", f"{layer}.bias"):
            weight = agent.online.get_parameter(part)
            drawn = fresh(weight, generator)
            weight.copy_(0.5 * weight + 0.5 * drawn if layer == "conv1" else drawn)
            for tensor in optimizer.state[weight].values():
                tensor.zero_()
            agent.target.get_parameter(part).copy_(weight)


def test_encoder_by_half_and_a_new_head_equal_a_twin_by_hand():
    rows = [r | {"at": f"{MOMENT} env_steps"} for r in (PERTURB, RESET | {"layers": ["hea*"]})]
    found, twin = of_pictures(rows), of_pictures([])
    hooks, receipts = hooked(found, *rows), []
    while found.clock.env_steps < MOMENT:
        clock = found.clock
        found.step(), twin.step()
        receipts += hooks.fire(clock, found.clock)
    before = everything(twin)
    by_hand(twin, rows)
    after = everything(found)
    assert same(after, everything(twin))
    changed = {n.split(".")[0] for n, t in before["q"].items() if not same(t, after["q"][n])}
    assert changed == {"conv1", "head"} < {n.split(".")[0] for n in before["q"]}
    assert not same(before["q"], before["target"])  # so that copies and what stays show
    entries = [sum(t.numel() for n, t in before["q"].items() if x in n) for x in ("conv1", "head")]
    assert [r.layers for r in receipts] == [("conv*",), ("hea*",)]
    assert [r.entries_touched for r in receipts] == entries
    run(found, hooks, 80), run(twin, hooked(twin), 80)
    assert found.clock.updates > 40
    assert same(everything(found), everything(twin))


@wheel
def test_hooks_that_are_attached_again_leave_no_readers_of_the_ones_before() -> None:
    agent = dqn()
    hooks = hooked(agent, {"method": "cbp", "every": "1 updates"})
    counts = []
    for _ in range(2):
        agent.attach(hooks)
        counts.append(sum(len(module._forward_hooks) for module in agent.online.modules()))
    assert counts[0] == counts[1] > 0
