"""One update, eager and compiled, in fp32 and bf16."""

import dataclasses

import pytest
import torch

from rlplast.agents.dqn import DQN
from tests.agents.toy_env import dqn, everything, same


def stepped(env: str, updates: int = 4, **options) -> DQN:
    agent = dqn(2, env=env, **options)
    while agent.clock.updates < updates:
        agent.step()
    return agent


def gradients(agent: DQN, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(agent.online.parameters())))


@pytest.mark.parametrize(
    ("env", "double"), [("gym/CartPole-v1", False), ("minatar/breakout", True)]
)
def test_loss_and_gradients_agree_eager_and_compiled(env: str, double: bool):
    agent = stepped(env, double=double)
    batch = agent.experience.replay.sample()
    compiled = torch.compile(agent.td_loss, backend="aot_eager", dynamic=False, fullgraph=True)
    loss, q, _ = agent.td_loss(batch)
    expected = gradients(agent, loss)
    loss_compiled, q_compiled, _ = compiled(batch)
    torch.testing.assert_close(loss_compiled, loss)
    torch.testing.assert_close(q_compiled, q)
    torch.testing.assert_close(gradients(agent, loss_compiled), expected)


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "minatar/breakout"])
def test_bf16_loss_and_gradients_are_near_those_of_fp32(env: str):
    agent = stepped(env, double=True)
    batch = agent.experience.replay.sample()
    loss, q, _ = agent.td_loss(batch)
    expected = torch.cat([g.flatten() for g in gradients(agent, loss)])
    agent.config = dataclasses.replace(
        agent.config, agent=dataclasses.replace(agent.config.agent, precision="bf16")
    )
    agent.target.bfloat16()
    low, q_low, _ = agent.td_loss(batch)
    found = torch.cat([g.flatten() for g in gradients(agent, low)])
    assert (low.dtype, q_low.dtype, found.dtype) == (torch.float32,) * 3
    assert not same(low, loss)
    torch.testing.assert_close(low, loss, rtol=0.05, atol=0.01)
    torch.testing.assert_close(q_low, q, rtol=0.05, atol=0.01)
    assert torch.cosine_similarity(found, expected, dim=0) > 0.99
    assert found.norm() == pytest.approx(float(expected.norm()), rel=0.05)


def test_bf16_trains_with_fp32_weights_and_finite_sums():
    agent = stepped("minatar/breakout", updates=12, precision="bf16", double=True)
    state = everything(agent)
    assert {p.dtype for p in state["online"].values()} == {torch.float32}
    assert all(p.isfinite().all() for p in state["online"].values())
    assert agent.sums.isfinite().all()
    assert len(agent.play(0, 1).returns) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_inductor_trains_like_eager():
    eager, compiled = (
        stepped("gym/CartPole-v1", updates=20, accelerate=accelerate)
        for accelerate in ("off", "compile")
    )
    assert eager.clock == compiled.clock
    torch.testing.assert_close(
        list(compiled.online.parameters()), list(eager.online.parameters()), atol=1e-5, rtol=1e-4
    )
