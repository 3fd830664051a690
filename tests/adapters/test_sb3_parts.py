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
from rlplast.core.rng import derive_seed, torch_stream
from tests.adapters import wide_env
from tests.adapters.hosts import same, sb3_model, state
from tests.adapters.ppo_by_hand import Watched, learn_by_hand
from tests.adapters.test_sb3_networks import Pixels, fresh, units

RELU = {"net_arch": [16, 16], "activation_fn": nn.ReLU}
RESET = {"method": "full_reset"}
CRITIC = {"networks": ["critic"]}


@pytest.mark.parametrize("name", ["PPO", "A2C"])
@pytest.mark.parametrize("env", [wide_env.Wide, wide_env.WideControl])
def test_both_parts_are_the_policy(name: str, env: Any):
    model = sb3_model(name, env(), policy_kwargs=RELU)
    networks = find_networks(model, ["critic"])
    assert list(networks) == ["actor", "critic"]
    blocks = [b for n in networks.values() for b in n.trainable()]
    assert {id(b.param) for b in blocks} == {id(p) for p in model.policy.parameters()}
    assert len(blocks) == len(list(model.policy.parameters()))
    assert {n.optimizers for n in networks.values()} == {(model.policy.optimizer,)}
    whole = find_networks(model)["policy"]
    assert [u for n in networks.values() for u in units(n)] == units(whole)
    for network in networks.values():
        for block_name, value in fresh(network).items():  # the law of the library
            assert float(value.norm()) == pytest.approx(
                float(whole.initial[block_name].norm()), rel=1e-4
            )


def test_forward_passes_are_those_of_the_policy():
    model = sb3_model("PPO", wide_env.WideControl(), policy_kwargs=RELU)
    networks, x = find_networks(model, ["actor"]), torch.randn(5, 64)
    mean = model.policy.get_distribution(x).distribution.mean
    assert torch.equal(networks["actor"].module(x), mean)
    assert torch.equal(networks["critic"].module(x), model.policy.predict_values(x))


def actor_of(policy: Any) -> nn.Module:
    return copy.deepcopy(nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net))


def test_rows_of_the_parts_equal_a_loop_by_hand():
    """l2 on the critic, C-CHAIN on the actor, and the value head back to θ0 before rollout 3."""
    reset = {"method": "head_reset", "at": "32 env_steps", "params": {"init": "stored"}}
    penalties = [
        {"method": "l2", "params": {"coef": 0.05}} | CRITIC,
        {"method": "c_chain", "networks": ["actor"], "params": {"coef": 3.0, "batch": 8}},
    ]
    model = sb3_model("PPO", policy_kwargs=RELU)
    policy, watched = copy.deepcopy(model.policy), Watched(model)
    callback = HookCallback([reset | CRITIC], seed=5, penalties=penalties)
    model.learn(64, callback=callback)

    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    critic = [p for n, p in policy.named_parameters() if "value" in n]
    head = {n: p.detach().clone() for n, p in policy.value_net.named_parameters()}
    past: list[Any] = [actor_of(policy), actor_of(policy)]
    seen: dict[str, Any] = {"update": 0, "rollout": 0}

    def before(number: int, last: Any) -> None:
        seen["rollout"] = number
        if number == 3:
            with torch.no_grad():
                for name, parameter in policy.value_net.named_parameters():
                    parameter.copy_(head[name])
            for parameter in critic:
                for tensor in optimizer.state[parameter].values():
                    tensor.zero_()

    def term(policy: Any) -> Tensor:
        rollout = watched.rollouts[seen["rollout"] - 1][0]
        stream = derive_seed(0, "penalty", "c_chain", "actor", seen["update"])
        generator = torch_stream(5, "probe", derive_seed(stream, 0))
        x = rollout[torch.randint(len(rollout), (8,), generator=generator)]
        now = policy.action_net(policy.mlp_extractor.policy_net(x))
        then = past[0](x)
        churn = 3.0 * (now - then.detach()).square().mean()
        return churn + 0.05 / 2 * sum(p.square().sum() for p in critic)

    def after(update: int) -> None:
        seen["update"] = update
        past[:] = [past[1], actor_of(policy)]

    learn_by_hand(watched, policy, optimizer, term, before, after)
    assert [(r.network, r.clock.env_steps) for r in callback.receipts] == [("critic", 32)]
    for (name, ours), theirs in zip(
        model.policy.named_parameters(), policy.parameters(), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6), name


def test_pfo_on_the_actor_equals_a_loop_by_hand():
    """It fires as each rollout but the first begins; z is what goes into the last ReLU."""
    params = {"coef": 5.0, "batch": 8}
    row = {"method": "pfo", "every": "16 env_steps", "networks": ["actor"], "params": params}
    model = sb3_model("PPO", policy_kwargs=RELU)
    policy, watched = copy.deepcopy(model.policy), Watched(model)
    callback = HookCallback([row], seed=5)
    model.learn(64, callback=callback)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    seen: dict[str, Any] = {"update": 0, "rollout": 0, "past": None}

    def before(number: int, last: Any) -> None:
        seen["rollout"] = number
        if number > 1:
            seen["past"] = copy.deepcopy(policy.mlp_extractor.policy_net)

    def term(policy: Any) -> Tensor:
        if seen["past"] is None:
            return torch.zeros((), requires_grad=True)
        rollout = watched.rollouts[seen["rollout"] - 1][0]
        stream = derive_seed(0, "penalty", "pfo", "actor", seen["update"])
        generator = torch_stream(5, "probe", derive_seed(stream, 0))
        x = rollout[torch.randint(len(rollout), (8,), generator=generator)]
        now, then = policy.mlp_extractor.policy_net[:-1](x), seen["past"][:-1](x)
        return 5.0 * (now - then.detach()).square().mean()

    learn_by_hand(watched, policy, optimizer, term, before, partial(seen.__setitem__, "update"))
    assert [r.clock.env_steps for r in callback.receipts] == [16, 32, 48]
    for (name, ours), theirs in zip(
        model.policy.named_parameters(), policy.parameters(), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6), name


def test_rows_without_networks_are_of_both_parts():
    hooks = [RESET | {"at": "16 env_steps"}, {"method": "head_reset", "at": "50%"} | CRITIC]
    metrics = {"every": "16 env_steps", "names": ["dormant_ratio"]}
    callback = HookCallback(hooks, metrics=metrics)
    sb3_model("A2C", policy_kwargs=RELU).learn(64, callback=callback)
    fired = [(r.method, r.network) for r in callback.receipts]
    assert fired == [("full_reset", "actor"), ("full_reset", "critic"), ("head_reset", "critic")]
    assert {k for k in callback.metrics[-1] if k.startswith("metric/")} == {
        "metric/dormant_ratio/actor",
        "metric/dormant_ratio/critic",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"metrics": {"every": "16 env_steps", "names": ["churn"], "networks": ["actor", "critic"]}},
        {"hooks": [RESET | {"at": "1M updates"} | CRITIC]},
        {
            "hooks": [
                {"method": "cbp", "every": "1 updates", "params": {"replacement_rate": 0.0}}
                | CRITIC
            ]
        },
    ],
)
@pytest.mark.filterwarnings("ignore:.* was never due")
def test_idle_parts_change_no_bit(options: Any):
    found = []
    for callback in (None, HookCallback(**({"hooks": []} | options))):
        model = sb3_model("PPO", policy_kwargs=RELU)
        model.learn(64, callback=callback)
        found.append(state([model.policy.optimizer], model.policy) | {"draw": torch.rand(())})
    assert same(*found)


def test_condition_on_a_part_names_it():
    when = {"metric": "metric/weight_norm/critic", "above": 0.0}
    hook = {"method": "head_reset", "when": when, "until": "16 env_steps"}
    callback = HookCallback([hook], metrics={"every": "16 env_steps", "names": ["weight_norm"]})
    sb3_model("PPO").learn(48, callback=callback)
    assert [r.network for r in callback.receipts] == ["actor", "critic"]


class Still(Pixels):
    """Pictures without a reward."""

    def step(self, action: Any) -> Any:
        return self._obs(), 0.0, False, False, {}


@pytest.mark.parametrize("share", [True, False])
def test_extractor_with_weights_has_to_be_of_one_part(share: bool):
    layers = {"net_arch": [4], "share_features_extractor": share}
    model = sb3_model("PPO", Still(), "CnnPolicy", policy_kwargs=layers)
    if share:
        with pytest.raises(
            ConfigError, match=r"share_features_extractor=False, or name .*'policy'"
        ):
            find_networks(model, ["actor"])
        return
    networks = find_networks(model, ["actor"])
    assert len(units(networks["actor"])) == len(units(networks["critic"])) == 5
    callback = HookCallback([{"method": "redo", "at": "50%", "networks": ["critic"]}])
    model.learn(32, callback=callback)
    assert len(callback.receipts) == 1


@pytest.mark.parametrize(
    ("hooks", "match"),
    [
        ([["policy"], ["critic"]], "name 'policy' and 'critic', which is a part of it"),
        ([["critics"]], "'critics': "),
    ],
)
def test_policy_beside_its_parts_is_refused(hooks: Any, match: str):
    rows = [RESET | {"at": "50%", "networks": names} for names in hooks]
    with pytest.raises(ConfigError, match=match):
        sb3_model("PPO").learn(16, callback=HookCallback(rows))


def test_recurrent_policy_is_one_network():
    layers = {"net_arch": [4], "lstm_hidden_size": 8}
    model = sb3_model("RecurrentPPO", policy="MlpLstmPolicy", policy_kwargs=layers)
    with pytest.raises(ConfigError, match=r"neither actor nor critic, such as lstm_actor"):
        model.learn(16, callback=HookCallback([RESET | {"at": "50%"} | CRITIC]))
