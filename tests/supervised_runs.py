"""Supervised runs of a second on the digits."""

from typing import Any


def small_supervised(**changes: Any) -> dict[str, Any]:
    """A warm start of 2 epochs of 6 updates and 2 of 14, with hooks of every kind."""
    config: dict[str, Any] = {
        "kind": "supervised",
        "seed": 3,
        "threads": 1,
        "device": "cpu",
        "data": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [12, 12]},
        "stream": {"name": "warm_start", "fraction": 0.4, "epochs": 2},
        "optimizer": {"name": "adam", "lr": 3e-3, "warmup": 0.2, "clip_norm": 1.0, "renew": True},
        "batch_size": 100,
        "augment": ["crop"],
        "label_smoothing": 0.1,
        "hooks": [
            {"method": "fire", "on": "phase_start"},
            {"method": "swr", "every": "1 updates", "params": {"coef": 1e-3}},
            {"method": "shrink_perturb", "at": ["9 updates", "21 updates"]},
            {"method": "head_reset", "every": "13 updates", "params": {"init": "fresh"}},
        ],
        "penalties": [{"method": "l2_init", "params": {"coef": 1e-4}}],
        "log": {"every": "1 epochs", "to": []},
        "evaluate": {"every": "1 epochs"},
        "metrics": {"every": "2 epochs", "names": ["weight_norm", "srank"], "batch_size": 32},
        "checkpoint": {"every": "5 updates", "keep": 20},
    }
    return config | changes
