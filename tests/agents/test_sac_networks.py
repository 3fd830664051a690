import math
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
from tests.marks import slow, slow_but
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


@pytest.mark.parametrize("law", ["squash", "clamp"])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_actor_computes_the_published_formulas(trunk: str, law: str) -> None:
    actor = randomise(Actor(OBS, ACTION, TRUNKS[trunk], -1.5, 0.5, log_std=law), 0)
    obs, _ = inputs()
    mean, log_std = actor(obs)
    weight = member_of(actor, None)
    hidden = hidden_of(TRUNKS[trunk], weight, obs)
    raw, expected = (head_of(weight, head, hidden) for head in ("log_std", "mean"))
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-4)
    bounded = raw.clamp(-1.5, 0.5) if law == "clamp" else -0.5 + torch.tanh(raw)
    torch.testing.assert_close(log_std, bounded, rtol=1e-4, atol=1e-4)
    assert mean.shape == log_std.shape == (BATCH, ACTION)
    assert mean.dtype == log_std.dtype == torch.float32


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_critic_computes_every_member_by_the_published_formulas(trunk: str, members: int) -> None:
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
def test_compiled_critics_have_the_values_activations_and_gradients_of_eager_ones(
    trunk: str,
) -> None:
    critic = randomise(Critic(OBS, ACTION, TRUNKS[trunk], 2), 0)
    obs, action = inputs()

    def found() -> tuple[Tensor, dict[str, Tensor]]:
        return critic.forward_activations(obs, action)

    results = []
    for call in (found, torch.compile(found, backend="aot_eager", fullgraph=True)):
        values, taps = call()
        gradients = torch.autograd.grad(values.square().sum(), list(critic.parameters()))
        results.append((values, taps, gradients))
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
    spec, (obs, action) = TRUNKS[trunk], inputs()
    module: Any = (
        Actor(OBS, ACTION, spec) if members is None else Critic(OBS, ACTION, spec, members)
    )
    given = (obs,) if members is None else (obs, action)
    names = {block.layer for block in network(module).blocks}
    layers = [f"blocks.{i}.fc1" for i in range(spec.blocks)]
    layers = [f"fc{i + 1}" for i in range(spec.blocks)] if spec.kind == "mlp" else layers
    before = {"simba_v2": "scaler", "bro": "norm1"}.get(spec.kind, "fc1")  # the nonlinearity
    seen: dict[str, Tensor] = {}
    for layer in layers:
        # The activation works in place, hence a copy.
        point = layer.replace(".fc1", f".{before}")
        module.get_submodule(point).register_forward_hook(
            lambda module, given, out, layer=layer: seen.update({layer: out.clone()})
        )
    out, taps = module.forward_activations(*given)
    if members is None:
        expected = {layer: seen[layer].relu() for layer in layers}
    else:
        expected = {f"[{s}].{layer}": seen[layer][s].relu() for layer in layers for s in range(2)}
    assert list(taps) == list(expected)
    assert all(torch.equal(taps[name], expected[name]) for name in taps)
    assert {tap.ndim for tap in taps.values()} == {2}
    assert set(taps) <= names
    for ours, theirs in zip(out, module(*given), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_declared_order_is_the_order_of_execution(trunk: str) -> None:
    for module, given in (
        (Actor(OBS, ACTION, TRUNKS[trunk]), inputs()[:1]),
        (Critic(OBS, ACTION, TRUNKS[trunk]), inputs()),
    ):
        order, seen = forward_order(network(module)), []
        for name in order:
            module.get_submodule(name).register_forward_hook(
                lambda module, given, out, name=name, seen=seen: seen.append(name)
            )
        module(*given)
        assert seen == order
        holders = {name.rpartition(".")[0] for name, _ in module.named_parameters()}
        assert set(order) == holders


# --- initial weights --------------------------------------------------------------------------


def test_simba_is_drawn_by_its_laws() -> None:
    for module, members in (
        (Actor(30, 9, TrunkSpec("simba", 64, 1)), [None]),
        (Critic(21, 9, TrunkSpec("simba", 64, 2)), [0, 1]),
    ):
        randomise(module, 9)
        network(module)
        for member in members:
            weights = member_of(module, member)
            for name, weight in weights.items():
                if name.endswith("norm.weight"):
                    assert (weight == 1).all()
                elif name.endswith("bias"):
                    assert (weight == 0).all()
                elif name.startswith("blocks."):
                    std = math.sqrt(2 / weight.shape[1])
                    assert float(weight.std()) == pytest.approx(std, rel=0.02)
                    # cut at two deviations of the normal, which cutting makes narrower
                    bound = 2 * std / 0.87962566
                    assert 0.99 * bound < weight.abs().max() <= bound * (1 + 1e-6)
                else:
                    small = weight if weight.shape[0] <= weight.shape[1] else weight.T
                    gram = small.double() @ small.double().T
                    torch.testing.assert_close(
                        gram, torch.eye(len(gram)).double(), atol=1e-5, rtol=0
                    )


def test_bro_is_drawn_orthogonal_with_gain_root_two() -> None:
    for module, member in (
        (Actor(30, 9, TrunkSpec("bro", 64, 1)), None),
        (Critic(21, 9, TrunkSpec("bro", 64, 2)), 1),
    ):
        network(randomise(module, 9))
        for name, weight in member_of(module, member).items():
            if weight.ndim == 1:
                assert (weight == float("norm" in name and "weight" in name)).all()
                continue
            small = weight if weight.shape[0] <= weight.shape[1] else weight.T
            gain = 1 if name.startswith("log_std") else 2
            gram = small.double() @ small.double().T
            expected = gain * torch.eye(len(gram)).double()
            torch.testing.assert_close(gram, expected, atol=1e-5, rtol=0)


def test_simba_v2_is_drawn_orthogonal_with_rows_of_length_one() -> None:
    for module, member in (
        (Actor(30, 9, TrunkSpec("simba_v2", 64, 1)), None),
        (Critic(21, 9, TrunkSpec("simba_v2", 64, 2), bins=11), 1),
    ):
        network(randomise(module, 9))
        starts = {"scaler": (2 / 64) ** 0.5, "alpha": 1 / 8}
        for name, weight in member_of(module, member).items():
            if weight.ndim == 2:
                torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
                if weight.shape[0] <= weight.shape[1]:
                    gram = weight.double() @ weight.double().T
                    torch.testing.assert_close(
                        gram, torch.eye(len(gram)).double(), atol=1e-5, rtol=0
                    )
            elif name.endswith("bias"):
                assert (weight == 0).all()
            else:
                start = starts[name.split(".")[-2]]
                start = start / 2 if "blocks" in name and "scaler" in name else start
                start = 1.0 if name.startswith(("mean", "log_std", "head")) else start
                torch.testing.assert_close(weight, torch.full_like(weight, start))


def test_mlp_is_drawn_by_torchs_own_law() -> None:
    for module in (Actor(30, 9, TrunkSpec("mlp", 64, 2)), Critic(21, 9, TrunkSpec("mlp", 64, 2))):
        randomise(module, 9)
        for block in network(module).blocks:
            d_in = module.get_parameter(f"{block.path}.weight").shape[-1]
            bound = 1 / math.sqrt(d_in)
            assert block.view.abs().max() <= bound
            if block.role == "weight":
                assert float(block.view.std()) == pytest.approx(bound / math.sqrt(3), rel=0.15)
            else:
                assert block.view.abs().max() > 0


@pytest.mark.parametrize("trunk", TRUNKS)
def test_init_repeats_with_its_stream_and_differs_between_members(trunk: str) -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        made = network(Critic(OBS, ACTION, TRUNKS[trunk]), seed)
        return {b.name: b.view.clone() for b in made.blocks if b.role == "weight"}

    one, two, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    assert not any(torch.equal(one[n], one[n.replace("[0]", "[1]")]) for n in one if "[0]" in n)


# --- precision and compilation ----------------------------------------------------------------


@pytest.mark.parametrize("trunk", TRUNKS)
def test_low_precision_gives_float32_outputs_near_those_of_float32(trunk: str) -> None:
    actor, critic = Actor(OBS, ACTION, TRUNKS[trunk]), Critic(OBS, ACTION, TRUNKS[trunk])
    obs, action = inputs()
    exact = [*actor(obs), critic(obs, action)]
    with torch.autocast("cpu", torch.bfloat16):
        low = [*actor(obs), critic(obs, action)]
    torch.stack([out.sum() for out in low]).sum().backward()
    for rough, fine in zip(low, exact, strict=True):
        assert rough.dtype == torch.float32
        assert not torch.equal(rough, fine)
        torch.testing.assert_close(rough, fine, rtol=0, atol=0.1)
    parameters = [*actor.parameters(), *critic.parameters()]
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in parameters)


@pytest.mark.parametrize("trunk", [slow("simba"), "mlp"])
def test_networks_compile_to_one_graph(trunk: str) -> None:
    actor, critic = Actor(OBS, ACTION, TRUNKS[trunk]), Critic(OBS, ACTION, TRUNKS[trunk])
    obs, action = inputs()
    for module, given in ((actor, (obs,)), (critic, (obs, action)), (Temperature(0.1), ())):
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(*given), module(*given))


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
@pytest.mark.parametrize("method", ["swr", "fire", "shrink_perturb"])
@torch.no_grad()
def test_methods_on_stacked_critics_equal_those_on_separate_ones(method: str, trunk: str) -> None:
    critic = randomise(Critic(OBS, ACTION, TRUNKS[trunk]), 0)
    start = [member_of(critic, member) for member in range(2)]
    start = [{name: t.clone() for name, t in weights.items()} for weights in start]
    made = Network("critic", critic)
    randomise(critic, 1, std=2.0)
    for member in range(2):
        alone = TrunkNetwork(OBS + ACTION, TRUNKS[trunk], {"head": 1})
        alone.load_state_dict(member_of(critic, member))
        getattr(rlplast, method)(Network("q", alone, initial=start[member]))
        start[member] = member_of(alone, None)
    getattr(rlplast, method)(made)
    for member in range(2):
        for name, weight in member_of(critic, member).items():
            torch.testing.assert_close(weight, start[member][name], rtol=1e-6, atol=1e-6)


# --- temperature ------------------------------------------------------------------------------


def test_temperature_is_the_exponential_of_its_parameter() -> None:
    temperature = Temperature(0.01)
    assert temperature().item() == pytest.approx(0.01)
    assert temperature().shape == temperature.log_alpha.shape == (1,)
    with torch.no_grad():
        temperature.log_alpha.fill_(math.log(3))
    temperature().backward()
    assert temperature().item() == pytest.approx(3)
    assert temperature.log_alpha.grad is not None
    assert float(temperature.log_alpha.grad) == pytest.approx(3)
    assert forward_order(network(temperature)) == []


# --- wrong use --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrunkSpec("simbaa", 8, 1), "trunk kind = 'simbaa'.*did you mean 'simba'"),
        (lambda: TrunkSpec("mlp", 0, 1), "trunk width = 0: allowed is at least 1"),
        (lambda: TrunkSpec("mlp", 8, 0), "trunk blocks = 0: allowed is at least 1"),
        (lambda: Actor(3, 2, TRUNKS["mlp"], log_std="clip"), "log_std = 'clip'"),
        (lambda: Actor(3, 2, TRUNKS["mlp"], 2.0, 2.0), "log_std_min = 2.0: allowed is less than"),
    ],
)
def test_impossible_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
