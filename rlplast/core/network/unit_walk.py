"""From a layer's output to the layers that read it, in a traced module."""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from rlplast.core.network.trace import (
    DROPPING,
    NONLINEAR,
    POOLING,
    RESHAPING,
    asks_shape,
    is_activation,
    is_matrix,
    is_norm,
    operation,
)

__all__ = ["ReaderSearch", "Step", "alone", "name_of"]

Step = Callable[[Tensor], Tensor]


class ReaderSearch:
    """Follows a layer's output to its readers, as long as every node acts on each unit alone."""

    def __init__(self, modules: Mapping[str, nn.Module], path: str, prefix: str) -> None:
        self.modules, self.prefix = modules, prefix
        self.downstream: list[str] = []
        self.norms: list[str] = []
        self.nonlinearity: str | None = None
        self.module = ""  # that is the nonlinearity
        self.anchor = path  # the layer or norm at whose output activations are read,
        self.steps: list[Step] = []  # and what is applied to it there
        self.between: list[str] = []  # what else there is
        self.problem: str | None = None
        layer = modules[path]
        self.space = len(layer.kernel_size) if isinstance(layer, _ConvNd) else 0  # dimensions
        self.size = next((getattr(layer, n) for n in _SIZES if hasattr(layer, n)), 0)  # units
        self.left: dict[torch.fx.Node, int] = {}  # spatial dimensions of a node, if not all
        self.before: str | None = None  # a layer that reads what no nonlinearity was applied to

    def follow(self, node: torch.fx.Node, before: list[Step] | None) -> None:
        """Walk on from a node; `before`: the steps since the anchor, None past the nonlinearity."""
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
            self._end(node, user, module, before)
            return
        left = self.left.get(node, self.space)
        if module is not None and is_norm(module):
            self.left[user] = left
            self.norms.append(str(user.target))
            if self.size and not _norm_fits(module, self.size, self.space, left):
                self.problem = f"{self._path(user)} does not normalise its outputs unit by unit"
            if self.nonlinearity is None:
                self.anchor, before = str(user.target), []
            self.follow(user, before)
            return
        steps = _steps(user, module, left)
        if steps is None or not self._keeps_batch(user):
            others = [n.name for n in user.all_input_nodes if not asks_shape(n)]
            what = f"joins {' and '.join(others)}" if len(others) > 1 else "reads it"
            self.problem = f"{user.name} {what}, which is not known to act on each unit alone"
            return
        name = operation(user, module)
        if name in NONLINEAR if module is None else is_activation(module):
            if self.nonlinearity is None:
                self.nonlinearity = name_of(module or user.target)
                self.module = "" if module is None else str(user.target)
                self.steps = [*(before or []), *steps]
            elif before is not None:
                self.problem = f"{user.name} is a second nonlinearity beside the first"
                return
            self.left[user] = left
            self._mixed()
            self.follow(user, None)
            return
        self.left[user] = 0 if name in RESHAPING else left - _averaged(user)
        flattens = self.left[user] == 0 < left
        if name in DROPPING or (before is None and (steps or flattens)):
            self.between.append(user.name)
        self.follow(user, None if before is None else [*before, *steps])

    def _end(
        self, node: torch.fx.Node, user: torch.fx.Node, module: nn.Module, before: list[Step] | None
    ) -> None:
        reader, left = self._path(user), self.left.get(node, self.space)
        conv = isinstance(module, _ConvNd)
        if any(other is not node for other in user.all_input_nodes):
            self.problem = f"{reader}, which reads it, reads something else too"
        elif left != (len(module.kernel_size) if conv else 0) and (self.space or conv):
            self.problem = f"{reader}, which reads it, reads its pixels, not its channels"
        elif before is not None:
            self.before = self.before or reader
            self._mixed()
        self.downstream.append(str(user.target))

    def _mixed(self) -> None:
        """Refuse units that are read both before and after a nonlinearity."""
        if self.before is not None and self.nonlinearity is not None:
            self.problem = f"{self.before} reads it before its nonlinearity, another layer after"

    def _path(self, node: torch.fx.Node) -> str:
        return ".".join(part for part in (self.prefix, str(node.target)) if part)

    def _keeps_batch(self, node: torch.fx.Node) -> bool:
        """Whether a view by sizes takes the first one from what has the batch of its input."""
        if node.target not in ("view", "reshape", torch.reshape):
            return True
        sizes: Any = node.args[1]
        source = _of_first_size(sizes[0] if isinstance(sizes, list | tuple) else sizes)
        data = node.all_input_nodes[0]
        while data is not source:
            module = self.modules.get(str(data.target)) if data.op == "call_module" else None
            layer = module is not None and (is_matrix(module) or is_norm(module))
            known = (layer or data.target in _ARITHMETIC) and len(data.all_input_nodes) == 1
            if not (known or any(_steps(data, module, n) is not None for n in (1, 2))):
                return False
            data = data.all_input_nodes[0]
        return True


_SIZES = ("out_channels", "out_features", "nf")
_PASSING = ("contiguous", "float", "clone")
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv)


def _of_first_size(size: Any) -> torch.fx.Node | None:
    """Return the tensor whose first size a node is; None if it is none."""
    if not isinstance(size, torch.fx.Node):
        return None
    if size.op == "call_method" and size.target == "size":
        return size.all_input_nodes[0] if size.args[1:] == (0,) else None
    if size.target is not operator.getitem or size.args[1] != 0:
        return None
    sizes: Any = size.args[0]
    shape = sizes.target is getattr and sizes.args[1] == "shape"
    whole = shape or (sizes.target == "size" and len(sizes.args) == 1)
    return sizes.args[0] if whole else None


def _norm_fits(norm: nn.Module, size: int, space: int, left: int) -> bool:
    """Whether the entries of a norm belong to units, which it does not put into groups."""
    if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        shape = tuple(norm.normalized_shape)
        if space and not left:
            return len(shape) == 1 and shape[0] % size == 0
        return len(shape) == 1 + left and shape[0] == size
    if isinstance(norm, nn.GroupNorm):
        return norm.num_channels == size and norm.num_groups in (1, size) and left == space
    if isinstance(norm, _InstanceNorm):
        return left > 0
    if not space and isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d):
        return False  # whose channels are not the last dimension
    if isinstance(norm, _NormBase):
        return norm.num_features == size or (space > 0 == left and norm.num_features % size == 0)
    return True


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


def _averaged(node: torch.fx.Node) -> int:
    """Return how many spatial dimensions a node takes away."""
    if node.target not in ("mean", torch.mean):
        return 0
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    kept = node.kwargs.get("keepdim", len(node.args) > 2 and node.args[2])
    return 0 if kept else len(dims) if isinstance(dims, list | tuple) else 1


def _steps(node: torch.fx.Node, module: nn.Module | None, left: int) -> list[Step] | None:
    """Return what a node does to each unit alone, nothing in place; None if unknown."""
    if len([n for n in node.all_input_nodes if not asks_shape(n)]) != 1:
        return None
    name, args = operation(node, module), node.args[1:]
    options = {k: v for k, v in node.kwargs.items() if k != "inplace"}
    if name in DROPPING or name == "identity":
        return []
    if name in RESHAPING:
        if isinstance(module, nn.Flatten):
            args = (module.start_dim, module.end_dim)
        return [] if _flattens(name, args, options) else None
    pools = name in POOLING and name.endswith(f"{left}d")
    if module is not None:
        return [alone(module)] if pools or is_activation(module) else None
    averages = name == "mean" and _over_space(args, options, left)
    if not (pools or averages or name in NONLINEAR or name in _PASSING):
        return None
    if isinstance(node.target, str):
        return [_Applied(node.target.rstrip("_"), args, options)]
    function: Any = node.target
    if name in NONLINEAR:
        args = tuple(a for a in args if not isinstance(a, bool))  # in place or not
        if function.__name__.endswith("_"):
            plain = function.__name__.rstrip("_")
            function = getattr(F, plain, None) or getattr(torch, plain)
    return [_Applied(function, args, options)]


def alone(module: nn.Module) -> nn.Module:
    """Return a copy of an activation that writes nothing in place, nor draws: it takes the mean."""
    copied = copy.copy(module)
    if hasattr(copied, "inplace"):
        vars(copied)["inplace"] = False
    return copied.eval()


def _flattens(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a reshape keeps the batch and lays the rest out in torch's order."""
    if name == "flatten":
        start = args[0] if args else options.get("start_dim", 0)
        end = args[1] if len(args) > 1 else options.get("end_dim", -1)
        return (start, end) == (1, -1)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return len(sizes) == 2 and sizes[1] == -1 and _of_first_size(sizes[0]) is not None


def _over_space(args: Sequence[Any], options: Mapping[str, Any], left: int) -> bool:
    """Whether a mean is over spatial dimensions only, of which `left` are left."""
    dims = args[0] if args else options.get("dim")
    given = [dims] if isinstance(dims, int) else list(dims or ())
    return len(given) > 0 and all(2 <= d < 2 + left or -left <= d < 0 for d in given)


def name_of(step: Any) -> str:
    """Return what a nonlinearity is called, such as relu."""
    step = getattr(step, "func", step)  # of functools.partial
    name = step if isinstance(step, str) else getattr(step, "__name__", type(step).__name__)
    return name.strip("_").lower().replace("leakyrelu", "leaky_relu")  # as in torch.nn.init
