"""Episodes that a trained agent plays: their scores, and a picture of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.core.errors import ConfigError
from rlplast.core.rng import numpy_stream
from rlplast.training.files import whole

__all__ = ["interval", "play"]

_RESAMPLES = 10_000


def play(
    agent: Callable[[], Any], seed: int, episodes: int | None, video: Path | None
) -> dict[str, float]:
    """Return the scores of full episodes, as `Run.evaluate` describes them.

    Args:
        agent: returns what plays; called once the arguments have been checked.
        seed: of the interval's resamples.
        episodes: how many; default: 10.
        video: a .gif to write.

    Raises:
        ConfigError: for a number of episodes or a video that is not allowed, or if what draws the
            pictures is not installed.
    """
    episodes = 10 if episodes is None else episodes
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"--episodes {episodes!r}: allowed is at least 1")
    if video is not None:
        _check_video(video)
    frames: list[np.ndarray] = []
    try:
        played = agent().play(0, episodes, frames.append if video is not None else None)
    except ImportError as error:
        if video is None:  # not of what draws the pictures
            raise
        raise ConfigError(f"--video: {error}") from error
    scores = played.scores()
    if episodes > 1:
        low, high = interval(played.returns, numpy_stream(seed, "bootstrap"))
        scores |= {"return_low": low, "return_high": high}
    if video is not None:
        _write_gif(video, frames)
    return scores


def interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the 95% percentile-bootstrap interval of the mean."""
    picks = rng.integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(values[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)


def _check_video(path: Path) -> None:
    if path.suffix != ".gif":
        raise ConfigError(f"--video {path}: allowed is a file that ends with .gif")
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"--video {path}: allowed is a file in a folder that exists")


def _write_gif(path: Path, frames: list[np.ndarray]) -> None:
    from PIL import Image

    first, *rest = [Image.fromarray(frame) for frame in frames]
    with whole(path) as temporary:
        first.save(temporary, format="GIF", save_all=True, append_images=rest, duration=66, loop=0)
