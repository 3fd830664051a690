"""What lifecycle layers compute, keep and accept, one layer at a time."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.blocks import blocks_of
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.network.units import UnitSpec
from rlplast.methods.lifecycle import Lifecycle
from rlplast.methods.lifecycle_modules import (
    LifecycleConv2d,
    LifecycleLinear,
    StackedLifecycleLinear,
)
from tests.marks import slow
from tests.methods.living import SHORT, layers_of, living, named
from tests.models import FAMILIES, Critic, Residual, StackedPair, build, data
from tests.naive.lifecycle import duration


def put_to_sleep(layer: Any, units: list[int], scale: float = 1.0) -> None:
    """Mask some units by hand and let the others warm up."""
    with torch.no_grad():
        layer.active.view(-1)[units] = 0
        layer.scale.fill_(scale)


# Replacing.


def test_hidden_layers_are_replaced_and_parameters_stay_the_same_objects() -> None:
    module = build("mlp")
    old, before = module.get_submodule("0"), dict(module.named_parameters())
    assert rlplast.replace_layers(module, **SHORT) == ["0", "2"]
    kinds = [LifecycleLinear, nn.ReLU, LifecycleLinear, nn.ReLU, nn.Linear]
    assert [type(m) for m in module] == kinds  # type: ignore[attr-defined]
    after = dict(module.named_parameters())
    assert list(before) == list(after)
    assert all(after[name] is parameter for name, parameter in before.items())
    assert list(old.state_dict()) == ["weight", "bias"]  # nothing came into the old layer


HIDDEN = {
    "mlp": ["0", "2"],
    "conv": ["0", "2"],
    "conv_batchnorm": ["0", "3"],
    "residual": ["inp", "fc"],
    "tied": ["fc"],
    "stacked": ["fc1", "fc2"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_new_layers_compute_what_the_old_ones_did(family: str) -> None:
    module = build(family)
    x, _ = data(family)
    before = module(x)
    replaced = rlplast.replace_layers(module, **SHORT, **named(family))
    assert replaced == HIDDEN[family] == list(layers_of(module))
    assert torch.equal(module(x), before)
    assert module(x).stride() == before.stride()


def test_layers_are_chosen_by_names_and_globs() -> None:
    module = build("mlp")
    assert rlplast.replace_layers(module, layers=["4"]) == ["4"]
    module = nn.ModuleDict({"trunk": build("mlp"), "head": nn.Linear(3, 3)})
    chosen = rlplast.replace_layers(module, layers=["trunk.[02]", "head"])
    assert chosen == ["trunk.0", "trunk.2", "head"]


def test_heads_that_nothing_reads_are_no_hidden_layers() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_std = nn.Linear(4, 2), nn.Linear(4, 2)
            self.fc = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.fc(x).relu()
            return self.mean(h), self.log_std(h)

    assert rlplast.replace_layers(TwoHeads()) == ["fc"]

    class Untraceable(TwoHeads):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x) if x.sum() > 0 else super().forward(-x)

    with pytest.raises(NothingToEdit, match=r"fc: Untraceable could not be traced .*unit_specs"):
        rlplast.replace_layers(Untraceable())

    class Declared(Untraceable):
        def unit_specs(self) -> list[UnitSpec]:
            return [UnitSpec("fc", ("mean", "log_std"))]

    assert rlplast.replace_layers(Declared()) == ["fc"]


def test_layers_without_units_of_their_own_are_left_alone_unless_named() -> None:
    streams = "inp: add joins inp and relu: a residual stream has no units"
    with pytest.raises(NothingToEdit, match=rf"{streams}.*name some in `layers`"):
        rlplast.replace_layers(build("residual"))
    with pytest.raises(NothingToEdit, match=r"fc: head, which reads it, is tied to embed\.weight"):
        rlplast.replace_layers(build("tied"))

    class Mixed(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.first(self.wide(x).relu()))

        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Linear(5, 5)
            self.first = nn.LayerNorm(5)

    assert rlplast.replace_layers(Mixed()) == ["wide"]


def test_a_module_used_at_two_places_is_replaced_at_both() -> None:
    shared = nn.Linear(3, 3)
    module = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(3, 2))
    with pytest.raises(NothingToEdit, match="0: it is used more than once in a forward pass"):
        rlplast.replace_layers(module)
    assert rlplast.replace_layers(module, layers=["0"]) == ["0"]
    assert module[0] is module[2] and isinstance(module[0], LifecycleLinear)


def test_wrappers_are_taken_off() -> None:
    raw = build("mlp")
    compiled: Any = torch.compile(raw, backend="aot_eager")
    assert rlplast.replace_layers(compiled) == ["0", "2"]
    assert isinstance(raw[0], LifecycleLinear)  # type: ignore[index]


MODELS = {
    "bare": nn.Linear(3, 2),
    "living": living().module,
    "dict": nn.ModuleDict({"a": nn.Linear(2, 2)}),
    "one": nn.Sequential(nn.Linear(3, 2)),
    "none": nn.Sequential(nn.ReLU()),
}


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        ("bare", {}, r"the model is itself a Linear: put it into an nn\.Seq"),
        ("living", {}, "lifecycle: 0 is a lifecycle layer already"),
        ("residual", {"layers": ["imp"]}, r"'imp' .*did you mean 'inp'\?"),
        ("mlp", {"layers": ["fc*"]}, r"'fc\*' matches no layer: allowed: 0, 2, 4"),
        ("mlp", {"layers": ["1"]}, r"'1' is a ReLU: allowed are Linear, Conv2d"),
        ("tied", {"layers": ["head"]}, r"head\.weight is tied to embed\.weight.*naming layers"),
        ("mlp", {"life": [5, 2]}, r"lifecycle\.life = \[5, 2\]: .*min at most max"),
        ("mlp", {"recovery": [0, 2]}, r"lifecycle\.recovery\[0\] = 0: allowed is \[1, "),
        ("mlp", {"life": [1, 2.5]}, r"life\[1\] = 2\.5: allowed is a whole number"),
        ("mlp", {"life": 5}, r"lifecycle\.life = 5: allowed is \[min, max\]"),
        ("mlp", {"layers": "0"}, r"layers = '0': allowed is a list of names"),
        ("mlp", {"layers": []}, r"layers = \[\]: allowed is a list of names"),
        ("mlp", {"warmup": -1}, r"lifecycle\.warmup = -1"),
        ("mlp", {"warm_up": 3}, "no parameter 'warm_up': did you mean 'warmup'"),
        ("mlp", {"memory": "hee"}, "memory = 'hee': did you mean 'he'"),
        ("dict", {}, r"units \(a: ModuleDict could not be traced .*name some in `layers`"),
        ("one", {}, "lifecycle finds no"),
        ("none", {}, "lifecycle finds no"),
    ],
    ids=str,
)
def test_refusals_name_the_layer_and_the_remedy(
    model: str, params: dict[str, Any], message: str
) -> None:
    module = MODELS[model] if model in MODELS else build(model)
    before = dict(module.named_modules())
    with pytest.raises(ConfigError, match=message):
        rlplast.replace_layers(module, **params)
    assert dict(module.named_modules()) == before


# Forward.


@pytest.mark.parametrize("eval_mask", [True, False])
def test_mask_multiplies_outputs_in_training_and_if_asked_in_evaluation(eval_mask: bool) -> None:
    module = living(eval_mask=eval_mask).module
    layer = layers_of(module)["0"]
    put_to_sleep(layer, [1, 4], scale=0.25)
    x, _ = data("mlp")
    plain = x @ layer.weight.T + layer.bias
    d = torch.tensor([0.25, 0, 0.25, 0.25, 0, 0.25])
    torch.testing.assert_close(layer(x), plain * d)
    module.eval()
    torch.testing.assert_close(layer(x), plain * d if eval_mask else plain)


def test_sleeping_units_get_no_gradient_and_warming_ones_their_share() -> None:
    layer = LifecycleLinear(3, 4, lifecycle=Lifecycle())
    put_to_sleep(layer, [2], scale=0.5)
    plain = nn.functional.linear(torch.ones(5, 3), layer.weight, layer.bias)
    weight, bias = torch.autograd.grad(plain.sum(), [layer.weight, layer.bias])
    layer(torch.ones(5, 3)).sum().backward()
    d = torch.tensor([0.5, 0.5, 0, 0.5])
    assert torch.equal(layer.weight.grad, weight * d[:, None])
    assert torch.equal(layer.bias.grad, bias * d)


def test_conv_on_one_pixel_is_linear() -> None:
    rule = Lifecycle(life=(3, 9), recovery=(2, 5), warmup=4)
    conv = LifecycleConv2d(5, 6, 1, lifecycle=rule, seed=7)
    linear = LifecycleLinear(5, 6, lifecycle=rule, seed=7)
    with torch.no_grad():
        linear.weight.copy_(conv.weight.flatten(1))
        linear.bias.copy_(conv.bias)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (conv, linear)]
    networks = [Network("net", nn.Sequential(m)) for m in (conv, linear)]
    generator = torch.Generator().manual_seed(0)
    slept = 0
    for _ in range(40):
        x = torch.randn(8, 5, generator=generator)
        outs = conv(x[:, :, None, None]).flatten(1), linear(x)
        torch.testing.assert_close(*outs)
        for out, optimizer, network in zip(outs, optimizers, networks, strict=True):
            optimizer.zero_grad()
            out.square().sum().backward()
            optimizer.step()
            rlplast.tick(network)
        assert torch.equal(conv.active, linear.active)
        slept += int((linear.active == 0).sum())
        torch.testing.assert_close(conv.weight.flatten(1), linear.weight)
    assert slept > 50


def test_unbatched_channels_last_and_grouped_convs_are_masked_by_channel() -> None:
    layer = LifecycleConv2d(4, 6, 3, groups=2, lifecycle=Lifecycle())
    plain = copy.deepcopy(layer)
    put_to_sleep(layer, [0, 5])
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    expected = plain(x) * torch.tensor([0.0, 1, 1, 1, 1, 0])[:, None, None]
    assert torch.equal(layer(x), expected)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(x[0]), expected[0])


@pytest.mark.parametrize("params", [slow({}), {"memory": "he", "redraw": True}], ids=str)
def test_stacked_layer_is_two_separate_ones(params: dict[str, Any]) -> None:
    pair, members = StackedPair(), [Critic(), Critic()]
    rlplast.replace_layers(pair, **SHORT, **params)
    for index, member in enumerate(members):
        rlplast.replace_layers(member, **SHORT, **params)
        state = {name: t[index] for name, t in pair.state_dict().items()}
        member.load_state_dict(state)
    modules: list[nn.Module] = [pair, *members]
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.05) for m in modules]
    networks = [Network("net", m) for m in modules]
    x, y = data("stacked")
    for _ in range(45):
        for i, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            optimizer.zero_grad()
            target = y if i == 0 else y[i - 1]
            (module(x) - target).square().sum().backward()
            optimizer.step()
            rlplast.tick(networks[i])
        for name, tensor in pair.state_dict().items():
            for index, member in enumerate(members):
                other = member.state_dict()[name]
                torch.testing.assert_close(tensor[index], other, rtol=1e-4, atol=1e-5, msg=name)
    assert int(layers_of(pair)["fc2"].revivals.min()) >= 3
    assert not torch.equal(*layers_of(pair)["fc2"].life_max)


@pytest.mark.slow  # compiles for many seconds
@pytest.mark.parametrize("family", ["conv", "stacked"])
def test_compiled_forward_and_tick_agree_with_eager(family: str) -> None:
    torch._dynamo.reset()
    made = living(family), living(family)
    eager, compiled = (m.module for m in made)
    x, _ = data(family)
    forward: Any = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    tick: Any = torch.compile(rlplast.tick, backend="aot_eager")
    for _ in range(8):
        for subject, run, ticked in ((made[0], eager, rlplast.tick), (made[1], forward, tick)):
            module = subject.module
            module.zero_grad()
            run(x).square().sum().backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(0.01 * parameter.grad)
            ticked(subject.network)
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(tensor, compiled.state_dict()[name], rtol=1e-5, atol=1e-6)
    assert any(int((layer.active == 0).sum()) for layer in layers_of(eager).values())
    torch._dynamo.reset()


# State.


def test_buffers_are_in_the_state_dict_and_in_blocks_of_kind_lifecycle() -> None:
    for module, prefix in ((living().module, "0."), (living("stacked").module, "fc1.")):
        own = [n.removeprefix(prefix) for n in module.state_dict() if n.startswith(prefix)]
        counters = ["active", "life", "life_max", "recovery", "recovery_max", "revivals", "scale"]
        memories = ["memory_bias", "memory_weight"]
        assert sorted(own) == sorted(["weight", "bias", "seed", *counters, *memories])
        blocks = [b for b in blocks_of(module) if b.path == prefix[:-1]]
        kinds = {b.spec.tensor: (b.role, b.kind) for b in blocks if b.role == "buffer"}
        assert kinds == dict.fromkeys(["seed", *counters, *memories], ("buffer", "lifecycle"))
        copies = 2 if prefix == "fc1." else 1
        assert len(blocks) == copies * len(own)
        weights, memories_ = (
            [b for b in blocks if b.spec.tensor == tensor] for tensor in ("weight", "memory_weight")
        )
        for block, memory in zip(weights, memories_, strict=True):  # member by member
            assert block.memory is not None
            assert block.memory.data_ptr() == memory.view.data_ptr()
            assert block.memory.shape == block.view.shape


def test_half_precision_keeps_scales_and_memories_in_float32() -> None:
    module = living().module.to(torch.bfloat16)
    layer = layers_of(module)["0"]
    assert layer.weight.dtype == torch.bfloat16
    assert layer.scale.dtype == layer.memory_weight.dtype == torch.float32
    put_to_sleep(layer, [2])
    assert layer(torch.ones(1, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16
    double = living().module.double()
    assert layers_of(double)["0"].memory_weight.dtype == torch.float64


def test_mask_does_not_widen_autocast() -> None:
    module = living().module
    with torch.autocast("cpu", torch.bfloat16):
        assert layers_of(module)["0"](torch.ones(1, 5)).dtype == torch.bfloat16


def test_durations_come_from_the_seed_the_place_and_the_range() -> None:
    def draws(seed: int) -> dict[str, Tensor]:
        module = build("stacked")
        rlplast.replace_layers(module, seed=seed, life=[10, 12], recovery=[1000, 9000])
        return {n: t for n, t in module.state_dict().items() if n.endswith("_max")}

    first, again, other = draws(1), draws(1), draws(2)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not all(torch.equal(first[n], other[n]) for n in first)
    recoveries = torch.cat([t.flatten() for n, t in first.items() if "recovery" in n])
    assert len(recoveries.unique()) > 20  # 24 units in two layers of two members
    assert recoveries.min() >= 1000 and recoveries.max() <= 9000
    lives = torch.cat([t.flatten() for n, t in first.items() if "life" in n])
    assert set(lives.tolist()) == {10, 11, 12}


def test_durations_are_those_of_the_hash() -> None:
    rule = Lifecycle(life=(10, 500), recovery=(3, 77))
    layer = LifecycleLinear(2, 50, lifecycle=rule, seed=99)
    assert layer.life_max.tolist() == [duration(99, 10, 500, 0, 0, i) for i in range(50)]
    assert layer.recovery_max.tolist() == [duration(99, 3, 77, 1, 0, i) for i in range(50)]


def test_layers_may_be_made_directly() -> None:
    layer = StackedLifecycleLinear(2, 3, 4, lifecycle=Lifecycle(), seed=3)
    assert isinstance(layer, StackedLinear)
    assert layer(torch.zeros(5, 3)).shape == (2, 5, 4)
    assert layer.unit_shape() == (2, 4) and layer.seed.shape == (2,)
    assert repr(layer) == "StackedLifecycleLinear(2, 3, 4, bias=True)"


def test_layers_of_one_model_may_live_differently() -> None:
    module = build("mlp")
    rlplast.replace_layers(module, layers=["0"], warmup=3)
    rlplast.replace_layers(module, layers=["2"], warmup=5)
    assert [layer.lifecycle.warmup for layer in layers_of(module).values()] == [3, 5]
    with pytest.raises(ConfigError, match="0 is a lifecycle layer already"):
        rlplast.replace_layers(module, layers=["[04]"])
