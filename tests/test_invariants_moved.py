"""What must hold of every registered method if a module's memory moves between two updates.

`.to()`, ``p.data =`` and their like give a parameter other memory; a buffer becomes another tensor.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.network.network import Network
from rlplast.metrics.probe import IN_RUNS, OF_CURVATURE
from tests import test_every_kind
from tests.cases import ACCEPTED, CASES, about, drive, hooks, loss, probe, ready, schedule
from tests.methods import penalty_cases
from tests.models import Subject, assert_same, loss_of, subject

Move = Callable[[nn.Module], object]
LAYERS = test_every_kind.LAYERS | {"lifecycle": {"life": [2, 4], "recovery": [1, 2], "warmup": 1}}
OF_BLOCKS = {"stochastic_depth"}  # which needs residual blocks; its tick is that of dropout


def stay(module: nn.Module) -> None:
    """Move nothing."""


def move(module: nn.Module) -> None:
    """Give every parameter other memory, and put another tensor in place of every buffer."""
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    for part in module.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.clone()


def widen(module: nn.Module) -> None:
    module.to(torch.float64)


def everywhere(made: Subject, moved: Move) -> None:
    moved(made.module)
    moved(made.follower)


def result(made: Subject, driven: rlplast.Hooks) -> dict[str, Tensor]:
    """Return all tensors, those of methods and of evaluations too."""
    states = {
        f"{hook.key}/{name}": tensor.clone()
        for hook in driven.hooks
        for name, tensor in hook.states["net"].items()
    }
    evaluated = {f"evaluated/{b.name}": t.clone() for b, t in driven.evaluation().items()}
    return made.snapshot() | states | evaluated


def after_updates(method: str, family: str, moved: Move) -> dict[str, Tensor]:
    """Return what six updates with a hook give, if memory moves after the third."""
    made = ready(method, family, updates=0)
    driven = hooks(method, made.network, **schedule(method))
    for update in range(1, 7):
        drive(made, driven, update)
        if update == 3:
            everywhere(made, moved)
    return result(made, driven)


def in_float64(method: str, late: bool, **keys: Any) -> dict[str, Tensor]:
    """Return what four updates in float64 give, if hooks were made before or after ``.to()``."""
    made = ready(method, "conv_batchnorm", "sgd_momentum", updates=0)
    made.x, made.y = made.x.double(), made.y.double()
    driven = hooks(method, made.network, **schedule(method), **keys) if late else None
    everywhere(made, widen)
    if driven is None:
        network = Network("net", made.module, made.optimizer, {"target": made.follower})
        made.network, driven = network, hooks(method, network, **schedule(method), **keys)
    for update in range(1, 7):
        drive(made, driven, update)
    return result(made, driven)


@pytest.mark.parametrize(
    ("method", "other"), [*zip(CASES, cycle(["tied", "stacked"]), strict=False)]
)
def test_moved_memory(method: str, other: str) -> None:
    for family in ("conv_batchnorm", other):
        if (method, family) in ACCEPTED:
            with about(family, "moved, with equal bits"):
                assert_same(
                    after_updates(method, family, stay), after_updates(method, family, move)
                )
    inside = schedule(method).get("every") == "1 updates"
    for keys in [{}] if inside else [{"followers": "same_edit"}, {"followers": "copy"}]:
        with about(keys, "in another type as if made so"):
            expected, found = (in_float64(method, late, **keys) for late in (False, True))
            assert_close(expected, found)


def assert_close(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("layer", sorted(LAYERS.keys() - OF_BLOCKS))
def test_ticks_of_layers_reach_moved_memory(layer: str) -> None:
    def trained(moved: Move, by_hand: bool) -> dict[str, Tensor]:
        put_in = partial(rlplast.replace_layers, method=layer, **LAYERS[layer])
        made = subject("mlp", updates=0, install=put_in)
        driven = rlplast.Hooks([], made.network, "100 updates", penalties=[])
        for update in range(1, 7):
            made.update()
            if not by_hand:
                driven.step(updates=update)
            elif driven.inside:
                rlplast.tick(made.network)
            if update == 3:
                everywhere(made, moved)
        return made.snapshot()

    for by_hand in (False, True):
        assert_same(trained(stay, by_hand), trained(move, by_hand))


def penalised(penalty: str, dtype: torch.dtype, first: Move, made_so: bool, then: Move) -> Any:
    """Return the weights after six updates with a penalty.

    Args:
        penalty: the method.
        dtype: of the data.
        first: what happens to the module before the first update.
        made_so: whether that is before its Network and Hooks are made.
        then: what happens after the third.
    """
    made = subject("mlp", "sgd_momentum", updates=0)
    x, y = made.x.to(dtype), made.y.to(dtype)
    if made_so:
        everywhere(made, first)
        made.network = Network("net", made.module, made.optimizer, {"target": made.follower})
    listed = [penalty_cases.row(penalty)]
    driven = rlplast.Hooks([], made.network, "100 updates", penalties=listed, probe=x)
    if not made_so:
        everywhere(made, first)
    for update in range(1, 7):
        made.optimizer.zero_grad()
        fit = loss_of(made.module, x, y)
        (fit + driven.penalty("net", loss=fit)).backward()
        made.optimizer.step()
        driven.step(updates=update)
        if update == 3:
            everywhere(made, then)
    return made.module.state_dict()


@pytest.mark.parametrize("penalty", penalty_cases.CASES)
def test_terms_reach_moved_memory(penalty: str) -> None:
    expected, found = (penalised(penalty, torch.float32, stay, False, m) for m in (stay, move))
    assert_same(expected, found)
    expected, found = (penalised(penalty, torch.float64, widen, m, stay) for m in (True, False))
    assert_close(expected, found)


def test_metrics_read_moved_memory() -> None:
    def measured(moved: Move) -> dict[str, float]:
        made = subject("conv_batchnorm", updates=3)
        read = {"probe": probe(made.network), "loss": loss(made.network)}
        names = [name for name in IN_RUNS if name not in (*OF_CURVATURE, "trainability")]
        driven = rlplast.Hooks([], made.network, "100 updates", metrics=names, **read)
        driven.measure()
        everywhere(made, moved)
        made.update(2)
        driven.step(updates=5)
        return driven.measure()

    assert measured(stay) == measured(move)
