"""Episodes that a trained agent plays: their scores, and a picture of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.core.errors import ConfigError
from rlplast.core.mean_interval import FEWEST, interval_of_mean, wilson
from rlplast.training.files import whole

__all__ = ["play"]


def play(agent: Callable[[], Any], episodes: int | None, video: Path | None) -> dict[str, float]:
    """Return the scores of full episodes, as `Run.evaluate` describes them.

    `agent` returns what plays; it is called once the other arguments have been checked.

    Raises:
        ConfigError: for a number of episodes or a video that is not allowed, or if what draws the
            pictures is not installed.
    """
    episodes = 10 if episodes is None else episodes
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"--episodes {episodes!r}: allowed is at least 1")
    if video is not None and video.suffix != ".gif":
        raise ConfigError(f"--video {video}: allowed is a file that ends with .gif")
    if video is not None and (not video.parent.is_dir() or video.is_dir()):
        raise ConfigError(f"--video {video}: allowed is a file in a folder that exists")
    frames: list[np.ndarray] = []
    try:
        played = agent().play(0, episodes, frames.append if video is not None else None)
    except ImportError as error:
        if video is None:  # not of what draws the pictures
            raise
        raise ConfigError(f"--video: {error}") from error
    scores = played.scores()
    found = interval_of_mean(played.returns.tolist())
    if found is not None:
        scores |= {"return_low": found[0], "return_high": found[1]}
    if len(played.judged()) >= FEWEST:
        low, high = wilson(scores["success_rate"], len(played.judged()))
        scores |= {"success_low": low, "success_high": high}
    if video is not None:
        from PIL import Image

        first, *rest = [Image.fromarray(frame) for frame in frames]
        options: Any = {"save_all": True, "append_images": rest, "duration": 66, "loop": 0}
        with whole(video) as temporary:
            first.save(temporary, format="GIF", **options)
    return scores
