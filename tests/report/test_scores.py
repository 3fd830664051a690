"""Scores on common scales, against the environments and published numbers."""

import math

import pytest

from rlplast.envs.atari import MINIMAL_ACTIONS
from rlplast.envs.dmc import FAMILY as DMC
from rlplast.envs.humanoid_bench import FAMILY as HUMANOID
from rlplast.report.scores import ATARI, RAW, bounds_of, reference_id, scale_of

RETURN = "eval/return_mean"


@pytest.mark.parametrize(
    ("task_id", "key", "score", "scaled", "label"),
    [
        ("atari/Asterix", RETURN, 8503.3, 1.0, "human-normalised"),
        ("atari/Asterix", RETURN, 210.0, 0.0, "human-normalised"),
        ("dmc/humanoid-walk", RETURN, 500.0, 0.5, "return / 1000"),
        ("", "eval/accuracy", 0.5, 0.5, "accuracy"),
        ("minatar/breakout", RETURN, 123.0, 123.0, "raw"),
        ("atari/Combat", RETURN, 123.0, 123.0, "raw"),
        ("atari/Asterix", "train/return", 123.0, 123.0, "raw"),
        ("atari/Asterix", "eval/loss", 123.0, 123.0, "raw"),
    ],
)
def test_scores_on_the_scale_of_their_task(task_id: str, key: str, score: float, scaled, label):
    scale = scale_of(task_id, key)
    assert (scale.of(score), scale.label) == (scaled, label)
    assert scale.length(3.0) == pytest.approx(scale.of(5.0) - scale.of(2.0))


def test_atari_scores_are_about_those_of_the_paper():
    """DQN's Breakout and Q*bert: 1327% and 78% in Mnih et al. 2015, table 2.

    Their humans and random players were others, measured anew since.
    """
    assert scale_of("atari/Breakout", RETURN).of(401.2) == pytest.approx(13.27, rel=0.06)
    assert scale_of("atari/Qbert", RETURN).of(10596.0) == pytest.approx(0.78, rel=0.06)


def test_all_57_games_are_games_of_the_emulator():
    assert len(ATARI) == 57
    assert ATARI.keys() <= MINIMAL_ACTIONS.keys()
    assert all(random != human for random, human in ATARI.values())
    for game in ("UpNDown", "Jamesbond", "MsPacman", "up_n_down", "Riverraid"):  # as Gymnasium does
        assert scale_of(f"atari/{game}", RETURN).label == "human-normalised"


def test_humanoid_bench_is_scaled_by_its_own_bars():
    for env_id in HUMANOID.ids:
        options = {name: option.default for name, option in HUMANOID.options(env_id).items()}
        bar = HUMANOID.spec(env_id, options).success_return
        scale = scale_of(env_id, RETURN)
        assert (scale.of(bar), scale.label) == (1.0, "return / success bar"), env_id


def test_control_tasks_with_bounded_rewards_have_a_scale():
    for env_id in DMC.ids:
        bounded = not env_id.startswith("dmc/lqr")  # its rewards are negative costs
        assert (scale_of(env_id, RETURN) != RAW) == bounded, env_id


def test_shortened_episodes_of_control_tasks_have_no_scale():
    short = {"max_episode_steps": 100}
    assert reference_id({"env": {"id": "dmc/humanoid-walk", "options": short}}) == ""
    assert reference_id({"env": {"id": "dmc/humanoid-walk"}}) == "dmc/humanoid-walk"
    assert reference_id({"env": {"id": "atari/Asterix", "options": short}}) == "atari/Asterix"
    assert reference_id({"data": {"name": "digits"}}) == ""


def test_what_scores_can_be():
    assert bounds_of("", "eval/accuracy") == bounds_of("", "metric/dormant_ratio/q") == (0, 1)
    assert bounds_of("dmc/humanoid-walk", RETURN) == (0, 1000)
    assert bounds_of("toy/switching_frozen_lake", "train/return") == (0, 1)
    for task_id, key in (("atari/Asterix", RETURN), ("dmc/humanoid-walk", "eval/loss")):
        assert bounds_of(task_id, key) == (-math.inf, math.inf)
