"""PPO runs of a second or two on real environments."""

from typing import Any

AGENT: dict[str, Any] = {
    "hidden": [16, 16],
    "rollout_steps": 10,
    "batch_size": 10,
    "epochs": 2,
}


def small_ppo(env_id: str = "gym/CartPole-v1", **changes: Any) -> dict[str, Any]:
    """A config of 6 rollouts and 24 updates; sections in `changes` are laid over its own.

    Its episodes are cut after 15 steps.
    """
    config: dict[str, Any] = {
        "kind": "ppo",
        "seed": 3,
        "threads": 1,
        "device": "cpu",
        "total": "120 env_steps",
        "hooks": [],
        "log": {"every": "7%", "to": []},
        "evaluate": {"every": "40%", "episodes": 1},
        "metrics": {"every": "40%", "names": ["weight_norm", "srank"], "batch_size": 8},
        "checkpoint": {"every": "50%", "keep": 9},
    }
    own: dict[str, dict[str, Any]] = {
        "env": {"id": env_id, "num_envs": 2, "options": {"max_episode_steps": 15}},
        "agent": AGENT,
        "optimizer": {"lr": 1e-3},
    }
    return config | changes | {key: own[key] | changes.get(key, {}) for key in own}


def small_control(**changes: Any) -> dict[str, Any]:
    """The same of continuous actions, with all that is normalised."""
    normalised = {"normalize_obs": True, "normalize_rewards": True, "entropy_coef": 0.01}
    agent = normalised | changes.pop("agent", {})
    return small_ppo("gym/Pendulum-v1", agent=agent, **changes)
