import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.agents.dqn import DQN
from rlplast.core.method.hooks import Hooks
from rlplast.core.rng import torch_stream
from tests.agents.toy_env import dqn, everything, exploration_state, hooked, same
from tests.cases import CASES, method_of
from tests.runs import TINY, check_resumes

wheel = pytest.mark.usefixtures("wheel")
TOTAL = 120


def row(method: str, **keys: Any) -> dict[str, Any]:
    return {"method": method, "params": dict(CASES[method].params)} | keys


def run(agent: DQN, hooks: Hooks, until: int) -> list:
    """Drive the agent as the loop does; returns the receipts."""
    agent.attach(hooks)
    receipts = []
    while agent.clock.env_steps < until or agent.owes():
        previous = agent.clock
        agent.step()
        receipts += hooks.fire(previous, agent.clock)
    return receipts


WHOLE = ("full_reset", "persistent", "distill")  # of whom an edited target equals a copy


@wheel  # what else firings leave alone: test_sac_hooks.py
@pytest.mark.parametrize("method", CASES)
def test_the_same_edit_is_made_of_the_target(method: str):
    options: dict[str, Any] = {"lr": 0.01, "target_every": 13, "hooks": [row(method, at="50%")]}
    agent = dqn(num_envs=2, total=f"{TOTAL} env_steps", **options)
    run(agent, hooked(agent), TOTAL // 2)
    before = everything(agent)
    assert not same(before["q"], before["target"])
    hooked(agent, row(method, at="50%", followers="same_edit")).fire(None, agent.clock)
    after = everything(agent)
    assert same(after["q"], after["target"]) == (method in WHOLE)
    assert same(before["target"], after["target"]) == CASES[method].follows
    assert same(before["rest"], after["rest"])


@wheel
def test_hook_due_at_an_env_step_fires_before_the_updates_it_owes():
    agent = dqn(num_envs=4, total=f"{TOTAL} env_steps", replay_ratio=2)
    (receipt,) = run(agent, hooked(agent, {"method": "fire", "at": "50%"}), TOTAL)
    assert receipt.clock.env_steps == 60
    assert receipt.clock.updates == 2 * (56 - 24)


@wheel
@pytest.mark.parametrize("method", ["redo", "plasticity_injection"])
def test_training_goes_on_after_a_firing(method: str):
    once = method_of(method).fires_once
    rows = [row(method, **{"at" if once else "every": "20%"})]
    agent, plain = (dqn(2, total=f"{TOTAL} env_steps", hooks=hooks) for hooks in (rows, []))
    assert len(run(agent, hooked(agent, *rows), TOTAL)) == (1 if once else 4)
    run(plain, hooked(plain), TOTAL)
    # The streams do not depend on what the networks prefer, so arms stay paired.
    assert same(exploration_state(agent), exploration_state(plain))
    assert agent.clock.env_steps == plain.clock.env_steps == TOTAL
    assert agent.clock.updates == plain.clock.updates == TOTAL - 24
    assert not same(list(agent.online.parameters()), list(plain.online.parameters()))
    assert all(torch.isfinite(p).all() for p in agent.online.parameters())


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


EVERY: list[dict[str, Any]] = [
    PERTURB | {"every": "25%"},
    RESET | {"every": "25%", "layers": ["fc1", "head"]},
    {"method": "swr", "every": "1 updates", "layers": ["head"], "params": {"coef": 1e-2}},
    {"method": "redo", "every": "13 updates", "layers": ["conv1"], "params": {"threshold": 1.0}},
    {"method": "cbp", "every": "1 updates", "layers": ["fc1"], "params": {"maturity": 2}},
    {"method": "persistent", "every": "30%", "layers": ["fc1"]},
    {"method": "hare_tortoise", "every": "40%", "layers": ["head"]},
    {
        "method": "shrink_perturb",
        "layers": ["fc1"],
        "when": {"metric": "eval/return_mean", "above": -1e9},
    },
    {"method": "head_reset", "layers": ["head"], "when": {"metric": "train/epsilon", "above": 0}},
]


def test_resumed_run_with_layers_of_hooks_equals_an_uninterrupted_one(tmp_path: Path):
    fired = check_resumes(TINY | {"hooks": EVERY}, tmp_path)["receipts"]
    expected = {(row["method"], *row["layers"]) for row in EVERY}
    assert {(row["method"], *row["layers"]) for row in fired} == expected


@wheel
def test_hooks_that_are_attached_again_leave_no_readers_of_the_ones_before() -> None:
    agent = dqn()
    hooks = hooked(agent, row("cbp", every="1 updates"))
    counts = []
    for _ in range(2):
        agent.attach(hooks)
        counts.append(sum(len(module._forward_hooks) for module in agent.online.modules()))
    assert counts[0] == counts[1] > 0
