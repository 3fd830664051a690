"""Penalties in Stable-Baselines3; test_sb3_parts.py has loops by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from tests.adapters.hosts import same, sb3_model, state


def after(name: str, **options: Any) -> dict[str, Tensor]:
    """All of an algorithm after some steps, and the next draw of the global generator."""
    model = sb3_model(name)  # seeds torch and NumPy
    callback = HookCallback([], **options) if options else None
    model.learn(32, callback=callback)
    optimizers = [o for n in find_networks(model).values() for o in n.optimizers]
    return state(optimizers, model.policy) | {"draw": torch.rand(())}


@pytest.mark.parametrize("name", ["DQN", "TD3", "A2C"])
def test_first_step_is_that_of_plain_gradient_descent(name: str, monkeypatch: pytest.MonkeyPatch):
    """θ ← θ − lr · (gradient + coef · θ), of each optimizer's own parameters and nothing else."""
    steps = []
    step = torch.optim.SGD.step

    def watched(optimizer: Any, *args: Any) -> Any:
        held = [p for g in optimizer.param_groups for p in g["params"]]
        steps.append([(p, p.detach().clone(), p.grad.clone()) for p in held])
        return step(optimizer, *args)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    layers = {"net_arch": [8], "optimizer_class": torch.optim.SGD}
    for penalties in ([], [{"method": "l2", "params": {"coef": 3.0}}]):
        model = sb3_model(name, policy_kwargs=layers, learning_rate=1e-3)
        model.learn(16, callback=HookCallback([], penalties=penalties))
        steps.append(None)
    plain, penalised = steps[: steps.index(None)], steps[steps.index(None) + 1 : -1]
    assert len(plain) == len(penalised) > 0
    for (_, weight, gradient), (_, same_weight, more) in zip(plain[0], penalised[0], strict=True):
        assert torch.equal(weight, same_weight)
        assert torch.allclose(more, gradient + 3.0 * weight, atol=1e-6)


def test_c_chain_reads_the_replay_and_draws_from_its_own_stream():
    found = {
        coef: after("DQN", penalties=[{"method": "c_chain", "params": {"coef": coef}}])
        for coef in (0.0, 10.0)
    }
    assert same(after("DQN"), found[0.0])
    assert not same(found[0.0], found[10.0])


def test_term_that_cannot_be_known_is_refused_by_name():
    for name, row, words in (
        ("PPO", {"method": "c_chain"}, "network 'policy'"),
        ("SAC", {"method": "c_chain", "params": {"beta": 0.1}}, "follows the size of the loss"),
        ("DQN", {"method": "redo"}, r"penalties\[0\].method"),
        ("DQN", {"method": "l2", "from": "2 epochs"}, "epochs"),
        ("DQN", {"method": "l2", "networks": ["actor"]}, "'actor'"),
    ):
        with pytest.raises(ConfigError, match=words):
            sb3_model(name).learn(20, callback=HookCallback([], penalties=[row]))
