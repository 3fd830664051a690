import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.sac_networks import Actor, Critic, TrunkSpec
from rlplast.agents.trunks import TrunkNetwork
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order
from rlplast.core.rng import torch_stream
from tests.methods.nets import normal, randomise
from tests.models import recorded
from tests.naive import sac, simba_v2
from tests.naive.sac import Weights

OBS, ACTION, BATCH = 5, 3, 7
TRUNKS = {
    "simba": TrunkSpec("simba", 8, 2),
    "one block": TrunkSpec("simba", 8, 1),
    "mlp": TrunkSpec("mlp", 8, 2),
    "simba_v2": TrunkSpec("simba_v2", 8, 2),
    "bro": TrunkSpec("bro", 8, 2),
}


def network(module: nn.Module, seed: int = 0) -> Network:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    made = Network("net", module, optimizer)
    made.initialise(torch_stream(seed, "init", "net"))
    return made


def inputs() -> tuple[Tensor, Tensor]:
    return normal(BATCH, OBS).float(), normal(BATCH, ACTION, seed=1).tanh().float()


def member_of(module: nn.Module, member: int | None) -> dict[str, Tensor]:
    weights = {name: tensor.detach() for name, tensor in module.named_parameters()}
    return weights if member is None else {name: t[member] for name, t in weights.items()}


def output_of(kind: str, weight: Weights, x: Tensor, head: str) -> Tensor:
    """What a head gives, by the formulas of the papers."""
    if kind != "bro":
        return (simba_v2 if kind == "simba_v2" else sac).forward(weight, x, head)

    def normed(name: str, norm: str, x: Tensor) -> Tensor:
        return sac.layer_norm(weight, norm, sac.linear(weight, name, x))

    x = sac.relu(normed("input", "norm", x))
    for block in ("blocks.0", "blocks.1"):
        inner = sac.relu(normed(f"{block}.fc1", f"{block}.norm1", x))
        x = x + normed(f"{block}.fc2", f"{block}.norm2", inner)
    return sac.linear(weight, head, x)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_networks_compute_the_published_formulas(trunk: str) -> None:
    (obs, action), spec = inputs(), TRUNKS[trunk]
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    for law in ("squash", "clamp"):
        actor = randomise(Actor(OBS, ACTION, spec, -1.5, 0.5, log_std=law), 0)
        weight = member_of(actor, None)
        mean, raw = (output_of(spec.kind, weight, obs, head) for head in ("mean", "log_std"))
        bounded = raw.clamp(-1.5, 0.5) if law == "clamp" else -0.5 + torch.tanh(raw)
        close(actor(obs), (mean, bounded))
    assert Actor(OBS, ACTION, spec).bounds == (-10, 2)
    for members in (1, 3):
        critic = randomise(Critic(OBS, ACTION, spec, members), 0)
        values = critic(obs, action)
        assert values.shape == (members, BATCH) and values.dtype == torch.float32
        for i in range(members):
            x = torch.cat([obs, action], 1)
            close(values[i], output_of(spec.kind, member_of(critic, i), x, "head")[:, 0])


@pytest.mark.parametrize("trunk", TRUNKS)
def test_taps_are_the_activations_after_each_relu(trunk: str) -> None:
    spec = TRUNKS[trunk]
    layers = [f"blocks.{i}.fc1" for i in range(spec.blocks)]
    layers = [f"fc{i + 1}" for i in range(spec.blocks)] if spec.kind == "mlp" else layers
    before = {"simba_v2": "scaler", "bro": "norm1"}.get(spec.kind, "fc1")  # the nonlinearity
    made: tuple[Any, ...] = Actor(OBS, ACTION, spec), Critic(OBS, ACTION, spec, 2)
    for module, given in zip(made, (inputs()[:1], inputs()), strict=True):
        handle, seen = network(module), {}
        order = forward_order(handle)
        for name in {*order, *(layer.replace(".fc1", f".{before}") for layer in layers)}:
            # The activation works in place, hence a copy.
            module.get_submodule(name).register_forward_hook(
                lambda _, given, out, name=name, seen=seen: seen.update({name: out.clone()})
            )
        out, taps = recorded(module, *given)
        points = {layer: seen[layer.replace(".fc1", f".{before}")].relu() for layer in layers}
        if module is made[1]:
            points = {f"[{s}].{layer}": points[layer][s] for layer in layers for s in range(2)}
        assert list(taps) == list(points)
        assert all(torch.equal(taps[name], points[name]) for name in taps)
        assert set(taps) <= {block.layer for block in handle.blocks}
        assert [name for name in seen if name in order] == order
        assert set(order) == {name.rpartition(".")[0] for name, _ in module.named_parameters()}
        for ours, theirs in zip(out, module(*given), strict=True):
            assert torch.equal(ours, theirs)


def drawn(kind: str, bins: int | None = None) -> Iterator[tuple[str, Tensor]]:
    critic = Critic(21, 9, TrunkSpec(kind, 64, 2), **({"bins": bins} if bins else {}))
    for module, member in ((Actor(30, 9, TrunkSpec(kind, 64, 1)), None), (critic, 1)):
        network(randomise(module, 9))
        yield from member_of(module, member).items()


def check_orthogonal(weight: Tensor, square: float = 1) -> None:
    small = (weight if weight.shape[0] <= weight.shape[1] else weight.T).double()
    expected = square * torch.eye(len(small)).double()
    torch.testing.assert_close(small @ small.T, expected, atol=1e-5, rtol=0)


def test_weights_are_drawn_by_the_laws_of_the_papers() -> None:
    for name, weight in drawn("simba"):
        if weight.ndim == 1:
            assert (weight == float(name.endswith("norm.weight"))).all()
        elif name.startswith("blocks."):
            std = math.sqrt(2 / weight.shape[1])
            assert float(weight.std()) == pytest.approx(std, rel=0.02)
            # cut at two deviations of the normal, which cutting makes narrower
            bound = 2 * std / 0.87962566
            assert 0.99 * bound < weight.abs().max() <= bound * (1 + 1e-6)
        else:
            check_orthogonal(weight)
    for name, weight in drawn("bro"):
        if weight.ndim == 1:
            assert (weight == float("norm" in name and "weight" in name)).all()
        else:
            check_orthogonal(weight, 1 if name.startswith("log_std") else 2)
    starts = {"scaler": (2 / 64) ** 0.5, "alpha": 1 / 8}
    for name, weight in drawn("simba_v2", bins=11):
        if weight.ndim == 2:
            torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
            if weight.shape[0] <= weight.shape[1]:
                check_orthogonal(weight)
        elif name.endswith("bias"):
            assert (weight == 0).all()
        else:
            start = starts[name.split(".")[-2]]
            start = start / 2 if "blocks" in name and "scaler" in name else start
            start = 1.0 if name.startswith(("mean", "log_std", "head")) else start
            torch.testing.assert_close(weight, torch.full_like(weight, start))


def test_an_mlp_is_drawn_by_torchs_own_law() -> None:
    for module in (Actor(30, 9, TrunkSpec("mlp", 64, 2)), Critic(21, 9, TrunkSpec("mlp", 64, 2))):
        for block in network(randomise(module, 9)).blocks:
            bound = module.get_parameter(f"{block.path}.weight").shape[-1] ** -0.5
            assert 0 < block.view.abs().max() <= bound
            if block.role == "weight":
                assert float(block.view.std()) == pytest.approx(bound / math.sqrt(3), rel=0.15)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_init_repeats_with_its_stream_and_differs_between_members(trunk: str) -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        made = network(Critic(OBS, ACTION, TRUNKS[trunk]), seed)
        return {b.name: b.view.clone() for b in made.blocks if b.role == "weight"}

    one, two, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    assert not any(torch.equal(one[n], one[n.replace("[0]", "[1]")]) for n in one if "[0]" in n)


@torch.no_grad()
def test_swr_scales_each_head_by_its_own_product() -> None:
    # Theorem 1; bounds so wide that log_std is the head's own output
    actor = Actor(OBS, ACTION, TRUNKS["mlp"], -1e9, 1e9, log_std="clamp").double()
    made = Network("actor", randomise(actor, 0).double())
    randomise(actor, 1, std=2.0)
    factors = {}
    for layer in ("fc1", "fc2", "mean", "log_std"):
        now = float(actor.get_parameter(f"{layer}.weight").norm())
        factors[layer] = (0.3 * float(made.initial[f"{layer}.weight"].norm()) + 0.7 * now) / now
    obs = normal(BATCH, OBS)
    before = actor(obs)
    rlplast.swr(made, coef=0.3)
    for head, ours, theirs in zip(("mean", "log_std"), actor(obs), before, strict=True):
        product = factors["fc1"] * factors["fc2"] * factors[head]
        torch.testing.assert_close(ours, product * theirs, rtol=1e-12, atol=1e-12)
    assert factors["mean"] != pytest.approx(factors["log_std"], rel=1e-3)


@pytest.mark.parametrize("trunk", TRUNKS)
@torch.no_grad()
def test_methods_on_stacked_critics_equal_those_on_separate_ones(trunk: str) -> None:
    for method in ("swr", "fire", "shrink_perturb"):
        critic = randomise(Critic(OBS, ACTION, TRUNKS[trunk]), 0)
        start = [{n: t.clone() for n, t in member_of(critic, i).items()} for i in range(2)]
        made = Network("critic", critic)
        randomise(critic, 1, std=2.0)
        for member in range(2):
            alone = TrunkNetwork(OBS + ACTION, TRUNKS[trunk], {"head": 1})
            alone.load_state_dict(member_of(critic, member))
            getattr(rlplast, method)(Network("q", alone, initial=start[member]))
            start[member] = member_of(alone, None)
        getattr(rlplast, method)(made)
        for member in range(2):
            torch.testing.assert_close(member_of(critic, member), start[member])
