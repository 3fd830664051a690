"""Normalise and project against its slow twin: modules, projection, scale and shift."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import BadWeights
from tests.methods.nets import snapshot
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import assert_same
from tests.naive import normalize_project as naive

# Which weights are projected, of each network, and where its outputs come from.
HIDDEN = {
    "mlp": ["0.weight", "2.weight"],
    "conv": ["0.weight", "4.weight", "8.weight"],
    "conv_batchnorm": ["0.weight", "4.weight", "8.weight"],
    "residual": ["inp.weight", *(f"{b}.fc{i}.weight" for b in ("one", "two") for i in (1, 2))],
    "stacked": ["fc1.weight", "fc2.weight"],
}
HEADS = {"mlp": "4", "conv": "10", "conv_batchnorm": "10", "residual": "head", "stacked": "head"}
NORMED = {
    "mlp": ["0", "2"],
    "conv": ["0", "4", "8"],
    "conv_batchnorm": ["8"],
    "residual": ["one.fc1", "two.fc1"],
    "stacked": ["fc1", "fc2"],
}
every_net = pytest.mark.parametrize("net", NETS)
RULES = ("drop", "project", "regularise")


def install(module: nn.Module, **params: Any) -> list[str]:
    return rlplast.replace_layers(module, "normalize_project", **params)


def made(net: str, optimizer: str = "adam", **params: Any) -> Trained:
    return Trained(net, optimizer, install=lambda module: install(module, **params))


@torch.no_grad()
def push(module: nn.Module, seed: int = 0) -> None:
    """Move every parameter, as large updates would."""
    for i, p in enumerate(module.parameters()):
        p.mul_(1.7).add_(0.3 * normal(*p.shape, seed=100 * seed + i))


def pairs_of(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Scale and shift of every norm layer, of each member."""
    found = []
    for layer in module.modules():
        norm = isinstance(layer, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d)
        stacked = type(layer).__name__ == "StackedLayerNorm"
        if (norm or stacked) and layer.weight is not None:
            weight, bias = layer.weight, layer.bias
            found += list(zip(weight, bias, strict=True)) if stacked else [(weight, bias)]
    return found


@pytest.mark.parametrize(
    ("net", "rule"),
    [
        ("mlp", "regularise"),
        ("conv", "drop"),
        ("conv_batchnorm", "project"),
        ("residual", "drop"),
        ("stacked", "project"),
    ],
)
def test_every_update_projects_as_the_twin_does(net: str, rule: str) -> None:
    include_head = rule == "drop"
    trained = made(net, scale_offset=rule, include_head=include_head)
    names = HIDDEN[net] + [f"{HEADS[net]}.weight"] * include_head
    start = trained.state()
    initial = naive.norms([start[n] for n in names])
    joint = [naive.scale_offset_norm(*pair) for pair in pairs_of(trained.module)]
    hooks = trained.ticking()
    for update in range(1, 6):
        trained.update()
        if update == 3:
            push(trained.module)
        if update == 5:  # a matrix of norm zero stays
            nn.init.zeros_(trained.module.get_parameter(names[0]))
        before, moments = trained.state(), trained.moments()
        old_pairs = [(g.detach().clone(), b.detach().clone()) for g, b in pairs_of(trained.module)]
        hooks.step(updates=update)
        after = trained.state()
        weights = naive.project([before[n] for n in names], initial)
        for name, expected in zip(names, weights, strict=True):
            torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-7, msg=name)
        projected = set(names)
        for pair, old, wanted in zip(pairs_of(trained.module), old_pairs, joint, strict=True):
            expected = naive.project_scale_offset(*old, wanted) if rule == "project" else old
            for mine, theirs in zip(pair, expected, strict=True):
                torch.testing.assert_close(mine.detach(), theirs, rtol=1e-5, atol=1e-7)
        for name, tensor in after.items():
            norm = "norm" in name or (net == "conv_batchnorm" and name[0] in "15")
            if name not in projected and not (norm and rule == "project"):
                assert torch.equal(tensor, before[name]), name
        for name, slots in trained.moments().items():
            assert_same(moments[name], slots)
    [receipt] = hooks.flush()
    assert receipt.firings == 5
    assert receipt.sfe > 0


def test_every_nth_update_projects() -> None:
    for by_hand in (False, True):
        trained = made("mlp", "sgd_momentum", every=3)
        hooks, changed = trained.ticking(), []
        for update in range(1, 8):
            trained.update()
            before = trained.state()
            _ = rlplast.tick(trained.network) if by_hand else hooks.step(updates=update)
            changed.append(not torch.equal(before["0.weight"], trained.state()["0.weight"]))
        assert changed == [update % 3 == 0 for update in range(1, 8)]


def test_low_precision_where_a_factor_of_0_999_rounds_to_nothing_is_refused() -> None:
    module = made("mlp").module.bfloat16()
    network = rlplast.Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(BadWeights, match=r"net\.0\.weight"):
        rlplast.Hooks([], network, "10 updates")


@every_net
def test_regularise_adds_the_twins_term_and_its_gradient(net: str) -> None:
    trained = made(net, scale_offset="regularise", coef=0.3)
    push(trained.module)
    penalties = rlplast.Penalties([], {"net": trained.network})
    term = penalties.of("net")
    expected = naive.regularise(pairs_of(trained.module), 0.3)
    assert float(term.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    term.backward()
    seen = {id(t): (t, t.grad) for t in trained.module.parameters() if t.grad is not None}
    wanted = torch.autograd.grad(
        naive.regularise(pairs_of(trained.module), 0.3), [t for t, _ in seen.values()]
    )
    for (_, mine), theirs in zip(seen.values(), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert seen


@every_net
def test_layers_with_hidden_units_get_a_norm_and_lose_their_bias(net: str) -> None:
    for rule in RULES:
        plain = NETS[net].module()
        start = snapshot(plain)
        weights = {n: p for n, p in plain.named_parameters() if n.endswith("weight")}
        assert sorted(install(plain, scale_offset=rule)) == sorted(NORMED[net])
        after = dict(plain.named_parameters())
        for path in NORMED[net]:
            assert plain.get_submodule(path).bias is None
            norms = [n for n in after if n.startswith(f"{path}.norm.")]
            assert len(norms) == (0 if rule == "drop" else 2)
            for name in norms:
                value = torch.full_like(after[name], name.endswith("weight"))
                assert torch.equal(after[name], value)
        assert all(after[n] is p for n, p in weights.items())  # the same parameters
        gone = {f"{path}.bias" for path in NORMED[net]}
        kept = {n: t for n, t in plain.state_dict().items() if ".norm." not in n or n in start}
        assert_same({n: t for n, t in start.items() if n not in gone}, kept)
