"""Optimizers and learning rates from a config, beside torch's own schedulers."""

import dataclasses
import math
import re

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import rlplast
from rlplast.core import registry
from rlplast.core.errors import ConfigError
from rlplast.core.network import optim_state
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import RULES, allocate, optimizer_tensors
from rlplast.optimizers import factories
from rlplast.optimizers.config import OptimizerConfig, lr_at
from rlplast.optimizers.updater import Updater, minimise_together
from tests.marks import optimizers
from tests.models import build
from tests.optimizers.drives import orthogonalised

LENGTH = 20


def torchs(make) -> list[float]:
    """The learning rates one of torch's schedulers gives to LENGTH updates."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = make(optimizer)
    rates = []
    for _ in range(LENGTH):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_learning_rates_are_torchs():
    for options, make in (
        ({}, lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        (
            {"schedule": "cosine", "lr_min": 0.1},
            lambda o: lr_scheduler.CosineAnnealingLR(o, LENGTH, eta_min=0.1),
        ),
        (
            {"schedule": "linear", "lr_min": 0.1},
            lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, LENGTH),
        ),
        (
            {"schedule": "step", "milestones": [0.5, 0.75], "gamma": 0.1},
            lambda o: lr_scheduler.MultiStepLR(o, [10, 15], 0.1),
        ),
        ({"warmup": 0.25}, lambda o: lr_scheduler.LinearLR(o, 1 / 6, 1.0, 5)),
        # FIRE's vision code: lr·(e + 1)/W, so that the W-th is at lr already.
        (
            {"warmup": 0.25, "warmup_end": "inside"},
            lambda o: lr_scheduler.LinearLR(o, 1 / 5, 1.0, 4),
        ),
    ):
        config = OptimizerConfig(lr=0.5, **options)
        config.check()
        ours = [lr_at(config, done, LENGTH) for done in range(LENGTH)]
        assert ours == pytest.approx(torchs(make), rel=1e-6), options


def test_warm_up_is_bounded_and_the_schedule_falls_over_what_is_left():
    config = OptimizerConfig(lr=1.0, warmup=0.5, warmup_max=4, schedule="linear", lr_min=0.0)
    rates = [lr_at(config, done, 12) for done in range(12)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == pytest.approx([1 - i / 8 for i in range(1, 8)])


def small(**options) -> tuple[nn.Module, Updater]:
    torch.random.default_generator.manual_seed(0)
    kernel, flat = nn.Conv2d(1, 2, 3), nn.Flatten()
    module = nn.Sequential(kernel, flat, nn.Linear(8, 6), nn.Linear(6, 2))
    return module, Updater(OptimizerConfig(**options), module)


X = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def updates(module: nn.Module, updater: Updater, number: int) -> None:
    for _ in range(number):
        updater.minimise(module(X).square().sum())


@pytest.mark.parametrize("name", optimizers())
def test_every_parameter_is_updated_at_the_learning_rate_that_is_set(name):
    module, updater = small(name=name, schedule="linear", lr=1.0)  # trac begins with 1e-7 of it
    before = [p.detach().clone() for p in module.parameters()]
    updates(module, updater, 1)
    assert not any(torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))
    updater.set_lr(75, 100)
    rates = [group["lr"] for o in updater.optimizers for group in o.param_groups]
    assert updater.lr == pytest.approx(0.25) and set(rates) == {updater.lr}


TORCHS = (
    ({"name": "adam", "eps": 1e-3}, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3)),
    (
        {"name": "adamw", "betas": [0.5, 0.9], "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.5, 0.9), weight_decay=0.1),
    ),
    (
        {"name": "sgd", "momentum": 0.9, "params": {"nesterov": True}},
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    ),
    (
        {"name": "rmsprop", "eps": 0.01, "params": {"alpha": 0.95, "centered": True}},
        lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.95, eps=0.01, centered=True),
    ),
)


def test_an_optimizer_is_torchs_with_the_configs_values():
    for options, make in TORCHS:
        (module, ours), (other, _) = small(lr=0.01, **options), small()
        theirs = make(other.parameters())
        updates(module, ours, 4)
        for _ in range(4):
            theirs.zero_grad()
            other(X).square().sum().backward()
            theirs.step()
        for mine, torchs in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, torchs, msg=str(options))


def test_adamw_trains_what_muon_cannot_or_should_not():
    updater = Updater(OptimizerConfig(name="muon"), build("stacked"))
    assert [type(o) for o in updater.optimizers] == [torch.optim.AdamW]  # its members are stacked
    tied = nn.ModuleDict(
        {"embed": nn.Embedding(5, 4), "inner": nn.Linear(4, 4), "out": nn.Linear(4, 5)}
    )
    tied["out"].weight, tied["out"].is_head = tied["embed"].weight, True
    muon, adamw = Updater(OptimizerConfig(name="muon"), tied).optimizers
    assert muon.param_groups[0]["params"] == [tied["inner"].weight]
    held = {id(p) for p in adamw.param_groups[0]["params"]}
    assert held == {id(p) for p in tied.parameters()} - {id(tied["inner"].weight)}

    options = {"momentum": 0.8, "betas": [0.5, 0.9], "eps": 0.1}
    (matrix,), (rest,) = (o.param_groups for o in small(name="muon", **options)[1].optimizers)
    assert (matrix["momentum"], rest["betas"], rest["eps"]) == (0.8, (0.5, 0.9), 0.1)


def test_muon_moves_hidden_matrices_along_their_orthogonalised_gradient_and_adamw_the_rest():
    options = {"lr": 0.01, "weight_decay": 0.1}
    (module, muon), (other, adamw) = small(name="muon", **options), small(name="adamw", **options)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    updates(module, muon, 1)
    updates(other, adamw, 1)
    twins = dict(other.named_parameters())
    for name, param in module.named_parameters():
        if name != "2.weight":  # the kernel, biases and the last layer
            assert torch.equal(param, twins[name])
            continue
        assert param.grad is not None
        # Nesterov's look-ahead of a momentum that begins at 0 is a multiple of the gradient.
        move = 0.2 * max(param.shape) ** 0.5 * orthogonalised(param.grad)
        expected = before[name].double() * (1 - 0.01 * 0.1) - 0.01 * move
        # torch orthogonalises in bfloat16
        torch.testing.assert_close(param.double(), expected, rtol=0.05, atol=5e-4)


class Signs(torch.optim.Optimizer):
    """Moves by the sign of a running sum of gradients, which is its state."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                total = self.state[p].setdefault("total", torch.zeros_like(p)).add_(p.grad)
                p.data.sub_(group["lr"] * total.sign())


def test_an_optimizer_of_ones_own_is_named_in_a_config_and_reset_by_its_rule(monkeypatch):
    monkeypatch.setattr(optim_state, "RULES", dict(RULES))
    monkeypatch.setitem(registry._TABLE, "optimizers", dict(registry._TABLE["optimizers"]))
    monkeypatch.setattr(factories, "RULES", optim_state.RULES)

    @rlplast.optimizer("signs", source="a test", state={Signs: {"total": optim_state.always}})
    def signs(module, groups, lr):
        """Move by signs."""
        return Signs(groups, {"lr": lr})

    module, updater = small(name="signs", lr=0.5)
    OptimizerConfig(name="signs").check()
    updates(module, updater, 3)
    network = Network("net", module, updater.optimizers)
    assert all(t.any() for t in optimizer_tensors(network).values())
    rlplast.apply("full_reset", network)
    assert not any(t.any() for t in optimizer_tensors(network).values())


def test_matrices_alone_decay_and_a_tied_one_is_held_once():
    module = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "norm": nn.LayerNorm(3)})
    module["b"].weight = module["a"].weight
    config = OptimizerConfig(name="adamw", weight_decay=0.1, decay="matrices")
    (optimizer,) = Updater(config, module).optimizers
    decayed, rest = optimizer.param_groups
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert [p.ndim for p in decayed["params"]] == [2]
    assert [p.ndim for p in rest["params"]] == [1, 1, 1, 1]


def test_values_that_do_not_go_together_are_named():
    for changes, words in (
        ({"params": {"alpha": 0.9}}, "'alpha'"),
        ({"schedule": "step"}, "milestones"),
        ({"milestones": [0.5]}, "schedule: step"),
        ({"lr_min": 1.0}, "at most lr"),
        ({"momentum": 0.9}, "kron, muon, muon_fire, rmsprop, sgd, trac"),
        ({"name": "sgd", "params": {"nesterov": True}}, "momentum"),
        ({"name": "sgd", "momentum": 0.5, "params": {"momentum": 0.9}}, "params.momentum"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            dataclasses.replace(OptimizerConfig(), **changes).check()
    for changes in ({"momentum": 0.9}, {"params": {"momentum": 0.9}}):
        changes = {**changes, "params": {"nesterov": True} | changes.get("params", {})}
        config = OptimizerConfig(name="sgd", **changes)
        config.check()
        assert Updater(config, nn.Linear(2, 1)).optimizers[0].param_groups[0]["nesterov"]


@pytest.mark.parametrize(("name", "decay"), [("adam", 0.1), ("adamw", 0.1), ("adam", 0.0)])
def test_compiled_steps_are_those_of_torchs_own_adam(name: str, decay: float):
    config = OptimizerConfig(name=name, lr=0.01, weight_decay=decay, eps=1e-3, clip_norm=0.3)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in ((5, 4), (3,), (2, 2))]
    ours, theirs = (nn.ParameterList(p.clone() for p in drawn) for _ in range(2))
    updater, other = Updater(config, ours), Updater(config, theirs)
    allocate(Network("model", ours, updater.optimizers))
    for i in range(6):
        for side in (updater, other):
            side.set_lr(i, 10)
        gradients = [torch.randn(p.shape, generator=generator) for p in drawn[:2]]
        updater._compiled_step([*gradients, None])  # the last one had no part in the loss
        for p, gradient in zip(theirs, [*gradients, None], strict=True):
            p.grad = gradient
        other.step()
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours[2], drawn[2], rtol=0, atol=0)


@pytest.mark.parametrize(("bound", "own"), [(None, None), (0.1, None), (1e9, None), (0.5, 0.1)])
def test_gradients_of_several_modules_are_clipped_by_their_common_norm(bound, own):
    torch.manual_seed(0)
    ours, theirs = [nn.Linear(3, 2), nn.Linear(4, 1)], [nn.Linear(3, 2), nn.Linear(4, 1)]
    config = OptimizerConfig("sgd", lr=0.1, clip_norm=own)
    updaters = [Updater(config, module) for module in ours]
    inputs = torch.randn(5, 3), torch.randn(5, 4)
    for mine, their in zip(ours, theirs, strict=True):
        their.load_state_dict(mine.state_dict())
    for _ in range(3):
        losses = [m(x).square().mean() for m, x in zip(ours, inputs, strict=True)]
        minimise_together(updaters, losses, bound)
        every = [p for module in theirs for p in module.parameters()]
        loss = sum(m(x).square().mean() for m, x in zip(theirs, inputs, strict=True))
        for p, gradient in zip(every, torch.autograd.grad(loss, every), strict=True):
            p.grad = gradient
        nn.utils.clip_grad_norm_(every, bound or math.inf)
        for module in theirs:
            nn.utils.clip_grad_norm_(module.parameters(), own or math.inf)
        torch.optim.SGD(every, lr=0.1).step()
    for mine, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.state_dict(), their.state_dict(), rtol=1e-4, atol=1e-6)
