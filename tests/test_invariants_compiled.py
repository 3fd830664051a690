"""Invariant 7: one update from one state agrees eager and compiled, and can be captured."""

from typing import Any

import pytest
import torch

from rlplast.core.clock import Clock
from rlplast.core.method.method import implements
from tests.cases import ACCEPTED, CASES, fire, hooks, method_of, ready
from tests.marks import slow, slow_but
from tests.models import FAMILIES, Subject, loss_of, observed

EVERY_UPDATE = [(m, f) for m, f in ACCEPTED if CASES[m].made_for_every_update]
# Compiling takes seconds: each method on another family.
COMPILED = [("swr", "mlp"), slow("swr", "stacked"), slow("cbp", "stacked")]
COMPILED += [slow("hypersphere_project", "tied"), slow("snr", "conv_batchnorm")]
COMPILED += [slow("weight_clip", "residual")]
BRINGING = [m for m in CASES if implements(method_of(m), "install")]  # modules of their own
# Methods that can be compiled with one model, one after the other.
TOGETHER = [[m for m in CASES if m not in BRINGING], *([m] for m in BRINGING)]


def activations(method: str, made: Subject) -> dict[str, Any]:
    """What the method reads of an update, by network."""
    if "activations" not in method_of(method).reads:
        return {}
    return {"net": observed(made.network, made.x)}


@pytest.fixture
def aot_eager() -> Any:
    torch._dynamo.reset()
    yield lambda function: torch.compile(function, backend="aot_eager", fullgraph=True)
    torch._dynamo.reset()


@pytest.mark.parametrize("methods", TOGETHER, ids=lambda methods: methods[0])
@pytest.mark.parametrize("family", slow_but(["mlp"], FAMILIES))
def test_updates_with_hooks_agree_eager_and_compiled(
    family: str, methods: list[str], aot_eager: Any
) -> None:
    accepted = [m for m in methods if (m, family) in ACCEPTED]
    if not accepted:
        return  # nothing to compile: the refusal is tested elsewhere
    eager, compiled = (ready(accepted[0], family, updates=0) for _ in range(2))
    loss = aot_eager(lambda x, y: loss_of(compiled.module, x, y))
    for method in accepted:
        with torch.no_grad():  # one update from one state
            for mine, theirs in zip(eager.state().values(), compiled.state().values(), strict=True):
                theirs.copy_(mine)
        for made in (eager, compiled):
            made.optimizer.zero_grad()
            made_loss = loss if made is compiled else lambda x, y: loss_of(eager.module, x, y)
            made_loss(made.x, made.y).backward()
            made.optimizer.step()
            fire(method, made.network)
        left, right = eager.snapshot(), compiled.snapshot()
        for name, tensor in left.items():
            torch.testing.assert_close(tensor, right[name], rtol=1e-5, atol=1e-6, msg=name)


def test_every_method_for_updates_is_compiled() -> None:
    cases = [getattr(case, "values", case) for case in COMPILED]
    assert set(cases) <= set(EVERY_UPDATE) and {m for m, _ in cases} == {m for m, _ in EVERY_UPDATE}


@pytest.mark.parametrize(("method", "family"), COMPILED)
def test_every_update_edit_agrees_eager_and_compiled(
    method: str, family: str, aot_eager: Any
) -> None:
    eager, compiled = ready(method, family), ready(method, family)
    found = []
    for made in (eager, compiled):
        inside = hooks(method, made.network, every="1 updates").hooks[0]
        edit = aot_eager(inside.tick) if made is compiled else inside.tick
        for _ in range(3):
            made.update()
            edit(Clock(updates=1), 0, activations(method, made))  # another clock compiles again
        [receipt] = inside.flush(Clock(updates=3))
        assert (receipt.firings, receipt.crossings) == (3, 3)
        found.append(inside.states["net"] | {"sfe": torch.tensor(receipt.sfe)})
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=1e-4, atol=1e-6, msg=name)
    left, right = eager.snapshot(), compiled.snapshot()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize(("method", "family"), EVERY_UPDATE)
def test_every_update_edit_can_be_captured_in_a_cuda_graph(method: str, family: str) -> None:
    eager, captured = (ready(method, family, device="cuda") for _ in range(2))
    inside = hooks(method, captured.network, every="1 updates").hooks[0]
    outside = hooks(method, eager.network, every="1 updates").hooks[0]
    graph = torch.cuda.CUDAGraph()
    before, found = captured.snapshot(), activations(method, captured)
    state = {name: tensor.clone() for name, tensor in inside.states["net"].items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # lazy allocations happen outside the capture
        inside.tick(Clock(updates=1), 0, found)
    torch.cuda.current_stream().wait_stream(side)
    inside.flush(Clock(updates=1))
    with torch.cuda.graph(graph):
        inside.tick(Clock(updates=1), 0, found)
    with torch.no_grad():
        for name, tensor in captured.state().items():
            tensor.copy_(before[name])
        for name, tensor in inside.states["net"].items():
            tensor.copy_(state[name])
    for update in range(1, 4):
        graph.replay()
        outside.tick(Clock(updates=update), 0, found)
    left, right = eager.snapshot(), captured.snapshot()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-5, atol=1e-6, msg=name)
    [replayed], [counted] = inside.flush(Clock(updates=3)), outside.flush(Clock(updates=3))
    assert replayed.firings == counted.firings == 3
    assert replayed.sfe == pytest.approx(counted.sfe, rel=1e-4)
