"""Activations of somebody else's forward passes, against the same written by hand."""

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rlplast
from rlplast.agents import networks, simba_v2, trunks
from rlplast.core.errors import NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.network.record import Recorder, record
from rlplast.core.network.units import UnitSpec
from rlplast.core.rng import preserve_global_rng
from rlplast.gpt import model
from tests.core.network.own import OWN, drawn, own
from tests.methods.nets import randomise
from tests.models import FAMILIES, build, data, recorded

Taps = dict[str, Tensor]


class Form(nn.Module):
    """Linear, norm and linear again, with a nonlinearity of some form in between."""

    def __init__(self, step: Callable[[Tensor], Tensor], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm, self.step = norm or nn.Identity(), step

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.step(self.b(self.step(self.norm(self.a(x))))))


X = drawn(7, 5)


# Forms of nonlinearities, and what they compute.
FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "one module for all": (nn.ReLU(), torch.relu),
    "in place": (nn.ReLU(inplace=True), torch.relu),
    "function in place": (lambda x: F.relu(x, inplace=True), torch.relu),
    "function in place by position": (lambda x: F.elu(x, 0.5, True), lambda x: F.elu(x, 0.5)),
    "function named so": (F.relu_, torch.relu),
    "method": (lambda x: x.tanh(), torch.tanh),
    "method in place": (lambda x: x.sigmoid_(), torch.sigmoid),
    "parameters by name": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "parameters of a module": (nn.LeakyReLU(0.3), lambda x: F.leaky_relu(x, 0.3)),
    "two of them": (lambda x: torch.tanh(F.relu(x)), torch.relu),
    "none": (nn.Identity(), lambda x: x),
}


@torch.no_grad()
def test_activations_are_those_after_the_nonlinearity() -> None:
    for form, (step, expected) in FORMS.items():
        module = randomise(Form(step), 0)
        found = recorded(module, X)[1]
        a = expected(module.a(X))
        assert list(found) == ["a", "b"], form
        assert torch.equal(found["a"], a), form
        if form != "two of them":
            assert torch.equal(found["b"], expected(module.b(a))), form


@torch.no_grad()
def test_activations_behind_a_norm_are_those_of_the_pass_itself() -> None:
    for training in (True, False):
        module = randomise(Form(nn.ReLU(inplace=True), nn.BatchNorm1d(8)), 0).train(training)
        module.norm.running_var.abs_()  # type: ignore[union-attr, operator]
        twin = randomise(Form(nn.ReLU(), nn.BatchNorm1d(8)), 0).train(training)
        twin.load_state_dict(module.state_dict())
        found = recorded(module, X)[1]
        assert torch.equal(found["a"], twin.norm(twin.a(X)).relu())
        state = module.state_dict()
        assert all(torch.equal(t, state[n]) for n, t in twin.state_dict().items())  # moved once


@torch.no_grad()
def test_activations_are_read_without_dropout_which_is_not_drawn_again() -> None:
    for step in (
        nn.Sequential(nn.Dropout(0.5), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Dropout(0.5)),
        lambda x: F.relu(F.dropout(x, 0.5)),
        lambda x: F.dropout(F.relu(x), 0.5),
        nn.RReLU(),
    ):
        module = randomise(Form(step), 0).train()
        with preserve_global_rng():
            torch.manual_seed(0)
            expected = module(X)
            after = torch.get_rng_state()
        with preserve_global_rng(), record(Network("net", module)) as found:
            torch.manual_seed(0)
            assert torch.equal(module(X), expected)
            assert torch.equal(torch.get_rng_state(), after)
        mean = F.rrelu(module.a(X)) if isinstance(step, nn.RReLU) else module.a(X).relu()
        assert torch.equal(found["a"], mean)


@torch.no_grad()
def test_channels_come_second_however_they_are_laid_out() -> None:
    def flat_norm() -> nn.Module:
        layers = [nn.Conv2d(2, 3, 3), nn.Flatten(), nn.BatchNorm1d(48), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(48, 2))

    x = drawn(4, 2, 6, 6)
    module = flat_norm()
    found = recorded(module, x)[1]["0"]
    assert found.shape == (4, 3, 16)
    assert torch.equal(found.flatten(1), flat_norm_of(module, x))
    pooled = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    )
    assert torch.equal(recorded(pooled, x)[1]["0"], F.max_pool2d(pooled[0](x), 2).relu())
    late = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Tanh(), nn.Linear(48, 2))
    assert torch.equal(recorded(late, x)[1]["0"], late[0](x).tanh())
    lone = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 4))
    assert recorded(lone, x)[1]["0"].shape == (4, 3, 4, 4)


def flat_norm_of(module: nn.Module, x: Tensor) -> Tensor:
    flat = module.get_submodule("0")(x).flatten(1)
    return F.batch_norm(flat, None, None, training=True).relu()


def test_what_lies_between_is_pooling_and_dropout_and_can_be_pickled() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Identity(), nn.ReLU(), nn.Identity(), nn.Conv2d(2, 3, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 2),
    )  # fmt: skip
    taps = [group.point for group in Network("net", module).units().groups]
    assert [len(tap.between) for tap in taps if tap] == [0, 2]  # what keeps values does not
    for step in (nn.Sequential(nn.Dropout(0.5), nn.ReLU()), lambda x: F.relu(F.dropout(x, 0.5))):
        tap = Network("net", Form(step)).units().groups[0].point
        assert tap is not None and len(tap.between) == 1
        x = drawn(3, 8)
        assert torch.equal(pickle.loads(pickle.dumps(tap)).read(x)[0], tap.read(x)[0])


@torch.no_grad()
def test_taps_of_our_networks_are_what_their_nonlinearities_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Tensor] = []

    def noted(layer: nn.Module, z: Tensor, nonlinearity: Callable[[Tensor], Tensor]) -> Tensor:
        given.append(nonlinearity(z).clone())
        return nonlinearity(z)

    for place in (networks, trunks, simba_v2, model):
        monkeypatch.setattr(place, "activated", noted)
    for which in OWN:
        module, x = own(which)
        randomise(module, 0, std=0.3)
        given.clear()
        found = recorded(module, *x)[1]
        expected = [m for a in given for m in (a if "critic" in which else [a])]
        assert len(found) == len(expected), which
        for value, activations in zip(found.values(), expected, strict=True):
            assert torch.equal(value.flatten(), activations.flatten()), which


def test_a_recorded_pass_trains_bit_for_bit_as_another() -> None:
    for family in FAMILIES:
        if family in ("residual", "tied"):
            continue
        (x, _), gradients = data(family), []
        for recording in (False, True):
            module = build(family)
            with record(Network("net", module)) if recording else nullcontext():
                module(x).square().sum().backward()
            gradients.append([p.grad for p in module.parameters()])
            assert not any(m._forward_hooks for m in module.modules())
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True)), family


def test_passes_of_one_update_are_joined_and_taken_once() -> None:
    module = build("mlp")
    network, (x, _) = Network("net", module), data("mlp")
    with torch.no_grad():
        expected = module[0](x).relu()  # type: ignore[index, operator]
        with rlplast.record(network) as found:
            for part in x.split(3):
                module(part)
        torch.testing.assert_close(found["0"], expected)
    recorder = Recorder(network, training_only=True)
    with torch.no_grad():
        module(x)
    assert recorder.take() == {}
    module(x)
    assert recorder.take()["0"].shape == (8, 6)
    assert recorder.take() == {}
    recorder.on = False
    module(x)
    assert recorder.take() == {}
    recorder.stop()
    assert not any(m._forward_hooks for m in module.modules())


def test_a_copy_of_a_module_made_while_it_is_recorded_is_not() -> None:
    module = build("mlp")
    x, _ = data("mlp")
    with rlplast.record(Network("net", module)) as found:
        for old in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            old(2 * x)
        module(x)
    with torch.no_grad():
        torch.testing.assert_close(found["0"], module[0](x).relu())  # type: ignore[index, operator]


def test_recorded_activations_are_detached_and_of_declared_units_too() -> None:
    module = build("mlp")
    found = recorded(module, data("mlp")[0], units=[UnitSpec("2", ("4",), nonlinearity=F.silu)])[1]
    assert list(found) == ["2"]
    assert not found["2"].requires_grad
    with torch.no_grad():
        hidden = module[:3](data("mlp")[0])  # type: ignore[index, operator]
        assert torch.equal(found["2"], F.silu(hidden))


def test_recording_ends_with_its_block_even_if_that_fails_and_needs_units() -> None:
    module = build("mlp")
    with pytest.raises(RuntimeError), record(Network("net", module)):
        module(torch.ones(2, 99))
    assert not any(m._forward_hooks for m in module.modules())
    with pytest.raises(NothingToEdit, match="'net'"):
        recorded(build("residual"), data("residual")[0])


@pytest.mark.slow
def test_a_pass_of_code_compiled_before_the_first_record_is_missed_with_a_warning() -> None:
    torch.compiler.reset()
    module, x = build("mlp"), data("mlp")[0]
    compiled: Any = torch.compile(module, backend="eager")
    network = Network("net", compiled)
    compiled(x)
    with pytest.warns(UserWarning, match="'net', which is compiled"), record(network) as found:
        compiled(x)
    torch.compiler.reset()
    for _ in range(2):
        with record(network) as found:
            compiled(x)
        with torch.no_grad():
            compiled(x)
        assert torch.equal(found["0"], recorded(module, x)[1]["0"])
    torch.compiler.reset()
