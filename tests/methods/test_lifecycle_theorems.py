"""Propositions 1 and 4 of the lifecycle paper, by enumeration of every mask.

The smoothed objective (equation 3) is L̄(θ) = E_M[L(θ ⊙ M)] for one distribution of masks, which
need not treat units independently; a unit's mask d is 0 asleep, in (0, 1) while it warms up, else
1, and multiplies its row of the weight and its bias. L̄ is computed with lifecycle layers, what it
is compared with by plain layers at masked weights. The others do not hold as printed: see
`test_lifecycle_propositions`.
"""

import copy
import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import rlplast
from rlplast.methods.lifecycle_modules import LifecycleLinear
from tests.methods.nets import normal

pytestmark = pytest.mark.slow  # of the paper: what the layers compute is in test_lifecycle.py

UNITS, INPUTS = 3, 2
WARM = 0.3

seeds = st.integers(0, 2**31)


class Case(NamedTuple):
    """A network with one lifecycle layer, its plain copy, data, and a distribution of masks."""

    lifecycle: nn.Module
    plain: nn.Module
    theta: Tensor
    masks: list[tuple[float, ...]]
    chances: Tensor
    loss: Callable[[nn.Module, Tensor], Tensor]


def case(seed: int, *after: nn.Module) -> Case:
    layers = nn.Sequential(nn.Linear(INPUTS, UNITS), *after).double()
    shapes = [(name, p.shape, p.numel()) for name, p in layers.named_parameters()]
    theta = normal(sum(size for *_, size in shapes), seed=seed)
    obs, target = normal(6, INPUTS, seed=seed + 1), normal(6, seed=seed + 2)

    def loss(net: nn.Module, flat: Tensor) -> Tensor:
        parts = flat.split([size for *_, size in shapes])
        named = {n: v.reshape(shape) for (n, shape, _), v in zip(shapes, parts, strict=True)}
        return 0.5 * (functional_call(net, named, (obs,)).sum(1) - target).square().mean()

    plain = copy.deepcopy(layers)
    rlplast.replace_layers(layers, layers=["0"], life=[5, 9], recovery=[2, 4])
    masks = list(itertools.product((0.0, WARM, 1.0), repeat=UNITS))
    chances = normal(len(masks), seed=seed + 3).softmax(0)
    return Case(layers, plain, theta, masks, chances, loss)


def smoothed(made: Case, theta: Tensor) -> Tensor:
    """L̄, with the mask in the buffers of the lifecycle layer."""
    layer = made.lifecycle.get_submodule("0")
    assert isinstance(layer, LifecycleLinear)
    total = torch.zeros((), dtype=torch.float64)
    for mask, chance in zip(made.masks, made.chances, strict=True):
        d = torch.tensor(mask, dtype=torch.float64)
        layer.active.copy_(d > 0)
        layer.scale.copy_(torch.where(d > 0, d, 1.0))
        total = total + chance * made.loss(made.lifecycle, theta)
    return total


def vector(mask: tuple[float, ...], size: int) -> Tensor:
    """M for all parameters: of the rows of the weight, of the biases, 1 for what comes after."""
    d = torch.tensor(mask, dtype=torch.float64)
    own = torch.cat([d.repeat_interleave(INPUTS), d])
    return torch.cat([own, torch.ones(size - len(own), dtype=torch.float64)])


def masked_gradient(made: Case, theta: Tensor) -> Tensor:
    """E_M[M ⊙ ∇L(θ ⊙ M)], with plain layers."""
    total = torch.zeros_like(theta)
    for mask, chance in zip(made.masks, made.chances, strict=True):
        m = vector(mask, len(theta))
        at = (theta * m).requires_grad_(True)
        (gradient,) = torch.autograd.grad(made.loss(made.plain, at), at)
        total += chance * m * gradient
    return total


def hessian(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    found = torch.autograd.functional.hessian(loss, theta)
    assert isinstance(found, Tensor)
    return found


@given(seed=seeds)
@settings(max_examples=2)
def test_hessian_of_the_smoothed_loss_is_the_mean_of_masked_hessians(seed: int) -> None:
    """Proposition 1; tanh makes L twice differentiable."""
    made = case(seed, nn.Tanh(), nn.Linear(UNITS, 1))
    found = hessian(lambda theta: smoothed(made, theta), made.theta)
    expected = torch.zeros_like(found)
    for mask, chance in zip(made.masks, made.chances, strict=True):
        m = vector(mask, len(made.theta))
        of_masked = hessian(lambda at: made.loss(made.plain, at), made.theta * m)
        expected += chance * m[:, None] * of_masked * m
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@given(seed=seeds)
@settings(max_examples=10)
def test_masked_gradients_cancel_where_the_smoothed_loss_is_stationary(seed: int) -> None:
    """Proposition 4, whose condition ∇L̄ = 0 a Newton step meets: without tanh L̄ is quadratic.

    Every mask has a chance, so that its Hessian is regular.
    """
    made = case(seed)

    def gradient(theta: Tensor) -> Tensor:
        at = theta.clone().requires_grad_(True)
        return torch.autograd.grad(smoothed(made, at), at)[0]

    start = gradient(made.theta)
    torch.testing.assert_close(masked_gradient(made, made.theta), start)
    curvature = hessian(lambda theta: smoothed(made, theta), made.theta)
    stationary = made.theta - torch.linalg.solve(curvature, start)
    assert float(gradient(stationary).norm()) < 1e-8 * float(start.norm())
    assert float(masked_gradient(made, stationary).norm()) < 1e-8 * float(start.norm())
    whole = stationary.clone().requires_grad_(True)  # of the network with every unit awake
    (unmasked,) = torch.autograd.grad(made.loss(made.plain, whole), whole)
    assert float(unmasked.norm()) > 1e-4
