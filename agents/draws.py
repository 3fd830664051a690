"""Actions of stochastic policies, drawn on the host: of few observations that is faster."""

import math

import numpy as np
import numpy.typing as npt

__all__ = ["draw_categorical", "draw_gaussian"]

Floats = npt.NDArray[np.float32]


def draw_categorical(
    logits: Floats, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Draw an action for each row of logits, (batch, actions); return log-probabilities too."""
    # Of exponential variables with rates exp(logits) each is the least with its probability.
    waits = rng.standard_exponential(logits.shape, np.float32)
    with np.errstate(divide="ignore"):  # a wait of 0 comes first
        actions = (logits - np.log(waits)).argmax(1)
    highest = np.maximum.reduce(logits, axis=1)
    total = np.log(np.add.reduce(np.exp(logits - highest[:, None]), axis=1))
    return actions, logits[np.arange(len(logits)), actions] - highest - total


def draw_gaussian(mean: Floats, log_std: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw an action for each mean, (batch, action_dim), with log σ, (action_dim,).

    Returns:
        Actions, (batch, action_dim), and log-densities, (batch,).
    """
    noise = rng.standard_normal(mean.shape, np.float32)
    constant = np.add.reduce(log_std) + np.float32(0.5 * math.log(2 * math.pi) * len(log_std))
    squares = np.add.reduce(np.square(noise), axis=1)
    return mean + np.exp(log_std) * noise, np.float32(-0.5) * squares - constant
