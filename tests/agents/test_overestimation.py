from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.evaluation import Evaluation, evaluate_policy
from rlplast.agents.overestimation import Values
from rlplast.agents.sequence import EnvConfig
from rlplast.agents.tasks import Tasks
from rlplast.run import api
from tests.agents import toy_control, toy_env
from tests.every_kind import small_run
from tests.marks import slow
from tests.runs import final, lines

GAMMA = 0.9
KEYS = ("overestimation", "overestimation_normalized")


def generator(i: int) -> np.random.Generator:
    return np.random.default_rng([7, i])


def cart_pole(q: Any, episodes: int, gamma: float = GAMMA, **options: Any) -> Evaluation:
    """An evaluation of CartPole, which pays 1 a step, with a policy that lasts 30 to 60 steps."""
    make = partial(Tasks(EnvConfig("gym/CartPole-v1", options=options), seed=0).make, 0)
    values = Values(q, gamma, clip_rewards=False)

    def lean(obs: np.ndarray) -> np.ndarray:
        return (obs[:, 2] > 0).astype(np.int64)

    return evaluate_policy(make, 2, lean, episodes, generator, values=values)


def always(value: float) -> Any:
    return lambda obs, actions: np.full(len(obs), value)


@pytest.mark.parametrize("limit", [1, 25])
def test_where_a_limit_cuts_an_error_of_all_values_is_found_in_full(limit: int) -> None:
    # 1 a step for ever is worth 1/(1 − γ), and no state says otherwise: nothing terminates.
    for error in (0.0, 2.5, -1.0):
        played = cart_pole(always(1 / (1 - GAMMA) + error), 3, max_episode_steps=limit)
        assert played.lengths.tolist() == [limit] * 3
        assert played.scores()["overestimation"] == pytest.approx(error, abs=1e-6)
    assert cart_pole(always(1.0), 2, gamma=1.0, max_episode_steps=limit).values == {}


def test_episodes_that_terminate_are_compared_with_what_was_paid_until_then() -> None:
    played = cart_pole(always(4.0), 5)
    owed = [(1 - GAMMA**left) / (1 - GAMMA) for n in played.lengths for left in range(1, n + 1)]
    assert len(set(played.lengths.tolist())) > 1
    scores = played.scores()
    assert scores["overestimation"] == pytest.approx(4 - np.mean(owed))
    expected = (4 - np.mean(owed)) / np.mean(owed)
    assert scores["overestimation_normalized"] == pytest.approx(expected)


def naive_value(kind: str, agent: Any, obs: np.ndarray, action: Any) -> float:
    """Q of one observation and action; of the best action for None."""
    x = torch.from_numpy(obs[None])
    with torch.no_grad():
        if kind == "dqn":
            values = agent.online(x)[0]
            return float(values.max() if action is None else values[int(action)])
        x = (x - agent.statistics.mean) * agent.statistics.inv_std
        best = agent.actor(x.float())[0].tanh()
        a = best if action is None else torch.from_numpy(action[None])
        return float(agent.critic(x.float(), a)[:, 0].mean())


@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_agents_are_measured_as_the_slow_twin_does(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "sac":
        toy_control.use_slide(monkeypatch)
        agent: Any = toy_control.trained(20, num_envs=2)
    else:
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
            final = last.obs_final[i]
            if kind == "dqn":
                final = np.stack([seen[end][0][i][1], final])
            tail = naive_value(kind, agent, final, None) if last.truncated[i] else None
            for t in range(first, end + 1):
                paid = [float(s.reward[i]) for _, _, s in seen[t : end + 1]]
                paid = [float(np.sign(r)) for r in paid] if kind == "dqn" else paid
                total = sum(gamma**k * r for k, r in enumerate(paid))
                total += 0.0 if tail is None else gamma ** len(paid) * tail
                obs, action, _ = seen[t]
                errors.append(naive_value(kind, agent, obs[i], action[i]) - total)
                returns.append(total)
                shares.append(1.0 if tail is None else 1 - gamma ** len(paid))
            first = end + 1
    assert 0 < np.mean(np.array(shares) == 1) < 1  # some terminate, some are cut
    assert scores[KEYS[0]] == pytest.approx(sum(errors) / sum(shares), rel=1e-4)
    size = abs(np.dot(returns, shares))
    assert scores[KEYS[1]] == pytest.approx(sum(errors) / size, rel=1e-4)


@pytest.mark.parametrize("kind", ["dqn", slow("sac")])
def test_measuring_adds_two_keys_and_changes_nothing_else(kind: str, tmp_path: Path) -> None:
    config = small_run(kind, {})
    found = []
    for on in (False, True):
        folder = tmp_path / str(on)
        api.train(config | {"evaluate": config["evaluate"] | {"overestimation": on}}, folder)
        found.append(final(folder))
    plain, measured = found
    names = [f"eval/{key}" for key in KEYS]
    evaluations = [row for row in lines(tmp_path / "True", "metrics") if "eval/episodes" in row]
    assert evaluations
    assert all(np.isfinite(row[names[0]]) for row in evaluations)  # the other not at returns of 0
    for row in measured["metrics"]:
        for name in names:
            row.pop(name, None)
    assert plain == measured
