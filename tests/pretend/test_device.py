"""The pretended device itself: it computes as the CPU does, and refuses and counts as CUDA does."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.pretend.device import counted

pytestmark = pytest.mark.pretended

X = torch.arange(12.0).reshape(3, 4)


def captured(work: Callable[[], object], **options: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):  # type: ignore[arg-type]
        work()
    return graph


def pictures(device: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Conv2d(5, 4, 3, stride=2), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(16, 2)).to(device)
    return module, torch.randn(6, 3, 7, 7).to(device)


# What it computes.


def test_results_are_those_of_the_cpu() -> None:
    x = X.cuda()
    y = (x @ x.T).softmax(1).sort(descending=True).values[:, 1:].cumsum(0)
    assert y.device == torch.device("cuda", 0)
    expected = (X @ X.T).softmax(1).sort(descending=True).values[:, 1:].cumsum(0)
    assert torch.equal(y.cpu(), expected)


def test_views_share_memory() -> None:
    x = X.cuda()
    x.T[1:, 0].mul_(2)
    x.view(-1).unfold(0, 2, 2)[0].zero_()
    x.view(torch.int32)[2, 3] = 0
    assert x.cpu()[0].tolist() == [0, 0, 4, 6]
    assert float(x[2, 3]) == 0


def test_second_gradients_of_convolutions_are_those_of_the_cpu() -> None:
    found = []
    for device in ("cpu", "cuda"):
        module, x = pictures(device)
        parameters = list(module.parameters())
        loss = module(x).square().sum()
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        squares = torch.stack([g.square().sum() for g in first]).sum()
        found.append([g.cpu() for g in torch.autograd.grad(squares, parameters)])
    assert all(map(torch.equal, *found))


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


def test_work_on_the_device_waits_for_nothing() -> None:
    module, x = pictures("cuda")
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    with counted() as seen:
        module(x).sum().backward()
        optimizer.step()
    assert seen.waits == {}
    assert seen.launches["aten::convolution"] == seen.launches["aten::convolution_backward"] == 2
    assert seen.launched < 40


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


def test_copies_of_pinned_memory_and_filled_masks_wait_for_nothing() -> None:
    x = X.cuda()
    with counted() as seen:
        x.copy_(X.pin_memory(), non_blocking=True)
        assert x.to("cpu", non_blocking=True).is_pinned()
        x[x > 3] = 0.0
        torch.cuda.Event().synchronize()
    assert (seen.waits, seen.copies, seen.event_waits) == ({}, 2, 1)


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


def test_replayed_training_is_eager_training() -> None:
    found = []
    for replayed in (False, True):
        module, x = pictures("cuda")
        optimizer = torch.optim.Adam(module.parameters(), capturable=True)

        def update(module=module, x=x, optimizer=optimizer) -> None:
            optimizer.zero_grad(set_to_none=False)
            nn.functional.dropout(module(x), 0.5).square().sum().backward()
            optimizer.step()

        torch.cuda.manual_seed(3)
        update()
        again = captured(update, capture_error_mode="thread_local").replay if replayed else update
        for _ in range(5):
            again()
        found.append([p.detach().cpu() for p in module.parameters()])
    assert all(map(torch.equal, *found))


def test_generators_go_on_with_each_replay() -> None:
    drawn = []
    for replayed in (False, True):
        generator = torch.Generator("cuda").manual_seed(5)
        torch.cuda.manual_seed(6)
        x = torch.zeros(4, 3, device="cuda")

        def draw(x=x, generator=generator) -> None:
            x[0].uniform_(generator=generator)
            x[1].normal_()
            x[2:] = nn.functional.dropout(torch.ones(2, 3, device="cuda"))

        again = captured(draw).replay if replayed else draw
        for _ in range(3):
            again()
            drawn.append(x.cpu())
    assert all(map(torch.equal, drawn[:3], drawn[3:]))
    assert not torch.equal(drawn[0], drawn[1])


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
    module, x = pictures("cuda")
    optimizer = torch.optim.Adam(module.parameters())
    module(x).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable is False"):
        captured(optimizer.step)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_fused_optimizer_refuses_a_gradient_in_another_order(optimizer: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 2, 5, 5, device="cuda"))
    fused = optimizer([weight], fused=True)
    weight.grad = torch.ones_like(weight)
    fused.step()
    weight.grad = weight.grad.to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="must have same dtype, device, and layout"):
        fused.step()


@pytest.mark.parametrize(("mode", "refused"), [("global", True), ("thread_local", False)])
def test_other_threads_may_wait_if_the_capture_is_of_one(mode: str, refused: bool) -> None:
    x, errors = X.cuda(), []

    def read() -> None:
        try:
            x.sum().item()
        except RuntimeError as error:
            errors.append(error)

    def work() -> None:
        assert torch.cuda.is_current_stream_capturing()
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()

    captured(work, capture_error_mode=mode)
    assert bool(errors) == refused


def test_streams_that_wait_for_a_capture_join_it() -> None:
    x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()

    def work() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)

    graph = captured(work)
    assert x.tolist() == [1, 1, 1]
    graph.replay()
    assert x.tolist() == [2, 2, 2]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
