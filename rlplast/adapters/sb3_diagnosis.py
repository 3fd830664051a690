"""Does a model of Stable-Baselines3 still learn as well as a fresh one?"""

from typing import Any

import torch

from rlplast.adapters.sb3_networks import find_networks
from rlplast.adapters.sb3_parts import PARTS
from rlplast.adapters.sb3_probe import Experience
from rlplast.metrics.diagnosis import NetworkDiagnosis, diagnose_network

__all__ = ["diagnose_sb3"]


def diagnose_sb3(model: Any, observations: Any, **options: Any) -> dict[str, NetworkDiagnosis]:
    """Say whether the networks of a trained model still learn as well as fresh ones do.

    They are ``q``, or ``actor`` and ``critic``, with the model's optimizers. Critics of actions get
    those that the policy would choose. Nothing of the model changes.

    Args:
        model: an algorithm that `HookCallback` supports.
        observations: some hundred, as ``model.predict`` takes them.
        **options: ``updates``, ``targets``, ``lr``, ``seed``: as of
            `rlplast.metrics.diagnose_network`.
    """
    networks = find_networks(model, PARTS)
    inputs, _ = model.policy.obs_to_tensor(observations)
    calls: dict[str, Any] = {name: (inputs,) for name in networks}
    if hasattr(model.policy, "critic"):
        with torch.no_grad():
            calls["critic"] = (inputs, model.policy._predict(inputs, deterministic=True))
    source = Experience(model, networks, 0)
    return {
        name: diagnose_network(source, network, calls, initial=False, **options)
        for name, network in networks.items()
        if name in source.with_outputs
    }
