"""A diagnosis of models of Stable-Baselines3, on observations."""

import pytest
import torch

from rlplast.adapters.sb3_diagnosis import diagnose_sb3
from tests.adapters.hosts import sb3_model

NAMES = {"DQN": {"q"}, "SAC": {"actor", "critic"}}


@pytest.mark.parametrize("kind", NAMES)
def test_dead_networks_are_found_and_nothing_changes(kind: str) -> None:
    model = sb3_model(kind, policy_kwargs={"net_arch": [32]})
    draw = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).numpy()
    fresh = diagnose_sb3(model, draw, updates=20, targets=2, lr=1e-2)
    assert fresh.keys() == NAMES[kind]
    assert "lost" not in {own.verdict for own in fresh.values()}
    with torch.no_grad():
        for name, parameter in model.policy.named_parameters():
            if parameter.ndim == 1 and "log_std" not in name:
                parameter.fill_(-50.0)  # units of ReLU and tanh that never move again
    before = {k: v.clone() for k, v in model.policy.state_dict().items()}
    found = diagnose_sb3(model, draw, updates=20, targets=2, lr=1e-2)
    assert all(own.fit.now < 0.1 < own.fit.fresh for own in found.values())
    after = model.policy.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
