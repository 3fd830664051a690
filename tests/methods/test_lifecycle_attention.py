"""Attention whose heads sleep, against torch's own and against heads zeroed by hand."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.network.network import Network
from rlplast.methods.lifecycle import Lifecycle
from rlplast.methods.lifecycle_modules import LifecycleMultiheadAttention
from tests.naive.lifecycle import fresh_row

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


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_all_heads_awake_is_torchs_attention(form: str, need_weights: bool) -> None:
    plain, living = pair(**FORMS[form])
    x = inputs(plain)
    masks = {
        "attn_mask": torch.ones(TIME, TIME, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.arange(TIME).expand(BATCH, TIME) >= TIME - 1,
    }
    for options in ({}, masks):
        expected = plain(*x, need_weights=need_weights, **options)
        found = living(*x, need_weights=need_weights, **options)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_self_attention_unbatched_and_in_evaluation_is_torchs_too() -> None:
    plain, living = pair(batch_first=True)
    x = torch.randn(TIME, D)
    torch.testing.assert_close(living(x, x, x), plain(x, x, x))
    plain.eval()
    living.eval()
    x = torch.randn(BATCH, TIME, D)
    with torch.no_grad():
        expected = plain(x, x, x, need_weights=False)
        torch.testing.assert_close(living(x, x, x, need_weights=False), expected)


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


def test_no_gradient_reaches_the_rows_of_a_sleeping_head() -> None:
    plain, living = pair()
    living.active[1] = 0
    living(*inputs(plain))[0].square().sum().backward()
    rows = torch.arange(3 * D) % D // (D // HEADS) == 1
    for parameter in (living.in_proj_weight, living.in_proj_bias):
        assert parameter.grad is not None
        assert (parameter.grad[rows] == 0).all()
        assert (parameter.grad[~rows] != 0).any()


@pytest.mark.parametrize("form", ["packed", "separate"])
@pytest.mark.parametrize("memory", ["restore", "he"])
def test_rows_of_a_head_sleep_and_wake_together(form: str, memory: str) -> None:
    plain, _ = pair(**FORMS[form])
    model = nn.ModuleDict({"attention": plain})
    rlplast.replace_layers(
        model,
        layers=["attention"],
        life=[2, 2],
        recovery=[3, 3],
        warmup=0,
        memory=memory,
        clear_moments=True,
    )
    living: Any = model["attention"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    network = Network("net", model, optimizer)
    living.life[1:] = 100  # only the first head sleeps
    own = torch.arange(D) // (D // HEADS) == 0
    names = [n for n in living.memories]
    for tick in range(1, 6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        if tick == 2:
            asleep = {n: living.get_parameter(n).detach().clone() for n in names}
        rlplast.tick(network)
        assert living.active.tolist() == [int(tick not in (2, 3, 4)), 1, 1]
    for name in names:
        parameter = living.get_parameter(name)
        rows = own.repeat(len(parameter) // D)
        moments = [m for n, m in optimizer.state[parameter].items() if n != "step"]
        if memory == "restore":
            assert torch.equal(parameter[rows], asleep[name][rows])
        elif parameter.ndim == 1:
            assert (parameter[rows] == 0).all()
        else:
            seed, place, d_in = int(living.seed), names.index(name), parameter.shape[1]
            drawn = [
                fresh_row(seed, place, 0, int(row), d_in, d_in) for row in rows.nonzero().flatten()
            ]
            expected = torch.stack([torch.from_numpy(row) for row in drawn]).float()
            torch.testing.assert_close(parameter[rows].detach(), expected)
        assert all((m[rows] == 0).all() and (m[~rows] != 0).all() for m in moments)
        assert not torch.equal(parameter[~rows], asleep[name][~rows])
    columns = optimizer.state[living.out_proj.weight]["exp_avg"]
    assert (columns[:, own] == 0).all() and (columns[:, ~own] != 0).all()


def test_each_part_of_a_packed_projection_has_its_own_piece_of_the_memory() -> None:
    _, living = pair()
    network = Network("net", nn.ModuleDict({"attention": living}))
    blocks = {b.name: b for b in network.blocks}
    key = blocks["attention.k.weight"]
    assert key.memory is not None
    expected = living.memory_in_proj_weight[D : 2 * D]
    assert key.memory.data_ptr() == expected.data_ptr() and key.memory.shape == expected.shape
    assert blocks["attention.memory_in_proj_weight"].kind == "lifecycle"


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
