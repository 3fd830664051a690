"""pfo beside a slow twin, closed forms, a PPO's own rollouts, and runs that nobody interrupted."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.ppo import PPO
from rlplast.core.errors import BadWeights
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.rng import preserve_global_rng
from rlplast.methods.features import members
from rlplast.run import api
from tests.every_kind import small_run
from tests.marks import slow
from tests.models import FAMILIES, Critic, data
from tests.naive.features import given_by
from tests.ppo_runs import small_ppo
from tests.runs import Killed, at_step, final, kill, lines

COEF = 0.7
# Layers or norms whose outputs go through a ReLU, in order, and the last one that the head reads.
POINTS = {
    "conv_batchnorm": ["1", "4"],
    "stacked": ["fc1", "fc2"],
}


class Driven:
    """A network with the hook in a hand-written loop; it fires after updates 2 and 5."""

    def __init__(self, module: nn.Module, x: Tensor, **keys: Any) -> None:
        self.module, self.x = module, x
        self.optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        self.network = Network("net", module, self.optimizer)
        self.penalties = rlplast.Penalties([], self.network, probe=x)
        params = {"coef": COEF} | keys.pop("params", {})
        row = {"method": "pfo", "at": ["2 updates", "5 updates"], "params": params} | keys
        self.hooks = Hooks([row], self.network, "20 updates", probe=x, penalties=self.penalties)

    def term(self) -> Tensor | None:
        return self.penalties.of("net")

    def move(self, seed: int) -> None:
        """Move every weight, and the statistics of BatchNorm, somewhere."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in (*self.module.parameters(), *self.module.buffers()):
                if tensor.is_floating_point():
                    tensor.add_(torch.rand(tensor.shape, generator=generator) * 0.3)


def of(family: str, **keys: Any) -> Driven:
    with preserve_global_rng():
        torch.default_generator.manual_seed(0)
        return Driven(FAMILIES[family](), data(family)[0], **keys)


def twin(now: nn.Module, past: nn.Module, paths: list[str], x: Tensor, coef: float) -> Tensor:
    """The mean square over samples and entries of all layers; of a stack the sum over members."""
    pairs = [
        (a, b.detach())
        for a, b in zip(given_by(now, paths, x), given_by(past, paths, x), strict=True)
    ]
    members = 2 if isinstance(now, FAMILIES["stacked"]) else 1  # type: ignore[arg-type]
    entries = [(p, q) for a, b in pairs for p, q in zip(a.flatten(), b.flatten(), strict=True)]
    total = sum((p - q) ** 2 for p, q in entries)
    return coef * members * total / len(entries)  # type: ignore[return-value]


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("family", POINTS)
def test_value_and_gradient_are_the_twins(family: str, layers: str) -> None:
    driven = of(family, params={"layers": layers})
    paths = POINTS[family] if layers == "all" else POINTS[family][-1:]
    driven.hooks.step(updates=1)
    assert driven.term() is None
    driven.move(1)
    past = copy.deepcopy(driven.module)
    driven.hooks.step(updates=2)
    driven.move(2)
    other = copy.deepcopy(driven.module)
    found = driven.term()
    assert found is not None
    expected = twin(other, past, paths, driven.x, COEF)
    torch.testing.assert_close(found, expected)
    assert float(found.detach()) > 0
    found.backward()
    expected.backward()
    for name, parameter in driven.module.named_parameters():
        wanted = other.get_parameter(name).grad
        assert (parameter.grad is None) == (wanted is None), name
        if wanted is not None:
            torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6, msg=name)


def test_two_linear_layers_have_the_closed_form() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 2)).double()
    driven = Driven(module, torch.randn(6, 4, dtype=torch.float64))
    driven.hooks.step(updates=2)
    step = torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad():
        module.get_parameter("0.weight").add_(step)
    found = driven.term()
    assert found is not None
    torch.testing.assert_close(found, COEF * (driven.x @ step.mT).square().mean())
    found.backward()
    expected = COEF * 2 * step @ driven.x.mT @ driven.x / 30
    torch.testing.assert_close(module.get_parameter("0.weight").grad, expected)
    assert module.get_parameter("2.weight").grad is None


class Shared(nn.Module):
    """Two critics that read one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(5, 4)
        self.fc, self.head = StackedLinear(2, 4, 3), StackedLinear(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(torch.relu(self.seen(x)))))


def test_a_layer_that_members_share_counts_once() -> None:
    for layers in ("last", "all"):
        torch.manual_seed(0)
        driven = Driven(Shared(), torch.randn(6, 5), params={"layers": layers})
        past = copy.deepcopy(driven.module)
        driven.hooks.step(updates=2)
        driven.move(1)
        now, then = (given_by(m, ["seen", "fc"], driven.x) for m in (driven.module, past))
        shared, stacked = ((a - b).detach().square() for a, b in zip(now, then, strict=True))
        expected = stacked[0].mean() + stacked[1].mean() + shared.mean() * (layers == "all")
        torch.testing.assert_close(driven.term(), COEF * expected)


def test_layers_that_members_share_are_no_member() -> None:
    """Or a term that is added up over critics would count DrQ's encoder as a third one."""
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


def test_where_the_head_reads_no_units_all_layers_count() -> None:
    torch.manual_seed(0)
    driven = Driven(Stream(), torch.randn(6, 5))
    past = copy.deepcopy(driven.module)
    driven.hooks.step(updates=2)
    driven.move(1)
    torch.testing.assert_close(driven.term(), twin(driven.module, past, ["up"], driven.x, COEF))


@pytest.mark.parametrize("family", POINTS)
def test_a_firing_changes_nothing_and_begins_the_term_anew(family: str) -> None:
    driven = of(family)
    before = copy.deepcopy(driven.module.state_dict())
    (receipt,) = driven.hooks.step(updates=2)
    assert receipt.sfe == 0 and receipt.optimizer_policy == "keep"
    after = driven.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert driven.term() == 0
    driven.move(1)
    assert float(driven.term().detach()) > 0  # type: ignore[union-attr]
    driven.hooks.step(updates=5)
    assert driven.term() == 0


def test_the_rows_layers_are_those_that_count() -> None:
    driven = of("mlp", layers=["0"], params={"layers": "all"})
    past = copy.deepcopy(driven.module)
    driven.hooks.step(updates=2)
    driven.move(1)
    torch.testing.assert_close(driven.term(), twin(driven.module, past, ["0"], driven.x, COEF))


def test_a_network_that_is_not_finite_is_not_remembered() -> None:
    driven = of("mlp")
    with torch.no_grad():
        driven.module.get_parameter("2.bias")[0] = torch.nan
    with pytest.raises(BadWeights, match=r"net\.2\.bias"):
        driven.hooks.step(updates=2)


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
        assert {term.network.name for term in agent.penalties.terms} == {"actor", "critic"}
        for term in agent.penalties.terms:
            was = collected[-1][term.network.name]
            assert {n.removeprefix("past/") for n in term.state} == set(was)
            assert all(torch.equal(term.state[f"past/{name}"], was[name]) for name in was)
            now = term.network.module.state_dict()
            moved.append(any(not torch.equal(now[name], was[name]) for name in was))

    row = {"method": "pfo", "every": "20 env_steps", "params": {"coef": 2.0, "batch": 7}}
    api.train(small_ppo() | {"hooks": [row]}, tmp_path / "run", observer=check)
    assert len(collected) == 6 and any(moved)
    logged = [row for row in lines(tmp_path / "run", "metrics") if "train/penalty" in row]
    assert all(row["train/penalty"] > 0 for row in logged) and logged


@pytest.mark.parametrize("kind", ["ppo", slow("dqn"), slow("sac"), slow("supervised")])
def test_killed_and_resumed_equals_through(kind: str, tmp_path: Path) -> None:
    row = {"method": "pfo", "every": "20%", "params": {"batch": 8, "layers": "all"}}
    run = small_run(kind, {}, hooks=[row], metrics={"every": None}, penalties=[])
    run |= {"checkpoint": {"every": "1 updates", "keep": 100}}
    steps = 0

    def count(loop: Any) -> None:
        nonlocal steps
        steps += 1

    api.train(run, tmp_path / "through", observer=count)
    logged = [row for row in lines(tmp_path / "through", "metrics") if "train/penalty" in row]
    assert max(row["train/penalty"] for row in logged) > 0
    with pytest.raises(Killed):
        api.train(run, tmp_path / "killed", observer=at_step(3 * steps // 5, kill))
    api.resume(tmp_path / "killed")
    assert final(tmp_path / "killed") == final(tmp_path / "through")
