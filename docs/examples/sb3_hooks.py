"""Hooks in Stable-Baselines3: a DQN on CartPole, saved at half time and gone on with.

Run it with ``python docs/examples/sb3_hooks.py``; it takes a few seconds.
"""

import tempfile
from pathlib import Path

from stable_baselines3 import DQN

from rlplast.adapters.sb3 import HookCallback

HOOKS = [
    {"method": "fire", "at": "50%"},
    {"method": "head_reset", "every": "100 updates"},
    {"method": "swr", "every": "1 updates", "params": {"coef": 1e-4}},
]
TOTAL = "2000 env_steps"


def main() -> None:
    """Train, save, load, train on; print what fired."""
    folder = Path(tempfile.mkdtemp())
    model = DQN("MlpPolicy", "CartPole-v1", learning_starts=200, seed=1, device="cpu")
    callback = HookCallback(HOOKS, total=TOTAL, receipts=folder / "receipts.jsonl")
    model.learn(900, callback=callback)
    model.save(folder / "model")
    callback.save(folder / "hooks")

    model = DQN.load(folder / "model", env=model.get_env(), device="cpu")
    callback = HookCallback(HOOKS, total=TOTAL, receipts=folder / "receipts.jsonl")
    callback.load(folder / "hooks")
    model.learn(1100, callback=callback, reset_num_timesteps=False)
    for receipt in callback.receipts:
        if receipt.method != "swr":
            clock = receipt.clock
            norms = f"{receipt.norm_before:.1f} -> {receipt.norm_after:.1f}"
            print(f"{receipt.method:11} env_step {clock.env_steps} update {clock.updates} {norms}")
    lines = (folder / "receipts.jsonl").read_text().splitlines()
    print(f"{len(lines)} lines in {folder / 'receipts.jsonl'}")


if __name__ == "__main__":
    main()
