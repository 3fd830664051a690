"""SAC runs of a second or two on real environments."""

from typing import Any

# Nothing beside the training but its lines.
QUIET: dict[str, Any] = {
    "evaluate": {"every": None},
    "metrics": {"every": None},
    "checkpoint": {"every": "100%"},
}

AGENT: dict[str, Any] = {
    "actor_width": 8,
    "critic_width": 8,
    "critic_blocks": 1,
    "batch_size": 8,
    "buffer_size": 5000,
    "initial_steps": 30,
}


def small_sac(env_id: str = "gym/Pendulum-v1", num_envs: int = 1, **changes: Any) -> dict[str, Any]:
    """A config of 120 env_steps; `agent` and `optimizer` in `changes` are laid over its own."""
    config: dict[str, Any] = {
        "kind": "sac",
        "seed": 3,
        "threads": 1,
        "device": "cpu",
        "total": "120 env_steps",
        "env": {"id": env_id, "num_envs": num_envs, "options": {"max_episode_steps": 25}},
        "replay_ratio": 0.5,
        "hooks": [],
        "log": {"every": "7%", "to": []},
        "evaluate": {"every": "40%", "episodes": 1},
        "metrics": {"every": "40%", "names": ["weight_norm", "srank"], "batch_size": 8},
        "checkpoint": {"every": "50%", "keep": 9},
    }
    own = {"agent": AGENT, "optimizer": {"lr": 1e-3}}
    return config | changes | {key: own[key] | changes.get(key, {}) for key in own}
