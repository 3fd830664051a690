"""Full reset: fresh draws follow each layer's law, stored ones are the start bit for bit."""

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from tests.methods.nets import ConvNet, Mlp, changed, randomise, snapshot

FAR = 50.0  # trained weights this far out cannot be mistaken for a draw


def reset_far_weights(module: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Fill every parameter with a large value and reset it: all that is left is the draw."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(FAR)
    rlplast.full_reset(module, seed=seed)
    return snapshot(module)


# --- fresh draws --------------------------------------------------------------------------


def test_norm_layers_and_running_statistics_start_over() -> None:
    model = randomise(nn.Sequential(nn.BatchNorm2d(3), nn.LayerNorm(4), nn.GroupNorm(2, 4)), 1)
    rlplast.full_reset(model)
    start = snapshot(nn.Sequential(nn.BatchNorm2d(3), nn.LayerNorm(4), nn.GroupNorm(2, 4)))
    assert not changed(start, model)


def test_draws_differ_between_tensors_and_seeds_and_repeat_with_a_seed() -> None:
    def draw(seed: int) -> dict[str, Tensor]:
        return reset_far_weights(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)), seed)

    first, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert not torch.equal(first["0.weight"], first["1.weight"])


def test_a_tensor_without_a_known_law_is_named_and_nothing_is_written() -> None:
    model = randomise(Mlp(), 1)
    model.register_parameter("position", nn.Parameter(torch.ones(3)))
    before = snapshot(model)
    with pytest.raises(ConfigError, match=r"position.*init='stored'"):
        rlplast.full_reset(model)
    assert not changed(before, model)
    start = snapshot(randomise(model, 2))
    randomise(model, 3)
    rlplast.full_reset(model, init="stored", initial=start)
    assert not changed(start, model)


# --- stored -------------------------------------------------------------------------------


def test_stored_returns_to_the_start_bit_for_bit() -> None:
    model = randomise(ConvNet(norm=True), 1)
    network = rlplast.Network("q", model)
    start = snapshot(model)
    randomise(model, 2)
    model.get_buffer("1.num_batches_tracked").fill_(9)
    rlplast.full_reset(network, init="stored")
    assert not changed(start, model)


def test_stored_needs_the_start() -> None:
    with pytest.raises(ConfigError, match="initial="):
        rlplast.full_reset(Mlp(), init="stored")


# --- what is edited -----------------------------------------------------------------------


def test_every_tensor_is_reset_and_the_target_is_a_copy_running_statistics_included() -> None:
    model, target = randomise(ConvNet(norm=True), 1), randomise(ConvNet(norm=True), 2)
    before = snapshot(model)
    receipt = rlplast.full_reset(model, target=target)
    assert changed(before, model) == set(before)
    assert receipt.entries_touched == sum(tensor.numel() for tensor in before.values())
    assert not changed(snapshot(model), target)


def test_other_buffers_return_to_their_start() -> None:
    model = randomise(Mlp(), 1)
    model.register_buffer("seen", torch.tensor([1.0, 2.0]))
    network = rlplast.Network("q", model)
    model.get_buffer("seen").fill_(8)
    rlplast.full_reset(network)
    assert model.get_buffer("seen").tolist() == [1, 2]
