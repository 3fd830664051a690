"""c_chain beside closed forms, lists kept by hand, and runs that nobody interrupted."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.edits import Assign, write
from rlplast.core.network.network import Network
from rlplast.methods import c_chain
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.gpt.runs import write_corpora
from tests.methods.feature_runs import run_of
from tests.models import Critic, assert_same, build, data

COEF = 0.7


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


class Loop:
    """A hand-written loop of steps that a test chooses, with c_chain on one fixed batch."""

    def __init__(self, module: nn.Module, x: Tensor, **params: Any) -> None:
        self.module, self.x, self.updates = module, x, 0
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        self.network = Network("net", module, self.optimizer)
        rows = [{"method": "c_chain", "params": {"coef": COEF} | params}]
        self.penalties = Penalties(rows, {"net": self.network}, probe=x)
        self.hooks = Hooks([], self.network, "1000 updates", penalties=self.penalties)

    def term(self) -> Tensor:
        found = self.penalties.of("net")
        assert found is not None
        return found

    def move(self, seed: int, size: float = 0.3) -> None:
        """Make an update that moves every weight somewhere."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.module.parameters():
                drawn = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(drawn, alpha=size)
        self.updates += 1
        self.hooks.step(updates=self.updates)

    def gradients(self) -> list[Tensor]:
        return list(torch.autograd.grad(self.term(), list(self.module.parameters())))


def linear(outputs: int = 1) -> Loop:
    torch.manual_seed(0)
    module = nn.Linear(4, outputs, bias=False).double()
    return Loop(module, torch.randn(6, 4, dtype=torch.float64))


def step_of(loop: Loop, size: float = 0.3) -> Tensor:
    """Make an update of a linear model; return what it did to the weight."""
    before = loop.module.get_parameter("weight").detach().clone()
    loop.move(loop.updates + 1, size)
    return loop.module.get_parameter("weight").detach() - before


def test_a_linear_model_has_the_closed_form() -> None:
    for outputs in (1, 3):
        loop = linear(outputs)
        assert is_zero(loop)  # before there is an update
        loop.move(1)
        assert not is_zero(loop)
        step, size = step_of(loop), 6 * outputs
        torch.testing.assert_close(loop.term(), COEF * (loop.x @ step.mT).square().sum() / size)
        [gradient] = loop.gradients()
        torch.testing.assert_close(gradient, COEF * 2 * step @ loop.x.mT @ loop.x / size)
        step_of(loop, 0.0)
        assert is_zero(loop)


@pytest.mark.parametrize("family", ["mlp", "conv_batchnorm", "residual", "tied"])
def test_the_reference_is_a_copy_made_one_update_before(family: str) -> None:
    loop = Loop(build(family), data(family)[0])
    for seed in range(3):
        loop.move(seed)
    previous = copy.deepcopy(loop.module).eval()
    loop.move(3)
    module = copy.deepcopy(loop.module).eval()
    expected = COEF * nn.functional.mse_loss(module(loop.x), previous(loop.x).detach())
    assert float(expected.detach()) > 1e-4
    torch.testing.assert_close(loop.term(), expected)
    wanted = torch.autograd.grad(expected, list(module.parameters()))
    torch.testing.assert_close(loop.gradients(), list(wanted))


def test_stacked_critics_equal_two_separate_ones() -> None:
    pair, (x, _) = build("stacked"), data("stacked")
    members = [Critic() for _ in range(2)]
    for index, member in enumerate(members):
        member.load_state_dict({n: t[index] for n, t in pair.state_dict().items()})
    loops = [Loop(module, x) for module in (pair, *members)]
    with torch.no_grad():
        for name, parameter in pair.named_parameters():
            parameter.add_(0.1 * parameter.flip(0))
            for index, member in enumerate(members):
                member.get_parameter(name).copy_(parameter[index])
    for loop in loops:
        loop.hooks.step(updates=1)
    torch.testing.assert_close(loops[0].term(), loops[1].term() + loops[2].term())
    for index, alone in enumerate(loops[1:]):
        own = [gradient[index] for gradient in loops[0].gradients()]
        torch.testing.assert_close(own, alone.gradients(), rtol=1e-5, atol=1e-7)


def is_zero(loop: Loop) -> bool:
    return float(loop.term().detach()) == 0 and not any(g.any() for g in loop.gradients())


def test_an_edit_is_not_pulled_back_and_the_entries_that_it_left_are_held() -> None:
    loop = linear()
    loop.move(1)
    step = step_of(loop)
    [block] = loop.network.blocks
    mask = torch.tensor([[True, False, False, True]])
    write([Assign(block, torch.full_like(block.view, 5.0), mask)])
    kept = step.masked_fill(mask, 0)
    torch.testing.assert_close(loop.term(), COEF * (loop.x @ kept.mT).square().mean())
    write([Assign(b, torch.randn_like(b.view)) for b in loop.network.blocks])
    assert is_zero(loop)
    loop.move(3)  # and the update after it is held again
    assert not is_zero(loop)


def test_what_hooks_do_inside_every_update_is_part_of_the_update() -> None:
    module, (x, _) = build("mlp"), data("mlp")
    loop = Loop(module, x)
    row = {"method": "swr", "every": "1 updates", "params": {"coef": 0.2, "coef_head": 0.2}}
    loop.hooks = Hooks([row], loop.network, "1000 updates", penalties=loop.penalties)
    loop.move(1)
    previous = copy.deepcopy(module)
    loop.move(2)
    expected = COEF * (module(x) - previous(x)).square().mean()
    torch.testing.assert_close(loop.term(), expected)


def test_beta_follows_the_losses_of_the_last_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_chain, "FIXED", 3)
    monkeypatch.setattr(c_chain, "WINDOW", 4)
    loop = linear()
    followed = Loop(copy.deepcopy(loop.module), loop.x, beta=0.05)
    losses: list[float] = []  # as the official code keeps them
    churns: list[float] = []
    churn = 0.0
    for update in range(9):
        loss = torch.tensor((-1.0) ** update * (1 + update), dtype=torch.float64)
        churn = float(loop.term().detach()) / COEF
        strength = COEF
        if update >= 3:
            strength = 0.05 * sum(map(abs, losses[-4:])) / len(losses[-4:])
            strength /= sum(churns[-4:]) / len(churns[-4:]) + 1e-8
        added = followed.penalties.add("net", loss).detach() - loss
        assert float(added) == pytest.approx(strength * churn, rel=1e-5)
        losses.append(float(loss))
        churns += [churn] if update > 0 else []
        for each in (loop, followed):
            each.move(update, size=0.1 * (1 + update))
    assert churn > 0


def test_a_later_arm_has_the_fixed_strength_and_asking_for_the_term_notes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c_chain, "FIXED", 0)
    loop = linear()
    followed = Loop(copy.deepcopy(loop.module), loop.x, beta=0.05)
    for each in (loop, followed):
        each.move(1)
    state = followed.penalties.terms[0].state
    before = {n: t.clone() for n, t in state.items()}
    torch.testing.assert_close(followed.term(), loop.term())
    assert all(torch.equal(t, state[n]) for n, t in before.items())
    followed.penalties.add("net", torch.ones(()))
    assert state["losses"][0].tolist().count(1.0) == 1


def test_a_hand_written_loop_resumes() -> None:

    def probe(size: int, generator: torch.Generator) -> Tensor:
        drawn.append(torch.randn(size, 5, generator=generator))
        return drawn[-1]

    def update(loop: Loop) -> None:
        loop.optimizer.zero_grad()
        loss = nn.functional.mse_loss(loop.module(x), y)
        loop.penalties.add("net", loss).backward()
        loop.optimizer.step()
        loop.updates += 1
        loop.hooks.step(updates=loop.updates)

    drawn: list[Tensor] = []
    (x, y), through = data("mlp"), Loop(build("mlp"), probe, batch=4)  # type: ignore[arg-type]
    for number in range(6):
        if number == 3:
            parts = (through.module, through.hooks, through.penalties)
            saved = copy.deepcopy([part.state_dict() for part in parts])
        update(through)
    assert len({batch.sum().item() for batch in drawn}) == 6
    resumed = Loop(build("mlp", seed=1), probe, batch=4)  # type: ignore[arg-type]
    for part, state in zip((resumed.module, resumed.hooks, resumed.penalties), saved, strict=True):
        part.load_state_dict(state)
    resumed.updates = 3
    for _ in range(3):
        update(resumed)
    assert_same(dict(through.module.state_dict()), dict(resumed.module.state_dict()))


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_of_micro_batches_the_loss_of_the_whole_update_is_noted(
    micro_batch: int | None, corpora: dict[str, str]
) -> None:
    config = run_of("gpt", corpora, "c_chain", beta=0.1) | {"micro_batch": micro_batch}
    made: Any = build_trainable(read_config(config))
    losses = []
    for _ in range(3):
        made.step()
        losses.append(made.metrics()["train/loss"])
    noted = made.penalties.terms[0].state["losses"][0, :4].tolist()
    assert noted == pytest.approx([*losses, -1.0])
