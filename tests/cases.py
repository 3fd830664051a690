"""One canonical case per registered intervention; it drives the universal tests.

A method that is registered without a case fails `test_every_method_has_a_case`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.method import readings
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.method import implements
from rlplast.core.method.penalties import Penalties
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.network import Network
from rlplast.core.registry import get
from tests.models import FAMILIES, Subject, subject

SAMPLES = 16  # of a probe


@dataclass(frozen=True)
class Case:
    """How the universal tests use a method.

    Attributes:
        params: parameters of the firing, under which it changes every family that it accepts.
        scope: its scope.
        draws: whether it draws anything, be it data.
        refuses: family of models, or kind of run → the tensor or place that the refusal names.
        refuses_inside: what the refusal of ``every: 1 updates`` says; empty if that is allowed.
        refuses_zero: whether a zero matrix is refused by name.
        cures_nan: whether the method works on weights that are not finite.
        made_for_every_update: whether it is meant to run inside each update.
        follows: whether a firing without an update before it changes no weight.
        edits_weights: whether it edits any weight, rather than the optimizer's state alone.
        whole: whether the tensors it edits are written whole, rather than some of their rows.
        shared: entries that the members of a stacked network share; they go from 0 to 1.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    scope: str = "all"
    draws: bool = False
    refuses: Mapping[str, str] = field(default_factory=dict)
    refuses_inside: str = ""
    refuses_zero: bool = False
    cures_nan: bool = False
    made_for_every_update: bool = False
    follows: bool = False
    edits_weights: bool = True
    whole: bool = True
    shared: int = 0

    @property
    def of_units(self) -> bool:
        """Whether the method needs hidden units."""
        return self.refuses.get("residual") == _WITHOUT_UNITS["residual"]


_WITHOUT_UNITS = {"residual": "no hidden units .*fc", "tied": r"no hidden units .*embed\.weight"}
_OF_CHAINS = {
    "residual": "net .*inp, relu",
    "tied": r"embed\.weight",
    "gpt": r"wte\.weight",
    "ppo": r"tanh.*\.fc1",
}

CASES: dict[str, Case] = {
    "cbp": Case(
        {"replacement_rate": 0.5, "maturity": 0},
        draws=True,
        refuses=_WITHOUT_UNITS,
        made_for_every_update=True,
        whole=False,
    ),
    "dash": Case(
        {"batches": 2, "batch": 8},
        draws=True,
        refuses_inside="batches",
    ),
    "distill": Case(
        {"updates": 3, "batch": 8},
        draws=True,
        refuses_inside="batches",
    ),
    "drm": Case({"threshold": 0.5}, draws=True, refuses=_WITHOUT_UNITS),
    "fire": Case({"iterations": 8}, refuses_zero=True),
    "full_reset": Case({"init": "fresh"}, draws=True, cures_nan=True),
    "hare_tortoise": Case({"momentum": 0.5}, refuses_inside="follows", follows=True),
    "head_reset": Case(
        {"init": "fresh"},
        draws=True,
        refuses={"tied": r"embed\.weight", "gpt": r"wte\.weight"},
    ),
    "hypersphere_project": Case(made_for_every_update=True),
    "persistent": Case(refuses_inside="adds a term"),
    "pfo": Case(
        {"batch": 8},
        refuses=_WITHOUT_UNITS,
        refuses_inside="batches",
        follows=True,
        edits_weights=False,
    ),
    "plasticity_injection": Case(
        draws=True,
        refuses={"tied": r"embed\.weight", "gpt": r"wte\.weight"},
        refuses_inside="once",
        shared=1,
    ),
    "redo": Case({"threshold": 1.0}, draws=True, refuses=_WITHOUT_UNITS, whole=False),
    "regrama": Case({"threshold": 1.0}, draws=True, refuses=_WITHOUT_UNITS, whole=False),
    "renew_weights": Case({"share": 0.4}, draws=True, whole=False),
    "restart_steps": Case(follows=True, edits_weights=False),
    "scale_weights": Case(
        {"factor": 0.5},
        refuses=_OF_CHAINS,
    ),
    "shrink_perturb": Case({"coef": 0.8, "init": "fresh"}, draws=True),
    "snr": Case(
        {"eps": 0.5, "tau_init": 1, "tau_max": 64, "tau_min": 1, "refresh": 2},
        draws=True,
        refuses=_WITHOUT_UNITS,
        made_for_every_update=True,
        whole=False,
    ),
    "swr": Case(
        {"coef": 0.1, "coef_head": 0.3},
        refuses=_OF_CHAINS,
        made_for_every_update=True,
    ),
    "weight_clip": Case({"kappa": 0.1}, made_for_every_update=True),
}

TRIED = [family for family in FAMILIES if family != "conv"]  # conv_batchnorm has all that it has
ACCEPTED = [(m, f) for m, case in CASES.items() for f in TRIED if f not in case.refuses]
REFUSED = [(m, f) for m, case in CASES.items() for f in FAMILIES if f in case.refuses]


@contextmanager
def about(*row: Any) -> Iterator[None]:
    """Let a failure name the row of a table at which it happens."""
    try:
        yield
    except BaseException as error:
        error.add_note(" ".join(map(str, row)))
        raise


def method_of(name: str) -> Any:
    """Return the class of a method."""
    return get("interventions", name).target


def install(method: str, module: nn.Module) -> None:
    """Put a method's modules into a model; of a method without any nothing happens."""
    if implements(method_of(method), "install"):
        rlplast.replace_layers(module, method, **dict(CASES[method].params))


def ready(method: str, family: str, *args: Any, **options: Any) -> Subject:
    """Return a `subject` in which a method is installed."""
    if implements(method_of(method), "install"):
        options["install"] = partial(install, method)
    return subject(family, *args, **options)


def probe(network: Network) -> Callable[[int, torch.Generator], Tensor]:
    """Return what draws inputs of one of the models in tests/models.py."""
    first = network.blocks[0]

    def draw(size: int, generator: torch.Generator) -> Tensor:
        torch.rand(())  # careless: it must not reach training
        if first.kind == "embedding":
            x = torch.randint(len(first.view), (SAMPLES,), generator=generator)
        else:
            pixels = (6, 6) if first.kind == "conv" else ()
            shape = (SAMPLES, first.view.shape[1], *pixels)
            x = torch.randn(shape, generator=generator).to(first.view.dtype)
        return x.to(first.view.device)

    return draw


def loss(network: Network) -> Callable[[Any], Tensor]:
    """Return a loss of a batch: the size of the outputs."""

    def size(x: Any) -> Tensor:
        torch.rand(())  # careless too
        return network.module(x).float().square().mean()

    return size


def fire(method: str, network: Network, *, inputs: Any = None, **options: Any) -> Receipt:
    """Fire a method once as its case says.

    Args:
        method: its name.
        network: the network, with the method installed.
        inputs: of the network; default: those of the models in tests/models.py.
        **options: keyword arguments of `rlplast.apply`.
    """
    case = CASES[method]
    read = {"inputs": probe(network) if inputs is None else inputs, "loss": loss(network)}
    options = {"scope": case.scope} | read | options
    return rlplast.apply(method, network, **dict(case.params), **options)


def hooks(method: str, network: Network, **keys: Any) -> Hooks:
    """Return a run's only hook, a method as its case says, in a run of 100 updates.

    Args:
        method: its name.
        network: the network.
        **keys: further keys of the hook, such as its schedule.
    """
    case = CASES[method]
    config = {"method": method, "scope": case.scope, "params": case.params, **keys}
    read = {"probe": probe(network), "loss": loss(network)}
    return Hooks([config], network, "100 updates", penalties=Penalties([], network), **read)


def schedule(method: str) -> dict[str, str]:
    """Return a schedule that suits a method in a run of a few updates."""
    if method_of(method).fires_once:
        return {"at": "6 updates"}
    return {"every": "1 updates" if CASES[method].made_for_every_update else "2 updates"}


def drive(made: Subject, driven: Hooks, update: int) -> list[Receipt]:
    """Make one update and tell the hooks, as a hand-written loop does."""
    with rlplast.record(made.network) if driven.recorded() else nullcontext() as found:
        made.update()
    return driven.step(updates=update, activations=found)


class Tape:
    """What a firing reads of its probe, recorded for firings on other networks to read the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._recorded: list[Any] = []
        self._again: Iterator[Any] | None = None
        source = readings.OwnSource
        monkeypatch.setattr(source, "activations", self._taped(source.activations))
        monkeypatch.setattr(readings, "_gradients", self._taped(readings._gradients))

    def rewind(self) -> None:
        """Play what was recorded, from its beginning."""
        self._again = iter(self._recorded)

    def _taped(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def taped(*args: Any) -> Any:
            if self._again is not None:
                return next(self._again)
            self._recorded.append(read(*args))
            return self._recorded[-1]

        return taped
