"""The theorems of the Soft Weight Rescaling paper, to rounding in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError
from tests.methods.chains import (
    ALL,
    NETS,
    NORMED,
    inputs_for,
    layers_of,
    make,
    norms_of,
    weights_of_theta0,
)
from tests.methods.nets import (
    ConvNet,
    Mlp,
    normal,
    randomise,
    snapshot,
)
from tests.naive.interventions import swr_twin

# --- Theorem 1: the network computes the same up to one factor -------------------------------


def output_factor(network: rlplast.Network, coef: float) -> float:
    layers = layers_of(network.module)
    starts = iter(float(w.norm()) for w in weights_of_theta0(network))
    anchors = [0.0 if layer.weight is None else next(starts) for layer in layers]
    return swr_twin(layers, anchors, coef, coef, "exact")[1]


@pytest.mark.parametrize("coef", [1e-3, 0.5, 1.0])
@pytest.mark.parametrize("net", ALL)
@torch.no_grad()
def test_output_is_proportional_to_the_output_before(net: str, coef: float) -> None:
    network = make(ALL[net])
    network.module.train()  # BatchNorm by the statistics of the batch
    obs = inputs_for(network)
    before, factor = network.module(obs), output_factor(network, coef)
    rlplast.swr(network, coef=coef)
    after = network.module(obs)
    assert factor < 1
    scale = float(before.abs().max())
    torch.testing.assert_close(after, factor * before, rtol=0, atol=1e-12 * scale)
    assert torch.equal(after.argmax(1), before.argmax(1))


@given(seed=st.integers(0, 2**31), coef=st.floats(1e-4, 1), head=st.floats(1e-4, 1))
@settings(max_examples=20)
@torch.no_grad()
def test_every_argmax_survives_any_coefficients(seed: int, coef: float, head: float) -> None:
    network = make(NETS["pooled conv"], seed)
    obs = inputs_for(network)
    before = network.module(obs).argmax(1)
    rlplast.swr(network, coef=coef, coef_head=head)
    assert torch.equal(network.module(obs).argmax(1), before)


def linear_norm_linear_linear() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


@torch.no_grad()
def test_printed_rule_leaks_into_the_last_norm_and_moves_argmaxes() -> None:
    kept = {}
    for rule in ("exact", "printed"):
        network = make(linear_norm_linear_linear, growth=4.0)
        obs = inputs_for(network, samples=512)
        before = network.module(obs).argmax(1)
        rlplast.swr(network, coef=0.5, rule=rule)
        kept[rule] = float((network.module(obs).argmax(1) == before).double().mean())
    assert kept["exact"] == 1.0
    assert 0.5 < kept["printed"] < 1.0


@pytest.mark.parametrize("net", NETS)
def test_without_a_norm_both_rules_are_one(net: str) -> None:
    after = []
    for rule in ("exact", "printed"):
        network = make(NETS[net])
        rlplast.swr(network, coef=0.5, coef_head=0.1, rule=rule)
        after.append(snapshot(network.module))
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])


@torch.no_grad()
def test_batch_norm_in_evaluation_needs_its_statistics_rescaled() -> None:
    outputs = {}
    for rescale in (False, True):
        network = make(NORMED["batch norm"])
        network.module.eval()
        obs = inputs_for(network)
        before, factor = network.module(obs), output_factor(network, 0.5)
        rlplast.swr(network, coef=0.5, rescale_running_stats=rescale)
        after = network.module(obs)
        outputs[rescale] = float((after - factor * before).norm() / (factor * before).norm())
        assert int(snapshot(network.module)["1.num_batches_tracked"]) == 7
    assert outputs[True] < 1e-12
    assert outputs[False] > 0.1


def test_rescaled_statistics_are_refused_under_the_printed_rule() -> None:
    with pytest.raises(ConfigError, match="use rule = 'exact'"):
        rlplast.swr(make(Mlp), rule="printed", rescale_running_stats=True)


# --- Theorems 2 and 3: norms stay bounded and balanced --------------------------------------


@given(
    coef=st.floats(0.05, 1),
    growth=st.floats(0.01, 4),
    radial=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=15)
@torch.no_grad()
def test_norms_stay_below_the_bound_of_theorem_two(
    coef: float, growth: float, radial: bool, seed: int
) -> None:
    """Each update changes the squared norm by at most B = growth."""
    net = randomise(nn.Sequential(nn.Linear(3, 2, bias=False)), seed, std=0.3).double()
    network = rlplast.Network("q", net)
    weight = net.get_parameter("0.weight")
    start = float(weight.norm())
    bound = start + math.sqrt(growth) / coef
    for step in range(60):
        direction = weight / weight.norm() if radial else normal(2, 3, seed=seed + step)
        moved = weight + direction * 0.5
        length = min(float(moved.norm()), math.sqrt(float(weight.norm()) ** 2 + growth))
        weight.copy_(moved * (length / moved.norm()))
        assert float(weight.norm()) <= bound * (1 + 1e-12)
        rlplast.swr(network, coef=coef)
        assert float(weight.norm()) <= bound * (1 + 1e-12)
        assert float(torch.linalg.matrix_norm(weight, 2)) <= bound * (1 + 1e-12)


@given(coef=st.floats(0.3, 1), growth=st.floats(0.25, 4), seed=st.integers(0, 99))
@settings(max_examples=10)
@torch.no_grad()
def test_an_mlp_stays_lipschitz_with_the_product_of_corollary_two(
    coef: float, growth: float, seed: int
) -> None:
    """1-Lipschitz activations; every update adds B = growth to each squared norm.

    Equal entries make the spectral norms the Frobenius ones, and aligned: without SWR the bound
    is left behind.
    """
    net = Mlp().double()
    for param in net.parameters():
        param.fill_(0.1)
    network = rlplast.Network("q", net)
    weights = [param for param in net.parameters() if param.ndim == 2]
    bound = math.prod(float(w.norm()) + math.sqrt(growth) / coef for w in weights)
    free = [float(w.norm()) for w in weights]
    obs = inputs_for(network, samples=64)
    for step in range(40):
        for number, weight in enumerate(weights):
            weight.mul_(math.sqrt(1 + growth / float(weight.norm()) ** 2))
            free[number] = math.hypot(free[number], math.sqrt(growth))
        for other in (obs + 1, obs + normal(*obs.shape, seed=seed + step)):
            moves = (net(obs) - net(other)).norm(dim=1)
            assert (moves <= bound * (obs - other).norm(dim=1) * (1 + 1e-12)).all()
        rlplast.swr(network, coef=coef, coef_head=coef)
    assert math.prod(free) > bound


@given(coef=st.floats(0, 1), seed=st.integers(0, 2**31), growth=st.floats(0.1, 10))
@settings(max_examples=30)
def test_balance_never_gets_worse_with_one_coefficient(
    coef: float, seed: int, growth: float
) -> None:
    network = make(ConvNet, seed, growth)

    def ratios(norms: list[float]) -> np.ndarray:
        return np.array([[a / b for a in norms] for b in norms])

    start = ratios([float(w.norm()) for w in weights_of_theta0(network)])
    before = ratios(norms_of(layers_of(network.module)))
    rlplast.swr(network, coef=coef, coef_head=coef)
    after = ratios(norms_of(layers_of(network.module)))
    assert (np.abs(after - start) <= np.abs(before - start) + 1e-12).all()


def test_balance_can_get_worse_with_two_coefficients() -> None:
    network = rlplast.Network("q", randomise(ConvNet(), 0).double())
    with torch.no_grad():
        for parameter in network.module.parameters():
            parameter.mul_(3)  # every ratio of norms is as it was
    rlplast.swr(network, coef=0.1, coef_head=0.9)
    conv, *_, head = norms_of(layers_of(network.module))
    first, *_, last = [float(w.norm()) for w in weights_of_theta0(network)]
    assert abs(head / conv - last / first) > 0.1
