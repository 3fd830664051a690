"""Env steps per second of agents with small networks, where overhead rules.

SAC on Pendulum and Hopper (2 layers of 256, batch 256) and DQN on CartPole (2 layers of 256, batch
32), one environment, an update per env_step: ours beside Stable-Baselines3 and SBX, its JAX
edition, if it is installed (``pip install sbx-rl``). DQN on MinAtar: ours alone. Then at 16 updates
per env_step: SAC on Pendulum and DQN on CartPole beside both, DQN on MinAtar beside
Stable-Baselines3, which gets our network (SBX has no network for such pictures).
"""

from functools import partial
from typing import Any

import torch
from bench_tools import Row, alternate, medians, row
from torch import nn

from rlplast.run.config_file import read_config
from rlplast.run.timing import REPLAY, Steps, on_cores, peers, ready, training

STEPS = 200  # env_steps per call
CARTPOLE = {
    "env.id": "gym/CartPole-v1",
    "env.num_envs": 1,
    "agent.network": "mlp",
    "agent.batch_size": 32,
    "agent.target_every": 500,
    "agent.n_step": 1,
    "replay_ratio": 1,
}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {  # name → config, its overrides
    "sac pendulum": ("sac/pendulum", {}),
    "sac hopper": ("sac/hopper", {}),
    "dqn cartpole": ("dqn/demo", CARTPOLE),
    "dqn minatar": ("dqn/minatar_breakout", {}),
    "sac pendulum, replay ratio 16": ("sac/pendulum", {"replay_ratio": 16}),
    "dqn cartpole, replay ratio 16": ("dqn/demo", CARTPOLE | {"replay_ratio": 16}),
    "dqn minatar, replay ratio 16": (
        "dqn/minatar_breakout",
        {"replay_ratio": 16, "agent.n_step": 1, "agent.double": False},
    ),
}


def bench_small(threads: int, rounds: int) -> list[Row]:
    """Env steps per second of small agents."""
    rows = []
    for name, (source, keys) in TASKS.items():
        fixed = {"device": "cpu", "threads": threads, "total": "400k env_steps"}
        config: Any = read_config(source, fixed | keys)
        with on_cores(threads):
            agents = {how: ready(config, how)[0] for how in ("off", "compile")}
            found, missing = peers(config, agents["off"])
            if config.env.id.startswith("minatar/") and config.replay_ratio > 1:
                found = {"Stable-Baselines3": minatar(config, agents["off"])}
            for peer, reason in missing.items():
                if peer not in found:
                    print(f"{name}, {peer}: {reason}")
            found |= {f"ours, accelerate {how}": training(one) for how, one in agents.items()}
            taken = max(8, round(STEPS / config.replay_ratio))
            steps = taken // config.env.num_envs
            seconds = alternate({k: partial(run, steps) for k, run in found.items()}, rounds, 3)
        median = medians(seconds)
        rows += [row(f"{name}, {k}", taken / median[k], "env_steps/s", seconds[k]) for k in found]
        best = min(v for k, v in median.items() if k.startswith("ours"))
        for peer in [k for k in found if not k.startswith("ours")]:
            rows.append(row(f"{name}, ours over {peer}", median[peer] / best, "x"))
    return rows


def minatar(config: Any, agent: Any) -> Steps:
    """Return the training of a DQN on MinAtar by Stable-Baselines3, with our network."""
    import gymnasium
    import minatar.gym
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Features(BaseFeaturesExtractor):
        def __init__(self, space: gymnasium.spaces.Box) -> None:
            super().__init__(space, 128)
            self.conv = nn.Conv2d(space.shape[2], 16, 3)
            self.linear = nn.Linear(16 * 8 * 8, 128)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            hidden = self.conv(obs.permute(0, 3, 1, 2)).relu()
            return self.linear(hidden.flatten(1)).relu()

    minatar.gym.register_envs()
    own, n = config.agent, config.env.num_envs
    start = agent.config.agent.initial_steps
    game = config.env.id.removeprefix("minatar/").title()
    model = DQN(
        "MlpPolicy",
        make_vec_env(f"MinAtar/{game}-v1", n),
        learning_rate=config.optimizer.lr,
        buffer_size=REPLAY,
        learning_starts=start,
        batch_size=own.batch_size,
        train_freq=1,
        gradient_steps=round(config.replay_ratio * n),
        target_update_interval=own.target_every,
        exploration_initial_eps=own.epsilon_end,
        exploration_final_eps=own.epsilon_end,
        policy_kwargs={"features_extractor_class": Features, "net_arch": []},
        seed=config.seed,
        device="cpu",
    )
    model.learn(start + 4 * n)

    def run(count: int) -> None:
        model.learn(count * n, reset_num_timesteps=False)

    return run
