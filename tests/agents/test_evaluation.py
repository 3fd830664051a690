from functools import partial

import numpy as np
import pytest

from rlplast import envs
from rlplast.agents.evaluation import Evaluation, evaluate_policy
from rlplast.agents.sequence import EnvConfig
from rlplast.agents.tasks import Tasks
from rlplast.core.rng import numpy_stream

SHORT = {"max_episode_steps": 30}


def generator(i: int) -> np.random.Generator:
    return numpy_stream(0, "evaluation", 5, i)


def lean(obs: np.ndarray) -> np.ndarray:
    """Push the cart towards where the pole falls; plays longer from some starts than others."""
    return (obs[:, 2] > 0).astype(np.int64)


def played_alone(i: int, episodes: int) -> list[float]:
    env = envs.make("gym/CartPole-v1", generator(i))
    returns = []
    for _ in range(episodes):
        obs, total, ended = env.reset(), 0.0, False
        while not ended:
            obs, reward, terminated, truncated = env.step(int(lean(obs[None])[0]))
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    env.close()
    return returns


@pytest.mark.parametrize(
    ("num_envs", "episodes", "quota"),
    [(1, 3, [3]), (3, 7, [3, 2, 2]), (4, 2, [1, 1]), (2, 2, [1, 1])],
)
def test_each_environment_plays_its_own_share(
    num_envs: int, episodes: int, quota: list[int]
) -> None:
    make = Tasks(EnvConfig("gym/CartPole-v1"), seed=0).make
    played = evaluate_policy(partial(make, 0), num_envs, lean, episodes, generator)
    expected = [r for i, share in enumerate(quota) for r in played_alone(i, share)]
    assert played.returns.tolist() == expected
    assert played.lengths.tolist() == expected  # CartPole pays 1 a step


@pytest.mark.parametrize(("num_envs", "steps"), [(1, 400), (3, 301), (3, 1)])
def test_within_so_many_steps_every_episode_that_ends_counts(num_envs: int, steps: int) -> None:
    make = Tasks(EnvConfig("gym/CartPole-v1"), seed=0).make
    played = evaluate_policy(partial(make, 0), num_envs, lean, 10, generator, steps=steps)
    alone = [played_alone(i, 20) for i in range(num_envs)]
    ends = [[int(sum(r[: k + 1])) for k in range(len(r))] for r in alone]  # one step pays 1
    each = max(-(-steps // num_envs), min(own[0] for own in ends))  # of an environment
    expected = [
        r
        for own, at in zip(alone, ends, strict=True)
        for r, e in zip(own, at, strict=True)
        if e <= each
    ]
    assert played.returns.tolist() == expected
    assert (len(expected) > num_envs) == (steps > 300)


def test_scores_are_those_of_all_episodes() -> None:
    scores = Evaluation(np.array([1.0, 2.0, 6.0]), np.array([10, 20, 60])).scores()
    assert scores == {
        "return_mean": 3.0,
        "return_median": 2.0,
        "return_std": pytest.approx(np.std([1, 2, 6], ddof=1)),
        "length_mean": 30.0,
        "episodes": 3.0,
    }
    assert Evaluation(np.array([4.0]), np.array([1])).scores()["return_std"] == 0.0


def test_returns_are_not_clipped() -> None:
    make = Tasks(EnvConfig("atari/Asterix", options={"max_episode_steps": 300}), seed=0).make
    rng = np.random.default_rng(0)
    played = evaluate_policy(partial(make, 0), 1, lambda obs: rng.integers(9, size=1), 2, generator)
    assert played.returns.max() >= 50  # every item of Asterix pays 50 or more
    assert played.lengths.max() <= 300
