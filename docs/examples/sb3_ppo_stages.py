"""PPO of Stable-Baselines3 on a CartPole that changes: the value head is reset between stages.

The pole gets longer and the push weaker at each stage, so that what the critic has learned to
expect is wrong. Its last layer starts anew; the actor goes on. Run it with ``python
docs/examples/sb3_ppo_stages.py``; it takes half a minute.
"""

import tempfile
from pathlib import Path

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor

from rlplast.adapters.sb3 import HookCallback

STAGES = [{"length": 0.5, "force_mag": 10.0}, {"length": 1.0, "force_mag": 7.0}, {"length": 2.0}]
STEPS = 2048  # of each stage
HOOKS = [{"method": "head_reset", "on": "phase_start", "networks": ["critic"]}]
PENALTIES = [{"method": "l2_init", "networks": ["critic"], "params": {"coef": 1e-4}}]
METRICS = {"every": "16%", "names": ["weight_norm", "dormant_ratio"]}


def main() -> None:
    """Train through the stages; print what was reset, and the metrics."""
    folder = Path(tempfile.mkdtemp())
    env = Monitor(gymnasium.make("CartPole-v1"))
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=64, seed=1, device="cpu")
    callback = HookCallback(
        HOOKS,
        total=f"{STEPS * len(STAGES)} env_steps",
        receipts=folder / "receipts.jsonl",
        penalties=PENALTIES,
        metrics=METRICS,
    )
    for number, physics in enumerate(STAGES):
        for name, value in physics.items():
            setattr(env.unwrapped, name, value)
        if number > 0:
            callback.start_phase()
        model.learn(STEPS, callback=callback, reset_num_timesteps=number == 0)
        lengths = env.get_episode_lengths()[-10:]
        print(f"stage {number}: the last episodes had {sum(lengths) / len(lengths):.0f} steps")
    for receipt in callback.receipts:
        norms = f"{receipt.norm_before:.2f} -> {receipt.norm_after:.2f}"
        print(f"{receipt.method} of {receipt.network} in phase {receipt.clock.phase}: {norms}")
    for line in callback.metrics:
        norm, dormant = (line[f"metric/{name}/critic"] for name in METRICS["names"])
        print(f"env_step {line['env_steps']:5} critic: norm {norm:.2f}, dormant {dormant:.0%}")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    print(f"{len(lines)} lines in {folder / 'metrics.jsonl'}")


if __name__ == "__main__":
    main()
