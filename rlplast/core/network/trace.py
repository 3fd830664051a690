"""Tracing of other people's modules, for their forward order and their units."""

import copy
import operator
from typing import Any

import torch
from torch import nn
from torch.fx.proxy import TraceError
from torch.nn.modules.conv import _ConvNd

from rlplast.core.network.blocks import NORMS
from rlplast.core.network.modes import in_mode, reading
from rlplast.core.rng import preserve_global_rng

__all__ = [
    "DROPPING",
    "NONLINEAR",
    "POOLING",
    "RESHAPING",
    "UNTRACEABLE",
    "Tracer",
    "acts_by_rows",
    "asks_shape",
    "is_activation",
    "is_matrix",
    "is_norm",
    "keeps_scale",
    "operation",
    "traced",
    "why",
]

UNTRACEABLE = (TraceError, TypeError, RuntimeError, AttributeError)
UNTRACEABLE += (AssertionError, ValueError, LookupError)
_SHAPE_METHODS = ("size", "dim", "numel", "stride")
_SHAPE_ATTRIBUTES = ("shape", "ndim", "dtype", "device")
_COUNTING = (operator.getitem, operator.mul, operator.add, operator.sub, operator.floordiv)
# What operations do, by the name of a function, method or class: see `operation`.
NONLINEAR = {"relu", "relu6", "leakyrelu", "elu", "celu", "selu", "gelu", "silu", "mish", "sin"}
NONLINEAR |= {"tanh", "sigmoid", "softplus", "hardtanh", "hardswish"}
DROPPING = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout"}
POOLING = {f"{kind}pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)}
POOLING |= {f"adaptive{name}" for name in POOLING}
RESHAPING = {"flatten", "view", "reshape"}
_ACTIVATIONS = ("relu", "gelu", "silu", "swish", "tanh", "sigmoid", "elu", "mish", "softplus")


class Tracer(torch.fx.Tracer):
    """Does not look into layers, norms, activations, or modules that declare Blocks or units."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one node of the graph."""
        declares = any(hasattr(m, name) for name in ("block_specs", "memories", "unit_specs"))
        layer = isinstance(m, nn.Linear | _ConvNd) or type(m).__name__ == "Conv1D"
        whole = declares or layer or is_norm(m) or is_activation(m)
        return whole or super().is_leaf_module(m, module_qualified_name)


def traced(module: nn.Module) -> torch.fx.Graph:
    """Return the graph of a module in training mode; the module stays as it was.

    Raises:
        UNTRACEABLE: if it cannot be traced.
    """
    with reading(module, evaluate=False), in_mode(module, train=True):
        return Tracer().trace(module)


def why(error: Exception) -> str:
    """Say in a few words why a module could not be traced."""
    return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__


def operation(node: torch.fx.Node, module: nn.Module | None) -> str:
    """Return the name of what a node calls, without case and underscores, such as ``maxpool2d``.

    It is empty for a user's functions and modules. `module` is the one that is called, if any.
    """
    called: Any = node.target if module is None else type(module)
    if isinstance(called, str):
        name = called if node.op == "call_method" else ""
    else:
        package = str(getattr(called, "__module__", "")).partition(".")[0]
        name = getattr(called, "__name__", "") if package in ("torch", "_operator") else ""
    return name.replace("_", "").lower()


def asks_shape(node: torch.fx.Node) -> bool:
    """Whether a node reads a tensor's shape or type, or counts with it, not with entries."""
    if node.op == "call_method":
        return node.target in _SHAPE_METHODS
    if node.op != "call_function":
        return False
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
    """Whether a module is a nonlinearity: by its name and a trial, or by its ``acts_alone``."""
    if getattr(module, "acts_alone", False):
        return True
    name = type(module).__name__.lower()
    bare = not any((module._parameters, module._buffers, module._modules))
    if not bare or not any(known in name for known in _ACTIVATIONS):
        return False
    return type(module).__module__.startswith("torch.nn.") or _acts_on_each_entry(module)


@torch.no_grad()
def _acts_on_each_entry(module: nn.Module) -> bool:
    """Whether a module computes each entry of its output from that entry of its input."""
    x = torch.linspace(-3, 3, 48).view(2, 6, 2, 2)
    try:
        with preserve_global_rng():  # a trace under way patches calls, but not forward
            whole = module.forward(x.clone())
            alone = [module.forward(entry.view(1, 1, 1, 1)) for entry in x.clone().flatten()]
        alone = torch.cat(alone).view(x.shape)
        return whole.shape == x.shape and torch.allclose(whole, alone, rtol=1e-4, atol=1e-6)
    except UNTRACEABLE:  # it takes other inputs than one tensor of any shape
        return False


def acts_by_rows(layer: nn.Module) -> bool:
    """Whether each output of a layer is a row of its weight's, and each input a column's."""
    return _is_torchs(layer) or _tried(layer, rows=True)


def keeps_scale(layer: nn.Module) -> bool:
    """Whether a layer gives c·y for c·x, and for a weight of c·W, once its bias is scaled too."""
    return _is_torchs(layer) or _tried(layer, rows=False)


def _is_torchs(layer: nn.Module) -> bool:
    """Whether it computes as its class in torch does; ours are known, or declare Blocks."""
    known = type(layer).forward.__module__.startswith(("torch.", "rlplast."))
    return known or not isinstance(layer, nn.Linear | _ConvNd)


@torch.no_grad()
def _tried(layer: Any, rows: bool) -> bool:
    """Try a layer whose forward pass is a user's on drawn weights, in training mode."""
    tried = copy.copy(layer)
    vars(tried)["training"] = True

    def output(x: torch.Tensor, weight: torch.Tensor, shift: float | torch.Tensor) -> torch.Tensor:
        bias = None if layer.bias is None else b * shift
        vars(tried)["_parameters"] = layer._parameters | {"weight": weight, "bias": bias}
        return tried.forward(x)  # a trace under way patches calls

    sizes = zip(getattr(layer, "kernel_size", ()), getattr(layer, "dilation", ()), strict=True)
    sides = [(kernel - 1) * dilation + 3 for kernel, dilation in sizes]
    groups, ones = getattr(layer, "groups", 1), (1,) * len(sides)
    try:
        with preserve_global_rng():
            w, b = torch.randn_like(layer.weight), torch.randn(len(layer.weight)).to(layer.weight)
            x = torch.randn(2, w.shape[1] * groups, *sides).to(w)
            y, row, column = output(x, w, 1), *(torch.arange(n).to(w) % 2 for n in w.shape[:2])
            if not rows:
                pairs = [(output(2 * x, w, 2), 2 * y), (output(x, 2 * w, 2), 2 * y)]
            else:
                row, column = row.view(-1, *ones), column.view(-1, *ones)
                pairs = [(output(x, w * row.unsqueeze(1), row.flatten()), y * row)]
                if groups == 1:
                    pairs += [(output(x, w * column, 1), output(x * column, w, 1))]
            return all(torch.allclose(one, two, rtol=1e-2, atol=1e-2) for one, two in pairs)
    except UNTRACEABLE:
        return False
