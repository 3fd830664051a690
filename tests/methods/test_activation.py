"""Other nonlinearities: what they are, whose are replaced, and what training does to them."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.sac_networks import Critic, TrunkSpec
from rlplast.core.method.context import Context
from rlplast.core.network.edits import write
from rlplast.core.rng import torch_stream
from rlplast.methods.activation import PReLU, Rational
from rlplast.methods.recycling import recycle, unit_state
from tests.methods.test_deep_fourier import OWN
from tests.methods.unit_nets import NETS, Trained, normal
from tests.models import observed
from tests.naive import activation as naive

KINDS = (*naive.KINDS, "rational")
# Of networks whose nonlinearities are modules, the layers.
REPLACED = {"mlp": ["0", "2"], "conv_batchnorm": ["0", "4", "8"]}


def install(module: nn.Module, kind: str, **params: Any) -> list[str]:
    return rlplast.replace_layers(module, "activation", kind=kind, **params)


def function_of(kind: str, module: nn.Module | None = None, alpha: float | None = None) -> Any:
    """The twin's function; of a rational one with the coefficients of a module."""
    if module is not None:
        a, b = (module.get_parameter(n).tolist() for n in ("numerator", "denominator"))
        return lambda x: naive.rational(x, a, b)
    function, default = naive.KINDS[kind]
    return lambda x: function(x, default if alpha is None else alpha)


def test_entries_are_the_twins() -> None:
    for kind, alpha in [(k, None) for k in KINDS] + [(k, 0.3) for k in naive.KINDS]:
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        assert install(net, kind, alpha=alpha) == ["0"]
        module = net.get_submodule("1")
        x = torch.cat([torch.linspace(-6, 6, 49), 40 * normal(11)]).double().view(15, 4)
        rational = module if kind == "rational" else None
        expected = naive.entrywise(function_of(kind, rational, alpha), x)
        torch.testing.assert_close(module(x), expected, msg=kind)
        assert torch.autograd.gradcheck(module, (x[::5] + 0.01).requires_grad_()), kind
    low = copy.deepcopy(module).bfloat16()  # of the last one's, computed in float32
    expected = copy.deepcopy(low).float()(x.bfloat16().float())
    assert torch.equal(low(x.bfloat16()), expected.bfloat16())


def test_a_rational_function_begins_near_leaky_relu() -> None:
    rational = Rational(nn.Parameter(torch.zeros(())))
    x = torch.linspace(-3, 3, 601)
    leaky = nn.functional.leaky_relu(x, 0.01)
    assert float((rational(x) - leaky).detach().abs().max()) < 0.034


@pytest.mark.parametrize("kind", KINDS)
def test_networks_compute_it_and_activations_are_its(kind: str) -> None:
    for net, layers in REPLACED.items():
        plain, trained = NETS[net].module(), Trained(net, install=lambda m: install(m, kind))
        modules = dict(plain.named_children())
        trained.train(3)
        x, _ = trained.batch()
        weights = {n: t for n, t in trained.state().items() if n in plain.state_dict()}
        plain.load_state_dict(weights)
        h, seen = x, []
        for name, module in modules.items():
            new = trained.module.get_submodule(name)
            if not isinstance(module, nn.ReLU):
                h = module.eval()(h).detach()
                continue
            if kind == "prelu":
                h = naive.prelu(h, new.get_parameter("weight").tolist())
            else:
                h = naive.entrywise(function_of(kind, new if kind == "rational" else None), h)
            seen.append(h)
        torch.testing.assert_close(trained.module.eval()(x), h, rtol=1e-4, atol=1e-5)
        taps = observed(trained.network, x)
        assert list(taps) == layers
        for tap, expected in zip(taps.values(), seen, strict=True):
            torch.testing.assert_close(tap, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OWN)
def test_our_networks_compute_it_and_their_units_say_so(name: str) -> None:
    for kind in KINDS:
        module, inputs = OWN[name]()
        plain = [g.name for g in rlplast.Network("net", copy.deepcopy(module)).units().groups]
        paths = install(module, kind)
        network, seen = rlplast.Network("net", module), list[Tensor]()
        assert [g.name for g in network.units().groups] == plain
        groups = [g for g in network.units().groups if g.point is not None]
        assert {g.nonlinearity for g in groups} == {kind.replace("smooth_leaky", "smoothleaky")}
        keep = lambda layer, args, out, seen=seen: seen.append(out.detach())  # noqa: E731
        module.get_submodule(paths[0]).register_forward_hook(keep)
        taps = observed(network, *inputs)
        first = [g for g in groups if g.weight.block.path == paths[0]]
        for group, z in zip(first, seen[0] if len(first) > 1 else seen[:1], strict=True):
            function = function_of(kind, Rational(z) if kind == "rational" else None)
            expected = entries(naive.entrywise(function, z))
            assert entries(taps[group.name]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_unit_has_a_slope_of_its_own_in_each_member_which_is_reset_with_it() -> None:
    network = critic("prelu")
    update(network, 2)
    slopes(network.module)
    own, z = network.module.get_submodule("fc1.own_nonlinearity"), normal(2, 7, 8)
    for i, per_unit in enumerate(own.get_parameter("weight").tolist()):
        torch.testing.assert_close(own(z)[i], naive.prelu(z[i], per_unit))
    assert own(z.bfloat16()).dtype == torch.bfloat16
    before = {b.name: b.view.clone() for b in network.blocks}
    groups = [g for g in network.units().groups if g.point is not None]
    assert [str(p) for g in groups[:2] for p in g.slopes] == [
        f"[{member}].fc1.own_nonlinearity.weight[i]" for member in range(2)
    ]
    context = Context(network, tuple(network.blocks), reads=("moments",))
    reset = torch.arange(8) % 3 == 1
    masks = {group.name: reset for group in context.units}
    write(
        recycle(
            context,
            unit_state(network, network.blocks),
            masks,
            lambda group, part, mask: part.block.view,
            moments=True,
        )
    )
    for group in groups:
        [part] = group.slopes
        view = part.block.view
        assert (view[reset] == 0.25).all()
        assert torch.equal(view[~reset], before[part.block.name][~reset])
        for moment in context.moments(part.block).values():
            assert (moment[reset] == 0).all() and (moment[~reset] != 0).any()


def entries(tensor: Tensor) -> list[float]:
    """All entries in order of size: layouts of tokens differ."""
    return sorted(tensor.detach().flatten().tolist())


# Coefficients that train.


def critic(kind: str = "rational") -> rlplast.Network:
    module = Critic(5, 2, TrunkSpec("mlp", 8, 2))
    install(module, kind)
    return rlplast.Network("critic", module, torch.optim.Adam(module.parameters(), lr=1e-2))


def update(network: rlplast.Network, times: int) -> None:
    for number in range(times):
        network.optimizers[0].zero_grad()
        values = network.module(normal(8, 5, seed=number), normal(8, 2, seed=number))
        (values - normal(2, 8)).square().mean().backward()
        network.optimizers[0].step()


@pytest.mark.parametrize("kind", ["rational", "prelu"])
def test_each_layer_and_member_has_coefficients_of_its_own_which_train_and_are_reset(
    kind: str,
) -> None:
    starts: dict[str, Any] = {"weight": [0.25] * 8, **Rational.starts}
    network = critic(kind)
    network.initialise(torch_stream(0, "init"))
    names = [b.name for b in network.blocks if "nonlinearity" in b.name]
    assert names == [
        f"[{member}].fc{layer}.own_nonlinearity.{name}"
        for layer in (1, 2)
        for member in range(2)
        for name in (Rational.starts if kind == "rational" else ["weight"])
    ]
    start = {b.name: b.view.clone() for b in network.blocks}
    update(network, 3)
    for block in network.blocks:
        assert (block.view != start[block.name]).any(), block.name
    for name in {b.spec.tensor for b in network.blocks if b.name in names}:
        assert not torch.equal(*network.module.get_parameter(f"fc1.own_nonlinearity.{name}"))
    rlplast.apply("full_reset", network, init="fresh")
    for block in network.blocks:
        if block.name in names:
            assert torch.equal(block.view, start[block.name])
            assert block.view.tolist() == pytest.approx(list(starts[block.spec.tensor]))


def slopes(module: nn.Module, seed: int = 3) -> nn.Module:
    for path, part in module.named_modules():
        if isinstance(part, PReLU):
            with torch.no_grad():
                part.weight.copy_(normal(*part.weight.shape, seed=seed + len(path)))
    return module


def test_a_channel_has_one_slope_also_where_it_is_flattened_before() -> None:
    layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    after = nn.Sequential(*layers)
    before = copy.deepcopy(nn.Sequential(*(layers[i] for i in (0, 2, 1, 3))))
    for net in (after, before):
        assert install(net, "prelu") == ["0"]
    slopes(after)
    before.get_submodule("2").load_state_dict(after.get_submodule("1").state_dict())
    x = normal(3, 2, 4, 4)
    torch.testing.assert_close(before(x), after(x))
    taps = [observed(rlplast.Network("net", net), x)["0"] for net in (before, after)]
    torch.testing.assert_close(*taps)
