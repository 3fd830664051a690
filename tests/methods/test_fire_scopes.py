"""Which tensors FIRE edits in each scope: exactly those, and each as its twin does."""

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError
from tests.methods.nets import (
    ConvNet,
    Gpt,
    Mlp,
    VisionTransformer,
    changed,
    randomise,
    relative_error,
    snapshot,
)
from tests.naive.interventions import fire_twin


def test_dqn_projects_convs_and_returns_linears_to_their_start() -> None:
    model, target = randomise(ConvNet(), 1), randomise(ConvNet(), 2)
    start = snapshot(model)
    randomise(model, 3)
    before = snapshot(model)
    rlplast.fire(model, scope="dqn", target=target, initial=start)
    after = snapshot(model)
    assert changed(before, model) == {"0.weight", "2.weight"} | {
        f"{layer}.{role}" for layer in (5, 7) for role in ("weight", "bias")
    }
    for name in ("0.weight", "2.weight"):
        twin = fire_twin(before[name].numpy(), 10, "cubic")
        assert relative_error(after[name], twin) <= 1e-5
    for name in ("5.weight", "5.bias", "7.weight", "7.bias"):
        assert torch.equal(after[name], start[name])
    assert not changed(after, target)  # conv biases included


def test_dqn_needs_the_initial_weights() -> None:
    with pytest.raises(ConfigError, match="initial="):
        rlplast.fire(ConvNet(), scope="dqn")


@pytest.mark.parametrize(
    ("scope", "edited"),
    [
        ("sac", {"7.weight", "9.weight"}),
        ("resnet", {"0.weight", "3.weight", "7.weight", "9.weight"}),
        ("vgg", {"0.weight", "3.weight", "7.weight", "9.weight"}),
        ("all", {"0.weight", "3.weight", "7.weight", "9.weight"}),
    ],
)
def test_scopes_of_conv_nets_spare_biases_norms_and_statistics(
    scope: str, edited: set[str]
) -> None:
    model = randomise(ConvNet(norm=True), 1)
    before = snapshot(model)
    rlplast.fire(model, scope=scope)
    assert changed(before, model) == edited


def test_vit_edits_query_and_key_alone_wherever_they_are_stored() -> None:
    model = randomise(VisionTransformer(), 1)
    before = snapshot(model)
    rlplast.fire(model, scope="vit")
    packed = {"attention.in_proj_weight", "qkv.weight"}
    assert changed(before, model) == packed | {"q_proj.weight", "k_proj.weight"}
    after = snapshot(model)
    for name in packed:
        for rows in (slice(0, 6), slice(6, 12)):
            twin = fire_twin(before[name][rows].numpy(), 10, "cubic")
            assert relative_error(after[name][rows], twin) <= 1e-5
        assert torch.equal(after[name][12:], before[name][12:])


def test_vit_finds_separately_stored_projections_of_other_widths() -> None:
    model = randomise(nn.MultiheadAttention(6, 2, kdim=4, vdim=5), 1)
    before = snapshot(model)
    rlplast.fire(model, scope="vit")
    assert changed(before, model) == {"q_proj_weight", "k_proj_weight"}
    twin = fire_twin(before["k_proj_weight"].numpy(), 10, "cubic")
    assert relative_error(snapshot(model)["k_proj_weight"], twin) <= 1e-5


@pytest.mark.parametrize("scope", ["gpt", "all"])
@pytest.mark.parametrize("include_tied", [False, True])
def test_gpt_edits_each_part_of_packed_attention_and_the_tied_head_if_asked(
    scope: str, include_tied: bool
) -> None:
    model = randomise(Gpt(), 1)
    before = snapshot(model)
    receipt = rlplast.fire(model, scope=scope, include_tied=include_tied, iterations=5)
    after = snapshot(model)
    tied = {"wte.weight", "lm_head.weight"} if include_tied else set()
    assert changed(before, model) == {"c_attn.weight", "c_proj.weight"} | tied
    for i in range(3):
        rows = slice(4 * i, 4 * i + 4)
        twin = fire_twin(before["c_attn.weight"][rows].numpy(), 5, "cubic")
        assert relative_error(after["c_attn.weight"][rows], twin) <= 1e-5
    if include_tied:  # scale √(vocabulary / width)
        twin = fire_twin(before["lm_head.weight"].numpy(), 5, "cubic")
        assert relative_error(after["lm_head.weight"], twin) <= 1e-5
    assert receipt.entries_touched == 48 + 16 + (40 if include_tied else 0)
    assert model.tied


def test_an_embedding_that_is_not_tied_is_never_edited() -> None:
    model = randomise(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)), 1)
    before = snapshot(model)
    rlplast.fire(model, include_tied=True)
    assert changed(before, model) == {"1.weight"}


def test_two_tied_linears_are_refused_or_edited_once() -> None:
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    model = randomise(nn.Sequential(first, nn.ReLU(), second), 1)
    before = snapshot(model)
    with pytest.raises(ConfigError, match=r"no linear or conv weight .* include_tied"):
        rlplast.fire(model, iterations=3)
    assert not changed(before, model)
    receipt = rlplast.fire(model, include_tied=True, iterations=3)
    twin = fire_twin(before["0.weight"].numpy(), 3, "cubic")
    assert relative_error(second.weight, twin) <= 1e-6
    assert receipt.entries_touched == 25


def test_only_frozen_or_norm_layers_are_refused_and_nothing_is_zeroed() -> None:
    model = nn.Sequential(nn.LayerNorm(3), nn.ReLU())
    with pytest.raises(ConfigError, match="no linear or conv weight"):
        rlplast.fire(model)


@pytest.mark.parametrize("size", [1e-200, 1e200])
@pytest.mark.parametrize("shape", [(4, 4), (5, 36)])
def test_weights_of_extreme_size_are_projected_like_others(
    size: float, shape: tuple[int, int]
) -> None:
    layer = nn.Linear(shape[1], shape[0], bias=False, dtype=torch.float64)
    other = nn.Linear(shape[1], shape[0], bias=False, dtype=torch.float64)
    with torch.no_grad():
        other.weight.copy_(layer.weight)
        layer.weight.mul_(size)
    rlplast.fire(layer)
    rlplast.fire(other)
    assert torch.allclose(layer.weight, other.weight, rtol=1e-9, atol=1e-12)


def test_a_frozen_layer_is_left_alone() -> None:
    model = randomise(Mlp(), 1)
    model[2].requires_grad_(False)
    before = snapshot(model)
    rlplast.fire(model)
    assert changed(before, model) == {"0.weight", "4.weight"}
