"""rlplast: interventions against plasticity loss, for anything that trains.

- `train`, `resume`, `load`: run a config, and use what it trained.
- `study`, `plan`, `report`: run a study, say what it will take, and report on it.
- `frame`, `runs`: what runs measured, as tables of pandas: a row per number, a row per run.
- `diagnose`, `diagnose_module`: say in words whether a run, or a module of yours, loses plasticity.
- `apply`: apply a method once. `fire`, `swr`, `redo` and others are functions of their own.
- `Network`, `Hooks`: apply methods on a schedule in your own loop.
- `Penalties`: add penalties to the loss in your own loop.
- `replace_layers`, `tick`: put layers such as lifecycle into your own model.
- `units`, `record`: get the hidden units of a model, and their activations.
- `Method`, `method`, `Assign`, `Scale`: write a method of your own.
- `optimizer`, `register_kind`: add an optimizer or a kind of run of your own.
- `RlplastError`: base of the errors that these raise, such as `ConfigError` and `Interrupted`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rlplast.core.clock import Clock, Time
    from rlplast.core.errors import ConfigError, Interrupted, RlplastError
    from rlplast.core.method.context import Context
    from rlplast.core.method.hooks import Hooks
    from rlplast.core.method.install import replace_layers, tick
    from rlplast.core.method.method import Method, method
    from rlplast.core.method.once import apply
    from rlplast.core.method.penalties import Penalties
    from rlplast.core.method.receipt import Receipt
    from rlplast.core.network.edits import Assign, Scale
    from rlplast.core.network.network import Network
    from rlplast.core.network.record import record
    from rlplast.core.network.units import UnitGroup, UnitSpec
    from rlplast.methods.dash import dash
    from rlplast.methods.fire import fire
    from rlplast.methods.full_reset import full_reset
    from rlplast.methods.head_reset import head_reset
    from rlplast.methods.l2 import L2
    from rlplast.methods.l2_init import L2Init
    from rlplast.methods.lifecycle import Lifecycle
    from rlplast.methods.parseval import Parseval
    from rlplast.methods.redo import redo
    from rlplast.methods.regrama import regrama
    from rlplast.methods.shrink_perturb import shrink_perturb
    from rlplast.methods.swr import swr
    from rlplast.metrics.diagnosis import NetworkDiagnosis
    from rlplast.optimizers.factories import optimizer
    from rlplast.report.contents import report as report
    from rlplast.report.frame import frame, runs
    from rlplast.run.api import Run
    from rlplast.run.diagnose import Diagnosis
    from rlplast.study.api import study as study
    from rlplast.study.estimate import StudyPlan
    from rlplast.training.kinds import register_kind
    from rlplast.training.loop import Loop

# Loaded when first used: an environment's process imports this package and needs no torch.
_HOMES = {
    "rlplast.core.clock": ("Clock", "Time"),
    "rlplast.core.errors": ("ConfigError", "Interrupted", "RlplastError"),
    "rlplast.core.method.context": ("Context",),
    "rlplast.core.method.hooks": ("Hooks",),
    "rlplast.core.method.install": ("replace_layers", "tick"),
    "rlplast.core.method.method": ("Method", "method"),
    "rlplast.core.method.once": ("apply",),
    "rlplast.core.method.penalties": ("Penalties",),
    "rlplast.core.method.receipt": ("Receipt",),
    "rlplast.core.network.edits": ("Assign", "Scale"),
    "rlplast.core.network.network": ("Network",),
    "rlplast.optimizers.factories": ("optimizer",),
    "rlplast.report.frame": ("frame", "runs"),
    "rlplast.core.network.record": ("record",),
    "rlplast.core.network.units": ("UnitSpec",),
    "rlplast.training.kinds": ("register_kind",),
    "rlplast.methods.l2": ("L2",),
    "rlplast.methods.l2_init": ("L2Init",),
    "rlplast.methods.lifecycle": ("Lifecycle",),
    "rlplast.methods.parseval": ("Parseval",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_METHODS = ("dash", "fire", "full_reset", "head_reset", "redo", "regrama", "shrink_perturb", "swr")
_HOME |= {name: f"rlplast.methods.{name}" for name in _METHODS}
__all__ = [
    "L2",
    "Assign",
    "Clock",
    "ConfigError",
    "Context",
    "Hooks",
    "Interrupted",
    "L2Init",
    "Lifecycle",
    "Method",
    "Network",
    "Parseval",
    "Penalties",
    "Receipt",
    "RlplastError",
    "Scale",
    "Time",
    "UnitSpec",
    "apply",
    "dash",
    "diagnose",
    "diagnose_module",
    "fire",
    "frame",
    "full_reset",
    "head_reset",
    "load",
    "method",
    "optimizer",
    "plan",
    "record",
    "redo",
    "register_kind",
    "regrama",
    "replace_layers",
    "resume",
    "runs",
    "shrink_perturb",
    "swr",
    "tick",
    "train",
    "units",
]
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    if name in ("metrics", "study", "report"):  # the last two are called like functions
        return importlib.import_module(f"rlplast.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rlplast' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def train(
    config: Any,
    out: "str | Path | None" = None,
    *,
    observer: "Callable[[Loop], None] | None" = None,
    **overrides: Any,
) -> "Run":
    """Train a config to its end, as `rlplast train` does, and return the run.

    Args:
        config: a path, a shipped name such as ``dqn/asterix``, or a mapping of keys.
        out: the run's folder; default: a new folder below ``runs/``.
        observer: called after every step; ``loop.latest`` has the newest value of each name in
            metrics.jsonl, and ``loop.trainable.clock`` counts. What it raises ends the run.
        **overrides: keys of the config to set. Write nested keys with double underscores, such as
            ``optimizer__lr=1e-4``.
    """
    from rlplast.run import api

    return api.train(config, out, observer=observer, **overrides)


def resume(run: "str | Path", total: str | None = None) -> "Run":
    """Continue a run from its newest undamaged checkpoint, as `rlplast resume` does, and return it.

    Args:
        run: the run's folder.
        total: a new, longer total. Percentages stay shares of the old one.
    """
    from rlplast.run import api

    return api.resume(run, total, report=print)


def plan(
    config: "str | Path | Mapping[str, Any]",
    out: "str | Path | None" = None,
    executor: str | None = None,
) -> "StudyPlan":
    """Return what a study will take, as `rlplast study CONFIG --plan` says.

    No cell is started, and nothing is kept.

    Args:
        config: a path, a shipped name such as ``study/demo``, or a mapping of keys.
        out: the study's folder, in which some cells may have run; default: ``runs/study-NAME``. A
            mapping needs one.
        executor: local, ray or slurm; default: the config's.
    """
    from rlplast.study.estimate import plan_study

    return plan_study(config, out, executor)


def units(model: Any, units: Any = None) -> "tuple[UnitGroup, ...]":
    """Return the hidden units of a model, as one group per layer.

    Args:
        model: a module, or a `Network`.
        units: `UnitSpec`s, for a model that does not declare its units and cannot be traced.

    Returns:
        The groups that methods may edit; none where all layers write to a residual stream.
        ``Network("model", model).units().refused`` says of each layer why it has none.

    Raises:
        NothingToEdit: if no units were found because the model cannot be traced.
    """
    from rlplast.core.network.network import Network

    network = model if isinstance(model, Network) else Network("model", model, units=units)
    network.refresh()
    known = not network.units().untraced
    return network.units_of(network.blocks) if known else network.units_in(network.blocks)


def load(run: "str | Path", checkpoint: str = "newest") -> "Run":
    """Open a run's folder to use what it trained.

    With ``run = rlplast.load("runs/a")``:

    - ``run.act(obs)`` returns the actions of an agent.
    - ``run.agent().predict(images)`` returns the predictions of a classifier.
    - ``run.agent().networks`` has the modules of any run.
    - ``run.evaluate()`` returns scores.

    A damaged checkpoint is skipped with a warning.

    Args:
        run: the run's folder.
        checkpoint: newest, best (if the run keeps it), or a name such as ``step-800``.
    """
    from rlplast.run import api

    return api.load(run, checkpoint)


def diagnose(run: "str | Path | Run", **options: Any) -> "Diagnosis":
    """Say in words whether a run loses plasticity, as `rlplast diagnose` does.

    ``print(rlplast.diagnose("runs/a").verdict)`` prints the answer. For a module of your own there
    is `rlplast.diagnose_module`.

    Args:
        run: the run's folder, or what `load` returned.
        **options: ``updates``, ``targets``, ``samples``, ``episodes``; see
            `rlplast.run.diagnose.diagnose`.
    """
    from rlplast.run.api import Run, load
    from rlplast.run.diagnose import diagnose as diagnose_run

    return diagnose_run(run if isinstance(run, Run) else load(run), **options)


def diagnose_module(
    model: Any, inputs: Any, optimizer: Any = None, **options: Any
) -> "NetworkDiagnosis":
    """Say whether a model of your own still learns as well as a fresh one, on inputs of yours.

    For a model of Stable-Baselines3 there is `rlplast.adapters.sb3_diagnosis.diagnose_sb3`.

    Args:
        model: a module; or the `Network` that was made before training, to compare with its
            initial weights too.
        inputs: what the model is called with: a tensor, a tuple of arguments or a mapping of
            keyword arguments, some hundred samples.
        optimizer: of whose kind and learning rate the fits are; default: the `Network`'s, or Adam.
        **options: ``updates``, ``targets``, ``lr``, ``seed``; see
            `rlplast.metrics.diagnose_network`.

    Raises:
        ConfigError: if the outputs are no tensor, or the network has no optimizer.
    """
    import torch

    from rlplast.core.method.readings import OwnSource
    from rlplast.core.network.network import Network
    from rlplast.metrics.diagnosis import diagnose_network

    known = isinstance(model, Network)
    if not known:
        own = torch.optim.Adam(model.parameters()) if optimizer is None else optimizer
        model = Network("model", model, own)
    model.refresh()
    source = OwnSource({model.name: model}, inputs)
    return diagnose_network(source, model, source.sample(0, 0), initial=known, **options)
