"""The benchmarks' sides do the same work, and each benchmark runs."""

from typing import Any

import pytest
import torch

from benchmarks import agents, fire, replay, trainers
from benchmarks.__main__ import BENCHES
from benchmarks.agents import CARTPOLE, Task
from rlplast.run import timing
from rlplast.run.config_file import read_config
from tests.agents.toy_env import trace_alone
from tests.marks import slow

SMALL = {"device": "cpu", "agent.batch_size": 8, "agent.buffer_size": 500}
DQN = SMALL | {"env.num_envs": 2, "agent.network": "mlp_small", "replay_ratio": 0.1}
SAC = SMALL | {"agent.actor_width": 8, "agent.critic_width": 8, "agent.initial_steps": 20}
PPO = {"device": "cpu", "agent.rollout_steps": 8, "agent.batch_size": 16, "agent.epochs": 2}


@pytest.mark.parametrize(
    ("source", "keys"),
    [("dqn/demo", CARTPOLE | DQN), ("sac/pendulum", SAC), ("ppo/cartpole", PPO)],
)
def test_theirs_have_our_sizes_batches_ratio_rollouts_and_epochs(
    source: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from benchmarks.peers import peer

    made = []
    logged = sb3.common.base_class.BaseAlgorithm.set_logger
    remember = lambda model, logger: made.append(model) or logged(model, logger)  # noqa: E731
    monkeypatch.setattr(sb3.common.base_class.BaseAlgorithm, "set_logger", remember)
    off_policy = {} if keys is PPO else {"agent.initial_steps": 20}
    config: Any = read_config(source, keys | off_policy)
    agent, _ = timing.ready(config, "off")
    run = peer("stable_baselines3", config, agent)
    (model,) = made
    model._n_updates = 0
    before, n = model.num_timesteps, config.env.num_envs
    networks = {name: network.module for name, network in agent.networks.items()}
    for _ in range(5):
        run(2)
    done = model.num_timesteps - before
    if config.kind == "ppo":
        assert done == 10 * config.transitions
        assert model.n_epochs * config.transitions // model.batch_size == config.updates_per_rollout
        assert count(model.policy) == sum(map(count, networks.values()))
    else:
        assert done == 10 * n
        assert model._n_updates == 10 * n * config.replay_ratio
        assert model.batch_size == config.agent.batch_size
        dqn = config.kind == "dqn"
        theirs = model.q_net if dqn else model.critic
        assert count(theirs) == count(networks["q" if dqn else "critic"])
    agent.close()


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    "name", ["replay", "fire", "supervised", *map(slow, ("sac", "ppo", "gpt"))]
)
def test_each_of_the_standard_set_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.setattr(timing, "TURN", 0.01)
    trace_alone(monkeypatch, "eager")
    for tasks in ("DQN", "SAC", "SMALL"):
        monkeypatch.setattr(agents, tasks, {"sac": Task("sac/pendulum", SAC, agents.SB3)})
    monkeypatch.setattr(agents, "PPO", {"ppo": Task("ppo/cartpole", PPO, agents.SB3)})
    monkeypatch.setattr(fire, "FIRED", {"Nature CNN": fire.FIRED["Nature CNN, scope dqn"]})
    monkeypatch.setattr(replay, "SIZE", 40)
    monkeypatch.setattr(trainers, "UPDATES", 1)
    monkeypatch.setattr(trainers, "CLASSIFIERS", {"mlp": trainers.CLASSIFIERS["mlp on digits"]})
    found = list(BENCHES[name](1, 1))
    assert found and all(row.value > 0 for row in found)
