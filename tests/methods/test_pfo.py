"""pfo beside a slow twin, closed forms, and a PPO's own rollouts."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.agents.ppo import PPO
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLinear
from rlplast.methods.features import members
from rlplast.run import api
from tests.methods.driven import Driven, assert_close, gradients
from tests.models import FAMILIES, Critic
from tests.naive.features import given_by
from tests.ppo_runs import small_ppo
from tests.runs import lines

COEF = 0.7
# Layers or norms whose outputs go through a ReLU, in order, and the last one that the head reads.
POINTS = {
    "conv_batchnorm": ["1", "4"],
    "stacked": ["fc1", "fc2"],
}


def driven(of: str | nn.Module, x: Tensor | None = None, keys: Any = None, **params: Any) -> Driven:
    """A network whose hook fires after updates 2 and 5."""
    row = {"method": "pfo", "at": ["2 updates", "5 updates"], "params": {"coef": COEF} | params}
    return Driven(of, x, hook=row | (keys or {}))


def twin(now: nn.Module, past: nn.Module, paths: list[str], x: Tensor, coef: float = COEF) -> Any:
    """The mean square over samples and entries of all layers; of a stack the sum over members."""
    pairs = zip(given_by(now, paths, x), given_by(past, paths, x), strict=True)
    moved = torch.cat([(a - b.detach()).flatten() for a, b in pairs])
    return coef * (2 if isinstance(now, FAMILIES["stacked"]) else 1) * moved.square().mean()


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("family", POINTS)
def test_value_and_gradient_are_the_twins_and_a_firing_begins_anew(
    family: str, layers: str
) -> None:
    made = driven(family, layers=layers)
    paths = POINTS[family] if layers == "all" else POINTS[family][-1:]
    made.step()
    assert made.term() is None
    past = copy.deepcopy(made.move(1).module)
    (receipt,) = made.step()
    assert receipt.sfe == 0 and receipt.optimizer_policy == "keep"
    state = made.module.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in past.state_dict().items())
    assert made.term() == 0
    other = copy.deepcopy(made.move(2).module)
    expected = twin(other, past, paths, made.x)
    assert float(expected.detach()) > 0
    torch.testing.assert_close(made.term(), expected)
    assert_close(made.gradients(), gradients(other, expected))
    made.step(3)
    assert made.term() == 0


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(5, 4)
        self.fc, self.head = StackedLinear(2, 4, 3), StackedLinear(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(torch.relu(self.seen(x)))))


def test_a_layer_that_members_share_counts_once_and_is_no_member() -> None:
    for layers in ("last", "all"):
        torch.manual_seed(0)
        made = driven(Shared(), torch.randn(6, 5), layers=layers)
        made.step(2)
        now, then = (given_by(m, ["seen", "fc"], made.x) for m in (made.move(1).module, made.start))
        shared, stacked = ((a - b).detach().square() for a, b in zip(now, then, strict=True))
        expected = stacked[0].mean() + stacked[1].mean() + shared.mean() * (layers == "all")
        torch.testing.assert_close(made.term(), COEF * expected)
    # Or a term that is added up over critics would count DrQ's encoder as a third one.
    modules = (Shared(), FAMILIES["stacked"](), Critic())
    assert [members(Network("net", module).blocks) for module in modules] == [2, 2, 1]


class Stream(nn.Module):
    """A residual stream, of which the head reads the end."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.up, self.down = nn.Linear(5, 4), nn.Linear(4, 7), nn.Linear(7, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.inp(x)
        return self.head(stream + self.down(torch.relu(self.up(stream))))


def test_the_rows_layers_count_and_all_of_them_where_the_head_reads_no_units() -> None:
    torch.manual_seed(0)
    rows = driven("mlp", keys={"layers": ["0"]}, layers="all")
    for made, layer in ((driven(Stream(), torch.randn(6, 5)), "up"), (rows, "0")):
        made.step(2)
        expected = twin(made.move(1).module, made.start, [layer], made.x)
        torch.testing.assert_close(made.term(), expected)


def test_with_ppo_the_past_is_what_collected_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts of 10 steps in 2 environments, and 4 updates each."""
    collected: list[dict[str, dict[str, Tensor]]] = []
    finish = PPO._finish_rollout

    def finished(agent: Any) -> None:
        networks = agent.networks.items()
        collected.append({n: copy.deepcopy(net.module.state_dict()) for n, net in networks})
        finish(agent)

    monkeypatch.setattr(PPO, "_finish_rollout", finished)
    moved = []

    def check(loop: Any) -> None:
        agent = loop.trainable
        if not collected or agent.clock.env_steps == 120:  # hooks do not fire at the end
            return
        [term] = agent.penalties.terms
        assert {network.name for network in term.networks} == {"actor", "critic"}
        for network in term.networks:
            was, state = collected[-1][network.name], term.states[network.name]
            assert {n.removeprefix("past/") for n in state} == set(was)
            assert all(torch.equal(state[f"past/{name}"], was[name]) for name in was)
            now = network.module.state_dict()
            moved.append(any(not torch.equal(now[name], was[name]) for name in was))

    row = {"method": "pfo", "every": "20 env_steps", "params": {"coef": 2.0, "batch": 7}}
    api.train(small_ppo() | {"hooks": [row]}, tmp_path / "run", observer=check)
    assert len(collected) == 6 and any(moved)
    logged = [row for row in lines(tmp_path / "run", "metrics") if "train/penalty" in row]
    assert all(row["train/penalty"] > 0 for row in logged) and logged
