import itertools

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn import functional

from rlplast.agents.draws import draw_categorical, draw_gaussian
from rlplast.agents.losses import (
    categorical,
    clipped_surrogate,
    clipped_values,
    gaussian,
    huber,
    q_of,
    tanh_gaussian,
    td_target,
)
from tests.naive.dqn import huber_twin, target_twin

B, ACTIONS = 17, 5


@pytest.mark.parametrize("double", [False, True])
def test_target_is_the_twins(double: bool):
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 4, (B,), generator=generator)
    values = {
        "reward": torch.randn(B, generator=generator),
        "discount": torch.where(steps == 0, 0.0, torch.tensor(0.9) ** steps),
        "q_target_next": torch.randn(B, ACTIONS, generator=generator),
    }
    if double:
        values["q_online_next"] = torch.randn(B, ACTIONS, generator=generator)
    expected = target_twin(**{name: tensor.numpy() for name, tensor in values.items()})
    np.testing.assert_allclose(td_target(**values).numpy(), expected, atol=1e-6)
    q = torch.arange(12.0).reshape(4, 3)
    assert q_of(q, torch.tensor([2, 0, 1, 2])).tolist() == [2, 3, 7, 11]


@pytest.mark.parametrize("delta", [0.1, 1.0, 3.5])
def test_huber_is_torchs_and_the_twins(delta: float):
    error = torch.cat([torch.linspace(-5, 5, 101), torch.tensor([0, 1e30, -1e30])]).requires_grad_()
    loss = huber(error, delta)
    expected = functional.huber_loss(error, torch.zeros(104), reduction="none", delta=delta)
    torch.testing.assert_close(loss, expected)
    np.testing.assert_allclose(loss.detach().numpy(), huber_twin(error.tolist(), delta), rtol=1e-5)
    (gradient,) = torch.autograd.grad(loss.sum(), error)
    torch.testing.assert_close(gradient, error.detach().clamp(-delta, delta))


def gaussians(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)

    def draw(scale: float) -> torch.Tensor:
        return (torch.randn(B, ACTIONS, generator=generator) * scale).to(dtype)

    return draw(2.0), draw(1.0) - 1, draw(1.0)


def test_tanh_gaussian_is_torchs_transformed_normal():
    mean, log_std, noise = (t.requires_grad_() for t in gaussians())
    action, log_prob = tanh_gaussian(mean, log_std, noise)
    normal = Normal(mean, log_std.exp())
    tanh = TanhTransform(cache_size=1)  # or it would invert tanh, which loses digits
    law = TransformedDistribution(Independent(normal, 1), [tanh])
    expected = tanh(mean + log_std.exp() * noise)
    torch.testing.assert_close(action, expected)
    torch.testing.assert_close(log_prob, law.log_prob(expected))
    assert (action.shape, log_prob.shape) == ((B, ACTIONS), (B,))
    weight = torch.linspace(-1, 1, B, dtype=torch.float64)
    mine, theirs = (
        torch.autograd.grad((weight * value).sum(), [mean, log_std], retain_graph=True)
        for value in (log_prob, law.log_prob(expected))
    )
    torch.testing.assert_close(mine, theirs)


def test_tanh_gaussian_is_that_of_float64_and_finite_and_right_far_out():
    double, single = (tanh_gaussian(*gaussians(dtype)) for dtype in (torch.float64, torch.float32))
    torch.testing.assert_close(single, tuple(t.float() for t in double), atol=1e-5, rtol=1e-5)
    means = [0.0, 9.0, -9.0, 20.0, -88.0, 1e3, -1e4, 1e6]
    for mean, log_std in itertools.product(means, [-20.0, -10.0, 0.0, 2.0]):
        given = [torch.full((2, 1), x, requires_grad=True) for x in (mean, log_std)]
        noise = torch.tensor([[1.5], [-0.5]])
        action, log_prob = tanh_gaussian(*given, noise)
        assert (action.abs() <= 1).all()
        u = mean + np.exp(log_std) * noise.double().numpy()
        # log(1 - tanh² u) = -2 log cosh u, which is log 4 - 2|u| for large |u|
        log_det = -2 * (np.logaddexp(u, -u) - np.log(2))
        log_normal = -0.5 * noise.double().numpy() ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        expected = (log_normal - log_det).sum(1)
        np.testing.assert_allclose(log_prob.detach().numpy(), expected, rtol=1e-6, atol=1e-5)
        gradients = torch.autograd.grad(log_prob.sum() + action.sum(), given)
        assert all(g.isfinite().all() for g in gradients)
        if abs(mean) > 50:  # d/du of -log(1 - tanh² u) = 2 tanh u
            slope = torch.full((2, 1), 2 * np.sign(mean)).float()
            torch.testing.assert_close(gradients[0], slope)


def test_clipped_surrogate_is_worked_out_by_hand():
    # Of a good action only the ratio above 1 + ε is cut, of a bad one only that below 1 − ε.
    ratio = torch.tensor([0.5, 1.0, 1.5, 0.5, 1.0, 1.5], requires_grad=True)
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    loss = clipped_surrogate(ratio, advantage, 0.2)
    gained = [2 * 0.5, 2 * 1.0, 2 * 1.2, -2 * 0.8, -2 * 1.0, -2 * 1.5]
    assert loss.item() == pytest.approx(-sum(gained) / 6)
    (gradient,) = torch.autograd.grad(loss, ratio)
    np.testing.assert_allclose(gradient * 6, [-2, -2, 0, 0, 2, 2], atol=1e-6)


def test_clipped_values_are_worked_out_by_hand():
    # Before, all values were 1. Moved by 0.5 of the allowed 0.2: towards the return 2 or away.
    values = torch.tensor([1.1, 1.5, 0.5, 1.5], requires_grad=True)
    returns = torch.tensor([2.0, 2.0, 2.0, 0.0])
    loss = clipped_values(values, torch.ones(4), returns, 0.2)
    assert loss.item() == pytest.approx((0.9**2 + 0.8**2 + 1.5**2 + 1.5**2) / 4)
    (gradient,) = torch.autograd.grad(loss, values)
    np.testing.assert_allclose(gradient * 4, [-1.8, 0, -3, 3], rtol=1e-5)


def test_categorical_and_gaussian_are_torchs():
    mean, log_std, noise = gaussians()
    action = log_std.argmax(1)
    log_prob, entropy = categorical(mean, action)
    law = Categorical(logits=mean)
    torch.testing.assert_close(log_prob, law.log_prob(action))
    torch.testing.assert_close(entropy, law.entropy())
    shared, action = log_std[0], mean + noise
    log_prob, entropy = gaussian(mean, shared, action)
    law = Independent(Normal(mean, shared.exp()), 1)
    torch.testing.assert_close(log_prob, law.log_prob(action))
    torch.testing.assert_close(entropy.expand(B), law.entropy())


# Draws of actions.

ROWS = 40_000


def test_actions_have_the_probabilities_of_their_logits():
    logits = np.log(np.array([0.2, 0.5, 0.3, 1e-9], np.float32)) + 7  # any constant may be added
    rows = np.broadcast_to(logits, (ROWS, 4))
    actions, log_prob = draw_categorical(rows, np.random.default_rng(0))
    share = np.bincount(actions, minlength=4) / ROWS
    np.testing.assert_allclose(share, [0.2, 0.5, 0.3, 0], atol=0.01)
    expected, _ = categorical(torch.from_numpy(rows.copy()), torch.from_numpy(actions))
    np.testing.assert_allclose(log_prob, expected, atol=1e-6)
    assert log_prob.dtype == np.float32
    certain = np.array([[-200.0, 0.0, -200.0]], np.float32).repeat(100, 0)
    actions, log_prob = draw_categorical(certain, np.random.default_rng(0))
    assert (actions == 1).all() and (log_prob == 0).all()


def test_gaussian_actions_have_mean_and_deviation():
    mean = np.array([[1.0, -2.0]], np.float32).repeat(ROWS, 0)
    log_std = np.array([-1.0, 0.5], np.float32)
    actions, log_prob = draw_gaussian(mean, log_std, np.random.default_rng(0))
    np.testing.assert_allclose(actions.mean(0), mean[0], atol=0.03)
    np.testing.assert_allclose(actions.std(0), np.exp(log_std), rtol=0.02)
    tensors = (torch.from_numpy(array) for array in (mean, log_std, actions))
    expected, _ = gaussian(*tensors)
    np.testing.assert_allclose(log_prob, expected, atol=1e-5)
    assert (actions.dtype, log_prob.dtype) == (np.float32, np.float32)


def test_draws_follow_their_stream_alone():
    head = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    for draw, more in ((draw_categorical, ()), (draw_gaussian, (np.zeros(3, np.float32),))):
        one, same, other = (draw(head, *more, np.random.default_rng(s))[0] for s in (0, 0, 1))
        assert one.tolist() == same.tolist() != other.tolist()
