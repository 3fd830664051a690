"""Scores on a scale that tasks share, so that they may be averaged.

Atari: (score − random) / (human − random), with the scores of both in DQN Zoo's
`dqn_zoo/atari_data.py` (57 games; episodes of at most half an hour that begin with up to 30 no-op
actions). DeepMind Control Suite: return / 1000, the most an episode can give (Tassa et al. 2018,
arXiv:1801.00690). HumanoidBench: return over the return from which an episode is a success
(Sferrazza et al. 2024, arXiv:2403.10506). An accuracy is a share already.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ATARI", "RAW", "Scale", "bounds_of", "reference_id", "scale_of"]

_SHARES = {
    *("accuracy", "accuracy_all", "online_accuracy", "success_rate", "ece", "dormant_ratio"),
    *("active_fraction", "awake_fraction", "grama_share", "churn_argmax", "saturation", "mca"),
}
_LAKE = "toy/switching_frozen_lake"  # an episode pays 1 or nothing


@dataclass(frozen=True)
class Scale:
    """An affine scale, by the raw scores that are 0 and 1 on it; one label may be averaged."""

    label: str
    zero: float = 0.0
    one: float = 1.0

    def of(self, value: float) -> float:
        """Return a raw score on this scale."""
        return (value - self.zero) / (self.one - self.zero)

    def length(self, difference: float) -> float:
        """Return a difference of two raw scores on this scale."""
        return difference / (self.one - self.zero)


RAW = Scale("raw")

_REFERENCES = json.loads((Path(__file__).parent / "scores.json").read_text())
ATARI = _REFERENCES["atari, random and human"]  # game, a name in ALE → scores
# Task, without the robot → the return that counts as success.
HUMANOID_BENCH = _REFERENCES["humanoid_bench, the return that is a success"]


def bounds_of(task_id: str, score_key: str) -> tuple[float, float]:
    """Return the least and largest value of a score or metric, if known; arguments as `scale_of`'s.

    Examples:
        >>> bounds_of("", "eval/accuracy"), bounds_of("dmc/humanoid-walk", "eval/return_mean")
        ((0.0, 1.0), (0.0, 1000.0))
    """
    returns = score_key in ("train/return", "eval/return_mean")
    if not _SHARES.isdisjoint(score_key.split("/")) or (returns and task_id == _LAKE):
        return 0.0, 1.0
    scale = scale_of(task_id, score_key)
    return (0.0, scale.one) if scale.label == "return / 1000" else (-math.inf, math.inf)


def reference_id(config: Mapping[str, Any]) -> str:
    """Return the id by which `scale_of` knows a run's task, from its config; empty for none.

    Shortened episodes of a control task, and sequences of tasks, have none.
    """
    env = config.get("env") or {}
    name = "" if env.get("sequence") or env.get("shift") else str(env.get("id", ""))
    shortened = (env.get("options") or {}).get("max_episode_steps") is not None
    return "" if shortened and name.startswith(("dmc/", "humanoid_bench/")) else name


def scale_of(task_id: str, score_key: str) -> Scale:
    """Return the scale of a task's score, `RAW` if there is none.

    Args:
        task_id: such as ``atari/Asterix``, ``dmc/humanoid-walk`` or ``humanoid_bench/h1-walk-v0``.
        score_key: name in metrics.jsonl; of returns only those of evaluations have a scale.

    Examples:
        >>> scale_of("dmc/humanoid-walk", "eval/return_mean").of(250.0)
        0.25
    """
    if score_key in ("eval/accuracy", "eval/accuracy_all", "eval/online_accuracy"):
        return Scale("accuracy")
    family, _, name = task_id.partition("/")
    if score_key != "eval/return_mean" or not name:
        return RAW
    if family == "atari":
        games = {game.replace("_", ""): ends for game, ends in ATARI.items()}
        ends = games.get(name.lower().replace("_", ""))
        return Scale("human-normalised", *ends) if ends is not None else RAW
    if family == "humanoid_bench":
        bar = HUMANOID_BENCH.get(name.partition("-")[2].removesuffix("-v0"))
        return Scale("return / success bar", 0.0, bar) if bar is not None else RAW
    bounded = family == "dmc" and not name.startswith("lqr")  # whose rewards have no lower bound
    return Scale("return / 1000", 0.0, 1000.0) if bounded else RAW
