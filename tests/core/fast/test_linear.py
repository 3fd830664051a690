import itertools
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from rlplast.core import registry
from rlplast.core.fast import linear as module
from rlplast.core.fast.linear import Linear, affine, build, use_fast_linear
from rlplast.core.network.stacked import StackedLinear
from tests.agents.toy_env import dqn

LARGE, SMALL = (256, 224, 160), (8, 4, 6)  # rows, d_in, d_out
REASON = build()
OURS = pytest.mark.skipif(REASON is not None, reason=f"PyTorch's product serves: {REASON}")
WIDTHS = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 64, 65, 100, 255, 256, 257, 300, 513)


def tensors(rows: int, d_in: int, d_out: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((rows, d_in), (d_out, d_in), (d_out,))
    drawn = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return [tensor.requires_grad_() for tensor in drawn]


def error(found: Tensor, expected: Tensor) -> float:
    """Compare in float64, by the size of the whole."""
    if found.shape != expected.shape:
        return math.inf
    found, expected = found.detach().double(), expected.detach().double()
    whole = expected.abs().amax() if expected.numel() else torch.ones(())
    return float((found - expected).abs().sum() and (found - expected).abs().amax() / whole)


def close(found: Tensor, expected: Tensor) -> bool:
    return error(found, expected) <= 2e-6


def laid_out(rng: random.Random, *shape: int) -> Tensor:
    """Draw a tensor: contiguous, turned over, a part of a wider one, or spread."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    *lead, m, n = shape
    how = rng.randrange(5)
    if how == 0:
        return torch.randn(*lead, n, m, generator=generator).mT
    if how == 1:
        return torch.randn(*lead, m, n + 3, generator=generator)[..., 1 : n + 1]
    if how == 2:
        return torch.randn(*lead, m, 2 * n, generator=generator)[..., ::2]
    if how == 3:
        return torch.randn(*lead, 1, n, generator=generator).expand(*lead, m, n)
    return torch.randn(*shape, generator=generator)


def plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x @ weight.mT
    return y if bias is None else y + (bias if bias.ndim < 2 else bias[:, None])


@pytest.mark.parametrize("draws", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_values_and_first_and_second_gradients_are_those_of_float64(draws: int) -> None:
    rng = random.Random(draws)

    def derivatives(compute: Any, given: list[Tensor]) -> list[Tensor]:
        x, weight, bias = (*(tensor.requires_grad_() for tensor in given), None)[:3]
        y = compute(x, weight, bias)
        first = torch.autograd.grad(y.square().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), given[:2])
        return [y, *first, *second]

    for _ in range(draws):
        rows, d_in, d_out = (rng.choice(WIDTHS) for _ in range(3))
        members = rng.choice([(), (), (2,)])
        given = [laid_out(rng, *members, rows, d_in), laid_out(rng, *members, d_out, d_in)]
        if rng.random() < 0.6:
            bias = laid_out(rng, *(members or (1,)), d_out)
            given.append(bias if members else bias[0])
        expected = derivatives(plain, [t.detach().double() for t in given])
        both = [derivatives(how, [t.detach() for t in given]) for how in (affine, plain)]
        errors = [[error(f, e) for f, e in zip(own, expected, strict=True)] for own in both]
        agree = [mine < 1e-5 or mine < 8 * torchs for mine, torchs in zip(*errors, strict=True)]
        assert all(agree), (members, rows, d_in, d_out, [t.stride() for t in given], errors)


@pytest.mark.slow
def test_on_cpus_without_avx_512_too() -> None:
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    subprocess.run([*command, "-k", "float64 or func or threads"], env=environment, check=True)


@OURS
def test_it_is_not_pytorchs_product() -> None:
    assert module._operator is torch.ops.rlplast.affine
    with torch.profiler.profile() as seen:
        affine(*tensors(*LARGE)).sum().backward()
    names = [event.key for event in seen.key_averages()]
    assert "rlplast::product" in names and not {"aten::addmm", "aten::mm"} & set(names)


@OURS
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    x, weight, bias = tensors(512, 300, 700)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = affine(x, weight, bias)
            found.append([y, *torch.autograd.grad(y.square().sum(), (x, weight))])
    finally:
        torch.set_num_threads(threads)
    assert all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def test_where_it_cannot_be_built_pytorchs_product_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_operator", None)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    again = build.__wrapped__
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "'no-such-compiler'" in (again() or "")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C++ compiler 'g++'" in (again() or "")
    monkeypatch.undo()
    monkeypatch.setattr(module, "_operator", None)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "false")  # a program that fails
    assert "cannot be built" in (again() or "")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert "AVX2" in (again() or "")
    assert module._operator is None
    assert not list(tmp_path.iterdir())
    x, weight, bias = tensors(*LARGE)
    assert torch.equal(affine(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("of", [torch.float64, torch.bfloat16])
def test_other_types_are_computed_as_torch_does(of: torch.dtype) -> None:
    given = [t.detach().to(of) for t in tensors(*SMALL)]
    assert torch.equal(affine(*given), F.linear(*given))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(affine(*tensors(*SMALL)), F.linear(*tensors(*SMALL)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, of jvp
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
    both = [
        jvp(lambda w, f=f: loss(f, w, x, bias), (weight,), (x[:160],)) for f in (affine, F.linear)
    ]
    assert close(both[0][1], both[1][1])
    after = affine(x, weight.requires_grad_(), bias)  # outside of them it is the operator again
    assert close(torch.autograd.grad(after.sum(), weight)[0], x.sum(0).expand(160, -1))


def test_forward_mode_gradients_are_torchs() -> None:
    for which, trained in itertools.product(range(3), (False, True)):
        given = [t.detach().requires_grad_(trained) for t in tensors(*SMALL)]
        with forward_ad.dual_level():
            given[which] = forward_ad.make_dual(given[which], torch.ones_like(given[which]))
            both = [forward_ad.unpack_dual(f(*given)).tangent for f in (affine, F.linear)]
            assert both[0] is not None and close(*both), (which, trained)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch's own
@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_exported_programs_need_pytorch_only() -> None:
    x, layer = tensors(*SMALL)[0].detach(), Linear(*SMALL[1:])
    use_fast_linear(layer)
    for model, shape in ((layer, (8, 6)), (StackedLinear(2, *SMALL[1:]), (2, 8, 6))):
        program = torch.export.export(model, (x,))
        calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
        assert calls and not any("rlplast" in str(call) for call in calls)
        assert program.module()(x).shape == shape
    assert "rlplast::" not in str(torch.jit.trace(layer, x).inlined_graph)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
@pytest.mark.parametrize("sizes", [LARGE, SMALL])
def test_compiled_code_has_the_gradients_of_eager_code(sizes: tuple[int, int, int]) -> None:
    layer = Linear(sizes[1], sizes[2])
    use_fast_linear(layer)
    x = tensors(*sizes)[0]
    compiled = torch.compile(lambda x: layer(x).square().mean(), fullgraph=True)
    expected = torch.autograd.grad(layer(x).square().mean(), [x, *layer.parameters()])
    found = torch.autograd.grad(compiled(x), [x, *layer.parameters()])
    assert all(close(f, e) for f, e in zip(found, expected, strict=True))


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

    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), Own(3, 2))
    before = [id(p) for p in model.parameters()]
    use_fast_linear(model)
    assert [type(layer) for layer in model] == [Linear, nn.ReLU, Own]
    assert [id(p) for p in model.parameters()] == before
