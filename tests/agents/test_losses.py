import numpy as np
import pytest
import torch
from torch.nn import functional

from agents.losses import huber, q_of, td_target
from tests.naive.dqn import huber_twin, target_twin

B, ACTIONS = 17, 5


@pytest.fixture
def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 4, (B,), generator=generator)
    discount = torch.where(steps == 0, 0.0, torch.tensor(0.9) ** steps)
    return {
        "reward": torch.randn(B, generator=generator),
        "discount": discount,
        "q_target_next": torch.randn(B, ACTIONS, generator=generator),
        "q_online_next": torch.randn(B, ACTIONS, generator=generator),
    }


@pytest.mark.parametrize("double", [False, True])
def test_target_is_the_twins(values: dict[str, torch.Tensor], double: bool):
    if not double:
        del values["q_online_next"]
    expected = target_twin(**{name: tensor.numpy() for name, tensor in values.items()})
    np.testing.assert_allclose(td_target(**values).numpy(), expected, atol=1e-6)


def test_zero_discount_leaves_the_reward_and_one_adds_the_best_value(
    values: dict[str, torch.Tensor],
):
    reward, q_next = values["reward"], values["q_target_next"]
    assert torch.equal(td_target(reward, torch.zeros(B), q_next), reward)
    assert torch.equal(td_target(reward, torch.ones(B), q_next), reward + q_next.max(1).values)


def test_double_equals_plain_where_both_networks_agree(values: dict[str, torch.Tensor]):
    q_next = values["q_target_next"]
    plain = td_target(values["reward"], values["discount"], q_next)
    assert torch.equal(plain, td_target(values["reward"], values["discount"], q_next, q_next))


def test_double_is_never_above_plain(values: dict[str, torch.Tensor]):
    reward, discount = values["reward"], values["discount"]
    plain = td_target(reward, discount, values["q_target_next"])
    double = td_target(reward, discount, values["q_target_next"], values["q_online_next"])
    assert (double <= plain).all()
    assert (double < plain).any()


@pytest.mark.parametrize("delta", [0.1, 1.0, 3.5])
def test_huber_is_torchs_and_the_twins(delta: float):
    error = torch.linspace(-5, 5, 101, requires_grad=True)
    loss = huber(error, delta)
    expected = functional.huber_loss(error, torch.zeros(101), reduction="none", delta=delta)
    torch.testing.assert_close(loss, expected)
    np.testing.assert_allclose(loss.detach().numpy(), huber_twin(error.tolist(), delta), rtol=1e-5)
    (gradient,) = torch.autograd.grad(loss.sum(), error)
    torch.testing.assert_close(gradient, error.detach().clamp(-delta, delta))


def test_huber_and_its_gradient_are_finite_at_zero_and_far_out():
    error = torch.tensor([0.0, 1e30, -1e30], requires_grad=True)
    loss = huber(error)
    assert loss.isfinite().all()
    (gradient,) = torch.autograd.grad(loss.sum(), error)
    assert gradient.tolist() == [0, 1, -1]


def test_q_of_picks_the_taken_actions():
    q = torch.arange(12.0).reshape(4, 3)
    assert q_of(q, torch.tensor([2, 0, 1, 2])).tolist() == [2, 3, 7, 11]
