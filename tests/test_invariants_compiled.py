"""Invariant 7: one update from one state agrees eager and compiled, and can be captured."""

from typing import Any

import pytest
import torch

from rlplast.core.clock import Clock
from tests.cases import ACCEPTED, CASES, fire, hooks
from tests.models import FAMILIES, loss_of, subject

EVERY_UPDATE = [(m, f) for m, f in ACCEPTED if CASES[m].made_for_every_update]


@pytest.fixture
def aot_eager() -> Any:
    torch._dynamo.reset()
    yield lambda function: torch.compile(function, backend="aot_eager")
    torch._dynamo.reset()


@pytest.mark.parametrize("family", FAMILIES)
def test_updates_with_hooks_agree_eager_and_compiled(family: str, aot_eager: Any) -> None:
    eager, compiled = subject(family, updates=0), subject(family, updates=0)
    loss = aot_eager(lambda x, y: loss_of(compiled.module, x, y))
    for method in (m for m, f in ACCEPTED if f == family):
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


@pytest.mark.parametrize(("method", "family"), EVERY_UPDATE)
def test_every_update_edit_agrees_eager_and_compiled(
    method: str, family: str, aot_eager: Any
) -> None:
    eager, compiled = subject(family), subject(family)
    for made in (eager, compiled):
        inside = hooks(method, made.network, every="1 updates").hooks[0]
        edit = aot_eager(inside.after_update) if made is compiled else inside.after_update
        for update in range(1, 4):
            made.update()
            edit(Clock(updates=update), 0)
        [receipt] = inside.flush(Clock(updates=3))
        assert (receipt.firings, receipt.crossings) == (3, 3)
    left, right = eager.snapshot(), compiled.snapshot()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize(("method", "family"), EVERY_UPDATE)
def test_every_update_edit_can_be_captured_in_a_cuda_graph(method: str, family: str) -> None:
    eager, captured = (subject(family, device="cuda") for _ in range(2))
    inside = hooks(method, captured.network, every="1 updates").hooks[0]
    outside = hooks(method, eager.network, every="1 updates").hooks[0]
    graph = torch.cuda.CUDAGraph()
    before = captured.snapshot()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # lazy allocations happen outside the capture
        inside.after_update(Clock(updates=1), 0)
    torch.cuda.current_stream().wait_stream(side)
    inside.flush(Clock(updates=1))
    with torch.cuda.graph(graph):
        inside.after_update(Clock(updates=1), 0)
    with torch.no_grad():
        for name, tensor in captured.state().items():
            tensor.copy_(before[name])
    for update in range(1, 4):
        graph.replay()
        outside.after_update(Clock(updates=update), 0)
    left, right = eager.snapshot(), captured.snapshot()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-5, atol=1e-6, msg=name)
    [replayed], [counted] = inside.flush(Clock(updates=3)), outside.flush(Clock(updates=3))
    assert replayed.firings == counted.firings == 3
    assert replayed.sfe == pytest.approx(counted.sfe, rel=1e-4)
