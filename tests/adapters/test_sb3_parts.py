"""Actor and critic of PPO and A2C: views of one policy with one optimizer."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from rlplast.core.rng import torch_stream
from tests.adapters.hosts import RELU, Pixels, WideControl, sb3_model
from tests.adapters.ppo_by_hand import Watched, close, learn_by_hand, probed
from tests.adapters.test_sb3_networks import fresh, units

RESET = {"method": "full_reset"}
CRITIC = {"networks": ["critic"]}


def test_both_parts_are_the_policy():
    model = sb3_model("PPO", WideControl(), policy_kwargs=RELU)
    networks, policy = find_networks(model, ["critic"]), model.policy
    assert list(networks) == ["actor", "critic"]
    blocks = [b for n in networks.values() for b in n.trainable()]
    assert {id(b.param) for b in blocks} == {id(p) for p in policy.parameters()}
    assert len(blocks) == len(list(policy.parameters()))
    assert {n.optimizers for n in networks.values()} == {(policy.optimizer,)}
    whole = find_networks(model)["policy"]
    assert [u for n in networks.values() for u in units(n)] == units(whole)
    for network in networks.values():
        for block_name, value in fresh(network).items():  # the law of the library
            norm = float(whole.initial[block_name].norm())
            assert float(value.norm()) == pytest.approx(norm, rel=1e-4)
    x = torch.randn(5, 64)
    mean = policy.get_distribution(x).distribution.mean
    assert torch.equal(networks["actor"].module(x), mean)
    assert torch.equal(networks["critic"].module(x), policy.predict_values(x))


def actor_of(policy: Any) -> nn.Module:
    return copy.deepcopy(nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net))


def adam(policy: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)


@torch.no_grad()
def active(net: Any, rollout: Tensor, number: int) -> float:
    x = rollout[torch.randint(len(rollout), (256,), generator=torch_stream(5, "probe", number))]
    return float(torch.cat([net[:end](x) > 0 for end in (2, 4)]).float().mean())


def test_rows_of_the_parts_equal_a_loop_by_hand():
    """l2_init on the critic, C-CHAIN on the actor; the value head back to θ0 before rollout 3."""
    reset = {"method": "head_reset", "at": "32 env_steps", "params": {"init": "stored"}}
    penalties = [
        {"method": "l2_init", "from": "5 updates", "params": {"coef": 0.05}} | CRITIC,
        {"method": "c_chain", "networks": ["actor"], "params": {"coef": 3.0, "batch": 8}},
    ]
    model = sb3_model("PPO", policy_kwargs=RELU)
    policy, watched = copy.deepcopy(model.policy), Watched(model)
    metrics = {"every": "16 env_steps", "names": ["active_fraction"]}
    callback = HookCallback([reset | CRITIC], seed=5, penalties=penalties, metrics=metrics)
    model.learn(64, callback=callback)

    optimizer = adam(policy)
    critic = {p: p.detach().clone() for n, p in policy.named_parameters() if "value" in n}
    head = {n: p.detach().clone() for n, p in policy.value_net.named_parameters()}
    past: list[Any] = [actor_of(policy), actor_of(policy)]
    seen: dict[str, Any] = {"update": 0, "rollout": 0}

    def before(number: int, last: Any) -> None:
        seen["rollout"] = number
        if number == 3:
            policy.value_net.load_state_dict(head)
            for parameter in critic:
                for tensor in optimizer.state[parameter].values():
                    tensor.zero_()
        if number > 1:
            line = callback.metrics[number - 2]
            steps = 16 * (number - 1)
            assert (line["updates"], line["env_steps"]) == (seen["update"], steps)
            found = active(policy.mlp_extractor.value_net, last, seen["update"] + steps)
            assert line["metric/active_fraction/critic"] == pytest.approx(found, abs=1e-6)

    def term(policy: Any) -> Tensor:
        x = probed(watched, seen["rollout"], "c_chain", seen["update"])
        now = policy.action_net(policy.mlp_extractor.policy_net(x))
        churn = 3.0 * (now - past[0](x).detach()).square().mean()
        if seen["update"] + 1 < 5:
            return churn
        return churn + 0.05 / 2 * sum((p - start).square().sum() for p, start in critic.items())

    def after(update: int) -> None:
        seen["update"] = update
        past[:] = [past[1], actor_of(policy)]

    learn_by_hand(watched, policy, optimizer, term, before, after)
    assert [(r.network, r.clock.env_steps) for r in callback.receipts] == [("critic", 32)]
    assert close(model.policy, policy)


def test_pfo_on_the_actor_equals_a_loop_by_hand():
    """It fires as each rollout but the first begins; z is what goes into the last ReLU."""
    params = {"coef": 5.0, "batch": 8}
    row = {"method": "pfo", "every": "16 env_steps", "networks": ["actor"], "params": params}
    model = sb3_model("PPO", policy_kwargs=RELU)
    policy, watched = copy.deepcopy(model.policy), Watched(model)
    callback = HookCallback([row], seed=5)
    model.learn(64, callback=callback)
    seen: dict[str, Any] = {"update": 0, "rollout": 0, "past": None}

    def before(number: int, last: Any) -> None:
        seen["rollout"] = number
        if number > 1:
            seen["past"] = copy.deepcopy(policy.mlp_extractor.policy_net)

    def term(policy: Any) -> Tensor:
        if seen["past"] is None:
            return torch.zeros((), requires_grad=True)
        x = probed(watched, seen["rollout"], "pfo", seen["update"])
        now, then = policy.mlp_extractor.policy_net[:-1](x), seen["past"][:-1](x)
        return 5.0 * (now - then.detach()).square().mean()

    after = partial(seen.__setitem__, "update")
    learn_by_hand(watched, policy, adam(policy), term, before, after)
    assert [r.clock.env_steps for r in callback.receipts] == [16, 32, 48]
    assert close(model.policy, policy)


def test_rows_without_networks_are_of_both_parts_and_a_condition_names_one():
    when = {"metric": "metric/weight_norm/critic", "above": 0.0}
    waits = {"method": "shrink_perturb", "when": when, "until": "16 env_steps"}
    hooks = [RESET | {"at": "16 env_steps"}, {"method": "head_reset", "at": "50%"} | CRITIC, waits]
    metrics = {"every": "16 env_steps", "names": ["dormant_ratio", "weight_norm"]}
    callback = HookCallback(hooks, metrics=metrics)
    sb3_model("A2C", policy_kwargs=RELU).learn(64, callback=callback)
    assert [(r.method, r.network) for r in callback.receipts] == [
        *(("full_reset", "actor"), ("full_reset", "critic")),
        *(("shrink_perturb", "actor"), ("shrink_perturb", "critic")),
        ("head_reset", "critic"),
    ]
    names = {k for k in callback.metrics[-1] if k.startswith("metric/dormant")}
    assert names == {f"metric/dormant_ratio/{part}" for part in ("actor", "critic")}


def test_extractor_with_weights_has_to_be_of_one_part():
    layers: dict[str, Any] = {"net_arch": [4], "share_features_extractor": True}
    with pytest.raises(ConfigError, match="share_features_extractor"):
        find_networks(sb3_model("PPO", Pixels(), "CnnPolicy", policy_kwargs=layers), ["actor"])
    layers["share_features_extractor"] = False
    model = sb3_model("PPO", Pixels(), "CnnPolicy", policy_kwargs=layers)
    networks = find_networks(model, ["actor"])
    assert len(units(networks["actor"])) == len(units(networks["critic"])) == 5


def test_names_of_parts_that_are_none_are_refused():
    for name, hooks, words in (
        ("PPO", [["policy"], ["critic"]], "name 'policy' and 'critic'"),
        ("PPO", [["critics"]], "'critics'"),
        ("RecurrentPPO", [["critic"]], "lstm_actor"),
    ):
        rows = [RESET | {"at": "50%", "networks": names} for names in hooks]
        with pytest.raises(ConfigError, match=words):
            sb3_model(name).learn(16, callback=HookCallback(rows))
