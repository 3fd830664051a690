"""A tiny environment with large rewards, and agents that play it."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.agent import Agent
from rlplast.agents.agent_config import EnvConfig
from rlplast.agents.dqn import DQN
from rlplast.agents.dqn_config import DQNAgentConfig, DQNConfig
from rlplast.agents.off_policy import OffPolicyAgent
from rlplast.agents.ppo import PPO
from rlplast.agents.ppo_config import PPOConfig
from rlplast.agents.sac import SAC
from rlplast.core.method.hooks import Hooks
from rlplast.envs.base import Env, EnvSpec, Simulator
from rlplast.envs.vector import VectorEnv
from rlplast.metrics.probe import measure_run
from rlplast.optimizers.config import OptimizerConfig

ROUND = 7  # steps in an episode
SPEC = EnvSpec("toy/wheel", (3,), "float32", 1, 3, 2, ROUND)


class Toy(Simulator):
    """What both toys need of a simulator beside their dynamics."""

    step_frames = 2

    def __init__(self, rng: np.random.Generator, terminates: bool):
        self.rng, self.terminates, self.place = rng, terminates, np.zeros(3)

    def render(self) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place.copy()}

    def load_state_dict(self, state: dict[str, Any]):
        self.place = state["place"].copy()


class Wheel(Toy):
    """Pays 5 for action 0, -30 for action 1 and 0.5 for action 2; action 1 may terminate it."""

    def reset(self) -> np.ndarray:
        self.place = self.rng.standard_normal(3).astype(np.float32)
        return self.place.copy()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        push = self.rng.standard_normal(3)
        self.place = (np.roll(self.place, action) + push).astype(np.float32)
        lost = self.terminates and action == 1 and bool(self.rng.random() < 0.5)
        return self.place.copy(), (5.0, -30.0, 0.5)[action], lost, False


def make(rng: np.random.Generator, spec: EnvSpec, toy: type, terminates: bool) -> Env:
    return Env(spec, toy(rng, terminates), rng)


def use_toy(monkeypatch: pytest.MonkeyPatch, spec: EnvSpec, toy: type, terminates: bool = True):
    def make_vector(env_id: str, rngs, *others: Any, **options: Any) -> VectorEnv:
        del env_id, others, options
        return VectorEnv(spec, partial(make, spec=spec, toy=toy, terminates=terminates), rngs)

    monkeypatch.setattr(envs, "make_vector", make_vector)
    monkeypatch.setattr(envs, "spec", lambda env_id, **options: spec)


def use_wheel(monkeypatch: pytest.MonkeyPatch, terminates: bool = True):
    use_toy(monkeypatch, SPEC, Wheel, terminates)


OF_OPTIMIZER = ("name", "lr", "weight_decay", "clip_norm", "eps", "schedule")


def parts(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    of_optimizer = {k: v for k, v in options.items() if k in OF_OPTIMIZER}
    return of_optimizer, {k: v for k, v in options.items() if k not in OF_OPTIMIZER}


SMALL = {"batch_size": 8, "buffer_size": 400, "initial_steps": 24}
OF_DQN = SMALL | {"target_every": 10}, {"lr": 1e-3, "eps": 1.5e-4}


def configs(**options: Any) -> dict[str, Any]:
    """The sections agent and optimizer of a small DQN."""
    of_optimizer, agent = parts(options)
    small, usual = OF_DQN
    return {
        "agent": DQNAgentConfig(**(small | agent)),
        "optimizer": OptimizerConfig(**(usual | of_optimizer)),
    }


def built(
    make: Any, config: Any, usual: tuple[dict[str, Any], ...], options: dict[str, Any], **keys: Any
) -> Any:
    """A small agent; options are of its optimizer, its run and its own section."""
    of_optimizer, options = parts(options)
    rows = {key: list(options.pop(key, None) or ()) for key in ("layers", "hooks")}
    keys["optimizer"] = OptimizerConfig(**(usual[1] | of_optimizer))
    keys |= {"seed": options.pop("seed", 3), "total": options.pop("total", "400 env_steps")}
    made = config(agent=type(config().agent)(**(usual[0] | options)), **keys)
    made.layers, made.hooks = rows["layers"], rows["hooks"]  # whose modules are installed
    made.check()
    return make(made, torch.device("cpu"))


def dqn(
    num_envs: int = 1, replay_ratio: float = 1.0, env: str = "gym/CartPole-v1", **options: Any
) -> DQN:
    keys = {"env": EnvConfig(env, num_envs), "replay_ratio": replay_ratio}
    return built(DQN, DQNConfig, OF_DQN, options, **keys)


def ppo(num_envs: int = 2, **options: Any) -> PPO:
    """A small PPO: 12 updates for every 10 steps of two environments."""
    small = {"hidden": [16, 16], "rollout_steps": 10, "batch_size": 5, "epochs": 3}
    env = EnvConfig("gym/CartPole-v1", num_envs)
    return built(PPO, PPOConfig, (small, {"lr": 1e-3}), options, env=env)


def advanced(agent: Any, updates: int) -> Any:
    while agent.clock.updates < updates:
        agent.step()
    return agent


def hooked(agent: Agent, *configs: dict[str, Any]) -> Hooks:
    config = agent.config
    return Hooks(
        configs,
        agent.networks,
        config.total,
        config.seed,
        agent.units,
        config.horizon(),
        source=agent,
        penalties=agent.penalties,
    )


def everything(agent: Agent) -> dict[str, Any]:
    """All that decides an agent's future, as copies: networks by name, and the ``rest``."""
    state: dict[str, Any] = {}
    for name, network in agent.networks.items():
        modules = {name: network.module}
        modules |= {key: follower.module for key, follower in network.followers.items()}
        for key, module in modules.items():
            state[key] = {k: v.clone() for k, v in module.state_dict().items()}
        state[f"{name} optimizer"] = [
            {k: v.clone() for k, v in optimizer.state[p].items()}
            for optimizer in network.optimizers
            for p in network.module.parameters()
        ]
        state[f"{name} initial"] = {k: v.clone() for k, v in network.initial.items()}
    return state | {"rest": without_weights(agent)}


def without_weights(agent: Agent) -> dict[str, Any]:
    """Streams, environments, statistics, replay content, stacks and counters, as copies."""
    state = copy.deepcopy(agent.state_dict()) | {"clock": agent.clock}
    # A term that has begun has a sum, which is nothing at first.
    state["penalties"] = state["penalties"] or {"sum": torch.zeros((), dtype=torch.float64)}
    if isinstance(agent, OffPolicyAgent) and agent.experience.replay.size:
        batch = agent.experience.replay.sample_from(64, np.random.default_rng(0))
        state["sampled"] = [tensor.clone() for tensor in batch]
    if isinstance(agent, SAC):
        state["applied"] = agent.statistics.mean.clone(), agent.statistics.inv_std.clone()
    return state


def same(one: Any, two: Any) -> bool:
    """Equality of nested states, bit for bit; NaN equals NaN."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and same(one.detach().numpy(), two.detach().numpy())
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.tobytes() == two.tobytes()
    return bool(one == two)


def trace_alone(monkeypatch: pytest.MonkeyPatch, backend: Any = "aot_eager") -> None:
    """Let `torch.compile`, and whole updates, trace; what they traced runs by a backend."""
    from torch._dynamo import lookup_backend

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    run = lookup_backend(backend) if isinstance(backend, str) else backend
    own = "rlplast.agents.compiled._inductor"
    monkeypatch.setattr(own, lambda graph, inputs, options: run(graph, inputs))


def look_at(agent: Any, number: int) -> None:
    """Evaluate, measure, probe and act, which training is not to notice."""
    batch = agent.sample(16, number)
    with torch.random.fork_rng():
        if number % 5 == 0:
            agent.evaluate(number, 2)
        if batch is not None and number % 5 == 0:
            measure_run(agent, ["weight_norm", "dormant_ratio", "srank", "gradient_norm"], 16, 0)
    for name in agent.networks if batch is not None else ():
        agent.loss(name, batch)
        if name != "temperature":
            agent.activations(name, batch), agent.outputs(name, batch)
    agent.act(agent.experience.obs())
