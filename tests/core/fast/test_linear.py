import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from rlplast.core import registry
from rlplast.core.fast import linear as module
from rlplast.core.fast.linear import Linear, affine, use_fast_linear, uses_onednn
from rlplast.core.network.stacked import StackedLinear
from tests.agents.toy_env import dqn

LARGE, SMALL = (256, 224, 160), (8, 4, 6)  # rows, d_in, d_out
ONEDNN = pytest.mark.skipif(module._ONEDNN is None, reason="this PyTorch has no oneDNN")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have large products computed by oneDNN on every CPU."""
    monkeypatch.setattr(module, "_WIDE", True)


def tensors(rows: int, d_in: int, d_out: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((rows, d_in), (d_out, d_in), (d_out,))
    drawn = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return [tensor.requires_grad_() for tensor in drawn]


def close(found: Tensor, expected: Tensor) -> bool:
    """Compare in float64, by the size of the whole."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max()) <= 1e-6 * float(expected.abs().max())


@ONEDNN
def test_large_float32_products_are_onednns_and_small_ones_mkls() -> None:
    assert uses_onednn(LARGE[0], tensors(*LARGE)[1])
    assert not uses_onednn(SMALL[0], tensors(*SMALL)[1])
    assert not uses_onednn(LARGE[0], tensors(*LARGE, dtype=torch.float64)[1])
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses_onednn(LARGE[0], tensors(*LARGE)[1])


def test_all_products_are_mkls_on_cpus_without_avx_512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WIDE", False)
    x, weight, bias = tensors(*LARGE)
    assert not uses_onednn(LARGE[0], weight)
    assert torch.equal(affine(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("sizes", [LARGE, SMALL])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_first_and_second_gradients_are_those_of_float64(
    sizes: tuple[int, int, int], bias: bool
) -> None:
    def derivatives(compute: object, dtype: torch.dtype) -> list[Tensor]:
        given = [t.detach().to(dtype).requires_grad_() for t in tensors(*sizes)]
        given = given if bias else given[:2]
        y = compute(*given)  # pyright: ignore[reportCallIssue]
        first = torch.autograd.grad(y.square().mean(), given, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), given[:2])
        return [y, *first, *second]

    found = derivatives(affine, torch.float32)
    expected = derivatives(F.linear, torch.float64)
    assert all(close(f, e) for f, e in zip(found, expected, strict=True))


def test_a_quickened_model_keeps_its_tensors_and_leaves_other_kinds_of_layers_alone() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), Own(3, 2))
    before = [id(p) for p in model.parameters()]
    use_fast_linear(model)
    assert [type(layer) for layer in model] == [Linear, nn.ReLU, Own]
    assert [id(p) for p in model.parameters()] == before


def test_leading_dimensions_are_kept() -> None:
    x, weight, bias = tensors(*LARGE)
    spread = x.view(4, 64, LARGE[1]).transpose(0, 1)  # not contiguous
    assert close(affine(spread, weight, bias), F.linear(spread, weight, bias))


def test_transforms_of_torch_func_see_a_linear_layer() -> None:
    x, weight, bias = (t.detach() for t in tensors(*LARGE))
    batches, weights = torch.stack([x, 2 * x, -x]), torch.stack([weight, -weight, 3 * weight])

    def loss(compute: object, weight: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        return compute(x, weight, bias).square().mean()  # pyright: ignore[reportCallIssue]

    for dims in ((None, 0, None), (0, None, None), (0, 0, None)):
        given = [weight if dims[0] is None else weights, x if dims[1] is None else batches]
        of_both = [
            vmap(grad(loss, argnums=1), (None, *dims))(compute, *given, bias)
            for compute in (affine, F.linear)
        ]
        assert close(*of_both)


def test_views_of_biases_and_other_oddities_are_computed_as_torch_does() -> None:
    x, weight, _ = (t.detach() for t in tensors(*LARGE))
    for bias in (torch.arange(320.0)[::2], torch.ones(1).expand(160), torch.ones(1)):
        assert close(affine(x, weight, bias), F.linear(x, weight, bias))
    assert affine(torch.zeros(3, 0), torch.zeros(2, 0)).shape == (3, 2)
    assert affine(x[:0], weight).shape == (0, 160)
    assert close(affine(x[0], weight), F.linear(x[0], weight))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        affine(torch.zeros(256, 300), weight)


def test_frozen_weights_get_no_gradient() -> None:
    x, weight, bias = tensors(*LARGE)
    weight.requires_grad_(False)
    affine(x, weight, bias).sum().backward()
    assert weight.grad is None
    assert x.grad is not None and bias.grad is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_compiled_code_has_the_gradients_of_eager_code() -> None:
    layer = Linear(LARGE[1], LARGE[2])
    x = tensors(*LARGE)[0]
    compiled = torch.compile(lambda x: layer(x).square().mean(), fullgraph=True)
    expected = torch.autograd.grad(layer(x).square().mean(), [x, *layer.parameters()])
    found = torch.autograd.grad(compiled(x), [x, *layer.parameters()])
    assert all(close(f, e) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("d_in", "bias"), [(1, True), (module.NARROW, False), (module.NARROW + 1, True)]
)
def test_compiled_layers_of_few_inputs_have_values_and_gradients_of_eager_ones(
    d_in: int, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(d_in)
    layer = Linear(d_in, 40, bias=bias)
    x = torch.randn(50, d_in, generator=generator, requires_grad=True)
    to = torch.randn(50, 40, generator=generator)
    wanted = [x, *layer.parameters()]

    def loss() -> Tensor:
        return (layer(x) - to).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(), wanted), torch.autograd.grad(loss(), wanted)
    )


def test_a_stacked_layer_computes_what_its_members_would() -> None:
    _, d_in, d_out = LARGE
    stacked = StackedLinear(3, d_in, d_out, generator=torch.Generator().manual_seed(2))
    x = torch.stack([tensors(*LARGE)[0].detach() * i for i in (1, 2, 3)])
    y = stacked(x)
    y.square().mean().backward()
    assert stacked.bias is not None and stacked.weight.grad is not None
    for i in range(3):
        own = nn.Linear(d_in, d_out).double()
        values = {"weight": stacked.weight[i].double(), "bias": stacked.bias[i].double()}
        expected = functional_call(own, values, (x[i].double(),))
        assert close(y[i], expected)
    expected = copy.deepcopy(stacked).double()
    expected.zero_grad()
    expected(x.double()).square().mean().backward()
    assert expected.weight.grad is not None
    assert close(stacked.weight.grad, expected.weight.grad)


def test_methods_find_torchs_own_layers_in_an_agent_whose_layers_are_then_quickened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[type] = []

    def install(self: object, model: nn.Module, seed: int) -> list[str]:
        seen.extend(type(layer) for layer in model.modules())
        return ["fc1"]

    monkeypatch.setattr(registry.get("methods", "layer_norm").target, "install", install)
    agent = dqn(layers=[{"method": "layer_norm"}])
    assert nn.Linear in seen and Linear not in seen
    assert {type(net.head) for net in (agent.online, agent.target)} == {Linear}
