"""Penalties in Stable-Baselines3: against loops by hand, and nothing where there is none."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.rng import torch_stream
from tests.adapters.by_hand import twin
from tests.adapters.hosts import RELU, same, sb3_model, state
from tests.adapters.ppo_by_hand import Watched, close, learn_by_hand

PENALTIES = [
    {"method": "l2_init", "params": {"coef": 0.05}},
    {"method": "parseval", "from": "5 updates", "params": {"coef": 0.02}},
]


def by_formula(policy: Any, start: dict[str, Tensor], update: int) -> Tensor:
    """The terms of `PENALTIES`: Kumar et al. 2023; Chung et al. 2024."""
    named = dict(policy.named_parameters())
    term = 0.05 / 2 * sum((p - start[n]).square().sum() for n, p in named.items())
    if update < 5:
        return term
    weights = [p for p in named.values() if p.ndim == 2]
    grams = [w @ w.T - torch.eye(len(w)) for w in weights]
    return term + 0.02 * sum(g.square().sum() for g in grams)


def test_ppo_with_everything_equals_a_loop_by_hand():
    """l2_init, parseval, redo at env_steps, metrics, and a reset that waits for one of them."""
    reset = {"method": "head_reset", "when": {"metric": "dormant_ratio", "above": 0.0}}
    hooks = [
        {"method": "redo", "at": "32 env_steps", "params": {"threshold": 0.5}},
        reset | {"from": "16 env_steps", "until": "48 env_steps"},
    ]
    metrics = {"every": "16 env_steps", "names": ["dormant_ratio", "weight_norm"]}
    model = sb3_model("PPO", policy_kwargs=RELU)
    with torch.no_grad():
        model.policy.mlp_extractor.policy_net[0].weight[:3] = 0
        model.policy.mlp_extractor.policy_net[0].bias[:3] = -1
    watched = Watched(model)
    own = twin(find_networks(model)["policy"])
    callback = HookCallback(hooks, seed=5, penalties=PENALTIES, metrics=metrics)
    model.learn(80, callback=callback)

    # By hand: a policy, an Adam, the formulas, bare hooks.
    policy: Any = own.module
    optimizer = own.optimizers[0]
    for group in optimizer.param_groups:
        group.update(lr=3e-4, eps=1e-5)
    start = {n: p.detach().clone() for n, p in policy.named_parameters()}
    seen: dict[str, Any] = {"rollout": None, "receipts": [], "update": 0}

    def probe(size: int, generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(seen["rollout"]), (size,), generator=generator)
        return seen["rollout"][rows]

    bare = Hooks(hooks, own, "80 env_steps", 5, ("updates", "env_steps", "phase"), probe=probe)
    bare.step(updates=0, env_steps=0)

    def before(number: int, last: Any) -> None:
        steps = 16 * (number - 1)
        seen["rollout"] = last
        if number == 1:
            return
        seen["receipts"] += bare.step(updates=seen["update"], env_steps=steps)
        value = dormant(policy, last, seen["update"] + steps)
        line = next(line for line in callback.metrics if line["env_steps"] == steps)
        assert line["updates"] == seen["update"]
        assert line["metric/dormant_ratio/policy"] == pytest.approx(value, abs=1e-6)
        norm = torch.cat([p.detach().flatten() for p in policy.parameters()]).norm()
        assert line["metric/weight_norm/policy"] == pytest.approx(float(norm), abs=1e-5)
        seen["receipts"] += bare.observe({"metric/dormant_ratio/policy": value})

    def after(update: int) -> None:
        seen["update"] = update
        bare.step(updates=update)

    term = lambda policy: by_formula(policy, start, seen["update"] + 1)  # noqa: E731
    learn_by_hand(watched, policy, optimizer, term, before, after)
    fired, mine = (
        [(r.method, r.clock.env_steps) for r in receipts]
        for receipts in (callback.receipts, seen["receipts"])
    )
    assert fired[: len(mine)] == mine
    assert {method for method, _ in mine} == {"redo", "head_reset"}
    assert close(model.policy, policy)


@torch.no_grad()
def dormant(policy: Any, rollout: Tensor, number: int) -> float:
    """The share of dormant units (Sokar et al. 2023) on the batch of a moment."""
    x = rollout[torch.randint(len(rollout), (256,), generator=torch_stream(5, "probe", number))]
    found = []
    for net in (policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net):
        for end in (2, 4):
            activity = net[:end](x).abs().mean(0)
            found.append(activity <= 0.025 * activity.mean())
    return float(torch.cat(found).float().mean())


def after(name: str, hooks: Any = None, *, steps: int = 32, **options: Any) -> dict[str, Tensor]:
    """All of an algorithm after some steps, and the next draw of the global generator."""
    model = sb3_model(name)  # seeds torch and NumPy
    callback = None if hooks is None else HookCallback(hooks, **options)
    model.learn(steps, callback=callback)
    optimizers = [o for n in find_networks(model).values() for o in n.optimizers]
    return state(optimizers, model.policy) | {"draw": torch.rand(())}


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3", "A2C"])
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
    for coef in (0.0, 3.0):
        row = {"method": "l2", "params": {"coef": coef}}
        model = sb3_model(name, policy_kwargs=layers, learning_rate=1e-3)
        model.learn(16, callback=HookCallback([], penalties=[row]))
        steps.append(None)
    plain, penalised = steps[: steps.index(None)], steps[steps.index(None) + 1 : -1]
    assert len(plain) == len(penalised) > 0
    for (_, weight, gradient), (_, same_weight, more) in zip(plain[0], penalised[0], strict=True):
        assert torch.equal(weight, same_weight)
        assert torch.allclose(more, gradient + 3.0 * weight, atol=1e-6)


def test_hook_with_a_term_adds_it_from_its_firing_on():
    row = {"method": "persistent", "at": "20 env_steps", "params": {"coef": 1.0}}
    coefless = row | {"params": {"coef": 0.0}}
    one, other = after("DQN", [row], steps=60), after("DQN", [coefless], steps=60)
    assert not same(one, other)
    short = {"steps": 12, "total": "60 env_steps"}
    assert same(after("DQN", [row], **short), after("DQN", [coefless], **short))


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_c_chain_reads_the_replay_and_draws_from_its_own_stream(name: str):
    found = {
        coef: after(name, [], penalties=[{"method": "c_chain", "params": {"coef": coef}}])
        for coef in (0.0, 10.0)
    }
    assert same(after(name), found[0.0])
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
