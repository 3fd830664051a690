"""What lifecycle layers compute, keep and accept, one layer at a time."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.methods.lifecycle import Lifecycle
from rlplast.methods.lifecycle_modules import (
    LifecycleConv2d,
    LifecycleLinear,
    LifecycleMultiheadAttention,
    LifecycleUnits,
)
from tests.cases import install
from tests.models import FAMILIES, Critic, StackedPair, Subject, build, data, subject
from tests.naive.lifecycle import fresh_row

SHORT: dict[str, Any] = {"life": [3, 9], "recovery": [2, 5], "warmup": 4}
# Layers without units of their own, such as writers of a residual stream, have to be named.
NAMED = {"residual": ["inp", "fc"], "tied": ["fc"]}


def named(family: str) -> dict[str, Any]:
    return {"layers": NAMED[family]} if family in NAMED else {}


def living(
    family: str = "mlp",
    optimizer: str = "adam",
    install: Callable[[nn.Module], object] = lambda module: None,
    **params: Any,
) -> Subject:
    """Return a Subject at its initialisation; what `install` puts into it comes after them."""

    def put_in(module: nn.Module) -> None:
        rlplast.replace_layers(module, **(SHORT | named(family) | params))
        install(module)

    return subject(family, optimizer, updates=0, install=put_in)


def halfway(family: str = "mlp", updates: int = 7, method: str = "", **params: Any) -> Subject:
    """Return a Subject some updates later: in every layer some units sleep and some do not.

    The modules of a method that brings some are there too.
    """
    own = partial(install, method) if method else lambda module: None
    made = living(family, "adamw_fused", own, **params)
    for _ in range(updates):
        made.update()
        rlplast.tick(made.network)
    for layer in layers_of(made.module).values():
        assert 0 < int(layer.active.sum()) < layer.active.numel()
    return made


def layers_of(module: nn.Module) -> dict[str, Any]:
    return {path: m for path, m in module.named_modules() if isinstance(m, LifecycleUnits)}


def put_to_sleep(layer: Any, units: list[int], scale: float = 1.0) -> None:
    """Mask some units by hand and let the others warm up."""
    with torch.no_grad():
        layer.active.view(-1)[units] = 0
        layer.scale.fill_(scale)


HIDDEN = {
    "mlp": ["0", "2"],
    "conv": ["0", "2"],
    "conv_batchnorm": ["0", "3"],
    "residual": ["inp", "fc"],
    "tied": ["fc"],
    "stacked": ["fc1", "fc2"],
}


def test_new_layers_have_the_parameters_of_the_old_ones_and_compute_the_same() -> None:
    for family in FAMILIES:
        module = build(family)
        x, _ = data(family)
        before, parameters = module(x), dict(module.named_parameters())
        old = dict(module.named_modules())[HIDDEN[family][0]]
        replaced = rlplast.replace_layers(module, **SHORT, **named(family))
        assert replaced == HIDDEN[family] == list(layers_of(module))
        assert torch.equal(module(x), before), family
        assert module(x).stride() == before.stride()
        after = dict(module.named_parameters())
        assert list(parameters) == list(after)
        assert all(after[name] is parameter for name, parameter in parameters.items())
        assert list(old.state_dict()) == ["weight", "bias"]  # nothing came into the old layer


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_std = nn.Linear(4, 2), nn.Linear(4, 2)
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.fc(x).relu()
        return self.mean(h), self.log_std(h)


class Untraceable(TwoHeads):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(3, 2))


def test_layers_with_units_of_their_own_are_replaced_or_those_that_are_named() -> None:
    trunk = nn.ModuleDict({"trunk": build("mlp"), "head": nn.Linear(3, 3)})
    for module, layers, replaced in (
        (TwoHeads(), None, ["fc"]),
        (build("mlp"), ["4"], ["4"]),
        (trunk, ["trunk.[02]", "head"], ["trunk.0", "trunk.2", "head"]),
        (torch.compile(build("mlp"), backend="aot_eager"), None, ["0", "2"]),
    ):
        assert rlplast.replace_layers(module, layers=layers) == replaced
    twice: Any = shared()
    assert rlplast.replace_layers(twice, layers=["0"]) == ["0"]
    assert twice[0] is twice[2] and isinstance(twice[0], LifecycleLinear)


def test_refusals_name_the_layer_and_change_nothing() -> None:
    for module, params, message in (
        (nn.Linear(3, 2), {}, "lifecycle finds no"),
        (living().module, {}, "0 is a lifecycle layer already"),
        (build("residual"), {}, "inp: add joins inp and relu.*`layers`"),
        (build("residual"), {"layers": ["imp"]}, "'imp' .*'inp'"),
        (build("tied"), {}, r"fc: head\.weight is tied to embed\.weight"),
        (build("tied"), {"layers": ["head"]}, r"head\.weight is tied to embed\.weight"),
        (build("mlp"), {"layers": ["fc*"]}, r"'fc\*'.*0, 2, 4"),
        (build("mlp"), {"layers": ["1"]}, "'1' matches no layer"),
        (build("mlp"), {"life": [5, 2]}, r"life = \[5, 2\]"),
        (build("mlp"), {"memory": "hee"}, "memory = 'hee'"),
        (nn.ModuleDict({"a": nn.Linear(2, 2)}), {}, "a: ModuleDict could not be traced"),
        (Untraceable(), {}, "fc: Untraceable could not be traced .*unit_specs"),
        (shared(), {}, "0: .*more than once"),
    ):
        before = dict(module.named_modules())
        with pytest.raises(rlplast.ConfigError, match=message):
            rlplast.replace_layers(module, **params)
        assert dict(module.named_modules()) == before
    module = build("mlp")  # layers of one model may live differently
    rlplast.replace_layers(module, layers=["0"], warmup=3)
    rlplast.replace_layers(module, layers=["2"], warmup=5)
    assert [layer.lifecycle.warmup for layer in layers_of(module).values()] == [3, 5]


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


def test_conv_on_one_pixel_is_linear() -> None:
    rule = Lifecycle(life=(3, 9), recovery=(2, 5), warmup=4)
    conv = LifecycleConv2d.of(nn.Conv2d(5, 6, 1), rule, 7)
    linear = LifecycleLinear.of(nn.Linear(5, 6), rule, 7)
    with torch.no_grad():
        linear.weight.copy_(conv.weight.flatten(1))
        linear.bias.copy_(conv.bias)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (conv, linear)]
    networks = [rlplast.Network("net", nn.Sequential(m)) for m in (conv, linear)]
    generator = torch.Generator().manual_seed(0)
    slept = 0
    for _ in range(40):
        x = torch.randn(8, 5, generator=generator)
        outs = conv(x[:, :, None, None]).flatten(1), linear(x)
        torch.testing.assert_close(*outs)
        torch.testing.assert_close(conv(x[0, :, None, None])[:, 0, 0], outs[1][0])  # no batch
        for out, optimizer, network in zip(outs, optimizers, networks, strict=True):
            optimizer.zero_grad()
            out.square().sum().backward()
            optimizer.step()
            rlplast.tick(network)
        assert torch.equal(conv.active, linear.active)
        slept += int((linear.active == 0).sum())
        torch.testing.assert_close(conv.weight.flatten(1), linear.weight)
    assert slept > 50


def test_stacked_layer_is_two_separate_ones() -> None:
    params = SHORT | {"memory": "he", "redraw": True}
    pair, members = StackedPair(), [Critic(), Critic()]
    rlplast.replace_layers(pair, **params)
    for index, member in enumerate(members):
        rlplast.replace_layers(member, **params)
        member.load_state_dict({name: t[index] for name, t in pair.state_dict().items()})
    modules: list[nn.Module] = [pair, *members]
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.05) for m in modules]
    networks = [rlplast.Network("net", m) for m in modules]
    x, y = data("stacked")
    for _ in range(30):
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
    assert int(layers_of(pair)["fc2"].revivals.min()) >= 2
    assert not torch.equal(*layers_of(pair)["fc2"].life_max)


# State.


def test_half_precision_keeps_scales_and_memories_in_float32() -> None:
    module = living().module
    with torch.autocast("cpu", torch.bfloat16):
        assert layers_of(module)["0"](torch.ones(1, 5)).dtype == torch.bfloat16
    layer = layers_of(module.to(torch.bfloat16))["0"]
    assert layer.weight.dtype == torch.bfloat16
    assert layer.scale.dtype == layer.memory_weight.dtype == torch.float32
    put_to_sleep(layer, [2])
    assert layer(torch.ones(1, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert layers_of(living().module.double())["0"].memory_weight.dtype == torch.float64


# Attention, whose units are heads.

HEADS, D, BATCH, TIME = 3, 12, 2, 5


FORMS: dict[str, dict[str, Any]] = {
    "packed": {},
    "batch_first": {"batch_first": True},
    "no_bias": {"bias": False},
    "separate": {"kdim": 7, "vdim": 9},
    "bias_kv": {"add_bias_kv": True, "add_zero_attn": True},
}


def pair(**options: Any) -> tuple[nn.MultiheadAttention, LifecycleMultiheadAttention]:
    torch.random.default_generator.manual_seed(0)
    plain = nn.MultiheadAttention(D, HEADS, **options)
    with torch.no_grad():
        for parameter in plain.parameters():  # biases start at zero, where they would not show
            parameter.add_(0.1 * torch.randn_like(parameter))
    return plain, LifecycleMultiheadAttention.of(copy.deepcopy(plain), Lifecycle(), 0)


def inputs(plain: nn.MultiheadAttention) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (BATCH, TIME) if plain.batch_first else (TIME, BATCH)
    query, key, value = (
        torch.randn(*shape, d, generator=generator) for d in (D, plain.kdim, plain.vdim)
    )
    return query, key, value


def test_all_heads_awake_is_torchs_attention() -> None:
    masks = {
        "attn_mask": torch.ones(TIME, TIME, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.arange(TIME).expand(BATCH, TIME) >= TIME - 1,
    }
    for form, options in FORMS.items():
        plain, living = pair(**options)
        x = inputs(plain)
        for keys in ({}, masks, {"need_weights": False}, masks | {"need_weights": False}):
            expected, found = plain(*x, **keys), living(*x, **keys)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=form)
    plain, living = pair(batch_first=True)
    x = torch.randn(TIME, D)
    torch.testing.assert_close(living(x, x, x), plain(x, x, x))
    x = torch.randn(BATCH, TIME, D)
    with torch.no_grad():
        expected = plain.eval()(x, x, x, need_weights=False)
        torch.testing.assert_close(living.eval()(x, x, x, need_weights=False), expected)


def test_a_masked_head_is_one_whose_output_is_zeroed_by_hand() -> None:
    plain, living = pair(batch_first=True)
    living.active[1], living.scale[2] = 0, 0.25
    query, key, value = inputs(plain)
    d, size = (1.0, 0.0, 0.25), D // HEADS
    w, b = plain.in_proj_weight, plain.in_proj_bias
    q, k, v = (
        nn.functional.linear(t, w[i * D : (i + 1) * D], b[i * D : (i + 1) * D])
        for i, t in enumerate((query, key, value))
    )
    outputs = []
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        scores = q[..., own] @ k[..., own].mT / size**0.5
        outputs.append(d[head] * (scores.softmax(-1) @ v[..., own]))
    expected = plain.out_proj(torch.cat(outputs, dim=-1))
    torch.testing.assert_close(living(query, key, value)[0], expected)


@pytest.mark.parametrize(
    ("form", "memory"), [("packed", "he"), ("separate", "restore"), ("separate", "he")]
)
def test_rows_of_a_head_sleep_and_wake_together(form: str, memory: str) -> None:
    plain, _ = pair(**FORMS[form])
    model = nn.ModuleDict({"attention": plain})
    times = {"life": [2, 2], "recovery": [3, 3], "warmup": 0}
    params = {"layers": ["attention"], "memory": memory, "clear_moments": True}
    rlplast.replace_layers(model, **times, **params)
    living: Any = model["attention"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    network = rlplast.Network("net", model, optimizer)
    living.life[1:] = 100  # only the first head sleeps
    own = torch.arange(D) // (D // HEADS) == 0
    names = list(living.memories)
    for tick in range(1, 6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        if tick == 2:
            asleep = {n: living.get_parameter(n).detach().clone() for n in names}
        rlplast.tick(network)
        assert living.active.tolist() == [int(tick not in (2, 3, 4)), 1, 1]
    for name in names:
        parameter = living.get_parameter(name).detach()
        rows = own.repeat(len(parameter) // D)
        moments = optimizer.state[living.get_parameter(name)]
        if memory == "restore":
            assert torch.equal(parameter[rows], asleep[name][rows])
        elif parameter.ndim == 1:
            assert (parameter[rows] == 0).all()
        else:
            seed, place, d_in = int(living.seed), names.index(name), parameter.shape[1]
            units = rows.nonzero().flatten().tolist()
            drawn = np.stack([fresh_row(seed, place, 0, unit, d_in, d_in) for unit in units])
            torch.testing.assert_close(parameter[rows], torch.from_numpy(drawn).float())
        for m in (moments["exp_avg"], moments["exp_avg_sq"]):
            assert (m[rows] == 0).all() and (m[~rows] != 0).all()
        assert not torch.equal(parameter[~rows], asleep[name][~rows])
    columns = optimizer.state[living.out_proj.weight]["exp_avg"]
    assert (columns[:, own] == 0).all() and (columns[:, ~own] != 0).all()


def test_encoder_layers_mask_in_evaluation_too() -> None:
    torch.random.default_generator.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
    rlplast.replace_layers(model, layers=["*.self_attn", "*.linear1"])
    first: Any = model.layers[0]
    first.self_attn.active[1] = 0
    first.linear1.active[3:9] = 0
    x = torch.randn(BATCH, TIME, D)
    with torch.no_grad():
        trained, evaluated = model(x), model.eval()(x)
        torch.testing.assert_close(trained, evaluated)
        first.self_attn.active[1] = 1
        assert not torch.allclose(model(x), evaluated)
