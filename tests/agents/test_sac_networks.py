import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rlplast
from rlplast.agents.sac_networks import Actor, Critic, Temperature, TrunkSpec
from rlplast.agents.trunks import TrunkNetwork
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order
from rlplast.core.rng import torch_stream
from tests.marks import slow_but
from tests.methods.nets import normal, randomise
from tests.naive.simba_v2 import head_twin, hidden_twin

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


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return normal(BATCH, OBS, dtype=dtype), normal(BATCH, ACTION, seed=1, dtype=dtype).tanh()


def member_of(module: nn.Module, member: int | None) -> dict[str, Tensor]:
    weights = {name: tensor.detach() for name, tensor in module.named_parameters()}
    return weights if member is None else {name: t[member] for name, t in weights.items()}


def hidden_of(trunk: TrunkSpec, weight: dict[str, Tensor], x: Tensor) -> Tensor:
    """What heads read, by the formulas of the papers."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weight[f"{name}.weight"].T + weight[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        std = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return centred / std * weight[f"{name}.weight"] + weight[f"{name}.bias"]

    if trunk.kind == "mlp":
        for i in range(trunk.blocks):
            x = linear(f"fc{i + 1}", x).clamp(min=0)
        return x
    if trunk.kind == "simba_v2":
        return hidden_twin({n: w.double().numpy() for n, w in weight.items()}, x)
    x = linear("input", x)
    if trunk.kind == "bro":
        x = norm("norm", x).clamp(min=0)
        for block in (f"blocks.{i}" for i in range(trunk.blocks)):
            inner = norm(f"{block}.norm1", linear(f"{block}.fc1", x)).clamp(min=0)
            x = x + norm(f"{block}.norm2", linear(f"{block}.fc2", inner))
        return x
    for i in range(trunk.blocks):
        block = f"blocks.{i}"
        inner = linear(f"{block}.fc1", norm(f"{block}.norm", x)).clamp(min=0)
        x = x + linear(f"{block}.fc2", inner)
    return norm("norm", x)


def head_of(weight: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    """What a head makes of it: a linear layer, or SimbaV2's two."""
    if f"{name}.weight" in weight:
        return F.linear(hidden, weight[f"{name}.weight"], weight[f"{name}.bias"])
    return head_twin({n: w.double().numpy() for n, w in weight.items()}, name, hidden)


# --- what is computed -------------------------------------------------------------------------


@pytest.mark.parametrize("trunk", TRUNKS)
def test_actor_computes_the_published_formulas(trunk: str) -> None:
    for law in ("squash", "clamp"):
        actor = randomise(Actor(OBS, ACTION, TRUNKS[trunk], -1.5, 0.5, log_std=law), 0)
        obs, _ = inputs()
        mean, log_std = actor(obs)
        weight = member_of(actor, None)
        hidden = hidden_of(TRUNKS[trunk], weight, obs)
        raw, expected = (head_of(weight, head, hidden) for head in ("log_std", "mean"))
        torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-4)
        bounded = raw.clamp(-1.5, 0.5) if law == "clamp" else -0.5 + torch.tanh(raw)
        torch.testing.assert_close(log_std, bounded, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_critic_computes_every_member_by_the_published_formulas(trunk: str) -> None:
    for members in (1, 3):
        critic = randomise(Critic(OBS, ACTION, TRUNKS[trunk], members), 0)
        obs, action = inputs()
        values = critic(obs, action)
        assert values.shape == (members, BATCH) and values.dtype == torch.float32
        for member in range(members):
            weight = member_of(critic, member)
            hidden = hidden_of(TRUNKS[trunk], weight, torch.cat([obs, action], 1))
            expected = head_of(weight, "head", hidden)[:, 0]
            torch.testing.assert_close(values[member], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trunk", slow_but(list(TRUNKS)[:1], TRUNKS))
def test_compiled_networks_do_what_eager_ones_do(trunk: str) -> None:
    spec, (obs, action) = TRUNKS[trunk], inputs()
    actor, critic = Actor(OBS, ACTION, spec), randomise(Critic(OBS, ACTION, spec, 2), 0)
    temperature = Temperature(0.1)

    def found() -> tuple[Any, ...]:
        return *critic.forward_activations(obs, action), *actor(obs), temperature()

    results = []
    for call in (found, torch.compile(found, backend="aot_eager", fullgraph=True)):
        values, *others = call()
        weights = list(critic.parameters())
        gradients = torch.autograd.grad(values.square().sum(), weights, retain_graph=True)
        results.append((values, others, gradients))
    torch.testing.assert_close(results[1], results[0])


def test_sizes_are_those_of_the_paper() -> None:
    # FIRE Table 4: actor 128 x 1, critic 512 x 2, inner layers four times as wide
    actor, critic = (
        Actor(51, 19, TrunkSpec("simba", 128, 1)),
        Critic(51, 19, TrunkSpec("simba", 512, 2)),
    )
    block = 2 * 128 + (128 + 1) * 512 + (512 + 1) * 128
    expected = 52 * 128 + block + 2 * 128 + 2 * 129 * 19
    assert sum(p.numel() for p in actor.parameters()) == expected
    block = 2 * 512 + (512 + 1) * 2048 + (2048 + 1) * 512
    expected = 2 * (71 * 512 + 2 * block + 2 * 512 + 513)
    assert sum(p.numel() for p in critic.parameters()) == expected


def test_default_log_std_is_squashed_between_minus_ten_and_two() -> None:
    actor = Actor(OBS, ACTION, TRUNKS["mlp"])
    with torch.no_grad():
        for parameter in actor.get_submodule("log_std").parameters():
            parameter.zero_()
        bias = actor.get_parameter("log_std.bias")
        found = []
        for raw in (-50.0, 0.0, 50.0):
            bias.fill_(raw)
            found.append(float(actor(inputs()[0])[1][0, 0]))
    assert found == [-10, -4, 2]


# --- taps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("members", [None, 2])
def test_taps_are_the_activations_after_each_relu(trunk: str, members: int | None) -> None:
    spec, given = TRUNKS[trunk], inputs()[: 1 if members is None else 2]
    module: Any = Critic(OBS, ACTION, spec, members) if members else Actor(OBS, ACTION, spec)
    handle, seen, called = network(module), {}, []
    layers = [f"blocks.{i}.fc1" for i in range(spec.blocks)]
    layers = [f"fc{i + 1}" for i in range(spec.blocks)] if spec.kind == "mlp" else layers
    before = {"simba_v2": "scaler", "bro": "norm1"}.get(spec.kind, "fc1")  # the nonlinearity
    order = forward_order(handle)

    def note(name: str, out: Tensor) -> None:
        called.append(name)
        seen[name] = out.clone()

    for name in {*order, *(layer.replace(".fc1", f".{before}") for layer in layers)}:
        # The activation works in place, hence a copy.
        module.get_submodule(name).register_forward_hook(
            lambda module, given, out, name=name: note(name, out)
        )
    out, taps = module.forward_activations(*given)
    points = {layer: seen[layer.replace(".fc1", f".{before}")].relu() for layer in layers}
    if members is not None:
        points = {f"[{s}].{layer}": points[layer][s] for layer in layers for s in range(2)}
    assert list(taps) == list(points)
    assert all(torch.equal(taps[name], points[name]) for name in taps)
    assert set(taps) <= {block.layer for block in handle.blocks}
    assert [name for name in called if name in order] == order
    assert set(order) == {name.rpartition(".")[0] for name, _ in module.named_parameters()}
    for ours, theirs in zip(out, module(*given), strict=True):
        assert torch.equal(ours, theirs)


# --- initial weights --------------------------------------------------------------------------


def drawn(kind: str, bins: int | None = None) -> Iterator[tuple[str, Tensor]]:
    critic = Critic(21, 9, TrunkSpec(kind, 64, 2), **({"bins": bins} if bins else {}))
    for module, member in ((Actor(30, 9, TrunkSpec(kind, 64, 1)), None), (critic, 1)):
        network(randomise(module, 9))
        yield from member_of(module, member).items()


def check_orthogonal(weight: Tensor, square: float = 1) -> None:
    small = (weight if weight.shape[0] <= weight.shape[1] else weight.T).double()
    expected = square * torch.eye(len(small)).double()
    torch.testing.assert_close(small @ small.T, expected, atol=1e-5, rtol=0)


def test_simba_is_drawn_by_its_laws() -> None:
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


def test_bro_is_drawn_orthogonal_with_gain_root_two() -> None:
    for name, weight in drawn("bro"):
        if weight.ndim == 1:
            assert (weight == float("norm" in name and "weight" in name)).all()
        else:
            check_orthogonal(weight, 1 if name.startswith("log_std") else 2)


def test_simba_v2_is_drawn_orthogonal_with_rows_of_length_one() -> None:
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


def test_mlp_is_drawn_by_torchs_own_law() -> None:
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


# --- methods ----------------------------------------------------------------------------------


@torch.no_grad()
def test_swr_scales_each_head_of_an_mlp_actor_by_its_own_product() -> None:
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


@pytest.mark.parametrize("rule", ["exact", "printed"])
@torch.no_grad()
def test_swr_gives_each_simba_head_the_factor_of_the_last_norm_and_its_own(rule: str) -> None:
    actor = Actor(OBS, ACTION, TRUNKS["simba"]).double()
    made = Network("actor", randomise(actor, 0).double())
    randomise(actor, 1, std=2.0)
    before = {name: p.clone() for name, p in actor.named_parameters()}
    rlplast.swr(made, coef=0.3, rule=rule)
    ratio = {name: float((p / before[name]).mean()) for name, p in actor.named_parameters()}
    for head in ("mean", "log_std"):
        expected = ratio["norm.weight"] * ratio[f"{head}.weight"]
        expected *= ratio["blocks.1.fc2.weight"] if rule == "printed" else 1
        assert ratio[f"{head}.bias"] == pytest.approx(expected, rel=1e-12)


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


# --- wrong use --------------------------------------------------------------------------------


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'simba'"):
        TrunkSpec("simbaa", 8, 1)
    with pytest.raises(ConfigError, match="log_std_min"):
        Actor(3, 2, TRUNKS["mlp"], 2.0, 2.0)
