"""c_chain beside closed forms and lists kept by hand."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.method.hooks import Hooks
from rlplast.core.network.edits import Assign, write
from rlplast.methods import c_chain
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.gpt.runs import write_corpora
from tests.methods.driven import Driven, assert_close, gradients, run_of

COEF = 0.7


def loop(of: str | nn.Module, x: Tensor | None = None, **params: Any) -> Driven:
    return Driven(of, x, penalty={"method": "c_chain", "params": {"coef": COEF} | params})


def linear(outputs: int = 1, **params: Any) -> Driven:
    torch.manual_seed(0)
    module = nn.Linear(4, outputs, bias=False).double()
    return loop(module, torch.randn(6, 4, dtype=torch.float64), **params)


def step_of(made: Driven, size: float = 0.3) -> Tensor:
    before = made.module.get_parameter("weight").detach().clone()
    made.move(made.updates + 1, size).step()
    return made.module.get_parameter("weight").detach() - before


def is_zero(made: Driven) -> bool:
    found = made.gradients().values()
    return float(made.term().detach()) == 0 and not any(g is not None and g.any() for g in found)


def test_a_linear_model_has_the_closed_form() -> None:
    for outputs in (1, 3):
        made = linear(outputs)
        assert is_zero(made)  # before there is an update
        made.move(1).step()
        assert not is_zero(made)
        step, size = step_of(made), 6 * outputs
        torch.testing.assert_close(made.term(), COEF * (made.x @ step.mT).square().sum() / size)
        expected = COEF * 2 * step @ made.x.mT @ made.x / size
        torch.testing.assert_close(made.gradients()["weight"], expected)
        step_of(made, 0.0)
        assert is_zero(made)


@pytest.mark.parametrize("family", ["mlp", "conv_batchnorm", "residual", "tied", "stacked"])
def test_the_reference_is_a_copy_made_one_update_before(family: str) -> None:
    made = loop(family)
    for seed in range(3):
        made.move(seed).step()
    previous = copy.deepcopy(made.module).eval()
    made.move(3, statistics=False).step()
    module = copy.deepcopy(made.module).eval()
    members = 2 if family == "stacked" else 1
    expected = COEF * members * nn.functional.mse_loss(module(made.x), previous(made.x).detach())
    assert float(expected.detach()) > 1e-4
    torch.testing.assert_close(made.term(), expected)
    assert_close(made.gradients(), gradients(module, expected))


def test_an_edit_is_not_pulled_back_and_the_entries_that_it_left_are_held() -> None:
    made = linear()
    made.move(1).step()
    step = step_of(made)
    [block] = made.network.blocks
    mask = torch.tensor([[True, False, False, True]])
    write([Assign(block, torch.full_like(block.view, 5.0), mask)])
    kept = step.masked_fill(mask, 0)
    torch.testing.assert_close(made.term(), COEF * (made.x @ kept.mT).square().mean())
    write([Assign(block, torch.randn_like(block.view))])
    assert is_zero(made)
    made.move(3).step()  # and the update after it is held again
    assert not is_zero(made)


def test_what_hooks_do_inside_every_update_is_part_of_the_update() -> None:
    made = loop("mlp")
    row = {"method": "swr", "every": "1 updates", "params": {"coef": 0.2, "coef_head": 0.2}}
    made.hooks = Hooks([row], made.network, "1000 updates", penalties=made.penalties)
    made.move(1).step()
    previous = copy.deepcopy(made.module)
    made.move(2).step()
    expected = COEF * (made.module(made.x) - previous(made.x)).square().mean()
    torch.testing.assert_close(made.term(), expected)


def test_beta_follows_the_losses_of_the_last_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_chain, "FIXED", 3)
    monkeypatch.setattr(c_chain, "WINDOW", 4)
    made, followed = linear(), linear(beta=0.05)
    losses: list[float] = []  # as the official code keeps them
    churns: list[float] = []
    churn = 0.0
    for update in range(9):
        loss = torch.tensor((-1.0) ** update * (1 + update), dtype=torch.float64)
        churn = float(made.term().detach()) / COEF
        strength = COEF
        if update >= 3:
            strength = 0.05 * sum(map(abs, losses[-4:])) / len(losses[-4:])
            strength /= sum(churns[-4:]) / len(churns[-4:]) + 1e-8
        added = followed.penalties.add("net", loss).detach() - loss
        assert float(added) == pytest.approx(strength * churn, rel=1e-5)
        losses.append(float(loss))
        churns += [churn] if update > 0 else []
        for each in (made, followed):
            each.move(update, size=0.1 * (1 + update)).step()
    assert churn > 0


def test_a_later_arm_has_the_fixed_strength_and_asking_for_the_term_notes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c_chain, "FIXED", 0)
    made, followed = linear(), linear(beta=0.05)
    for each in (made, followed):
        each.move(1).step()
    state = followed.penalties.terms[0].states["net"]
    before = {n: t.clone() for n, t in state.items()}
    torch.testing.assert_close(followed.term(), made.term())
    assert all(torch.equal(t, state[n]) for n, t in before.items())
    followed.penalties.add("net", torch.ones(()))
    assert state["losses"][0].tolist().count(1.0) == 1


def test_of_micro_batches_the_loss_of_the_whole_update_is_noted(tmp_path: Path) -> None:
    config = run_of("gpt", write_corpora(tmp_path), "c_chain", beta=0.1) | {"micro_batch": 2}
    made: Any = build_trainable(read_config(config))
    losses = []
    for _ in range(2):
        made.step()
        losses.append(made.metrics()["train/loss"])
    noted = made.penalties.terms[0].states["gpt"]["losses"][0, :3].tolist()
    assert noted == pytest.approx([*losses, -1.0])
