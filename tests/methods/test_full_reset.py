"""Full reset: fresh draws follow each layer's law, stored ones are the start bit for bit."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block
from tests.methods.nets import (
    ConvNet,
    Gpt,
    Mlp,
    changed,
    optimizer_entries,
    randomise,
    snapshot,
    train_a_little,
)

FAR = 50.0  # trained weights this far out cannot be mistaken for a draw


def reset_far_weights(module: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Fill every parameter with a large value and reset it: all that is left is the draw."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(FAR)
    rlplast.full_reset(module, seed=seed)
    return snapshot(module)


def assert_uniform(values: Tensor, bound: float) -> None:
    """Moments and ends of U(−bound, bound), to about five standard errors."""
    count = values.numel()
    assert values.abs().max() <= bound
    assert values.abs().max() >= bound * (1 - 20 / count)
    assert abs(float(values.mean())) < 5 * bound / math.sqrt(3 * count)
    assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=3 / math.sqrt(count))


# --- fresh draws --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "fan_in"),
    [
        (lambda: nn.Linear(64, 4000), 64),
        (lambda: nn.Conv2d(8, 2000, 3), 72),
        (lambda: nn.Conv2d(8, 2000, 3, groups=4), 18),
        (lambda: nn.Conv1d(4, 2000, 5), 20),
    ],
)
def test_linear_and_conv_draws_follow_torchs_own_law(
    make: Callable[[], nn.Module], fan_in: int
) -> None:
    drawn = reset_far_weights(make())
    assert_uniform(drawn["weight"], 1 / math.sqrt(fan_in))
    assert_uniform(drawn["bias"], 1 / math.sqrt(fan_in))
    theirs = make().get_parameter("weight").detach()  # what torch itself draws
    assert float(drawn["weight"].std()) == pytest.approx(float(theirs.std()), rel=0.03)


def test_packed_attention_draws_by_the_law_of_the_whole_projection() -> None:
    drawn = reset_far_weights(nn.MultiheadAttention(40, 2))
    assert_uniform(drawn["in_proj_weight"], math.sqrt(6 / (40 + 120)))
    assert not drawn["in_proj_bias"].any()


def test_embeddings_draw_standard_normals() -> None:
    drawn = reset_far_weights(nn.Embedding(200, 50))["weight"]
    assert float(drawn.mean()) == pytest.approx(0, abs=0.05)
    assert float(drawn.std()) == pytest.approx(1, abs=0.03)


def test_norm_layers_and_running_statistics_start_over() -> None:
    model = randomise(nn.Sequential(nn.BatchNorm2d(3), nn.LayerNorm(4), nn.GroupNorm(2, 4)), 1)
    rlplast.full_reset(model)
    start = snapshot(nn.Sequential(nn.BatchNorm2d(3), nn.LayerNorm(4), nn.GroupNorm(2, 4)))
    assert not changed(start, model)


def test_a_network_with_a_law_of_its_own_is_drawn_by_it() -> None:
    def law(block: Block, generator: torch.Generator) -> Tensor:
        return 3 + torch.rand(block.view.shape, generator=generator)

    model = randomise(Mlp(), 1)
    rlplast.full_reset(rlplast.Network("q", model, init=law))
    assert all(bool(((3 <= p) & (p < 4)).all()) for p in model.parameters())


def test_draws_differ_between_tensors_seeds_and_firings_and_repeat_with_a_seed() -> None:
    first, again, other = (reset_far_weights(Mlp(), seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    model = randomise(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)), 0)
    network = rlplast.Network("q", model, torch.optim.SGD(model.parameters(), lr=1))
    config = {"method": "full_reset", "at": ["25%", "50%"]}
    hooks = rlplast.Hooks([config], network, total="8 updates")
    results = []
    for update in range(1, 5):
        if hooks.step(updates=update):
            results.append(snapshot(model))
    one, two = results
    assert not any(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["0.weight"], one["1.weight"])


def test_draws_leave_the_global_generator_where_it_was() -> None:
    before = torch.get_rng_state()
    model = Mlp()
    torch.set_rng_state(before)
    rlplast.full_reset(model)
    assert torch.equal(torch.get_rng_state(), before)


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


def test_every_tensor_is_reset_in_place_and_stays_in_its_optimizer() -> None:
    model = randomise(ConvNet(norm=True), 1)
    optimizer = torch.optim.Adam(model.parameters())
    train_a_little(model, optimizer)
    before = snapshot(model)
    tensors = [*model.parameters(), *model.buffers(), *optimizer_entries(optimizer)]
    pointers = [tensor.data_ptr() for tensor in tensors]
    receipt = rlplast.full_reset(model, optimizer)
    assert changed(before, model) == set(before)
    assert [t.data_ptr() for t in tensors] == pointers
    assert not any(bool(entry.any()) for entry in optimizer_entries(optimizer))
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert held == [id(p) for p in model.parameters()]
    assert receipt.entries_touched == sum(tensor.numel() for tensor in before.values())


def test_target_becomes_a_copy_running_statistics_included() -> None:
    model, target = randomise(ConvNet(norm=True), 1), randomise(ConvNet(norm=True), 2)
    rlplast.full_reset(model, target=target)
    assert not changed(snapshot(model), target)


def test_a_tied_tensor_is_drawn_once_and_stays_tied() -> None:
    model = randomise(Gpt(), 1)
    receipt = rlplast.full_reset(model)
    assert model.tied
    assert receipt.entries_touched == sum(p.numel() for p in model.parameters())


def test_frozen_layers_are_left_alone() -> None:
    model = randomise(Mlp(), 1)
    model[0].requires_grad_(False)
    before = snapshot(model)
    rlplast.full_reset(model)
    assert changed(before, model) == {"2.weight", "2.bias", "4.weight", "4.bias"}


def test_other_buffers_return_to_their_start() -> None:
    model = randomise(Mlp(), 1)
    model.register_buffer("seen", torch.tensor([1.0, 2.0]))
    network = rlplast.Network("q", model)
    model.get_buffer("seen").fill_(8)
    rlplast.full_reset(network)
    assert model.get_buffer("seen").tolist() == [1, 2]


def test_one_hook_covers_every_network() -> None:
    nets = {name: randomise(Mlp(), 1) for name in ("actor", "critic")}
    before = snapshot(nets["actor"])
    networks = {
        name: rlplast.Network(name, net, torch.optim.SGD(net.parameters(), lr=1))
        for name, net in nets.items()
    }
    hooks = rlplast.Hooks([{"method": "full_reset", "at": "50%"}], networks, total="2 updates")
    receipts = hooks.step(updates=1)
    assert [receipt.network for receipt in receipts] == ["actor", "critic"]
    after = [snapshot(net) for net in nets.values()]
    assert all(changed(before, net) == set(before) for net in nets.values())
    assert not torch.equal(after[0]["0.weight"], after[1]["0.weight"])
