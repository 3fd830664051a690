"""`penalty` and `measure` of `Hooks`: against the formulas, and without a trace in the training."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from tests.models import assert_same

X = torch.linspace(-1, 1, 60).reshape(20, 3)


COEF = {"params": {"coef": 0.1}}


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def network_of(module: nn.Module, name: str = "net") -> rlplast.Network:
    return rlplast.Network(name, module, torch.optim.SGD(module.parameters(), lr=0.1))


def draw(size: int, generator: torch.Generator) -> Tensor:
    return X[torch.randint(len(X), (size,), generator=generator)]


def hooks_of(networks: Any, configs: Any = (), **options: Any) -> rlplast.Hooks:
    return rlplast.Hooks(list(configs), networks, "10 updates", **options)


def train(
    module: nn.Module, term: Any, after: Any = lambda update: None, optimizer: Any = None
) -> list[Tensor]:
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1)
    for update in range(1, 10):
        loss = module(X).square().mean() + term(update)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(update)
    return [p.detach().clone() for p in module.parameters()]


def test_penalties_are_added_as_a_loop_by_hand_adds_them_network_by_network() -> None:
    module, twin = net(), net()
    rows = [{"method": "l2_init", **COEF}, {"method": "parseval", "from": "5 updates", **COEF}]
    hooks = hooks_of(network_of(module), penalties=rows)
    start = [p.detach().clone() for p in twin.parameters()]
    weights = [p for p in twin.parameters() if p.ndim == 2]

    def by_hand(update: int) -> Tensor:
        moved = zip(twin.parameters(), start, strict=True)
        term = 0.1 / 2 * sum((p - s).square().sum() for p, s in moved)
        if update < 5:
            return term
        grams = [w @ w.T - torch.eye(len(w)) for w in weights]
        return term + 0.1 * sum(g.square().sum() for g in grams)

    [optimizer] = hooks.networks["net"].optimizers
    tell = lambda update: hooks.step(updates=update)  # noqa: E731
    ours = train(module, lambda update: hooks.penalty(), tell, optimizer)
    theirs = train(twin, by_hand)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))

    networks = {name: network_of(net(i), name) for i, name in enumerate(("actor", "critic"))}
    hooks = hooks_of(networks, penalties=[{"method": "l2", **COEF}])
    parts = [hooks.penalty(name) for name in networks]
    assert parts[0] != parts[1] and torch.equal(hooks.penalty(), sum(parts, torch.zeros(())))
    with pytest.raises(ConfigError, match="'critics'"):
        hooks.penalty("critics")


def test_measured_values_are_those_of_the_formulas() -> None:
    module = net()
    seen: list[Tensor] = []

    def probe(size: int, generator: torch.Generator) -> Tensor:
        seen.append(draw(size, generator))
        return seen[-1]

    def loss(batch: Tensor) -> Tensor:
        return module(batch).square().mean()

    names = ["weight_norm", "gradient_norm"]
    hooks = hooks_of(network_of(module), probe=probe, loss=loss, metrics=names, batch_size=16)
    values = hooks.measure()
    assert len(seen[0]) == 16
    weights = [p.detach() for p in module.parameters()]
    gradients = torch.autograd.grad(loss(seen[0]), list(module.parameters()))
    for name, tensors in zip(names, (weights, gradients), strict=True):
        norm = float(torch.cat([t.flatten() for t in tensors]).norm())
        assert values[f"metric/{name}/net"] == pytest.approx(norm)
    assert hooks.measure() == values  # one moment, one batch
    hooks.step(updates=1)
    hooks.measure()
    assert not torch.equal(seen[-1], seen[0])


def test_what_is_compared_with_the_last_measurement_is_saved_and_no_generator_moves() -> None:
    careless = lambda size, generator: torch.randn(size, 3)  # noqa: E731 - of the global generator
    options: dict[str, Any] = {"probe": careless, "metrics": ["churn"]}
    hooks, again = (hooks_of(network_of(net()), **options) for _ in range(2))
    before = torch.get_rng_state()
    assert "metric/churn/net" not in hooks.measure()
    again.load_state_dict(hooks.state_dict())
    assert "metric/churn/net" in again.measure()
    assert torch.equal(before, torch.get_rng_state())


def test_initial_weights_are_saved() -> None:
    rows = [{"method": "full_reset", "at": "2 updates", "params": {"init": "stored"}}]
    hooks, again = (hooks_of(network_of(net(seed)), rows) for seed in (1, 2))
    initial = {n: t.clone() for n, t in hooks.networks["net"].module.state_dict().items()}
    again.load_state_dict(copy.deepcopy(hooks.state_dict()))
    again.step(updates=2)
    assert_same(initial, dict(again.networks["net"].module.state_dict()))
    for other in (network_of(nn.Linear(3, 2)), network_of(net(), "other")):
        with pytest.raises(ConfigError, match="initial value of"):
            hooks_of(other).load_state_dict(hooks.state_dict())


def test_what_cannot_be_read_is_refused_by_name() -> None:
    cases: list[tuple[Any, str]] = [
        ({"metrics": ["dormant_ratios"]}, "'dormant_ratio'"),
        ({"metrics": ["dormant_ratio"]}, "probe="),
        ({"metrics": ["gradient_norm"], "probe": draw}, "loss="),
        ({"penalties": [{"method": "l2", "coef": 1}]}, r"penalties\[0\]"),
    ]
    for options, match in cases:
        with pytest.raises(ConfigError, match=match):
            hooks_of(network_of(net()), **options)
    with pytest.raises(ConfigError, match="metrics="):
        hooks_of(network_of(net())).measure()
    silent = nn.ModuleDict({"actor": net()})  # as CleanRL's Agent: no forward
    row = {"method": "redo", "at": "1 updates"}
    with pytest.raises(ConfigError, match=r"\(redo\) calls network 'net'"):
        hooks_of(network_of(silent), [row], probe=draw)
    with pytest.raises(ConfigError, match="ModuleDict has no forward"):
        hooks_of(network_of(silent), metrics=["dormant_ratio"], probe=draw).measure()
    with pytest.raises(ConfigError, match="phase=0, updates="):
        hooks_of(network_of(net()), [{"method": "full_reset", "every": "2 updates"}]).step(phase=0)


def test_an_optimizer_that_its_network_does_not_hold_is_noticed() -> None:
    module = net()
    network = network_of(module)
    hooks = hooks_of(network, [{"method": "full_reset", "at": "90%"}])
    inner = torch.optim.Adam(net(1).parameters())  # of something else: not a word

    def update(optimizer: torch.optim.Optimizer, number: int) -> None:
        module(X).square().mean().backward()
        inner.step()
        optimizer.step()
        hooks.step(updates=number)

    update(network.optimizers[0], 1)
    later = torch.optim.Adam(module.parameters())
    with pytest.warns(
        UserWarning, match=r"'net' is trained by a Adam .*network.optimizers = "
    ) as w:
        update(later, 2)
    assert len(w) == 1
    update(later, 3)  # it is said once
    network.optimizers = (later,)
    update(later, 4)
    hooks.step(updates=9)
    assert not later.state[module[0].weight]["exp_avg"].any()

    class Wrapped(torch.optim.SGD):  # around the one that steps: no other one
        def step(self, closure: Any = None) -> None:
            self.inner.step()

    wrapped = Wrapped(module.parameters(), lr=0.1)
    wrapped.inner = torch.optim.SGD(module.parameters(), lr=0.1)  # type: ignore[attr-defined]
    hooks = hooks_of(rlplast.Network("net", module, wrapped))
    hooks.step(updates=1)
    wrapped.step()


def test_a_term_of_a_hook_begins_with_its_first_firing() -> None:
    for method, params in (("persistent", {}), ("distill", {"batch": 4})):
        row = {"method": method, "every": "2 updates", "from": "50%", "params": params}
        network = network_of(net())
        with pytest.raises(ConfigError, match="penalties="):
            hooks_of(network, [row], probe=draw, loss=torch.sum)
        options: dict[str, Any] = {"probe": draw, "loss": lambda x: x.sum(), "penalties": []}
        hooks, again = (rlplast.Hooks([row], network, "10 env_steps", **options) for _ in range(2))
        for update in range(1, 5):  # three of them are due points of `every`, before `from`
            hooks.step(updates=update, env_steps=update)
            assert float(hooks.penalty()) == 0 and not hooks.penalty().requires_grad
        assert [r.clock.updates for r in hooks.step(updates=6, env_steps=6)] == [6]
        again.load_state_dict(hooks.state_dict())
        assert hooks.penalty().requires_grad and again.penalty().requires_grad, method
