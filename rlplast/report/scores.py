"""Scores on a scale that tasks share, so that they may be averaged.

- `Scale`: an affine scale with its name; `RAW` is none.
- `scale_of`: the scale of a task's score; `reference_id`: the task as it knows it.
- `bounds_of`: between what a score lies.

Atari: (score − random) / (human − random), with the scores of both in DQN Zoo's
`dqn_zoo/atari_data.py` (57 games; episodes of at most half an hour that begin with up to 30 no-op
actions). DeepMind Control Suite: return / 1000, the most an episode can give (Tassa et al. 2018,
arXiv:1801.00690). HumanoidBench: return over the return from which an episode is a success
(Sferrazza et al. 2024, arXiv:2403.10506). An accuracy is a share already.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ATARI", "RAW", "Scale", "bounds_of", "reference_id", "scale_of"]

_SHARES = {
    *("accuracy", "accuracy_all", "online_accuracy", "success_rate", "ece", "dormant_ratio"),
    *("active_fraction", "awake_fraction", "grama_share", "churn_argmax", "saturation", "mca"),
}


@dataclass(frozen=True)
class Scale:
    """An affine scale.

    Attributes:
        label: its name; scores of scales with one name may be averaged.
        zero: the raw score that is 0 on it.
        one: the raw score that is 1 on it.
    """

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

# Game: (random, human). Keys are names in ALE.
ATARI = {
    "alien": (227.8, 7127.7),
    "amidar": (5.8, 1719.5),
    "assault": (222.4, 742.0),
    "asterix": (210.0, 8503.3),
    "asteroids": (719.1, 47388.7),
    "atlantis": (12850.0, 29028.1),
    "bank_heist": (14.2, 753.1),
    "battle_zone": (2360.0, 37187.5),
    "beam_rider": (363.9, 16926.5),
    "berzerk": (123.7, 2630.4),
    "bowling": (23.1, 160.7),
    "boxing": (0.1, 12.1),
    "breakout": (1.7, 30.5),
    "centipede": (2090.9, 12017.0),
    "chopper_command": (811.0, 7387.8),
    "crazy_climber": (10780.5, 35829.4),
    "defender": (2874.5, 18688.9),
    "demon_attack": (152.1, 1971.0),
    "double_dunk": (-18.6, -16.4),
    "enduro": (0.0, 860.5),
    "fishing_derby": (-91.7, -38.7),
    "freeway": (0.0, 29.6),
    "frostbite": (65.2, 4334.7),
    "gopher": (257.6, 2412.5),
    "gravitar": (173.0, 3351.4),
    "hero": (1027.0, 30826.4),
    "ice_hockey": (-11.2, 0.9),
    "jamesbond": (29.0, 302.8),
    "kangaroo": (52.0, 3035.0),
    "krull": (1598.0, 2665.5),
    "kung_fu_master": (258.5, 22736.3),
    "montezuma_revenge": (0.0, 4753.3),
    "ms_pacman": (307.3, 6951.6),
    "name_this_game": (2292.3, 8049.0),
    "phoenix": (761.4, 7242.6),
    "pitfall": (-229.4, 6463.7),
    "pong": (-20.7, 14.6),
    "private_eye": (24.9, 69571.3),
    "qbert": (163.9, 13455.0),
    "riverraid": (1338.5, 17118.0),
    "road_runner": (11.5, 7845.0),
    "robotank": (2.2, 11.9),
    "seaquest": (68.4, 42054.7),
    "skiing": (-17098.1, -4336.9),
    "solaris": (1236.3, 12326.7),
    "space_invaders": (148.0, 1668.7),
    "star_gunner": (664.0, 10250.0),
    "surround": (-10.0, 6.5),
    "tennis": (-23.8, -8.3),
    "time_pilot": (3568.0, 5229.2),
    "tutankham": (11.4, 167.6),
    "up_n_down": (533.4, 11693.2),
    "venture": (0.0, 1187.5),
    "video_pinball": (16256.9, 17667.9),
    "wizard_of_wor": (563.5, 4756.5),
    "yars_revenge": (3092.9, 54576.9),
    "zaxxon": (32.5, 9173.3),
}

# Task, without the robot: the return that counts as success.
HUMANOID_BENCH = {
    "balance_hard": 800.0,
    "balance_simple": 800.0,
    "basketball": 1200.0,
    "bookshelf_hard": 2000.0,
    "bookshelf_simple": 2000.0,
    "cabinet": 2500.0,
    "crawl": 700.0,
    "cube": 370.0,
    "door": 600.0,
    "highbar_hard": 750.0,
    "highbar_simple": 750.0,
    "hurdle": 700.0,
    "insert_normal": 350.0,
    "insert_small": 350.0,
    "kitchen": 4.0,
    "maze": 1200.0,
    "package": 1500.0,
    "pole": 700.0,
    "powerlift": 800.0,
    "push": 700.0,
    "reach": 12000.0,
    "room": 400.0,
    "run": 700.0,
    "sit_hard": 750.0,
    "sit_simple": 750.0,
    "slide": 700.0,
    "spoon": 650.0,
    "stair": 700.0,
    "stand": 800.0,
    "truck": 3000.0,
    "walk": 700.0,
    "window": 650.0,
}


def bounds_of(task_id: str, score_key: str) -> tuple[float, float]:
    """Return the least and the largest value that a score or metric can have, if they are known.

    Arguments are those of `scale_of`.

    Examples:
        >>> bounds_of("", "eval/accuracy"), bounds_of("dmc/humanoid-walk", "eval/return_mean")
        ((0.0, 1.0), (0.0, 1000.0))
    """
    if not _SHARES.isdisjoint(score_key.split("/")):
        return 0.0, 1.0
    scale = scale_of(task_id, score_key)
    return (0.0, scale.one) if scale.label == "return / 1000" else (-math.inf, math.inf)


def reference_id(config: Mapping[str, Any]) -> str:
    """Return the id by which `scale_of` knows a run's task; empty for one that it should not.

    Args:
        config: of the run. Shortened episodes of a control task have lower returns than those
            that its scale was made for, so they have no id, nor has a sequence of tasks.
    """
    env = config.get("env") or {}
    name = "" if env.get("sequence") or env.get("shift") else str(env.get("id", ""))
    shortened = (env.get("options") or {}).get("max_episode_steps") is not None
    return "" if shortened and name.startswith(("dmc/", "humanoid_bench/")) else name


def scale_of(task_id: str, score_key: str) -> Scale:
    """Return the scale of a task's score, `RAW` if there is none.

    Args:
        task_id: such as ``atari/Asterix``, ``dmc/humanoid-walk`` or
            ``humanoid_bench/h1-walk-v0``.
        score_key: name of the score in metrics.jsonl; returns are those of evaluations, since
            training returns are of an exploring agent.

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
