"""The encoder moved half way back and a new head, at one moment of a DQN with convolutions."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.agents.dqn import DQN
from rlplast.core.rng import torch_stream
from tests.agents.toy_env import dqn, everything, hooked, same
from tests.marks import slow
from tests.runs import TINY, check_resumes
from tests.sac_runs import small_sac

MOMENT = 40  # env_steps
PERTURB = {
    "method": "shrink_perturb",
    "layers": ["conv*"],
    "params": {"coef": 0.5, "init": "fresh"},
}
RESET = {"method": "full_reset", "params": {"init": "fresh"}}


def agent(hooks: list[dict[str, Any]]) -> DQN:
    keys = {"network": "minatar", "buffer_size": 80, "initial_steps": 16, "target_every": 7}
    run = {"total": "80 env_steps", "env": "minatar/breakout", "hooks": hooks}
    return dqn(1, **keys, **run, eps=1e-8, lr=1e-4)


def advance(agent: DQN, until: int, hooks: Any = None) -> list[Any]:
    """Drive an agent as the loop does, to its last step before the updates that this owes."""
    receipts: list[Any] = []
    while agent.clock.env_steps < until:
        before = agent.clock
        agent.step()
        receipts += [] if hooks is None else hooks.fire(before, agent.clock)
    return receipts


def fresh(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Xavier's law for a weight, and zero for a bias."""
    if weight.ndim == 1:
        return torch.zeros_like(weight)
    area = math.prod(weight.shape[2:])
    bound = math.sqrt(6 / (area * (weight.shape[0] + weight.shape[1])))
    return torch.empty(weight.shape).uniform_(-bound, bound, generator=generator)


@torch.no_grad()
def by_hand(agent: DQN, encoder: list[str], head: list[str], hooks: list[dict[str, Any]]) -> None:
    """Do to an agent without hooks what the two rows are to do, in plain torch."""
    online: nn.Module = agent.networks["q"].module
    target: nn.Module = agent.networks["q"].followers["target"].module
    (optimizer,) = agent.networks["q"].optimizers
    moment = f"at={MOMENT} env_steps"
    for row, layers in zip(hooks, (encoder, head), strict=True):
        generator = torch_stream(3, "hook", f"{row['method']} {moment}", "q", 1)
        for layer in layers:
            for kind in ("weight", "bias"):
                weight = online.get_parameter(f"{layer}.{kind}")
                drawn = fresh(weight, generator)
                weight.copy_(0.5 * weight + 0.5 * drawn if layers is encoder else drawn)
                for tensor in optimizer.state[weight].values():
                    tensor.zero_()
                target.get_parameter(f"{layer}.{kind}").copy_(weight)


@pytest.mark.parametrize(
    ("names", "head"), [(["head"], ["head"]), (["fc*", "head"], ["fc1", "head"])]
)
def test_encoder_by_half_and_a_new_head_equal_a_twin_by_hand(
    names: list[str], head: list[str]
) -> None:
    rows = [row | {"at": f"{MOMENT} env_steps"} for row in (PERTURB, RESET | {"layers": names})]
    found, twin = agent(rows), agent([])
    hooks = hooked(found, *rows)
    receipts = advance(found, MOMENT, hooks)
    advance(twin, MOMENT)
    before = copy.deepcopy(everything(twin))
    by_hand(twin, ["conv1"], head, rows)
    assert same(everything(found), everything(twin))
    stays = {n: t for n, t in before["q"].items() if n.split(".")[0] not in ("conv1", *head)}
    assert (len(stays) == 0) is (len(head) == 2)
    assert all(torch.equal(everything(found)["q"][name], t) for name, t in stays.items())
    assert not same(before["q"], before["target"])  # so that copies and what stays show

    entries = {n: t.numel() for n, t in before["q"].items()}
    assert [(r.layers, r.entries_touched) for r in receipts] == [
        (("conv*",), entries["conv1.weight"] + entries["conv1.bias"]),
        (tuple(names), sum(n for name, n in entries.items() if name.split(".")[0] in head)),
    ]
    advance(found, 80, hooks)
    advance(twin, 80)
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
]
MEMBERS: list[dict[str, Any]] = [
    RESET | {"every": "25%", "layers": ["[0].*"], "networks": ["critic"], "optimizer": "touched"},
    PERTURB | {"every": "25%", "layers": ["*blocks.*"]},
]


@pytest.mark.parametrize(
    "config",
    [TINY | {"hooks": EVERY}, slow(small_sac(hooks=MEMBERS))],
    ids=["dqn", "sac"],
)
def test_resumed_run_equals_an_uninterrupted_one(config: dict[str, Any], tmp_path: Path) -> None:
    fired = check_resumes(config, tmp_path)["receipts"]
    expected = {(row["method"], *row["layers"]) for row in config["hooks"]}
    assert {(row["method"], *row["layers"]) for row in fired} == expected
