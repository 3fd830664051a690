import itertools

import numpy as np
import pytest
import torch

from rlplast.agents.draws import draw_categorical, draw_gaussian
from rlplast.agents.losses import (
    categorical,
    clipped_values,
    gaussian,
    tanh_gaussian,
)

B, ACTIONS = 17, 5


def gaussians(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)

    def draw(scale: float) -> torch.Tensor:
        return (torch.randn(B, ACTIONS, generator=generator) * scale).to(dtype)

    return draw(2.0), draw(1.0) - 1, draw(1.0)


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


def test_clipped_values_are_worked_out_by_hand():
    # Before, all values were 1. Moved by 0.5 of the allowed 0.2: towards the return 2 or away.
    values = torch.tensor([1.1, 1.5, 0.5, 1.5], requires_grad=True)
    returns = torch.tensor([2.0, 2.0, 2.0, 0.0])
    loss = clipped_values(values, torch.ones(4), returns, 0.2)
    assert loss.item() == pytest.approx((0.9**2 + 0.8**2 + 1.5**2 + 1.5**2) / 4)
    (gradient,) = torch.autograd.grad(loss, values)
    np.testing.assert_allclose(gradient * 4, [-1.8, 0, -3, 3], rtol=1e-5)


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
