"""Values and gradients of the penalties beside closed forms and slow twins."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from rlplast.core.registry import rows
from tests.cases import about
from tests.methods.penalty_cases import CASES, MODELS, TWINS, moved, penalties
from tests.models import assert_same


def term(method: str, network: Network, **keys: Any) -> Tensor:
    found = penalties(method, network, **keys).of(network.name)
    assert found.shape == ()
    return found


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: param.grad for name, param in module.named_parameters()}


def test_every_penalty_has_a_case() -> None:
    assert {info.name for info in rows("penalties")} == CASES.keys()


@pytest.mark.parametrize("family", MODELS)
def test_value_and_gradient_are_those_of_a_loop_over_matrices(family: str) -> None:
    for method in TWINS:
        with about(method):
            compare_with_the_twin(method, family)


def compare_with_the_twin(method: str, family: str) -> None:
    network, start = moved(family)
    twin = copy.deepcopy(network.module).double()
    if family == "tied":  # a copy keeps the tie
        assert twin.get_parameter("head.weight") is twin.get_parameter("embed.weight")
    found = term(method, network)
    expected = TWINS[method](twin, start.double(), **CASES[method].params)
    before = {n: t.clone() for n, t in network.module.state_dict().items()}
    found.backward()
    assert_same(before, dict(network.module.state_dict()))
    expected.backward()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    theirs = gradients(twin)
    for name, grad in gradients(network.module).items():
        wanted = theirs[name]
        if wanted is None or grad is None:
            assert grad is wanted is None, name
            continue
        torch.testing.assert_close(grad, wanted.float(), rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("method", TWINS)
def test_half_precision_is_worked_on_in_float32(method: str) -> None:
    network, start = moved("mlp")
    module = network.module.bfloat16()
    low = Network("net", module, initial=start.bfloat16().state_dict())
    wide = Network("net", copy.deepcopy(module).float(), initial=start.float().state_dict())
    found, expected = term(method, low), term(method, wide)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    for mine, theirs in zip(module.parameters(), wide.module.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None and theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad.bfloat16())


@pytest.mark.parametrize("family", ["residual", "conv_batchnorm", "mlp"])
def test_scales_of_norm_layers_count_if_asked(family: str) -> None:
    """FIRE's code: (γ² − s)², whose gradient is 4γ(γ² − s); shifts and statistics never count."""
    network, _ = moved(family)
    without = term("parseval", network, params={"coef": 0.2, "scale": 1.5})
    found = term("parseval", network, params={"coef": 0.2, "scale": 1.5, "norms": True})
    norms = [m for m in network.module.modules() if "Norm" in type(m).__name__]
    assert bool(norms) == (family != "mlp")
    weights = [m.get_parameter("weight").detach() for m in norms]
    added = sum(0.2 * float((w.square() - 1.5).square().sum()) for w in weights)
    assert float(found.detach() - without.detach()) == pytest.approx(added, rel=1e-4)
    found.backward()
    for norm, weight in zip(norms, weights, strict=True):
        expected = 0.2 * 4 * weight * (weight.square() - 1.5)
        torch.testing.assert_close(norm.get_parameter("weight").grad, expected)
        assert norm.get_parameter("bias").grad is None


def test_sigma_becomes_the_largest_singular_value_while_weights_move_slowly() -> None:
    network, _ = moved("conv_batchnorm")
    weights = [b for b in network.blocks if b.role == "weight"]
    made = penalties("spectral", network)
    hooks = Hooks([], network, "150 updates", penalties=made)
    for update in range(1, 151):
        hooks.step(updates=update)
    for block in weights:
        u, matrix = made.terms[0].states["net"][block.name], block.view.flatten(1)
        largest = torch.linalg.svdvals(matrix)[0]
        assert float(torch.linalg.vector_norm(matrix.mT @ u)) == pytest.approx(float(largest))


def test_l2_init_of_means_is_that_of_each_tensor_over_its_size() -> None:
    network, _ = moved("mlp")
    total = term("l2_init", network, params={"coef": 0.3, "reduce": "mean"})
    apart = [
        (block.live() - network.initial[block.name]).square().mean() for block in network.blocks
    ]
    torch.testing.assert_close(total, 0.15 * sum(apart))


def test_wasserstein_is_l2_init_while_the_order_of_entries_is_that_of_the_start() -> None:
    network, _ = moved("mlp")
    with torch.no_grad():
        for block in network.blocks:
            block.view.copy_(3 * network.initial[block.name] + 0.1)
    params = {"coef": 0.3, "reduce": "sum"}
    expected = 2 * term("l2_init", network, params={"coef": 0.3})
    torch.testing.assert_close(term("wasserstein", network, params=params), expected)


def test_initial_weights_are_read_anew_once_they_were_written() -> None:
    for method in ("l2_init", "wasserstein"):
        network, _ = moved("mlp")
        terms = penalties(method, network)
        assert float(terms.of("net").detach()) > 0
        with torch.no_grad():  # as a checkpoint is loaded
            for block in network.blocks:
                network.initial[block.name].copy_(block.view)
        assert terms.of("net") == 0
