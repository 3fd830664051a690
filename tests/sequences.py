"""Small runs of several tasks."""

from typing import Any

from tests.ppo_runs import small_ppo
from tests.runs import TINY
from tests.sac_runs import small_sac

# CartPole has 4 coordinates and 2 actions, Acrobot 6 and 3.
TWO = ["gym/CartPole-v1", "gym/Acrobot-v1"]
EACH = 40  # env_steps of a task


def dqn_tasks(**changes: Any) -> dict[str, Any]:
    """A config of a DQN: two tasks, twice; `env` and `agent` in `changes` are laid over."""
    config: dict[str, Any] = TINY | {
        "env": {"sequence": TWO, "steps_per_task": EACH, "cycles": 2, "num_envs": 2},
        "agent": TINY["agent"] | {"network": "mlp", "buffer_size": 100, "initial_steps": 10},
        "hooks": [],
        "metrics": {"every": "25%", "names": ["weight_norm"], "batch_size": 8},
        "checkpoint": {"every": "10%", "keep": 20},
    }
    del config["total"]
    inner = {key: config[key] | changes.pop(key, {}) for key in ("env", "agent")}
    return config | inner | changes


def sac_tasks(**changes: Any) -> dict[str, Any]:
    """A config of a SAC on three Pendulums that differ in gravity."""
    env = {"id": "gym/Pendulum-v1", "num_envs": 1, "options": {"max_episode_steps": 25}}
    env |= {"shift": "gravity", "tasks": 3, "steps_per_task": EACH}
    made = small_sac(replay_ratio=0.5, **changes)
    return made | {"total": "auto", "env": env | changes.get("env", {})}


def ppo_tasks(**changes: Any) -> dict[str, Any]:
    """A config of a PPO: two tasks, twice, of two rollouts each."""
    env = {"sequence": TWO, "steps_per_task": EACH, "cycles": 2, "num_envs": 2}
    made = small_ppo(**{"checkpoint": {"every": "10%", "keep": 20}} | changes)
    return made | {"total": "auto", "env": env | changes.get("env", {})}
