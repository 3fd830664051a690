"""From a layer's output to the layers that read it, in a traced module.

- `Walk`: follows the graph as long as every node acts on each unit alone.
- `alone`: an activation that does nothing but compute.
- `name_of`: what a nonlinearity is called.
"""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from rlplast.core.network.trace import asks_shape, is_activation, is_matrix, is_norm

__all__ = ["Step", "Walk", "alone", "name_of"]

Step = Callable[[Tensor], Tensor]


class Walk:
    """Follows a layer's output to the layers that read it."""

    def __init__(self, modules: Mapping[str, nn.Module], path: str, prefix: str) -> None:
        self.modules, self.prefix = modules, prefix
        self.downstream: list[str] = []
        self.norms: list[str] = []
        self.nonlinearity: str | None = None
        self.anchor = path  # the layer or norm at whose output activations are read,
        self.steps: list[Step] = []  # and what is applied to it there
        self.between: list[str] = []  # what else there is
        self.problem: str | None = None
        layer = modules[path]
        self.space = len(layer.kernel_size) if isinstance(layer, _ConvNd) else 0  # dimensions
        self.flat: set[torch.fx.Node] = set()  # nodes without spatial dimensions

    def follow(self, node: torch.fx.Node, before: list[Step] | None) -> None:
        """Walk on from a node.

        Args:
            node: a node that holds the units.
            before: what was applied since the anchor; None past the nonlinearity.
        """
        for user in node.users:
            if self.problem is None and not asks_shape(user):
                self._pass(node, user, before)

    def _pass(self, node: torch.fx.Node, user: torch.fx.Node, before: list[Step] | None) -> None:
        if user.op == "output":
            whole = f"of {self.prefix}" if self.prefix else "of the network"
            self.problem = f"its outputs are those {whole}"
            return
        module = self.modules.get(str(user.target)) if user.op == "call_module" else None
        if module is not None and is_matrix(module):
            self._end(node, user, module)
            return
        if node in self.flat or self._flattens(user, module):
            self.flat.add(user)
        if module is not None and is_norm(module):
            self.norms.append(str(user.target))
            if self.nonlinearity is None:
                self.anchor, before = str(user.target), []
            self.follow(user, before)
            return
        steps = _steps(user, module, self.space > 0)
        if steps is None:
            others = [n.name for n in user.all_input_nodes if not asks_shape(n)]
            joined = len(others) > 1
            what = f"joins {' and '.join(others)}" if joined else "reads it"
            self.problem = f"{user.name} {what}" + (
                ": a residual stream has no units of its own"
                if joined and _adds(user)
                else ", which is not known to act on each unit alone"
            )
            return
        if _is_nonlinearity(user, module):
            if self.nonlinearity is None:
                self.nonlinearity = name_of(module or user.target)
                self.steps = [*(before or []), *steps]
            elif before is not None:
                self.problem = f"{user.name} is a second nonlinearity beside the first"
                return
            self.follow(user, None)
            return
        flattens = self.space > 0 and self._flattens(user, module)
        if _drops(user, module) or (before is None and (steps or flattens)):
            self.between.append(user.name)
        self.follow(user, None if before is None else [*before, *steps])

    def _end(self, node: torch.fx.Node, user: torch.fx.Node, module: nn.Module) -> None:
        """Note a layer that reads the units."""
        reader = ".".join(p for p in (self.prefix, str(user.target)) if p)
        if any(other is not node for other in user.all_input_nodes):
            self.problem = f"{reader}, which reads it, reads something else too"
        elif self.space and not isinstance(module, _ConvNd) and node not in self.flat:
            self.problem = f"{reader}, which reads it, reads its pixels, not its channels"
        self.downstream.append(str(user.target))

    def _flattens(self, user: torch.fx.Node, module: nn.Module | None) -> bool:
        """Say whether a node that is known to act on each unit leaves no spatial dimension."""
        if user.target in ("mean", torch.mean):
            dims = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim")
            whole = len(dims) if isinstance(dims, list | tuple) else 1
            return whole == self.space and not user.kwargs.get("keepdim", len(user.args) > 2)
        flattening = ("flatten", "view", "reshape", torch.flatten, torch.reshape)
        return isinstance(module, nn.Flatten) or user.target in flattening


_NONLINEAR = {
    F.relu,
    F.relu_,
    F.relu6,
    F.gelu,
    F.silu,
    F.elu,
    F.selu,
    F.celu,
    F.leaky_relu,
    F.mish,
    F.softplus,
    F.tanh,
    F.sigmoid,
    F.hardswish,
    F.hardtanh,
    torch.relu,
    torch.relu_,
    torch.tanh,
    torch.sigmoid,
    torch.sin,
    torch.selu,
}
_NONLINEAR_METHODS = ("relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_", "sin")
_DROPPING_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_DROPPING = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, torch.dropout}
_POOLING_MODULES = (
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)
_POOLING = {
    F.max_pool1d,
    F.max_pool2d,
    torch.max_pool2d,
    F.avg_pool1d,
    F.avg_pool2d,
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d,
}
_PASSING_METHODS = ("contiguous", "float", "clone")
_ADDING = {torch.add, operator.add, operator.iadd}


def _adds(node: torch.fx.Node) -> bool:
    return node.target in _ADDING or (node.op == "call_method" and node.target in ("add", "add_"))


def _drops(node: torch.fx.Node, module: nn.Module | None) -> bool:
    """Say whether a node is dropout."""
    return isinstance(module, _DROPPING_MODULES) or (
        node.op == "call_function" and node.target in _DROPPING
    )


def _keeps(node: torch.fx.Node, module: nn.Module | None) -> bool:
    """Say whether a node changes no value."""
    method = node.op == "call_method" and node.target in _PASSING_METHODS
    return method or isinstance(module, nn.Identity)


def _is_nonlinearity(node: torch.fx.Node, module: nn.Module | None) -> bool:
    if module is not None:
        return is_activation(module)
    if node.op == "call_function":
        return node.target in _NONLINEAR
    return node.op == "call_method" and node.target in _NONLINEAR_METHODS


@dataclass(frozen=True, eq=False)
class _Applied:
    """A step that can be pickled: a function, or a method by its name, with its arguments."""

    function: Callable[..., Tensor] | str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.function, str):
            return getattr(x, self.function)(*self.args, **self.options)
        return self.function(x, *self.args, **self.options)


def _steps(node: torch.fx.Node, module: nn.Module | None, spatial: bool) -> list[Step] | None:
    """Return what a node does to each unit alone, written nowhere in place; None if unknown.

    Dropout is left out, which would draw again, and so is flattening.

    Args:
        node: the node.
        module: the module that it calls, if it calls one.
        spatial: whether units are channels, which may be pooled.
    """
    if len([n for n in node.all_input_nodes if not asks_shape(n)]) != 1:
        return None
    if module is not None:
        return _module_steps(module, spatial)
    args = node.args[1:]
    options = {k: v for k, v in node.kwargs.items() if k != "inplace"}
    if node.op == "call_method":
        name = str(node.target)
        if name in ("flatten", "view", "reshape") and _flattens(name, args, options):
            return []
        averages = spatial and name == "mean" and _over_space(args, options)
        if name in _NONLINEAR_METHODS or name in _PASSING_METHODS or averages:
            return [_Applied(name.rstrip("_"), args, options)]
        return None
    if node.op != "call_function" or not callable(node.target):
        return None
    target: Any = node.target
    if target in (torch.flatten, torch.reshape):
        name = "flatten" if target is torch.flatten else "reshape"
        return [] if _flattens(name, args, options) else None
    if target in _DROPPING:
        return []
    if target in _NONLINEAR:
        args = tuple(a for a in args if not isinstance(a, bool))  # in place or not
        target = {F.relu_: F.relu, torch.relu_: torch.relu}.get(target, target)
    elif not spatial or (
        target not in _POOLING and not (target is torch.mean and _over_space(args, options))
    ):
        return None
    return [_Applied(target, args, options)]


def _module_steps(module: nn.Module, spatial: bool) -> list[Step] | None:
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return []
    if isinstance(module, (*_DROPPING_MODULES, nn.Identity)):
        return []
    if not is_activation(module) and not (spatial and isinstance(module, _POOLING_MODULES)):
        return None
    return [alone(module)]


def alone(module: nn.Module) -> nn.Module:
    """Return a copy of an activation that writes nothing in place, nor draws: it takes the mean."""
    found = copy.copy(module)
    if hasattr(found, "inplace"):
        vars(found)["inplace"] = False
    return found.eval()


def _flattens(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Say whether a reshape keeps the batch and lays the rest out in torch's order."""
    if name == "flatten":
        start = args[0] if args else options.get("start_dim", 0)
        end = args[1] if len(args) > 1 else options.get("end_dim", -1)
        return (start, end) == (1, -1)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return len(sizes) == 2 and sizes[1] == -1 and sizes[0] != -1


def _over_space(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    dims = args[0] if args else options.get("dim")
    given = [dims] if isinstance(dims, int) else list(dims or ())
    return len(given) > 0 and all(d in (2, 3, -1, -2) for d in given)


def name_of(step: Any) -> str:
    """Return what a nonlinearity is called, such as relu."""
    step = getattr(step, "func", step)  # of functools.partial
    name = step if isinstance(step, str) else getattr(step, "__name__", type(step).__name__)
    return name.strip("_").lower().replace("leakyrelu", "leaky_relu")  # as in torch.nn.init
