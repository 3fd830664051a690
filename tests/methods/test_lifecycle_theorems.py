"""Propositions 1 to 5 of the lifecycle paper and its Rademacher bound: where they hold.

Of distributions of masks that need not treat units independently, by enumeration of every mask.
Masked networks are computed with lifecycle layers, by setting their buffers, and what they are
compared with by plain tensors. d is a unit's mask: 0 asleep, in (0, 1) while it warms up, else 1,
and ξ is 1 − d. Propositions 1 and 4 hold; of the others, which do not as printed, each test shows a
counterexample, or the condition under which a statement is true.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call

import rlplast
from rlplast.methods.lifecycle_modules import LifecycleLinear
from tests.methods.nets import normal

pytestmark = pytest.mark.slow  # of the paper: what the layers compute is in test_lifecycle.py

UNITS, INPUTS = 3, 2
WARM = 0.3
VALUES = (0.0, WARM, 1.0)


def vector(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def living(*layers: nn.Module) -> nn.Sequential:
    net = nn.Sequential(*layers).double()
    linear = [str(i) for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    rlplast.replace_layers(net, layers=linear, life=[5, 9], recovery=[2, 4])
    return net


def set_masks(net: nn.Module, masks: Sequence[Tensor]) -> None:
    layers = [layer for layer in net.modules() if isinstance(layer, LifecycleLinear)]
    for layer, d in zip(layers, masks, strict=True):
        layer.active.copy_(d > 0)
        layer.scale.copy_(torch.where(d > 0, d, 1.0))


# Propositions 1 and 4, of the smoothed objective (equation 3), L̄(θ) = E_M[L(θ ⊙ M)].


class Case:
    """A network with one lifecycle layer, data, and chances of all masks."""

    def __init__(self, seed: int, *after: nn.Module) -> None:
        self.plain = nn.Sequential(nn.Linear(INPUTS, UNITS), *after).double()
        self.living = living(nn.Linear(INPUTS, UNITS)).extend(after)
        self.shapes = {name: p.shape for name, p in self.plain.named_parameters()}
        self.theta = normal(sum(p.numel() for p in self.plain.parameters()), seed=seed)
        self.obs, self.target = normal(6, INPUTS, seed=seed + 1), normal(6, seed=seed + 2)
        self.masks = [vector(d) for d in itertools.product(VALUES, repeat=UNITS)]
        self.chances = normal(len(self.masks), seed=seed + 3).softmax(0)

    def output(self, net: nn.Module, flat: Tensor) -> Tensor:
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()])
        named = {n: v.view(self.shapes[n]) for n, v in zip(self.shapes, parts, strict=True)}
        return functional_call(net, named, (self.obs,)).sum(1)

    def loss(self, flat: Tensor, net: nn.Module | None = None) -> Tensor:
        output = self.output(self.plain if net is None else net, flat)
        return 0.5 * (output - self.target).square().mean()

    def smoothed(self, theta: Tensor) -> Tensor:
        """L̄, with the mask in the buffers of the lifecycle layer."""
        total = torch.zeros((), dtype=torch.float64)
        for d, chance in zip(self.masks, self.chances, strict=True):
            set_masks(self.living, [d])
            total = total + chance * self.loss(theta, self.living)
        return total

    def mean(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean over masks of a function of M, which is 1 for what comes after the layer."""
        found = torch.zeros((), dtype=torch.float64)
        for d, chance in zip(self.masks, self.chances, strict=True):
            own = torch.cat([d.repeat_interleave(INPUTS), d])
            rest = torch.ones(len(self.theta) - len(own), dtype=torch.float64)
            found = found + chance * of(torch.cat([own, rest]))
        return found


def gradient(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    at = theta.clone().requires_grad_(True)
    return torch.autograd.grad(loss(at), at)[0]


def test_hessian_of_the_smoothed_loss_is_the_mean_of_masked_hessians() -> None:
    for seed in range(2):  # tanh makes L twice differentiable
        made = Case(seed, nn.Tanh(), nn.Linear(UNITS, 1).double())
        expected = made.mean(lambda m: m[:, None] * hessian(made.loss, made.theta * m) * m)  # noqa: B023
        found: Any = hessian(made.smoothed, made.theta)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_masked_gradients_cancel_where_the_smoothed_loss_is_stationary() -> None:
    """Where that is, a Newton step finds: without tanh L̄ is quadratic."""
    for seed in range(8):
        made = Case(seed)

        def masked(theta: Tensor) -> Tensor:
            return made.mean(lambda m: m * gradient(made.loss, theta * m))  # noqa: B023

        start = gradient(made.smoothed, made.theta)
        torch.testing.assert_close(masked(made.theta), start)
        curvature: Any = hessian(made.smoothed, made.theta)
        stationary = made.theta - torch.linalg.solve(curvature, start)
        assert float(gradient(made.smoothed, stationary).norm()) < 1e-8 * float(start.norm())
        assert float(masked(stationary).norm()) < 1e-8 * float(start.norm())
        assert float(gradient(made.loss, stationary).norm()) > 1e-4  # with every unit awake


# Proposition 2: L̄(θ) ≈ L(θ) + ½ Σ Var[ξᵢ] θᵢᵀ∇²L(θ)θᵢ where ∇L(θ) = 0.


def minimum(seed: int) -> tuple[Case, Tensor]:
    """Return a quadratic case whose loss is 0 and has no gradient, and its Hessian there."""
    at = Case(seed)
    at.target = at.output(at.plain, at.theta)
    curvature: Any = hessian(at.loss, at.theta)
    return at, curvature


def printed(at: Case, curvature: Tensor) -> Tensor:
    """Return ½ Σ Var[ξᵢ] θᵢᵀ∇²Lθᵢ, over units i with their rows and biases θᵢ."""
    variance = at.mean(lambda m: m.square()) - at.mean(lambda m: m).square()
    unit = torch.arange(UNITS)
    unit = torch.cat([unit.repeat_interleave(INPUTS), unit])
    own = curvature * (unit[:, None] == unit)
    return 0.5 * (variance * at.theta) @ own @ at.theta


def test_a_quadratic_loss_grows_by_the_second_moments_of_the_mask() -> None:
    for seed in range(10):
        at, curvature = minimum(seed)
        found = at.smoothed(at.theta)  # ½ E[(ξ ⊙ θ)ᵀ ∇²L (ξ ⊙ θ)]
        expected = at.mean(lambda m: 0.5 * ((1 - m) * at.theta) @ curvature @ ((1 - m) * at.theta))  # noqa: B023
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        assert abs(float(printed(at, curvature) / found) - 1) > 0.1


def test_proposition_two_holds_for_masks_of_mean_one_of_units_that_sleep_independently() -> None:
    """Such as d / E[d], which is above 1 and so no mask of the lifecycle."""
    for seed in range(10):
        at, curvature = minimum(seed)
        awake = normal(UNITS, seed=seed + 2).sigmoid()
        masks = [vector(d) for d in itertools.product((0.0, 1.0), repeat=UNITS)]
        at.chances = torch.stack([torch.where(d > 0, awake, 1 - awake).prod() for d in masks])
        at.masks = [d / awake for d in masks]
        found = at.mean(lambda m: at.loss(at.theta * m))  # noqa: B023
        torch.testing.assert_close(found, printed(at, curvature), rtol=1e-9, atol=1e-12)


# Proposition 3: E[Lip(f at θ ⊙ M)] ≤ ∏ μ_ℓ ∏ ‖W_ℓ‖₂ with μ_ℓ = √E[d_ℓ²]. The networks are linear,
# so their Lipschitz constant is the spectral norm of the matrix that they multiply by.

Masks = Sequence[tuple[Sequence[Tensor], float]]  # of all layers at once, with their chance


@torch.no_grad()
def expected_steepness(net: nn.Module, masks: Masks, width: int) -> float:
    total = 0.0
    for own, chance in masks:
        set_masks(net, own)
        matrix = net(torch.eye(width, dtype=torch.float64))
        total += chance * float(torch.linalg.matrix_norm(matrix, 2))
    return total


@torch.no_grad()
def chain(weights: Sequence[Tensor]) -> nn.Sequential:
    net = living(*(nn.Linear(w.shape[1], w.shape[0], bias=False) for w in weights))
    for parameter, weight in zip(net.parameters(), weights, strict=True):
        parameter.copy_(weight)
    return net


def contraction(masks: Masks, of: Callable[[Tensor], Tensor]) -> float:
    """Return ∏ μ_ℓ, where μ_ℓ² is the mean of a number made of d_ℓ²."""
    means = [
        sum(chance * float(of(own[i].square())) for own, chance in masks)
        for i in range(len(masks[0][0]))
    ]
    return math.sqrt(math.prod(means))


def test_one_unit_awake_or_layers_that_sleep_together_exceed_the_claim() -> None:
    for units in (2, 4, 9):  # μ is 1/√units: the claim is exceeded by any factor
        eye = torch.eye(units, dtype=torch.float64)
        masks: Masks = [([eye[i]], 1 / units) for i in range(units)]
        assert contraction(masks, torch.mean) == pytest.approx(1 / math.sqrt(units))
        assert expected_steepness(chain([eye]), masks, units) == pytest.approx(1)
    one = torch.ones(1, 1, dtype=torch.float64)
    masks = [([vector([d])] * 3, 0.5) for d in (0.0, 1.0)]
    assert contraction(masks, torch.mean) == pytest.approx(2**-1.5)
    assert expected_steepness(chain([one] * 3), masks, 1) == pytest.approx(0.5)


def independent(seed: int, sizes: Sequence[int], shared: bool) -> Masks:
    """Return all masks of layers that are independent; their units are not, or share one mask."""
    per_layer = []
    for i, size in enumerate(sizes):
        repeat, width = (1, size) if shared else (size, 1)
        own = [vector(d).repeat_interleave(width) for d in itertools.product(VALUES, repeat=repeat)]
        chances = normal(len(own), seed=seed + i).softmax(0).tolist()
        per_layer.append(list(zip(own, chances, strict=True)))
    return [
        ([d for d, _ in chosen], math.prod(chance for _, chance in chosen))
        for chosen in itertools.product(*per_layer)
    ]


def test_proposition_three_holds_of_independent_layers_with_the_largest_mask_of_a_layer() -> None:
    """μ_ℓ = √E[max d²]; where all units of a layer share a mask this is the paper's."""
    for seed, shared in itertools.product(range(5), (False, True)):
        weights = [normal(3, 2, seed=seed), normal(2, 3, seed=seed + 1)]
        masks = independent(seed + 2, [3, 2], shared)
        norms = math.prod(float(torch.linalg.matrix_norm(w, 2)) for w in weights)
        found = expected_steepness(chain(weights), masks, 2)
        assert found <= contraction(masks, torch.amax) * norms * (1 + 1e-12)
        assert not shared or found <= contraction(masks, torch.mean) * norms * (1 + 1e-12)


# Equation 4: R(F_LCL) ≲ ∏ μ_ℓ R(F_base). F has all x ↦ vᵀ(d ⊙ Wx) with ‖v‖ ≤ 1 and ‖W‖₂ ≤ 1.

SAMPLES = 4
SIGNS = [vector(s) for s in itertools.product((-1.0, 1.0), repeat=SAMPLES)]


@torch.no_grad()
def complexity(units: int, masks: Sequence[Tensor], x: Tensor) -> float:
    """Return the empirical Rademacher complexity of F, of the union over the masks given.

    The best function of given signs has one unit, the one with the largest mask, and its row is
    along Σ σᵢxᵢ. That none is better is tried by functions that are drawn.
    """
    net, total = living(nn.Linear(x.shape[1], units, bias=False)), 0.0

    def correlation(signs: Tensor, w: Tensor, v: Tensor) -> float:
        return float(signs @ (functional_call(net, {"0.weight": w}, (x,)) @ v)) / len(x)

    for signs in SIGNS:
        best = 0.0
        for d in masks:
            set_masks(net, [d])
            unit, along = int(d.argmax()), signs @ x
            w, v = torch.zeros(units, x.shape[1], dtype=torch.float64), vector([0.0] * units)
            w[unit], v[unit] = along / along.norm(), 1.0
            best = max(best, correlation(signs, w, v))
            for seed in range(10):
                w, v = normal(*w.shape, seed=seed), normal(units, seed=seed + 500)
                other = correlation(signs, w / torch.linalg.matrix_norm(w, 2), v / v.norm())
                assert other <= best + 1e-12
        total += best / len(SIGNS)
    return total


CHANCES = {0.0: 0.3, WARM: 0.2, 1.0: 0.5}
FIRST = sum(c * d for d, c in CHANCES.items())
SECOND = sum(c * d * d for d, c in CHANCES.items())
VARIANCE = SECOND - FIRST**2


def test_rademacher_complexity_shrinks_as_claimed_only_where_a_layer_has_one_mask() -> None:
    """Its mean over masks is E[max d] times the complexity without: here 1, and μ is √½."""
    points = normal(SAMPLES, 2, seed=7)
    base = complexity(2, [vector([1, 1])], points)
    alone = [vector([1, 0]), vector([0, 1])]
    assert sum(complexity(2, [d], points) for d in alone) / 2 == pytest.approx(base)
    assert contraction([([d], 0.5) for d in alone], torch.mean) == pytest.approx(math.sqrt(0.5))
    every = [vector(d) for d in itertools.product(VALUES, repeat=2)]
    assert complexity(2, every, points) == pytest.approx(base)  # all units may be awake
    mean = sum(c * complexity(2, [vector([d, d])], points) for d, c in CHANCES.items())
    assert mean == pytest.approx(FIRST * base)
    assert mean < math.sqrt(SECOND) * base


# Proposition 5: near a minimum θ♯ the added term is ½ Var[d] θ♯ᵀHθ♯, so that sharp minima are often
# none of L̄. One weight with L = ½ h (θ − θ♯)².


def smoothed(theta: float, curvature: float, best: float) -> tuple[float, float]:
    """Return L̄ and its derivative, with a lifecycle layer of one unit."""
    net, total = chain([vector([theta])[:, None]]), torch.zeros((), dtype=torch.float64)
    x = vector([math.sqrt(curvature)])[:, None]
    for d, chance in CHANCES.items():
        set_masks(net, [vector([d])])
        total = total + chance * 0.5 * (net(x) - best * x).square().sum()
    (slope,) = torch.autograd.grad(total, net.get_parameter("0.weight"))
    return float(total.detach()), float(slope)


def test_a_minimum_costs_by_the_second_moment_and_moves_whatever_its_curvature() -> None:
    """½ E[(1 − d)²] hθ♯² and not ½ Var[d] hθ♯², which leaves (1 − E[d])² out.

    It moves to θ♯ E[d]/E[d²], away from 0; there the variance is what is left of the cost.
    """
    for curvature in (0.5, 100.0):
        cost, slope = smoothed(2.0, curvature, best=2.0)
        assert cost == pytest.approx(0.5 * (VARIANCE + (1 - FIRST) ** 2) * curvature * 4)
        assert cost > 1.5 * 0.5 * VARIANCE * curvature * 4 and slope != 0
        moved = 2.0 * FIRST / SECOND
        cost, slope = smoothed(moved, curvature, best=2.0)
        assert slope == pytest.approx(0, abs=1e-12 * curvature) and moved > 2
        assert cost == pytest.approx(0.5 * VARIANCE / SECOND * curvature * 4)
        assert smoothed(0.0, curvature, best=0.0) == (0, 0)
