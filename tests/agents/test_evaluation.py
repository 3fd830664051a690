from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.evaluation import Evaluation, evaluate_policy
from rlplast.agents.sequence import EnvConfig
from rlplast.agents.tasks import Tasks
from rlplast.core.rng import numpy_stream
from tests.agents import toy_control, toy_env

GAMMA = 0.9
KEYS = ("overestimation", "overestimation_normalized")


def generator(i: int) -> np.random.Generator:
    return numpy_stream(0, "evaluation", 5, i)


def lean(obs: np.ndarray) -> np.ndarray:
    """Push the cart towards where the pole falls: 30 to 60 steps, each of which pays 1."""
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


def cart_pole(num_envs: int, episodes: int, limit: int | None = None, **keys: Any) -> Evaluation:
    options = {"max_episode_steps": limit} if limit else {}
    make = partial(Tasks(EnvConfig("gym/CartPole-v1", options=options), seed=0).make, 0)
    return evaluate_policy(make, num_envs, lean, episodes, generator, **keys)


def test_each_environment_plays_its_own_share() -> None:
    for num_envs, episodes, quota in ((1, 3, [3]), (3, 7, [3, 2, 2]), (4, 2, [1, 1])):
        played = cart_pole(num_envs, episodes)
        expected = [r for i, share in enumerate(quota) for r in played_alone(i, share)]
        assert played.returns.tolist() == played.lengths.tolist() == expected


@pytest.mark.parametrize(("num_envs", "steps"), [(1, 400), (3, 301), (3, 1)])
def test_within_so_many_steps_every_episode_that_ends_counts(num_envs: int, steps: int) -> None:
    played = cart_pole(num_envs, 10, steps=steps)
    alone = [played_alone(i, 20) for i in range(num_envs)]
    ends = [np.cumsum(returns).tolist() for returns in alone]
    each = max(-(-steps // num_envs), min(own[0] for own in ends))  # of an environment
    rows = (zip(own, at, strict=True) for own, at in zip(alone, ends, strict=True))
    expected = [r for pairs in rows for r, end in pairs if end <= each]
    assert played.returns.tolist() == expected
    assert (len(expected) > num_envs) == (steps > 300)


def test_scores_are_those_of_all_episodes_whose_returns_are_not_clipped() -> None:
    scores = Evaluation(np.array([1.0, 2.0, 6.0]), np.array([10, 20, 60])).scores()
    assert scores == {
        "return_mean": 3.0,
        "return_median": 2.0,
        "return_std": pytest.approx(np.std([1, 2, 6], ddof=1)),
        "length_mean": 30.0,
        "episodes": 3.0,
    }
    assert Evaluation(np.array([4.0]), np.array([1])).scores()["return_std"] == 0.0
    make = Tasks(EnvConfig("atari/Asterix", options={"max_episode_steps": 300}), seed=0).make
    rng = np.random.default_rng(0)
    played = evaluate_policy(partial(make, 0), 1, lambda obs: rng.integers(9, size=1), 2, generator)
    assert played.returns.max() >= 50  # every item of Asterix pays 50 or more
    assert played.lengths.max() <= 300


@pytest.mark.parametrize("make", [toy_env.dqn, toy_control.sac, toy_env.ppo])
def test_looking_leaves_training_bit_identical(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if make is not toy_env.dqn:
        toy_control.use_slide(monkeypatch)
    options = {"env": "minatar/breakout"} if make is toy_env.dqn else {"normalize_obs": True}
    plain, watched = (make(2, **options) for _ in range(2))
    watched.config.evaluate.overestimation = make in (toy_env.dqn, toy_control.sac)
    for i in range(36):
        plain.step()
        watched.step()
        toy_env.look_at(watched, i)
    assert plain.clock.updates > 10
    assert toy_env.same(toy_env.everything(plain), toy_env.everything(watched))


# Overestimation.


def naive_value(agent: Any, obs: np.ndarray, action: Any) -> float:
    """Q of one observation and action; of the best action for None."""
    with torch.no_grad():
        values = agent.online(torch.from_numpy(obs[None]))[0]
    return float(values.max() if action is None else values[int(action)])


def test_overestimation_is_that_of_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = envs.EnvSpec("toy/wheel", (3,), "float32", 2, 3, 2, toy_env.ROUND)  # two frames
    toy_env.use_toy(monkeypatch, spec, toy_env.Wheel)
    agent = toy_env.advanced(toy_env.dqn(2, clip_rewards=True, epsilon_eval=0.4), 20)
    plain = agent.play(0, 9).scores()
    agent.config.evaluate.overestimation = True
    seen: list[tuple[np.ndarray, np.ndarray, Any]] = []
    act, step = agent._act_in_evaluation, envs.VectorEnv.step
    shown: list[np.ndarray] = []

    def noting_act(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        shown.append(obs.copy())
        return act(obs, rng)

    def noting_step(self: Any, actions: np.ndarray) -> Any:
        done = step(self, actions)
        seen.append((shown[-1], actions.copy(), done))
        return done

    monkeypatch.setattr(agent, "_act_in_evaluation", noting_act)
    monkeypatch.setattr(envs.VectorEnv, "step", noting_step)
    scores = agent.play(0, 9).scores()
    assert {k: v for k, v in scores.items() if k not in KEYS} == plain

    gamma = agent.config.agent.gamma
    errors, returns, shares = [], [], []
    for i, quota in enumerate((5, 4)):
        done = [t for t, (_, _, s) in enumerate(seen) if s.terminated[i] or s.truncated[i]]
        first = 0
        for end in done[:quota]:
            last = seen[end][2]
            final = np.stack([seen[end][0][i][1], last.obs_final[i]])
            tail = naive_value(agent, final, None) if last.truncated[i] else None
            for t in range(first, end + 1):
                paid = [float(np.sign(s.reward[i])) for _, _, s in seen[t : end + 1]]
                total = sum(gamma**k * r for k, r in enumerate(paid))
                total += 0.0 if tail is None else gamma ** len(paid) * tail
                obs, action, _ = seen[t]
                errors.append(naive_value(agent, obs[i], action[i]) - total)
                returns.append(total)
                shares.append(1.0 if tail is None else 1 - gamma ** len(paid))
            first = end + 1
    assert 0 < np.mean(np.array(shares) == 1) < 1  # some terminate, some are cut
    assert scores[KEYS[0]] == pytest.approx(sum(errors) / sum(shares), rel=1e-4)
    size = abs(np.dot(returns, shares))
    assert scores[KEYS[1]] == pytest.approx(sum(errors) / size, rel=1e-4)
