import numpy as np
import torch

from rlplast.agents.draws import draw_categorical, draw_gaussian
from rlplast.agents.losses import categorical, gaussian

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
