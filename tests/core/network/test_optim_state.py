import copy
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import rlplast
from rlplast.core.errors import DamagedFile, UnsupportedOptimizer
from rlplast.core.network.edits import Assign
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import (
    allocate,
    load_optimizer_tensors,
    moments,
    optimizer_tensors,
)
from tests.firing import apply
from tests.models import FORMS, OPTIMIZERS, assert_same, subject

ALL = OPTIMIZERS | FORMS


LR = 1e-3


def driven(make: Any, updates: int) -> tuple[Tensor, Optimizer, Network]:
    """Return 6 weights after `updates` updates with the constant gradient 1, and their network."""
    module = nn.Linear(3, 2, bias=False)
    optimizer = make(module.parameters(), lr=LR)
    drive(module.weight, optimizer, updates)
    return module.weight, optimizer, Network("net", module, optimizer)


def drive(param: Tensor, optimizer: Optimizer, updates: int) -> Tensor:
    """Update with the constant gradient 1; return the last move."""
    before = param.detach().clone()
    for _ in range(updates):
        before = param.detach().clone()
        param.grad = torch.ones_like(param)
        optimizer.step()
    return before - param.detach()


def reset(network: Network, policy: str) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    mask[0] = True
    edit = Assign(network.blocks[0], torch.zeros(2, 3), mask)
    apply(network, [edit], method="toy", optimizer=policy)


def test_first_moves_after_a_reset_are_known() -> None:
    for policy in ("network", "parameter", "touched"):
        whole = policy != "touched"
        for make in (Adam, AdamW, functools.partial(Adam, fused=True)) if whole else ():
            param, optimizer, network = driven(functools.partial(make, weight_decay=0.0), 20)
            reset(network, policy)
            move = drive(param, optimizer, 1)
            torch.testing.assert_close(move, torch.full((2, 3), LR), rtol=1e-4, atol=0)
        param, optimizer, network = driven(functools.partial(RMSprop, alpha=0.99), 20)
        reset(network, policy)
        move = drive(param, optimizer, 1)
        assert float(move[0, 0]) == pytest.approx(LR / math.sqrt(0.01), rel=1e-3)
        param, optimizer, network = driven(functools.partial(SGD, momentum=0.9), 200)
        reset(network, policy)
        move = drive(param, optimizer, 1)
        assert float(move[0, 0]) == pytest.approx(LR, rel=1e-3)
        assert float(move[1, 0]) == pytest.approx(LR if whole else LR * 10, rel=1e-3)
    make = functools.partial(SGD, momentum=0.9, dampening=0.75)
    for updates, first in ((10, LR * (1 - 0.75)), (0, LR)):  # zeroed is not empty
        param, optimizer, network = driven(make, updates)
        reset(network, "network")
        assert float(drive(param, optimizer, 1)[0, 0]) == pytest.approx(first, rel=1e-3)


def test_first_adam_move_of_touched_entries_is_known() -> None:
    beta1, beta2 = 0.9, 0.999
    for updates in (1, 10, 1000, 20000):
        param, optimizer, network = driven(Adam, min(updates, 1000))
        step = optimizer.state[param]["step"]
        step.fill_(updates)  # a long run without running it: the moments are at their limit
        reset(network, "touched")
        move = drive(param, optimizer, 1)
        t = updates + 1
        expected = LR * (1 - beta1) / (1 - beta1**t) / math.sqrt((1 - beta2) / (1 - beta2**t))
        torch.testing.assert_close(move[0], torch.full((3,), expected), rtol=2e-4, atol=0)
        if updates <= 1000:  # untouched entries go on as if nothing had happened
            torch.testing.assert_close(move[1], torch.full((3,), LR), rtol=1e-3, atol=0)


def test_state_is_found_by_identity_in_any_group_of_any_optimizer() -> None:
    first, second, third = (nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    module = nn.Sequential(first, second, third)
    optimizers = [
        Adam([{"params": second.parameters(), "lr": 0.1}, {"params": first.parameters()}]),
        SGD(third.parameters(), lr=0.1, momentum=0.9),
    ]
    module(torch.ones(4, 3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    network = Network("net", module, optimizers)
    assert moments(network, first.weight)["exp_avg"] is optimizers[0].state[first.weight]["exp_avg"]
    assert moments(network, third.bias).keys() == {"momentum_buffer"}
    rlplast.apply("fire", network, optimizer_policy="parameter")
    assert float(optimizers[0].state[second.weight]["step"]) == 0
    assert float(optimizers[0].state[second.bias]["step"]) == 1  # fire edits no biases
    assert not optimizers[1].state[third.weight]["momentum_buffer"].any()


def test_state_that_a_wrapper_passes_on_is_reset() -> None:
    class Wrapper(Optimizer):  # as accelerate.optimizer.AcceleratedOptimizer
        def __init__(self, optimizer: Optimizer) -> None:
            self.optimizer = optimizer

        state = property(lambda self: self.optimizer.state)  # type: ignore[assignment]
        param_groups = property(lambda self: self.optimizer.param_groups)  # type: ignore[assignment]

    weight, adam, network = driven(Adam, 3)
    network.optimizers = (Wrapper(adam),)
    rlplast.apply("full_reset", network)
    assert not any(bool(tensor.any()) for tensor in adam.state[weight].values())


def test_unknown_optimizers_and_entries_are_refused() -> None:
    class MyAdam(Adam):
        pass

    with pytest.raises(UnsupportedOptimizer, match="MyAdam"):
        rlplast.apply("fire", subject("mlp", MyAdam).network)
    made = subject("mlp")
    bias = made.module.get_parameter("0.bias")
    made.optimizer.state[bias]["shadow"] = torch.zeros(6)
    with pytest.raises(UnsupportedOptimizer, match="'shadow'"):
        moments(made.network, bias)


def test_allocated_state_has_the_names_and_layout_of_real_state() -> None:
    for form in ALL:
        real, empty = subject("conv", ALL[form]), subject("conv", ALL[form], updates=0)
        allocate(empty.network)
        twins = real.state()
        assert empty.state().keys() == twins.keys(), form
        for name, tensor in empty.state().items():
            twin = twins[name]
            found = (tensor.dtype, tensor.device, tensor.stride())
            assert found == (twin.dtype, twin.device, twin.stride()), (form, name)
            assert ":" not in name or not tensor.any()


def test_state_without_updates_or_a_gradient_so_far_stays_absent_and_anothers_is_refused() -> None:
    make = functools.partial(SGD, lr=0.1, momentum=0.9, dampening=0.5)
    made, other = (subject("mlp", make, updates=0) for _ in range(2))
    load_optimizer_tensors(other.network, optimizer_tensors(made.network))
    assert not other.optimizer.state
    used = subject("mlp")
    load_optimizer_tensors(used.network, optimizer_tensors(made.network))
    assert not any(t.any() for n, t in used.state().items() if ":" in n)
    saved = optimizer_tensors(subject("mlp", "sgd_momentum").network)
    with pytest.raises(DamagedFile, match=r"'step' of net\.0\.weight"):
        load_optimizer_tensors(subject("mlp", updates=0).network, saved)

    def with_idle_head() -> tuple[nn.ModuleDict, Optimizer, Network]:  # unused in an earlier phase
        torch.random.default_generator.manual_seed(0)
        module = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
        optimizer = Adam(module.parameters(), lr=0.1)
        return module, optimizer, Network("net", module, optimizer)

    module, optimizer, network = with_idle_head()
    module["used"](torch.ones(3)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer_tensors(network))
    other_module, again, other_network = with_idle_head()
    load_optimizer_tensors(other_network, saved)
    assert set(again.state) == set(other_module["used"].parameters())
    assert_same(saved, optimizer_tensors(other_network))


@pytest.mark.gpu
@pytest.mark.parametrize("make", [Adam, AdamW, RMSprop])
def test_capturable_state_is_zeroed_in_place_on_the_device(make: Any) -> None:
    module = nn.Linear(3, 2, device="cuda")
    optimizer = make(module.parameters(), lr=LR, capturable=True)
    network = Network("net", module, optimizer)
    allocate(network)
    allocated = {n: t.data_ptr() for n, t in optimizer_tensors(network).items()}
    module(torch.ones(3, device="cuda")).sum().backward()
    optimizer.step()
    assert {n: t.data_ptr() for n, t in optimizer_tensors(network).items()} == allocated
    rlplast.apply("full_reset", network)
    after = optimizer_tensors(network)
    assert {n: t.data_ptr() for n, t in after.items()} == allocated
    assert all(t.device.type == "cuda" and not t.any() for t in after.values())
