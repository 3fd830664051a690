"""Metrics of a run: weights and features measured on a probe batch.

The batch comes from a stream of its own, and nothing of the training is touched, so measuring
changes no result.
"""

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Activations
from rlplast.core.method.readings import OwnSource
from rlplast.core.method.rule import Rule
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order, heads
from rlplast.core.registry import get
from rlplast.metrics.curvature import IN_A_RUN
from rlplast.metrics.features import by_member, known_activations, last_features
from rlplast.metrics.output_probe import (
    OF_CHURN,
    OF_OUTPUTS,
    Values,
    measure_outputs,
    weights_of,
)
from rlplast.metrics.paths import longest_path
from rlplast.metrics.readiness import measure_readiness
from rlplast.metrics.weights import NORMS, SUMMED, sfe, weight_norm
from rlplast.training.trainable import Trainable

__all__ = ["RunMetrics", "check_names", "measure_run", "where_measured"]

OF_WEIGHTS = ("weight_norm", "dfi", "dfi_scaled", "stable_rank", "spectral_norm")
OF_CHANGE = ("weight_difference", "sfe", "sfe_normalized")  # against θ0
OF_ALL_WEIGHTS = ("weight_sketch",)  # together, against θ0
OF_TAPS = (
    "dormant_ratio",
    "active_fraction",
    "saturation",
    "saturation_percentile",
    "feature_norm",
    "activation_histogram",
)
BY_LAYER = ("saturation_percentile",)  # of each layer too
OF_FEATURES = ("srank", "effective_rank")  # of the last hidden layer
OF_GRADIENTS = ("gradient_norm", "effective_lr", "grama_share")
OF_CHAINS = ("lipschitz_bound", "balancedness", "pairwise_balance")  # the first of others too
OF_CURVATURE = (
    "hessian_max_eigenvalue",
    "hessian_spectral_norm",
    "hessian_spectrum",
    "hessian_density",
)
OF_UNITS = ("awake_fraction",)  # of lifecycle layers, where a network has some
OF_HOOKS = ("unit_age",)  # of a hook that says it, where a network has one
OF_PREDICTIONS = ("ece", "mca")  # evaluations report these
MATRIX_ROLES = ("weight", "embedding")
OF_LOSS = (*OF_GRADIENTS, *OF_CURVATURE, "gradient_covariance", "optimization_readiness")
OF_BATCH = (*OF_TAPS, *OF_FEATURES, *OF_OUTPUTS, *OF_LOSS)  # what reads one


IN_RUNS = (
    *(*OF_WEIGHTS, *OF_CHANGE, *OF_TAPS, *OF_FEATURES, *OF_GRADIENTS, *OF_CURVATURE),
    *(*OF_ALL_WEIGHTS, *OF_CHAINS, *OF_UNITS, *OF_HOOKS, *OF_OUTPUTS),
    "optimization_readiness",
)


def where_measured(name: str) -> str:
    """Return what to do for a metric's value, in words: of a run, of evaluations, or in Python."""
    if name in IN_RUNS:
        return "name it in `metrics.names` of a run"
    if name in OF_PREDICTIONS:
        return "evaluations of `kind: supervised` report it"
    return f"call rlplast.metrics.{name} in Python"


def check_names(names: Iterable[str]) -> None:
    """Check that every name is a metric that can be measured during a run.

    Raises:
        ConfigError: naming the nearest metric, or saying why one cannot be measured.
    """
    for name in names:
        get("metrics", name)
        if name not in IN_RUNS:
            raise ConfigError(
                f"metrics.names: {name!r} needs more than a run's weights and a probe batch: "
                f"{where_measured(name)}, leave it out here"
            )


class RunMetrics:
    """The metrics of one run, measured again and again.

    Attributes:
        before: weights and buffers of the last time, by network, if a metric compares with them.
    """

    def __init__(self, names: Iterable[str], batch_size: int, hooks: Sequence[Rule] = ()) -> None:
        self.names, self.batch_size, self.hooks = list(names), batch_size, hooks
        self.before: dict[str, dict[str, Tensor]] = {}

    def check(self, source: OwnSource) -> None:
        """Check that a user's functions give what the metrics read.

        Raises:
            ConfigError: for a name that no run measures, or one that reads what is not there.
        """
        check_names(self.names)
        for name in self.names:
            if name in OF_BATCH and source.probe is None:
                raise ConfigError(
                    f"metrics: {name!r} reads a batch: pass probe= to rlplast.Hooks, a function "
                    "(size, generator) that returns inputs of the model"
                )
            for network in source.networks if name in OF_LOSS else ():
                source.loss_of(network, f"metrics: {name!r}")

    def __call__(self, trainable: Any, number: int) -> dict[str, float]:
        """Return what `measure_run` does, and remember the weights if they are asked for."""
        about = (self.names, self.batch_size, number, self.hooks, self.before)
        values = measure_run(trainable, *about)
        if any(name in OF_CHURN for name in self.names):
            self.before = {n: weights_of(net.module) for n, net in trainable.networks.items()}
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the last time."""
        return {"before": self.before} if self.before else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the saved run may have had other metrics."""
        self.before = {name: dict(tensors) for name, tensors in state.get("before", {}).items()}


def _warn_of_absent(names: Iterable[str], values: Mapping[str, float]) -> None:
    """Say which metrics of hidden units give no value, as no units are known."""
    found = {name.split("/")[1] for name in values}
    absent = [n for n in names if n in (*OF_TAPS, *OF_FEATURES) and n not in found]
    if absent:
        warnings.warn(
            f"metrics.names: {', '.join(absent)} cannot be measured here, as no network has hidden "
            "units that are known: `rlplast units` shows why",
            stacklevel=2,  # one place, so that Python shows it once
        )


def measure_run(
    trainable: Trainable,
    names: Iterable[str],
    batch_size: int,
    number: int,
    hooks: Sequence[Rule] = (),
    before: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> dict[str, float]:
    """Return ``metric/<name>/<network>[/<tensor>]`` values of everything that trains.

    `number` is that of the probe stream; `before` are weights and buffers of some time before, by
    network, for metrics of churn.
    """
    names = list(names)
    batch = trainable.sample(batch_size, number)
    values: dict[str, float] = {}
    for key, network in trainable.networks.items():
        of_network = _weights(network, names) | _chains(network, names) | _units(network, names)
        if "lipschitz_bound" in names and network.trainable() and not _layers(network):
            of_network |= _longest_path(trainable, network, number)
        for hook in hooks:
            of_hook = hook.method.metrics(hook.states[key]) if network in hook.networks else {}
            of_network |= {k: v for k, v in of_hook.items() if k.partition("/")[0] in names}
        if batch is not None:
            of_hidden = any(name in (*OF_TAPS, *OF_FEATURES) for name in names)
            # A network of one scalar has no hidden layers.
            if of_hidden and (activations := known_activations(trainable, key, batch)):
                of_network |= _features(activations, names)
            if network.trainable() and any(name in OF_GRADIENTS for name in names):
                of_network |= _gradients(network, trainable.loss(key, batch), names)
            if network.trainable() and any(name in OF_CURVATURE for name in names):
                with sdpa_kernel(SDPBackend.MATH):  # the fast ones are differentiable once
                    of_network |= _curvature(network, trainable.loss(key, batch), names)
            if network.trainable() and "optimization_readiness" in names:
                of_network |= measure_readiness(trainable, network, batch, number)
            asked = [name for name in names if name in OF_OUTPUTS]
            if network.trainable() and asked:
                then = (before or {}).get(key)
                of_network |= measure_outputs(trainable, network, batch, asked, number, then)
        for name, value in of_network.items():
            metric, _, tensor = name.partition("/")
            values["/".join(["metric", metric, key, *([tensor] if tensor else [])])] = float(value)
    if batch is not None:
        _warn_of_absent(names, values)
    return values


@torch.no_grad()
def _weights(network: Network, names: list[str]) -> Values:
    """Return metrics of Blocks that train, and of all of them where there is a total."""
    values = Values()
    blocks = network.trainable()
    for name in names if blocks else ():  # a frozen network has no weights to follow
        metric = get("metrics", name).target
        if name in OF_ALL_WEIGHTS:
            views = [block.view for block in blocks]
            sketch = metric(views, [network.initial[block.name] for block in blocks])
            values |= {f"{name}/{number}": value for number, value in enumerate(sketch)}
        elif name in (*OF_WEIGHTS, *OF_CHANGE):
            own = blocks if name in NORMS else [b for b in blocks if b.role in MATRIX_ROLES]
            beside = [[network.initial[b.name]] if name in OF_CHANGE else [] for b in own]
            if name == "dfi_scaled":
                beside = [[b.groups] for b in own]
            each = [metric(b.view, *others) for b, others in zip(own, beside, strict=True)]
            values |= {f"{name}/{b.name}": value for b, value in zip(own, each, strict=True)}
            if each and name in NORMS:
                values[name] = torch.stack([v.double().square() for v in each]).sum().sqrt()
            elif each and name in SUMMED:
                values[name] = torch.stack(each).sum()
            elif each and name == "sfe_normalized":
                starts = [network.initial[b.name] for b in own]
                moved = [sfe(b.view, start) for b, start in zip(own, starts, strict=True)]
                sizes = [weight_norm(start).square() for start in starts]
                values[name] = torch.stack(moved).sum() / torch.stack(sizes).sum()
    return values


@torch.no_grad()
def _chains(network: Network, names: list[str]) -> Values:
    values = Values()
    for name in names:
        for member, layers in _layers(network).items() if name in OF_CHAINS else ():
            metric = get("metrics", name).target
            weights = [layer["weight"] for layer in layers]
            views, biases = [b.view for b in weights], [layer.get("bias") for layer in layers]
            full_name = "/".join([name, *member])
            if name == "lipschitz_bound":
                values[full_name] = metric(views)
            elif name == "balancedness":
                values[full_name] = metric(views, [None if b is None else b.view for b in biases])
            else:
                for first, second in itertools.pairwise(weights):
                    start = (network.initial[b.name] for b in (first, second))
                    values[f"{name}/{first.name}"] = metric(first.view, second.view, *start)
    return values


@torch.no_grad()
def _longest_path(trainable: Trainable, network: Network, number: int) -> Values:
    """Return the bound of a network with norm layers or branches; nothing if it reads no sample."""
    one = trainable.sample(1, number)
    if one is None:
        return {}
    paths = longest_path(network, lambda module: trainable.outputs(network.name, one, module))
    return {"/".join(["lipschitz_bound", *member]): path.bound for member, path in paths.items()}


def _layers(network: Network) -> dict[tuple[str, ...], list[dict[str, Block]]]:
    """Return the layers of a chain in forward order, by member and role; none if it is no chain."""
    key = ("metrics", "chain")
    if key not in network.cache:
        members: dict[tuple[str, ...], dict[str, dict[str, Block]]] = {}
        try:
            paths = [] if len(heads(network)) > 1 else forward_order(network)
        except ConfigError:
            paths = []  # it branches
        for block in network.trainable():
            member = () if block.spec.member is None else (f"[{block.spec.member}]",)
            members.setdefault(member, {}).setdefault(block.path, {})[block.role] = block
        plain = all(
            path in layers and layers[path].keys() <= {"weight", "bias"}
            for layers in members.values()
            for path in paths
        )
        chains = {s: [layers[p] for p in paths] for s, layers in members.items()} if plain else {}
        network.cache[key] = {member: layers for member, layers in chains.items() if layers}
    return network.cache[key]


@torch.no_grad()
def _units(network: Network, names: list[str]) -> Values:
    blocks = network.select(lambda b: b.kind == "lifecycle" and b.spec.tensor == "active")
    values = Values()
    for name in names:
        if name in OF_UNITS and blocks:
            metric = get("metrics", name).target
            values[name] = metric({b.layer: b.view for b in blocks})
            values |= {f"{name}/{b.layer}": metric({b.layer: b.view}) for b in blocks}
    return values


@torch.no_grad()
def _features(activations: Activations, names: list[str]) -> Values:
    values = Values()
    for name in names:
        metric = get("metrics", name).target
        if name == "activation_histogram":
            values |= {
                f"{name}/{what}": value for what, value in metric(activations).logged().items()
            }
        elif name in OF_TAPS:
            values[name] = metric(activations)
            if name in BY_LAYER:
                values |= {
                    f"{name}/{layer}": metric({layer: activation})
                    for layer, activation in activations.items()
                }
        elif name in OF_FEATURES:
            for member, layers in by_member(activations).items():
                values[f"{name}/{member}".rstrip("/")] = metric(last_features(layers))
    return values


def _curvature(network: Network, loss: Tensor, names: list[str]) -> Values:
    parameters = [p for p in network.module.parameters() if p.requires_grad]
    values = Values()
    for name in names:
        metric = get("metrics", name).target
        if name in ("hessian_spectrum", "hessian_density"):
            result = metric(loss, parameters, **IN_A_RUN)
            logged = result.summary() if name == "hessian_spectrum" else result.logged()
            values |= {f"{name}/{what}": value for what, value in logged.items()}
        elif name in OF_CURVATURE:
            values[name] = metric(loss, parameters)
    return values


def _gradients(network: Network, loss: Tensor, names: list[str]) -> Values:
    parameters = [p for p in network.module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = [(g, p) for g, p in zip(gradients, parameters, strict=True) if g is not None]
    pairs = [(g.to_dense() if g.is_sparse else g, p) for g, p in pairs]
    values = Values()
    for name in names:
        if name == "gradient_norm":
            values[name] = get("metrics", name).target([g for g, _ in pairs])
        elif name == "effective_lr":
            with torch.no_grad():
                values[name] = get("metrics", name).target(*map(list, zip(*pairs, strict=True)))
        elif name == "grama_share":
            grad = {id(p): g for g, p in pairs}
            blocks = {g.name: g.weight.block for g in network.units().groups if g.point is not None}
            layers = {
                k: b.like(grad[id(b.param)]) for k, b in blocks.items() if id(b.param) in grad
            }
            if layers:
                values[name] = get("metrics", name).target(layers)
    return values
