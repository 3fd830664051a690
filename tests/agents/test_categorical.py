from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.agents.categorical import Categorical, ValuesConfig
from rlplast.core.errors import ConfigError
from rlplast.run.config_file import read_config
from tests.agents.toy_control import sac
from tests.agents.toy_env import advanced, dqn
from tests.naive.categorical import (
    centres_twin,
    cross_entropy_twin,
    hl_gauss_twin,
    softmax_twin,
    target_twin,
    two_hot_twin,
)
from tests.naive.sac import log_prob_twin
from tests.runs import TINY

BINS, LOW, HIGH, WIDTH = 11, -3.0, 5.0, 0.8  # of atoms


def config_of(kind: str, **changes: Any) -> ValuesConfig:
    return ValuesConfig(**({"kind": kind, "bins": BINS, "low": LOW, "high": HIGH} | changes))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


TWINS: dict[str, Any] = {"hl_gauss": hl_gauss_twin, "two_hot": two_hot_twin, "c51": two_hot_twin}


@pytest.mark.parametrize("kind", TWINS)
def test_values_are_projected_onto_bins_as_by_the_twins(kind: str):
    values = torch.linspace(LOW - 1, HIGH + 1, 83)
    for sigma in (0.2, 0.75, 3.0) if kind == "hl_gauss" else (None,):
        own = {} if sigma is None else {"sigma": sigma}
        made = Categorical(config_of(kind, **own))
        found = made.probabilities(values)
        expected = [TWINS[kind](float(v), BINS, LOW, HIGH, *own.values()) for v in values]
        np.testing.assert_allclose(found.numpy(), np.array(expected), atol=2e-6)
        torch.testing.assert_close(found.sum(-1), torch.ones(83))
        assert sigma or ((found > 0).sum(-1) <= 2).all()
    made = Categorical(config_of(kind))
    np.testing.assert_allclose(made.centres.numpy(), centres_twin(kind, BINS, LOW, HIGH), atol=1e-6)
    beyond, ends = torch.tensor([LOW - 9, HIGH + 1e6]), torch.tensor([LOW, HIGH])
    assert torch.equal(made.probabilities(beyond), made.probabilities(ends))
    values = torch.linspace(LOW + 2 * WIDTH, HIGH - 2 * WIDTH, 57)
    mean = (made.probabilities(values) * made.centres).sum(-1)
    torch.testing.assert_close(made.mean(made.probabilities(values).log()), mean)
    if kind != "c51":
        error = 1e-5 if kind == "two_hot" else 1e-2  # of a Gaussian nearly
        torch.testing.assert_close(mean, values, atol=error, rtol=0)


VALUES = {"bins": 7, "low": -40.0, "high": 20.0}


def values(kind: str, **changes: Any) -> dict[str, Any]:
    return {"values": ValuesConfig(kind=kind, **(VALUES | changes))}


def policy(agent: Any, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, log_std = agent.actor(agent.statistics.normalise(obs))
    action, log_prob = log_prob_twin(mean, log_std, noise)
    return action, agent.temperature() * log_prob


@pytest.mark.parametrize(
    ("kind", "double"), [("hl_gauss", True), ("two_hot", False), ("c51", True)]
)
def test_a_dqns_loss_is_that_of_a_loop(kind: str, double: bool, wheel: None):
    agent = advanced(dqn(2, double=double, network="mlp_small", lr=0.01, **values(kind)), 25)
    batch, config = agent.experience.replay.sample(), agent.config.agent.values
    with torch.no_grad():
        now, after = agent.online(batch.obs).numpy(), agent.target(batch.obs_next).numpy()
        picks = agent.online(batch.obs_next).numpy() if double else after
    centres = centres_twin(kind, 7, -40.0, 20.0)
    losses, means, shares = [], [], []
    for i in range(len(now)):
        best = max(range(3), key=lambda a, i=i: float(softmax_twin(picks[i, a]) @ centres))
        rows = float(batch.reward[i]), float(batch.discount[i])
        target, share = target_twin(config, *rows, after[i, best], 0.0)
        taken = now[i, int(batch.action[i])]
        losses.append(cross_entropy_twin(taken, target))
        means.append(softmax_twin(taken) @ centres)
        shares.append(share)
    loss, logged, _ = agent.td_loss(batch)
    assert float(loss.detach()) == pytest.approx(np.mean(losses), rel=1e-4)
    assert logged.tolist() == pytest.approx([np.mean(means), np.mean(shares)], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("hl_gauss", {"critics": 4, "critic_subset": 2}), ("two_hot", {}), ("c51", {"critics": 1})],
)
def test_a_sacs_losses_are_those_of_a_loop(kind: str, options: dict[str, Any], slide: None):
    agent = advanced(sac(2, initial_temperature=0.5, batch_size=32, **options, **values(kind)), 25)
    with torch.no_grad():  # so that the critics disagree
        weight = agent.target.get_parameter("head.weight")
        weight.copy_(normal(*weight.shape, seed=2))
    batch, config = agent._batch(next(agent._drawn(1))), agent.config.agent.values
    data, centres = batch.transitions, centres_twin(kind, 7, -40.0, 20.0)
    with torch.no_grad():
        action, cost = policy(agent, data.obs_next, batch.noise[1])
        after = agent.target(agent.statistics.normalise(data.obs_next), action).numpy()
        now = agent.critic(agent.statistics.normalise(data.obs), data.action).numpy()
    asked = list(range(len(now))) if batch.members is None else batch.members.tolist()
    losses, shares, chosen = [], [], set()
    for i in range(len(data.reward)):  # of each transition the critic with the smallest mean
        least = min(asked, key=lambda c, i=i: float(softmax_twin(after[c, i]) @ centres))
        rows = float(data.reward[i]), float(data.discount[i])
        target, share = target_twin(config, *rows, after[least, i], float(cost[i]))
        losses.append(sum(cross_entropy_twin(own[i], target) for own in now))
        shares.append(share)
        chosen.add(least)
    loss, logged, _ = agent.critic_loss(batch)
    assert float(loss.detach()) == pytest.approx(np.mean(losses), rel=1e-4)
    means = [softmax_twin(row) @ centres for own in now for row in own]
    assert logged.tolist() == pytest.approx([np.mean(means), np.mean(shares)], rel=1e-4, abs=1e-5)
    assert len(chosen) == min(2, len(asked))

    with torch.no_grad():
        action, cost = policy(agent, data.obs, batch.noise[0])
        heads = agent.critic(agent.statistics.normalise(data.obs), action)
        q = heads.double().softmax(-1) @ torch.from_numpy(centres)
        value = q.min(0).values if batch.members is None else q.mean(0)
        expected = (cost - value).mean()
    assert float(agent.actor_loss(batch)[0].detach()) == pytest.approx(float(expected), rel=1e-4)


# What agents do with them.


def test_outputs_are_means_and_log_lines_have_both_scales(make: Callable[..., Any]):
    agent = advanced(make(**values("c51")), 3)
    batch = agent.sample(5, 1)
    if make is dqn:
        found, logits = agent.outputs("q", batch), agent.online(batch.obs)
    else:
        obs = agent.statistics.normalise(batch.transitions.obs)
        logits = agent.critic(obs, batch.transitions.action).transpose(0, 1)
        found = agent.outputs("critic", batch)
    torch.testing.assert_close(found, agent.categorical.mean(logits))
    found = advanced(make(2, **values("hl_gauss", low=-0.01, high=0.01)), 4).metrics()
    assert 0.5 < found["train/clipped"] <= 1
    assert abs(found["train/q"]) < 0.01
    assert found["train/loss"] > 0.5
    assert "train/clipped" not in advanced(make(2), 4).metrics()
    exact, found = (
        advanced(make(2, precision=how, **values("c51")), 12).metrics() for how in ("fp32", "bf16")
    )
    for name in ("train/loss", "train/q"):
        assert found[name] == pytest.approx(exact[name], rel=0.05, abs=0.5)
        assert found[name] != exact[name]


def test_what_does_not_go_together_is_refused():
    for kind, values, agent, key in (
        ("hl_gauss", {"low": 100.0}, {}, "values.low"),
        ("hl_gauss", {"low": 1e8, "high": 1e8 + 1}, {}, "values.bins"),
        ("c51", {"sigma": 1.0}, {}, "values.sigma"),
        ("c51", {}, {"output": "softmax"}, "agent.output"),
        ("c51", {}, {"huber_delta": 2}, "agent.huber_delta"),
        ("c51", {}, {"network": "tests.agents.own_nets:Attention"}, "agent.values"),
    ):
        own = TINY["agent"] | agent | {"values": {"kind": kind} | values}
        with pytest.raises(ConfigError, match=key):
            read_config(TINY | {"agent": own})
