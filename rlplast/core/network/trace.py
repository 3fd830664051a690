"""Tracing of other people's modules: which layers they call, and what the steps between do."""

import copy
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.proxy import TraceError
from torch.nn.modules.conv import _ConvNd

from rlplast.core.network.blocks import NORMS
from rlplast.core.network.modes import in_mode, reading
from rlplast.core.rng import preserve_global_rng

__all__ = [
    "UNTRACEABLE",
    "Step",
    "Traced",
    "alone",
    "asks_shape",
    "data_inputs",
    "data_users",
    "in_both_modes",
    "in_order",
    "is_activation",
    "is_matrix",
    "is_norm",
    "labelled",
    "name_of",
    "tried",
    "why",
]

T = TypeVar("T")
Step = Callable[[Tensor], Tensor]
UNTRACEABLE = (TraceError, TypeError, RuntimeError, AttributeError)
UNTRACEABLE += (AssertionError, ValueError, LookupError)
_SHAPE_METHODS = ("size", "dim", "numel", "stride")
_SHAPE_ATTRIBUTES = ("shape", "ndim", "dtype", "device")
_COUNTING = (operator.getitem, operator.mul, operator.add, operator.sub, operator.floordiv)
_ACTIVATIONS = ("relu", "gelu", "silu", "swish", "tanh", "sigmoid", "elu", "mish", "softplus")
_SAMPLES, _UNITS = 2, 3  # of trials, at so many places in space:
_PLACES = ((), (101,), (17, 19), (7, 8, 9))


class Tracer(torch.fx.Tracer):
    """Does not look into layers, norms, activations, or modules that declare Blocks or units."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one node of the graph."""
        declares = any(hasattr(m, name) for name in ("block_specs", "memories", "unit_specs"))
        known = super().is_leaf_module(m, module_qualified_name) or declares
        return known or is_matrix(m) or is_norm(m) or is_activation(m)


class Traced:
    """A module's graph; `prefix` is its path in the network, with which all paths begin.

    Attributes:
        nodes: the graph's nodes, in forward order; the last one is the output.
        parts: the modules that it calls by path, and how often in `calls`.
        read: layers whose tensors are read by the code around them.

    Raises:
        One of `UNTRACEABLE`: if it cannot be traced.
    """

    def __init__(self, module: nn.Module, prefix: str = "") -> None:
        self.prefix, self.nodes = prefix, list(Tracer().trace(module).nodes)
        calls = [node for node in self.nodes if node.op == "call_module"]
        self.calls = Counter(map(self.path, calls))
        self.parts = {self.path(n): module.get_submodule(str(n.target)) for n in calls}
        tensors = [n for n in self.nodes if n.op == "get_attr" and data_users(n)]
        self.read = {self.path(n).rpartition(".")[0] for n in tensors}

    def path(self, node: Node) -> str:
        """Return the path of what a node calls or reads."""
        return f"{self.prefix}.{node.target}" if self.prefix else str(node.target)

    def called(self, node: Node) -> nn.Module | None:
        """Return the module that a node calls, if it calls one."""
        return self.parts[self.path(node)] if node.op == "call_module" else None

    def step(self, node: Node) -> Step | None:
        """Return what a node does with its one input; None if it has several, or is no step."""
        source, module = node.args[0] if node.args else None, self.called(node)
        if data_inputs(node) != [source]:
            return None
        if module is not None:
            return alone(module) if _is_bare(module) else None
        method = node.op == "call_method"
        function: Any = getattr(Tensor, str(node.target), None) if method else node.target
        sizes = [n for n in node.all_input_nodes if n is not source]
        if not callable(function) or not all(self._counts_samples(n, source) for n in sizes):
            return None
        args, options = torch.fx.map_arg((node.args[1:], node.kwargs), lambda size: _SAMPLES)
        return _Applied(function, args, options)

    def _counts_samples(self, size: Node, data: Any) -> bool:
        """Whether a node is the number of samples of what `data` was computed from."""
        source = _asked_first(size)
        while isinstance(data, Node) and data is not source:
            module = self.called(data)
            if module is None or not (is_matrix(module) or is_norm(module)):
                step = self.step(data)
                trials = [step and tried(step, labelled(space)) for space in (0, 1, 2)]
                if not any(trial and _keeps_samples(trial[0]) for trial in trials):
                    return False
            data = data.args[0] if data.args else None
        return isinstance(data, Node)


@dataclass(frozen=True, eq=False)
class _Applied:
    """A step that can be pickled: a function, and its arguments after the first."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x.clone(), *self.args, **self.options)  # it may write in place


def _asked_first(size: Node) -> Any:
    """Return the node of which a node is the first size; None if it is no such size."""
    if size.op == "call_method" and size.target == "size":
        return size.args[0] if size.args[1:] == (0,) else None
    if size.target is not operator.getitem or size.args[1] != 0:
        return None
    sizes: Any = size.args[0]
    shape = sizes.target is getattr and sizes.args[1] == "shape"
    return sizes.args[0] if shape or (sizes.target == "size" and len(sizes.args) == 1) else None


def labelled(space: int) -> Tensor:
    """Return labels (samples, units, …) of entries; `space`: how many more dimensions there are."""
    labels = torch.arange(_SAMPLES * _UNITS, device="cpu").view(_SAMPLES, _UNITS, *(1,) * space)
    return labels.expand(_SAMPLES, _UNITS, *_PLACES[space])


def in_order(labels: Tensor, dim: int) -> bool:
    """Whether samples lie along dimension 0 and units along `dim`, each maybe several times."""
    width = labels.shape[dim] if labels.ndim > 1 else 0
    expected = labelled(0).repeat_interleave(max(1, width // _UNITS), 1)
    if expected.shape != (len(labels), width):
        return False
    return bool((labels.movedim(dim, 1).reshape(*expected.shape, -1) == expected[..., None]).all())


def _keeps_samples(labels: Tensor) -> bool:
    samples = (labels // _UNITS).reshape(len(labels), -1)
    return len(labels) == _SAMPLES and bool((samples == labelled(0)[:, :1] // _UNITS).all())


@torch.no_grad()
def tried(step: Step, labels: Tensor) -> tuple[Tensor, str] | None:
    """Try what a step does to entries with labels.

    Returns:
        The labels of its outputs, and whether it is "nonlinear" in each entry, "draws" random
        numbers, gives the "same" entries, maybe in another shape, or does something "else". None
        if it fails, or if an output depends on several labels, or on none.
    """
    x = torch.rand(labels.shape, generator=torch.Generator().manual_seed(0), device="cpu") * 4 - 2
    x += x.sign()
    state, shift = torch.get_rng_state(), x.numel() // 3 + 1

    def run(value: Tensor) -> Tensor:
        torch.set_rng_state(state)
        return step(value.clone())

    try:
        with preserve_global_rng():
            y = run(x)
            draws = not torch.equal(state, torch.get_rng_state())
            moved = [run(x.where(labels != n, -1.1 * x)) != y for n in range(_SAMPLES * _UNITS)]
            moved = torch.stack(moved).long()
            zero, minus, double = run(0 * x), run(-x), run(2 * x)
            rolled = run(x.roll(shift))
    except Exception:  # a user's function may raise anything
        return None
    if draws and y.shape == x.shape and bool((moved.sum(0) < 2).all()):
        return labels, "draws"
    if not y.is_floating_point() or not bool((moved.sum(0) == 1).all()):
        return None
    labels = moved.argmax(0)
    if y.numel() == x.numel() and y.dtype == x.dtype and torch.equal(y.flatten(), x.flatten()):
        return labels, "same"
    each = y.shape == x.shape and torch.allclose(rolled, y.roll(shift), 1e-4, 1e-6)
    linear = torch.allclose(y + minus, 2 * zero, 1e-4, 1e-6)
    linear = linear and torch.allclose(double + zero, 2 * y, 1e-4, 1e-6)
    return labels, "nonlinear" if each and not linear else "else"


def alone(module: nn.Module) -> nn.Module:
    """Return a copy of an activation that writes nothing in place, nor draws: it takes the mean."""
    copied = copy.copy(module)
    if hasattr(copied, "inplace"):
        vars(copied)["inplace"] = False
    return copied.eval()


def name_of(step: Any) -> str:
    """Return what a nonlinearity is called, such as relu."""
    step = getattr(step, "func", step)  # of functools.partial
    name = step if isinstance(step, str) else getattr(step, "__name__", type(step).__name__)
    return name.strip("_").lower().replace("leakyrelu", "leaky_relu")  # as in torch.nn.init


def data_users(node: Node) -> list[Node]:
    """Return the nodes that read a node's entries."""
    return [user for user in node.users if not asks_shape(user)]


def data_inputs(node: Node) -> list[Node]:
    """Return the nodes whose entries a node reads."""
    return [each for each in node.all_input_nodes if not asks_shape(each)]


def in_both_modes(module: nn.Module, find: Callable[[], T]) -> tuple[T, T]:
    """Return what `find` returns while a module is in training mode, and in evaluation mode."""
    with reading(module, evaluate=False), in_mode(module, train=True):
        training = find()
    with reading(module):
        return training, find()


def why(error: Exception) -> str:
    """Say in a few words why a module could not be traced."""
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__


def asks_shape(node: Node) -> bool:
    """Whether a node reads a tensor's shape or type, or counts with it, not with entries."""
    if node.op == "call_method":
        return node.target in _SHAPE_METHODS
    if node.target is getattr:
        return node.args[1] in _SHAPE_ATTRIBUTES
    counts = node.target in _COUNTING and len(node.all_input_nodes) > 0
    return counts and all(map(asks_shape, node.all_input_nodes))


def is_matrix(module: nn.Module) -> bool:
    """Whether a module is a linear, conv or attention layer."""
    declared = getattr(module, "block_specs", None)
    if declared is not None:
        return any(spec.kind in ("linear", "conv") for spec in declared())
    known = isinstance(module, nn.Linear | _ConvNd | nn.MultiheadAttention)
    return known or (type(module).__name__ == "Conv1D" and hasattr(module, "nf"))


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises."""
    declared: Any = getattr(module, "block_specs", None)
    return isinstance(module, NORMS) or (
        declared is not None and all(spec.kind == "norm" for spec in declared())
    )


def is_activation(module: nn.Module) -> bool:
    """Whether a module is a nonlinearity of each entry: as tried, or by its ``acts_alone``.

    It is one of torch's, or named like one; others are traced, so that what is in them has a name.
    """
    if getattr(module, "acts_alone", False):
        return True
    known = any(name in type(module).__name__.lower() for name in _ACTIVATIONS)
    if not _is_bare(module) or not (known or type(module).__module__.startswith("torch.nn.")):
        return False
    trial = tried(alone(module).forward, labelled(0))
    return trial is not None and trial[1] == "nonlinear"


def _is_bare(module: nn.Module) -> bool:
    return not (module._parameters or module._buffers or module._modules)
