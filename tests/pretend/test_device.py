"""The pretended device itself: it computes as the CPU does, and refuses and counts as CUDA does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.pretend.device import counted

pytestmark = pytest.mark.pretended

X = torch.arange(12.0).reshape(3, 4)


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


# What it computes.


def test_results_are_those_of_the_cpu() -> None:
    x = X.cuda()
    y = (x @ x.T).softmax(1).sort(descending=True).values[:, 1:].cumsum(0)
    assert y.device == torch.device("cuda", 0)
    expected = (X @ X.T).softmax(1).sort(descending=True).values[:, 1:].cumsum(0)
    assert torch.equal(y.cpu(), expected)


# What it refuses.


@pytest.mark.parametrize("work", [lambda x, y: x + y, lambda x, y: torch.cat([x, y])])
def test_tensors_of_two_devices_do_not_mix(work: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        work(X.cuda(), X)


def test_host_generators_are_refused() -> None:
    host = torch.Generator()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(3, device="cuda", generator=host)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        X.cuda().bernoulli_(0.5, generator=host)


# What it counts.


@pytest.mark.parametrize(
    ("work", "waits"),
    [
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: bool(x.any()), "aten::_local_scalar_dense"),
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: x[x > 3], "aten::index with a boolean index"),
        (lambda x: x.__setitem__(x > 3, x[0, 0]), "aten::_index_put_impl_ with a boolean index"),
        (lambda x: x.cpu(), "blocking copy to the host, pageable"),
        (lambda x: x.tolist(), "blocking copy to the host, pageable"),
        (lambda x: x.copy_(X), "blocking copy to the device, pageable"),
        (lambda x: x.copy_(X, non_blocking=True), "blocking copy to the device, pageable"),
        (lambda x: x.copy_(X.pin_memory()), "blocking copy to the device, pinned"),
        (lambda x: torch.tensor(1.0, device="cuda"), "blocking copy to the device, pageable"),
        (lambda x: torch.cuda.synchronize(), "device.synchronize"),
        (lambda x: torch.cuda.current_stream().synchronize(), "stream.synchronize"),
    ],
)
def test_what_the_host_waits_for_is_counted(work: Callable[[Tensor], object], waits: str) -> None:
    x = X.cuda()
    with counted() as seen:
        work(x)
    assert seen.waits == {waits: 1}


# Captures.


def test_a_capture_runs_nothing_and_a_replay_does() -> None:
    x, y = X.cuda(), torch.zeros(3, 4, device="cuda")
    graph = captured(lambda: y.copy_(x.mul_(2) + 1))
    assert torch.equal(x.cpu(), X)
    assert not y.any()
    for n in (1, 2):
        with counted() as seen:
            graph.replay()
        assert (seen.graphs, seen.launched, seen.waits) == (1, 0, {})
        assert torch.equal(y.cpu(), X * 2**n + 1)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x.copy_(X),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.Event().synchronize(),
    ],
)
def test_nothing_waits_in_a_capture(work: Callable[[Tensor], object]) -> None:
    x = X.cuda()
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
        torch.cuda.graph(graph),
    ):
        x.add_(1)
        work(x)
    assert torch.equal(x.cpu(), X)
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="without a capture"):
        graph.replay()


def test_optimizers_that_cannot_be_captured_are_refused() -> None:
    weight = nn.Parameter(X.cuda())
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable is False"):
        captured(optimizer.step)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_fused_optimizer_refuses_a_gradient_in_another_order(optimizer: Any) -> None:
    weight = nn.Parameter(torch.ones(3, 2, 5, 5, device="cuda"))
    fused = optimizer([weight], fused=True)
    weight.grad = torch.ones_like(weight)
    fused.step()
    weight.grad = weight.grad.to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="must have same dtype, device, and layout"):
        fused.step()
