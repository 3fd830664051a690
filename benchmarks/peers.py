"""The training of our configs by Stable-Baselines3 and SBX, its JAX edition (sbx-rl).

Environment, network sizes, batch size and replay ratio are the config's, the rest is theirs; of PPO
all is the config's.
"""

from fractions import Fraction
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.tools import stride
from rlplast.agents.networks import architecture_of
from rlplast.agents.ppo_networks import policy_architecture
from rlplast.run.timing import REPLAY, Steps

PEERS = {"Stable-Baselines3": "stable_baselines3", "SBX": "sbx"}  # name → module


def peer(module: str, config: Any, agent: Any, **special: Any) -> Steps:
    """Return the training of a config by another library, past compilation.

    Args:
        module: of the library.
        config: of our `agent`, which is ready for updates.
        agent: whose random steps it takes too.
        special: `policy`, `env`, and options of the algorithm, if not what follows from the config.
    """
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import Logger

    n = config.env.num_envs
    algorithm = getattr(import_module(module), config.kind.upper())
    if config.kind == "ppo":
        first, options = config.transitions, of_rollouts(config)
    else:
        first, options = _of_replay(config, agent)
    options |= {"batch_size": config.agent.batch_size, "seed": config.seed}
    if module == "stable_baselines3":
        options["device"] = str(agent.device)
    if "policy_kwargs" not in special:
        options["policy_kwargs"] = {"net_arch": net_arch(config, agent)}
    policy = special.pop("policy", "MlpPolicy")
    env = special.pop("env", None) or make_vec_env(config.env.id.removeprefix("gym/"), n)
    model = algorithm(policy, env, **options | special)
    model.set_logger(Logger(None, []))  # its own one leaves a folder
    model.learn(first)
    goal = model.num_timesteps

    def run(count: int) -> None:
        nonlocal goal
        goal += count * stride(config)
        if model.num_timesteps < goal:  # it goes in strides of train_freq
            model.learn(goal - model.num_timesteps, reset_num_timesteps=False)

    return run


def _of_replay(config: Any, agent: Any) -> tuple[int, dict[str, Any]]:
    """Return the env_steps to begin with, and options of an off-policy algorithm."""
    own, n = config.agent, config.env.num_envs
    per_step = Fraction(agent.config.replay_ratio * n).limit_denominator(10_000)
    options: dict[str, Any] = {
        "buffer_size": min(own.buffer_size, REPLAY),
        "learning_starts": agent.config.agent.initial_steps,
        "train_freq": per_step.denominator,  # in steps of all environments
        "gradient_steps": per_step.numerator,
    }
    if config.kind == "dqn":
        options |= {
            "target_update_interval": own.target_every,
            "exploration_initial_eps": own.epsilon_end,
            "exploration_final_eps": own.epsilon_end,
        }
    return options["learning_starts"] + 4 * n * per_step.denominator, options


def of_rollouts(config: Any) -> dict[str, Any]:
    """Return options of PPO."""
    own = config.agent
    return {
        "learning_rate": config.optimizer.lr,
        "n_steps": own.rollout_steps,
        "n_epochs": own.epochs,
        "gamma": own.gamma,
        "gae_lambda": own.gae_lambda,
        "clip_range": own.clip,
        "ent_coef": own.entropy_coef,
        "vf_coef": own.value_coef,
        "max_grad_norm": own.max_grad_norm,
    }


def normalised(config: Any) -> dict[str, Any]:
    """Return what else Stable-Baselines3 needs to normalise observations and rewards."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = make_vec_env(config.env.id.removeprefix("gym/"), config.env.num_envs)
    return {"env": VecNormalize(env, gamma=config.agent.gamma)}


def net_arch(config: Any, agent: Any) -> Any:
    """Return the widths of our MLPs."""
    own = config.agent
    if config.kind == "ppo":
        return list(policy_architecture(own, agent.spec.obs_shape).hidden)
    if config.kind == "dqn":
        return list(architecture_of(own, agent.spec.obs_shape).hidden)
    sizes = {"pi": (own.actor_width, own.actor_blocks), "qf": (own.critic_width, own.critic_blocks)}
    return {name: own.hidden or [width] * blocks for name, (width, blocks) in sizes.items()}


def atari(config: Any) -> dict[str, Any]:
    """Return what else Stable-Baselines3 needs for Atari: its own wrapper and Nature's network."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.atari_wrappers import AtariWrapper
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    gymnasium.register_envs(ale_py)
    game = config.env.id.removeprefix("atari/")

    def make() -> Any:
        env = gymnasium.make(f"{game}NoFrameskip-v4")
        return AtariWrapper(env, noop_max=0, terminal_on_life_loss=False)

    env = VecFrameStack(DummyVecEnv([make] * config.env.num_envs), 4)
    return {"policy": "CnnPolicy", "env": env, "policy_kwargs": {}}


def minatar(config: Any) -> dict[str, Any]:
    """Return what else Stable-Baselines3 needs for MinAtar: our network."""
    import gymnasium
    import minatar.gym
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
    game = config.env.id.removeprefix("minatar/").title()
    net = {"features_extractor_class": Features, "net_arch": []}
    return {"env": make_vec_env(f"MinAtar/{game}-v1", config.env.num_envs), "policy_kwargs": net}


def simba(config: Any) -> dict[str, Any]:
    """Return MLPs with the widths of SimBa's critics of width 512 and actor of width 128."""
    net = {"pi": [128, 512, 128], "qf": [512, 2048, 512, 2048, 512]}
    return {"policy_kwargs": {"net_arch": net}}
