"""SAC's losses, eager and compiled, in fp32 and bf16."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.agents.sac import SAC
from tests.agents.toy_control import everything, trained, use_slide
from tests.agents.toy_env import same

SIMBA = {"network": "simba"}
MLP = {"network": "mlp", "log_std": "clamp", "log_std_min": -20.0, "normalize_obs": False}


@pytest.fixture(autouse=True)
def slide(monkeypatch: pytest.MonkeyPatch):
    use_slide(monkeypatch)


def gradients(agent: SAC, network: str, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(agent.networks[network].module.parameters())))


def agrees(agent: SAC, network: str, compiled: Callable[..., tuple[Tensor, Tensor, Any]]):
    batch = agent._batch()
    loss, other, _ = (agent.actor_loss if network == "actor" else agent.critic_loss)(batch)
    expected = gradients(agent, network, loss)
    loss_compiled, other_compiled, _ = compiled(batch)
    torch.testing.assert_close(loss_compiled, loss)
    torch.testing.assert_close(other_compiled, other)
    torch.testing.assert_close(gradients(agent, network, loss_compiled), expected)


@pytest.mark.parametrize(
    "options", [SIMBA, pytest.param(MLP, marks=pytest.mark.slow)], ids=["simba", "mlp"]
)
@pytest.mark.parametrize("network", ["actor", "critic"])
def test_loss_and_gradients_agree_eager_and_compiled(network: str, options: dict[str, Any]):
    agent = trained(4, **options)
    eager = agent.actor_loss if network == "actor" else agent.critic_loss
    compiled = torch.compile(eager, backend="aot_eager", dynamic=False, fullgraph=True)
    agrees(agent, network, compiled)
    while agent.clock.updates < 9:  # weights and statistics change
        agent.step()
    with torch.no_grad():  # and hooks edit
        agent.critic.get_parameter("head.weight").mul_(3)
        agent.target.get_parameter("head.weight").mul_(0.5)
    agrees(agent, network, compiled)


@pytest.mark.parametrize("options", [SIMBA, MLP], ids=["simba", "mlp"])
@pytest.mark.parametrize("network", ["actor", "critic"])
def test_bf16_losses_and_gradients_are_near_those_of_fp32(network: str, options: dict[str, Any]):
    agent = trained(6, batch_size=64, actor_width=32, critic_width=32, **options)
    batch = agent._batch()
    loss_of = agent.actor_loss if network == "actor" else agent.critic_loss
    loss, other, _ = loss_of(batch)
    expected = torch.cat([g.flatten() for g in gradients(agent, network, loss)])
    own = dataclasses.replace(agent.config.agent, precision="bf16")
    agent.config = dataclasses.replace(agent.config, agent=own)
    low, other_low, _ = loss_of(batch)
    found = torch.cat([g.flatten() for g in gradients(agent, network, low)])
    assert (low.dtype, other_low.dtype, found.dtype) == (torch.float32,) * 3
    assert not same(low, loss)
    torch.testing.assert_close(low, loss, rtol=0.05, atol=0.05)
    torch.testing.assert_close(other_low, other, rtol=0.05, atol=0.05)
    assert torch.cosine_similarity(found, expected, dim=0) > 0.95
    assert found.norm() == pytest.approx(float(expected.norm()), rel=0.15)


@pytest.mark.parametrize("options", [SIMBA, MLP], ids=["simba", "mlp"])
def test_bf16_trains_with_fp32_weights_and_finite_sums(options: dict[str, Any]):
    agent = trained(12, precision="bf16", **options)
    state = everything(agent)
    for name in ("actor", "critic", "target", "temperature"):
        assert {t.dtype for t in state[name].values()} == {torch.float32}
        assert all(t.isfinite().all() for t in state[name].values())
    assert agent.sums.isfinite().all()
    assert len(agent.play(0, 1).returns) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_inductor_trains_like_eager(precision: str):
    eager, compiled = (
        trained(20, accelerate=accelerate, precision=precision, **SIMBA)
        for accelerate in ("off", "compile")
    )
    assert eager.clock == compiled.clock
    tolerance = {"atol": 1e-4, "rtol": 1e-3} if precision == "fp32" else {"atol": 0.02, "rtol": 0.1}
    for name in ("actor", "critic", "target", "temperature"):
        mine, theirs = (list(getattr(agent, name).parameters()) for agent in (compiled, eager))
        torch.testing.assert_close(mine, theirs, **tolerance)
