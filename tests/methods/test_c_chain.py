"""c_chain beside closed forms, lists kept by hand, and runs that nobody interrupted."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import BadWeights, ConfigError, NothingToEdit
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.edits import Assign, write
from rlplast.core.network.network import Network
from rlplast.methods import c_chain
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.marks import slow
from tests.models import Critic, assert_same, build, data
from tests.runs import check_resumes

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


# Value and gradient.


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_linear_model_has_the_closed_form(outputs: int) -> None:
    loop = linear(outputs)
    loop.move(1)
    before = loop.module.weight.detach().clone()  # type: ignore[operator, union-attr]
    loop.move(2)
    step = loop.module.weight.detach() - before  # type: ignore[operator, union-attr]
    size = 6 * outputs
    torch.testing.assert_close(loop.term(), COEF * (loop.x @ step.mT).square().sum() / size)
    [gradient] = loop.gradients()
    torch.testing.assert_close(gradient, COEF * 2 * step @ loop.x.mT @ loop.x / size)


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


def test_nothing_before_there_is_an_update_or_where_the_last_one_moved_nothing() -> None:
    loop = linear()
    assert is_zero(loop)
    loop.move(1)
    assert not is_zero(loop)
    loop.move(2, size=0.0)
    assert is_zero(loop)


# Edits.


def test_an_edit_is_not_pulled_back() -> None:
    loop = linear()
    loop.move(1)
    loop.move(2)
    write([Assign(b, torch.randn_like(b.view)) for b in loop.network.blocks])
    assert is_zero(loop)
    loop.move(3)  # and the update after it is held again
    assert not is_zero(loop)


def test_of_an_edit_of_some_entries_the_others_are_held_as_before() -> None:
    loop = linear()
    loop.move(1)
    before = loop.module.weight.detach().clone()  # type: ignore[operator, union-attr]
    loop.move(2)
    step = loop.module.weight.detach() - before  # type: ignore[operator, union-attr]
    [block] = loop.network.blocks
    mask = torch.tensor([[True, False, False, True]])
    write([Assign(block, torch.full_like(block.view, 5.0), mask)])
    kept = step.masked_fill(mask, 0)
    torch.testing.assert_close(loop.term(), COEF * (loop.x @ kept.mT).square().mean())


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


# The strength.


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


def test_an_arm_that_begins_later_has_the_fixed_strength_until_it_knows_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c_chain, "FIXED", 0)
    loop = linear()
    followed = Loop(copy.deepcopy(loop.module), loop.x, beta=0.05)
    for each in (loop, followed):
        each.move(1)
    torch.testing.assert_close(followed.term(), loop.term())


def test_asking_for_the_term_alone_notes_nothing() -> None:
    loop = Loop(build("mlp"), data("mlp")[0], beta=0.05)
    loop.move(1)
    before = {n: t.clone() for n, t in loop.penalties.terms[0].state.items()}
    loop.term()
    after = loop.penalties.terms[0].state
    assert all(torch.equal(t, after[n]) for n, t in before.items())
    loop.penalties.add("net", torch.ones(()))
    assert after["losses"][0].tolist().count(1.0) == 1


def test_a_hand_written_loop_resumes() -> None:
    """Its batches follow from the clock that `Hooks.step` was told."""

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


# In runs.


def changed(kind: str, corpora: dict[str, str], **params: Any) -> dict[str, Any]:
    rows = [{"method": "c_chain", "params": params}] if params else []
    return small_run(kind, corpora, penalties=rows)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_of_a_run_read_other_data_and_move_no_stream(
    kind: str, corpora: dict[str, str]
) -> None:
    found, seen = [], []
    for params in ({"coef": 0.0, "batch": 3}, {}):
        made: Any = build_trainable(read_config(changed(kind, corpora, **params)))
        hooks = Hooks([], made.networks, "100 updates", penalties=made.penalties)
        made.after_update = hooks.after_update
        sample = made.batches

        def noted(*args: Any, inner: Any = sample) -> Any:
            seen.append(args)
            return inner(*args)

        made.batches = noted
        while made.clock.updates < 4:
            made.step()
        found.append([b.view.clone() for n in made.networks.values() for b in n.blocks])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    networks = 2 if kind in ("sac", "ppo") else 1
    assert len(seen) == len({number for _, _, number in seen}) == 4 * networks
    assert {(count, size) for count, size, _ in seen} == {(1, 3)}


def test_a_temperature_has_no_term(corpora: dict[str, str]) -> None:
    made = build_trainable(read_config(changed("sac", corpora, coef=1.0)))
    assert {t.network.name for t in made.penalties.terms} == {"actor", "critic"}
    with pytest.raises(NothingToEdit, match="nothing to penalise in network 'temperature'"):
        rows = [{"method": "c_chain", "networks": ["temperature"]}]
        Penalties(rows, made.networks, made)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [slow(k) if k == "sac" else k for k in KINDS])
def test_resumed_run_equals_an_uninterrupted_one(
    kind: str, corpora: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hooks that edit in between, and a strength that follows the losses."""
    monkeypatch.setattr(c_chain, "FIXED", 3)
    monkeypatch.setattr(c_chain, "WINDOW", 5)
    config = changed(kind, corpora, coef=1e-2, beta=1e-3, batch=4)
    expected = check_resumes(config | {"evaluate": {"every": None}}, tmp_path)
    logged = [row["train/penalty"] for row in expected["metrics"] if "train/penalty" in row]
    assert any(value > 0 for value in logged)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_of_micro_batches_the_loss_of_the_whole_update_is_noted(
    micro_batch: int | None, corpora: dict[str, str]
) -> None:
    config = changed("gpt", corpora, beta=0.1) | {"micro_batch": micro_batch}
    made: Any = build_trainable(read_config(config))
    losses = []
    for _ in range(3):
        made.step()
        losses.append(made.metrics()["train/loss"])
    noted = made.penalties.terms[0].state["losses"][0, :4].tolist()
    assert noted == pytest.approx([*losses, -1.0])


# What is refused.


def test_bad_rows_say_why() -> None:
    module, (x, _) = build("mlp"), data("mlp")
    network = Network("net", module)
    with pytest.raises(ConfigError, match="c_chain compares outputs, which all layers make"):
        Penalties([{"method": "c_chain", "layers": ["0"]}], {"net": network}, probe=x)
    with pytest.raises(ConfigError, match=r"\(c_chain\) reads batches: pass probe= to rlplast"):
        Penalties([{"method": "c_chain"}], {"net": network})
    with pytest.raises(BadWeights, match=r"net\.0\.weight is torch.bfloat16"):
        low = Network("net", build("mlp").bfloat16())
        Penalties([{"method": "c_chain"}], {"net": low}, probe=x)
