"""Values as probabilities of bins: targets, losses, what agents do with them, and their runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.agents.categorical import Categorical, ValuesConfig, check_values
from rlplast.agents.dqn import DQN
from rlplast.core.errors import ConfigError
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents.toy_control import sac, use_slide
from tests.agents.toy_env import advanced, dqn, everything, hooked, same, use_wheel
from tests.agents.tracing import trace_alone
from tests.marks import slow
from tests.naive.categorical import (
    centres_twin,
    cross_entropy_twin,
    hl_gauss_twin,
    softmax_twin,
    target_twin,
    two_hot_twin,
)
from tests.runs import TINY, check_resumes
from tests.sac_runs import small_sac

KINDS = ("hl_gauss", "two_hot", "c51")
BINS, LOW, HIGH, WIDTH = 11, -3.0, 5.0, 0.8  # of atoms
EACH = pytest.mark.parametrize("kind", KINDS)
TIGHT = {"atol": 2e-6, "rtol": 1e-5}


def config_of(kind: str, **changes: Any) -> ValuesConfig:
    return ValuesConfig(**({"kind": kind, "bins": BINS, "low": LOW, "high": HIGH} | changes))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


# Projections.


@pytest.mark.parametrize("sigma", [0.2, 0.75, 3.0])
def test_hl_gauss_is_the_share_of_a_gaussian_in_each_bin(sigma: float):
    config = config_of("hl_gauss", sigma=sigma)
    values = torch.linspace(LOW - 1, HIGH + 1, 83)
    found = Categorical(config).probabilities(values)
    expected = [hl_gauss_twin(float(v), BINS, LOW, HIGH, sigma) for v in values]
    np.testing.assert_allclose(found.numpy(), np.array(expected), atol=2e-6)
    torch.testing.assert_close(found.sum(-1), torch.ones(83))


@pytest.mark.parametrize("kind", ["two_hot", "c51"])
def test_two_hot_is_shared_by_the_two_atoms_around_a_value(kind: str):
    values = torch.linspace(LOW - 1, HIGH + 1, 83)
    found = Categorical(config_of(kind)).probabilities(values)
    expected = [two_hot_twin(float(v), BINS, LOW, HIGH) for v in values]
    np.testing.assert_allclose(found.numpy(), np.array(expected), atol=2e-6)
    assert ((found > 0).sum(-1) <= 2).all()


def test_the_mean_of_a_two_hot_target_is_its_value_and_of_a_gaussian_nearly():
    values = torch.linspace(LOW + 2 * WIDTH, HIGH - 2 * WIDTH, 57)
    for kind, error in (("two_hot", 1e-5), ("hl_gauss", 1e-2)):
        made = Categorical(config_of(kind))
        mean = (made.probabilities(values) * made.centres).sum(-1)
        torch.testing.assert_close(mean, values, atol=error, rtol=0)
        torch.testing.assert_close(made.mean(made.probabilities(values).log()), mean)


@EACH
def test_bins_lie_between_the_bounds_and_values_outside_count_as_them(kind: str):
    made = Categorical(config_of(kind))
    np.testing.assert_allclose(made.centres.numpy(), centres_twin(kind, BINS, LOW, HIGH), atol=1e-6)
    beyond, ends = torch.tensor([LOW - 9, HIGH + 1e6]), torch.tensor([LOW, HIGH])
    assert torch.equal(made.probabilities(beyond), made.probabilities(ends))


@EACH
def test_targets_are_those_of_a_loop_over_samples_and_bins(kind: str):
    config, n = config_of(kind), 64
    rng = np.random.default_rng(1)
    reward, cost = (torch.from_numpy(rng.normal(0, 3, n)).float() for _ in range(2))
    discount = torch.from_numpy(rng.choice([0, 0.5, 0.99, 1.0], n)).float()
    logits = normal(n, BINS) * 3
    found, clipped = Categorical(config).target(reward, discount, logits, cost)
    rows = [
        target_twin(config, *(float(x[i]) for x in (reward, discount)), logits[i], float(cost[i]))
        for i in range(n)
    ]
    np.testing.assert_allclose(found.numpy(), np.array([p for p, _ in rows]), atol=5e-6)
    assert float(clipped) == pytest.approx(np.mean([share for _, share in rows]), abs=1e-5)
    assert 0.05 < float(clipped) < 0.95
    torch.testing.assert_close(found.sum(1), torch.ones(n))


def test_c51_without_reward_and_discount_one_keeps_the_distribution():
    logits = normal(5, BINS)
    found, clipped = Categorical(config_of("c51")).target(torch.zeros(5), torch.ones(5), logits)
    torch.testing.assert_close(found, logits.softmax(1), **TIGHT)
    assert float(clipped) == 0


@EACH
def test_the_gradient_of_the_loss_is_the_difference_of_the_probabilities(kind: str):
    made, logits = Categorical(config_of(kind)), normal(6, BINS).requires_grad_()
    target = made.probabilities(normal(6, seed=3))
    loss = made.cross_entropy(logits, target)
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, logits.detach().softmax(1) - target, **TIGHT)
    expected = [cross_entropy_twin(logits[i].tolist(), target[i].double()) for i in range(6)]
    np.testing.assert_allclose(loss.detach().numpy(), expected, rtol=1e-5)


# Losses of agents.

VALUES = {"bins": 7, "low": -40.0, "high": 20.0}


def values(kind: str, **changes: Any) -> dict[str, Any]:
    return {"values": ValuesConfig(kind=kind, **(VALUES | changes))}


@EACH
@pytest.mark.parametrize("double", [False, True])
def test_a_dqns_loss_is_that_of_a_loop(kind: str, double: bool, monkeypatch: pytest.MonkeyPatch):
    use_wheel(monkeypatch)
    agent = advanced(dqn(2, double=double, network="mlp_small", lr=0.01, **values(kind)), 25)
    batch, config = agent.experience.replay.sample(), agent.config.agent.values
    with torch.no_grad():
        now, after, picks = (
            net(obs).numpy()
            for net, obs in (
                (agent.online, batch.obs),
                (agent.target, batch.obs_next),
                (agent.online if double else agent.target, batch.obs_next),
            )
        )
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


@EACH
@pytest.mark.parametrize("options", [{"critics": 1}, {"critics": 4, "critic_subset": 2}])
def test_a_sacs_loss_takes_the_critic_with_the_smallest_mean_in_each_transition(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    use_slide(monkeypatch)
    agent = advanced(sac(2, initial_temperature=0.5, batch_size=32, **options, **values(kind)), 25)
    with torch.no_grad():  # so that the critics disagree
        weight = agent.target.get_parameter("head.weight")
        weight.copy_(normal(*weight.shape, seed=2))
    batch, config = agent._batch(agent._drawn(1)[0]), agent.config.agent.values
    data, centres = batch.transitions, centres_twin(kind, 7, -40.0, 20.0)
    with torch.no_grad():
        mean, log_std = agent.actor(agent.statistics.normalise(data.obs_next))
        u = mean + log_std.exp() * batch.noise[1]
        gauss = torch.distributions.Normal(mean, log_std.exp()).log_prob(u).sum(1)
        log_prob = gauss - torch.log(1 - u.tanh().square()).sum(1)
        cost = (agent.temperature() * log_prob).numpy()
        after = agent.target(agent.statistics.normalise(data.obs_next), u.tanh()).numpy()
        now = agent.critic(agent.statistics.normalise(data.obs), data.action).numpy()
    asked = list(range(len(now))) if batch.members is None else batch.members.tolist()
    losses, shares, chosen = [], [], set()
    for i in range(len(data.reward)):
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


@EACH
def test_a_sacs_policy_maximises_the_smallest_mean(kind: str, monkeypatch: pytest.MonkeyPatch):
    use_slide(monkeypatch)
    agent = advanced(sac(2, **values(kind)), 9)
    batch = agent._batch(agent._drawn(1)[0])
    obs = agent.statistics.normalise(batch.transitions.obs)
    with torch.no_grad():
        mean, log_std = agent.actor(obs)
        u = mean + log_std.exp() * batch.noise[0]
        gauss = torch.distributions.Normal(mean, log_std.exp()).log_prob(u).sum(1)
        log_prob = gauss - torch.log(1 - u.tanh().square()).sum(1)
        centres = torch.from_numpy(centres_twin(kind, 7, -40.0, 20.0))
        q = agent.critic(obs, u.tanh()).double().softmax(-1) @ centres
        expected = (agent.temperature() * log_prob - q.min(0).values).mean()
    loss, _, _ = agent.actor_loss(batch)
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-4)
    agent.actor.zero_grad(set_to_none=True)
    loss.backward()
    assert all(p.grad is not None for p in agent.actor.parameters())


# What agents do with them.


@EACH
def test_a_dqn_acts_by_the_means_and_says_them(kind: str):
    agent = dqn(network="mlp_small", **values(kind))
    assert agent.online.head.out_features == 2 * 7
    with torch.no_grad():
        for parameter in agent.online.parameters():
            parameter.zero_()
        agent.online.head.bias[6] = 30.0  # of the first action all in the highest bin
    obs = np.zeros((3, 4), np.float32)
    assert agent.act(obs).tolist() == [0] * 3
    highest, flat = agent.categorical.centres[-1], agent.categorical.centres.mean()
    np.testing.assert_allclose(agent._q(obs, np.zeros(3, np.int64)), float(highest), rtol=1e-5)
    np.testing.assert_allclose(agent._q(obs, np.ones(3, np.int64)), float(flat), rtol=1e-5)
    with torch.no_grad():
        agent.online.head.bias[0] = 31.0
    assert agent.act(obs).tolist() == [1] * 3


def test_outputs_are_means_for_methods_and_metrics(monkeypatch: pytest.MonkeyPatch):
    use_slide(monkeypatch)
    agent = advanced(sac(critics=3, **values("c51")), 3)
    batch = agent.sample(5, 1)
    found = agent.outputs("critic", batch)
    assert found is not None
    assert found.shape == (5, 3)
    obs = agent.statistics.normalise(batch.transitions.obs)
    expected = agent.categorical.mean(agent.critic(obs, batch.transitions.action))
    torch.testing.assert_close(found, expected.mT)
    use_wheel(monkeypatch)
    agent = advanced(dqn(**values("c51")), 3)
    batch = agent.sample(5, 1)
    torch.testing.assert_close(
        agent.outputs("q", batch), agent.categorical.mean(agent.online(batch.obs))
    )


@pytest.mark.parametrize("make", [dqn, sac])
def test_log_lines_have_both_scales_and_what_is_clipped(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    use_slide(monkeypatch) if make is sac else use_wheel(monkeypatch)
    found = advanced(make(2, **values("hl_gauss", low=-0.01, high=0.01)), 4).metrics()
    assert 0.5 < found["train/clipped"] <= 1
    assert abs(found["train/q"]) < 0.01
    assert found["train/loss"] > 0.5
    assert "train/clipped" not in advanced(make(2), 4).metrics()


def test_every_method_on_units_heads_and_outputs_acts_on_categorical_heads(
    monkeypatch: pytest.MonkeyPatch,
):
    use_slide(monkeypatch)
    rows: list[dict[str, Any]] = [
        {"method": "redo", "params": {"threshold": 0.9}},
        {"method": "head_reset", "params": {"init": "fresh"}},
        {"method": "plasticity_injection"},
        {"method": "full_reset", "params": {"init": "fresh"}},
    ]
    hooks = [row | {"at": "50%", "networks": ["critic"]} for row in rows]
    agent = advanced(sac(2, total="60 env_steps", hooks=hooks, **values("c51")), 9)
    for row in hooks:
        before = everything(agent)
        (receipt,) = hooked(agent, row).fire(None, agent.clock)
        assert receipt.sfe > 0
        assert not same(before["critic"], everything(agent)["critic"])
    assert agent.critic(torch.zeros(4, 3), torch.zeros(4, 2)).shape == (2, 4, 7)
    advanced(agent, 12)


@pytest.mark.parametrize("network", ["mlp", "tests.agents.own_sac_nets:mlp"])
def test_critics_with_trunks_of_a_user_have_bins_too(network: str, monkeypatch: pytest.MonkeyPatch):
    use_slide(monkeypatch)
    agent = advanced(sac(2, network=network, critics=3, **values("two_hot")), 5)
    assert agent.critic(torch.zeros(4, 3), torch.zeros(4, 2)).shape == (3, 4, 7)
    assert np.isfinite(agent.metrics()["train/loss"])


# Runs.


@pytest.mark.slow
@EACH
def test_cartpole_balances(kind: str):
    keys = {
        "total": "5k env_steps",
        "env": {"id": "gym/CartPole-v1", "num_envs": 4},
        "agent.network": "mlp",
        "optimizer.lr": 1e-3,
        "agent.initial_steps": 500,
        "agent.target_every": 200,
        "agent.values": {"kind": kind, "low": 0, "high": 100},
    }
    agent: Any = build_trainable(read_config("dqn/minatar_breakout", keys))
    assert isinstance(agent, DQN)
    while agent.clock.env_steps < 5000 or agent.owes():
        agent.step()
    assert agent.play(0, 10).returns.mean() >= 60  # random play: about 22


@EACH
def test_a_dqn_learns_what_two_actions_pay(kind: str, monkeypatch: pytest.MonkeyPatch):
    use_wheel(monkeypatch, terminates=False)
    agent = dqn(
        2, 4.0, gamma=0.5, lr=3e-3, tau=0.2, target_every=2, network="mlp_small", batch_size=32,
        **values(kind, bins=31),
    )  # fmt: skip
    advanced(agent, 1200)
    obs = np.zeros((1, 3), np.float32)
    found = [float(agent._q(obs, np.array([a]))[0]) for a in range(3)]
    # Paid are 5, -30 and 0.5, and 5 ever after: 5 / (1 - 0.5) = 10.
    assert found == pytest.approx([10, -25, 5.5], abs=2)
    assert agent.act(obs).tolist() == [0]


HOOKS = [
    {"method": "head_reset", "at": "40%", "params": {"init": "fresh"}},
    {"method": "redo", "at": "60%", "params": {"threshold": 0.9}},
]
INJECTION = {"method": "plasticity_injection", "at": "70%"}
LIFE = {"method": "lifecycle", "params": {"life": [4, 9], "recovery": [2, 5], "warmup": 3}}


@pytest.mark.parametrize("kind", ["dqn", slow("sac")])
def test_runs_with_hooks_resume_up_to_the_last_bit(kind: str, tmp_path: Path):
    bins = {"values": {"kind": "c51", "bins": 7, "low": -20.0}}
    if kind == "dqn":
        config = TINY | {"agent": TINY["agent"] | bins, "hooks": HOOKS, "layers": [LIFE]}
    else:
        config = small_sac(agent=bins, hooks=[*HOOKS, INJECTION])
    check_resumes(config, tmp_path)


@pytest.mark.parametrize("make", [dqn, sac])
def test_bf16_is_near_fp32(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    use_slide(monkeypatch) if make is sac else use_wheel(monkeypatch)
    found = [
        advanced(make(2, precision=how, **values("c51")), 12).metrics() for how in ("fp32", "bf16")
    ]
    for name in ("train/loss", "train/q"):
        assert found[1][name] == pytest.approx(found[0][name], rel=0.05, abs=0.5)
        assert found[1][name] != found[0][name]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "kind"), [(dqn, "hl_gauss"), (sac, "c51"), (sac, "two_hot")])
def test_a_compiled_update_does_what_eager_code_does(
    make: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
):
    trace_alone(monkeypatch)
    use_slide(monkeypatch) if make is sac else use_wheel(monkeypatch)
    eager, compiled = (
        advanced(make(2, accelerate=how, **values(kind)), 9) for how in ("off", "compile")
    )
    assert compiled._whole
    expected, found = everything(eager), everything(compiled)
    expected.pop("rest"), found.pop("rest")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)  # moments amplify
    torch.testing.assert_close(compiled.sums, eager.sums, rtol=1e-4, atol=1e-5)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"low": 5.0}, r"agent\.values\.low = 5\.0: allowed is less than agent\.values\.high = 5"),
        (
            {"low": 1e8, "high": 1e8 + 1},
            r"agent\.values\.bins = \d+: between low = 100000000\.0 and",
        ),
        ({"low": 0.0, "high": 1e-30}, r"e-3\d wide; allowed is 1e-30 or more"),
        ({"kind": "c51", "sigma": 1.0}, r"agent\.values\.sigma = 1\.0 with kind = 'c51': it is of"),
    ],
)
def test_values_that_make_no_sense_are_refused(changes: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        check_values(config_of(**({"kind": "hl_gauss"} | changes)))


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ({"values": {"kind": "c15"}}, r"agent\.values\.kind = 'c15': did you mean 'c51'\?"),
        ({"values": {"bins": 9}}, r"agent\.values has no kind, which it needs"),
        (
            {"values": {"kind": "c51", "bins": 1}},
            r"agent\.values\.bins = 1: allowed is \[2, 10000\]",
        ),
        (
            {"values": {"kind": "hl_gauss", "sigma": 1e-7}},
            r"agent\.values\.sigma = 1e-07: allowed is \[1e-06, 1000000\]",
        ),
        (
            {"values": {"kind": "c51"}, "output": "softmax"},
            r"agent\.output = 'softmax': it is of values that are one number, and agent\.values",
        ),
        ({"values": {"kind": "c51"}, "huber_delta": 2}, r"agent\.huber_delta = 2\.0: it is of"),
        (
            {"values": {"kind": "c51"}, "network": "tests.agents.own_nets:Attention"},
            r"agent\.values = ValuesConfig.*: it is of our networks, and agent\.network = 'tests",
        ),
    ],
)
def test_configs_that_make_no_sense_are_refused(agent: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        read_config({**TINY, "agent": TINY["agent"] | agent})
