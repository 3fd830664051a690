import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.dqn import DQN
from rlplast.agents.replay import Batch
from rlplast.core.rng import numpy_stream
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents.toy_control import recorded
from tests.agents.toy_env import ROUND, SPEC, Wheel, dqn, use_toy
from tests.naive.dqn import HandWrittenUpdate, epsilon_twin, syncs_twin


@pytest.mark.parametrize(
    "options",
    [
        {"init": "torch", "double": True, "n_step": 2},
        {"n_step": 3, "huber_delta": 0.1, "clip_norm": 0.05, "gamma": 0.5},
        {"init": "orthogonal", "hidden": [32, 16], "activation": "tanh", "tau": 0.3},
        {"output": "softmax", "target_every": 1, "tau": 0.01},
    ],
)
def test_updates_are_hand_written_ones(
    options: dict[str, Any], wheel: None, monkeypatch: pytest.MonkeyPatch
):
    agent = dqn(num_envs=3, **options)
    twin = HandWrittenUpdate(agent.config, dict(agent.online.named_parameters()))
    batches: list[Batch] = []
    drawn, losses, syncs = agent._drawn, [], 0

    def kept(count: int) -> Iterator[Batch]:
        for batch in drawn(count):
            batches.append(Batch(*(tensor.clone() for tensor in batch)))
            yield batch

    monkeypatch.setattr(agent, "_drawn", kept)
    while agent.clock.updates < 60:
        agent.step()
        if batches:
            losses.append(twin.update(batches.pop()))
        while syncs < syncs_twin(agent.clock.env_steps, agent.config.agent.target_every):
            syncs += 1
            twin.sync()
    mine = [*agent.online.parameters(), *agent.target.parameters()]
    for own, theirs in zip(mine, twin.weights(), strict=True):
        torch.testing.assert_close(own, theirs, atol=2e-6, rtol=1e-5)
    assert agent.metrics()["train/loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert syncs > 3


@pytest.mark.parametrize(
    "options", [{}, {"epsilon_decay": 1.0, "epsilon_end": 0.2}, {"epsilon_decay": 0.0}]
)
def test_epsilon_is_a_straight_line_after_the_initial_steps(
    options: dict[str, Any], wheel: None, monkeypatch: pytest.MonkeyPatch
):
    agent = dqn(num_envs=4, total="200 env_steps", **options)
    monkeypatch.setattr(agent, "update", lambda count=1: setattr(agent.experience, "credit", 0.0))
    while agent.clock.env_steps < 200:
        expected = epsilon_twin(agent.clock.env_steps, 200, agent.config.agent)
        assert agent.epsilon() == pytest.approx(expected, abs=1e-12)
        agent.step()
    agent.config.total, agent.config.percentages_of = "900 env_steps", "200 env_steps"
    assert agent.config.env_steps_total() == 200  # so a longer run does not move it


def always_action_zero(agent: DQN):
    with torch.no_grad():
        for parameter in agent.online.parameters():
            parameter.zero_()
        agent.online.head.bias[0] = 1


def test_first_steps_are_random_whatever_epsilon(wheel: None):
    options = {"epsilon_start": 0.3, "epsilon_end": 0.0, "epsilon_decay": 0.0}
    agent = dqn(2, initial_steps=300, replay_ratio=0.001, exploration="shared", **options)
    always_action_zero(agent)
    rates = []
    with recorded(agent) as seen:
        while agent.clock.env_steps < 400:
            rates.append(agent.metrics()["train/epsilon"])
            agent.step()
    assert rates == [1.0] * 150 + [0.0] * 50
    actions = np.array([played for _, played, _ in seen])
    assert np.bincount(actions[:150].ravel(), minlength=3).min() > 70  # of 300
    assert not actions[150:].any()


@pytest.mark.parametrize(
    ("exploration", "evaluating"), [("each", False), ("shared", False), ("shared", True)]
)
def test_environments_explore_alone_or_together(exploration: str, evaluating: bool, wheel: None):
    agent = dqn(num_envs=4, exploration=exploration, epsilon_eval=0.5)
    always_action_zero(agent)
    mine, twin = numpy_stream(0, "a"), numpy_stream(0, "a")
    obs, rows, apart = agent.experience.stack.obs(), [], 0
    for epsilon in [0.5] * 300 + [0.0, 1.0, 0.5] * (not evaluating):  # draws depend on none
        draws = twin.random(4) if exploration == "each" else twin.random()
        explore, random = draws < epsilon, twin.integers(3, size=4)
        if evaluating:
            actions = agent._act_in_evaluation(obs, mine)
        else:
            actions = agent._act(obs, epsilon, mine)
        assert actions.tolist() == np.where(explore, random, 0).tolist()
        rows.append(explore)
        apart += len(set(actions.tolist())) > 1
    assert np.mean(rows) == pytest.approx(0.5, abs=0.1)
    assert apart > 0.4 * 300 if exploration == "shared" else apart > 0.6 * 300


@pytest.mark.parametrize(
    ("env", "clip", "learnt"),
    [
        ("gym/CartPole-v1", True, {1.0, -1.0}),
        ("gym/CartPole-v1", None, {5.0, -30.0, 0.5}),
        ("atari/Pong", None, {1.0, -1.0}),
    ],
)
def test_only_the_agent_sees_clipped_rewards(
    env: str, clip: bool | None, learnt: set[float], monkeypatch: pytest.MonkeyPatch
):
    spec = dataclasses.replace(SPEC, clip_rewards=envs.spec(env).clip_rewards)
    use_toy(monkeypatch, spec, Wheel, terminates=False)
    agent = dqn(2, env=env, clip_rewards=clip, replay_ratio=0.05, batch_size=256)
    with recorded(agent) as seen:
        while agent.clock.env_steps < 20 * ROUND:
            agent.step()
    assert set(agent.experience.replay.sample().reward.tolist()) == learnt
    true = np.array([step.reward for *_, step in seen])
    whole = true[: 10 * ROUND].reshape(10, ROUND, 2).sum(1).ravel().tolist()
    assert agent.experience.returns == whole
    assert agent.metrics()["train/return"] == pytest.approx(np.mean(whole))
    scores = agent.evaluate(0, 5)
    assert set(np.unique(agent.play(1, 30).returns * 2 % 1)) == {0.0}
    assert (scores["length_mean"], scores["episodes"]) == (ROUND, 5)
    agent.config.evaluate.steps = 6 * ROUND * agent.config.env.num_envs
    assert agent.evaluate(0, 5)["episodes"] == 6 * agent.config.env.num_envs
    frames: list[np.ndarray] = []
    agent.config.evaluate.steps = None
    agent.play(0, 3, frames.append)  # two episodes for the first environment, one for the second
    assert len(frames) == 2 * ROUND


@pytest.mark.parametrize("repeat_first", [False, True])
def test_replay_stacks_what_acting_saw(repeat_first: bool, monkeypatch: pytest.MonkeyPatch):
    spec = dataclasses.replace(SPEC, frame_stack=4, repeat_first=repeat_first, obs_scale=0.5)
    use_toy(monkeypatch, spec, Wheel)
    agent = dqn(num_envs=2, network="mlp", initial_steps=100, batch_size=300)
    assert agent.online.obs_scale == agent.target.obs_scale == 0.5
    seen = set()
    for _ in range(40):
        seen |= {obs.tobytes() for obs in agent.experience.obs()}
        agent.step()
    stacks = agent.sample(300, 0).obs.numpy()
    assert {stack.tobytes() for stack in stacks} <= seen
    padded = [stack for stack in stacks if (stack[1] == stack[0]).all()]
    assert padded
    assert all(stack[0].any() == repeat_first for stack in padded)


@pytest.mark.slow
def test_an_agent_learns_cartpole():
    keys = {
        "seed": 1,
        "total": "5k env_steps",
        "env": {"id": "gym/CartPole-v1", "num_envs": 4},
        "agent.network": "mlp",
        "optimizer.lr": 1e-3,
        "agent.initial_steps": 500,
        "agent.target_every": 200,
    }
    agent: Any = build_trainable(read_config("dqn/minatar_breakout", keys))
    while agent.clock.env_steps < 5000 or agent.owes():
        agent.step()
    assert agent.play(0, 10).returns.mean() >= 100  # random play: about 22
