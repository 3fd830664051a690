"""Which tensors FIRE edits in each scope: exactly those, and each as its twin does."""

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError
from tests.methods.nets import (
    ConvNet,
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


def test_scopes_edit_their_weights_and_spare_biases_norms_embeddings_and_statistics() -> None:
    linear, conv = {"7.weight", "9.weight"}, {"0.weight", "3.weight"}
    normed = lambda: ConvNet(norm=True)  # noqa: E731
    embedding = lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4))  # noqa: E731
    for make, options, edited in (
        (normed, {"scope": "sac"}, linear),
        (normed, {"scope": "resnet"}, linear | conv),
        (normed, {"scope": "vgg"}, linear | conv),
        (normed, {"scope": "all"}, linear | conv),
        (embedding, {"include_tied": True}, {"1.weight"}),
    ):
        model = randomise(make(), 1)
        before = snapshot(model)
        rlplast.fire(model, **options)
        assert changed(before, model) == edited, options
    for model, options, name in (
        (ConvNet(), {"scope": "dqn"}, "initial="),
        (nn.Sequential(nn.LayerNorm(3), nn.ReLU()), {}, "no linear or conv weight"),
    ):
        with pytest.raises(ConfigError, match=name):
            rlplast.fire(model, **options)


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
    other = randomise(nn.MultiheadAttention(6, 2, kdim=4, vdim=5), 1)
    before = snapshot(other)
    rlplast.fire(other, scope="vit")
    assert changed(before, other) == {"q_proj_weight", "k_proj_weight"}
    twin = fire_twin(before["k_proj_weight"].numpy(), 10, "cubic")
    assert relative_error(snapshot(other)["k_proj_weight"], twin) <= 1e-5


def test_two_tied_linears_are_refused_or_edited_once() -> None:
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    model = randomise(nn.Sequential(first, nn.ReLU(), second), 1)
    before = snapshot(model)
    with pytest.raises(ConfigError, match="include_tied"):
        rlplast.fire(model, iterations=3)
    assert not changed(before, model)
    receipt = rlplast.fire(model, include_tied=True, iterations=3)
    twin = fire_twin(before["0.weight"].numpy(), 3, "cubic")
    assert relative_error(second.weight, twin) <= 1e-6
    assert receipt.entries_touched == 25
