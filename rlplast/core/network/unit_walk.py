"""From a layer's output to the layers that read it, in a traced module."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.fx import Node
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from rlplast.core.network.trace import (
    Step,
    Traced,
    alone,
    data_inputs,
    data_users,
    in_order,
    is_activation,
    is_matrix,
    is_norm,
    labelled,
    name_of,
    tried,
)

__all__ = ["Way", "ways"]

_SIZES = ("out_channels", "out_features", "nf")


@dataclass
class Way:
    """One way from a layer's output to a layer that reads it; names are paths, or of nodes."""

    anchor: str  # the layer or norm at whose output activations are read,
    steps: list[Step] = field(default_factory=list)  # and what is applied to it there
    norms: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)  # what else there is
    nonlinearity: Node | None = None
    reader: str = ""
    problem: str | None = None  # why the layer's outputs are no units

    def pass_nonlinearity(self, node: Node, step: Step) -> None:
        """Note what is applied, unless it is a second one."""
        if self.nonlinearity is None:
            self.nonlinearity = node
            self.steps.append(step)


def ways(traced: Traced, node: Node) -> list[Way]:
    """Return all ways from a layer, each as far as what is on it acts on each unit alone."""
    return [_way(traced, node, nodes) for nodes in _nodes_after(traced, node)]


def _nodes_after(traced: Traced, node: Node) -> Iterator[list[Node]]:
    """Yield what comes after a node, each time up to a layer, the output or a join."""
    for user in data_users(node):
        module = traced.called(user)
        ends = user.op == "output" or (module is not None and is_matrix(module))
        if ends or len(data_inputs(user)) > 1 or not user.users:
            yield [user]
        else:
            yield from ([user, *more] for more in _nodes_after(traced, user))


def _way(traced: Traced, node: Node, nodes: list[Node]) -> Way:
    way, layer = Way(traced.path(node)), traced.called(node)
    space = len(layer.kernel_size) if isinstance(layer, _ConvNd) else 0
    size = next((getattr(layer, n) for n in _SIZES if hasattr(layer, n)), 0)
    labels = labelled(space)
    for user in nodes:
        module, path = traced.called(user), traced.path(user)
        if user.op == "output":
            way.problem = f"its outputs are those of {traced.prefix or 'the network'}"
        elif module is not None and is_matrix(module):
            way.reader, way.problem = path, _misread(user, path, module, labels)
        elif module is not None and is_norm(module):
            way.norms.append(path)
            if size and not _norm_fits(module, size, space, labels):
                way.problem = f"{path} does not normalise its outputs unit by unit"
            if way.nonlinearity is None:
                way.anchor, way.steps = path, []
        elif module is not None and is_activation(module):
            way.pass_nonlinearity(user, alone(module))
        else:
            labels = _pass(traced, way, user, labels)
        if way.problem is not None:
            break
    return way


def _pass(traced: Traced, way: Way, node: Node, labels: Tensor) -> Tensor:
    """Pass a node that is no layer; return the labels of its outputs."""
    step, module = traced.step(node), traced.called(node)
    # A module is tried in its own mode, in which dropout shows.
    trial = step and tried(step if module is None else module.forward, labels)
    if step is None or trial is None or (trial[1] != "same" and len(node.all_input_nodes) > 1):
        way.problem = _unknown(node)
        return labels
    after, kind = trial
    if kind == "nonlinear":
        way.pass_nonlinearity(node, step)
        return after
    # Of what keeps entries, only a cast is repeated where activations are read.
    shaped, cast = after.shape != labels.shape, module is None and node.target in ("float", "to")
    repeated = kind == "else" or (kind == "same" and cast)
    past = way.nonlinearity is not None
    if kind == "draws" or (past and (repeated or shaped)):
        way.between.append(node.name)
    if repeated and not past:
        way.steps.append(step)
    return after


def _unknown(node: Node) -> str:
    others = [each.name for each in data_inputs(node)]
    if len(others) > 1 and name_of(node.target) in ("add", "iadd"):
        return (
            f"{node.name} joins {' and '.join(others)}: a residual stream has no units of its own"
        )
    what = f"joins {' and '.join(others)}" if len(others) > 1 else "reads it"
    return f"{node.name} {what}, which is not known to act on each unit alone"


def _misread(node: Node, path: str, reader: nn.Module, labels: Tensor) -> str | None:
    """Say why a layer does not read units one by one, if it does not."""
    conv = isinstance(reader, _ConvNd)
    if len(node.all_input_nodes) > 1:
        return f"{path}, which reads it, reads something else too"
    fits = not conv or labels.ndim == 2 + len(reader.kernel_size)
    if fits and in_order(labels, 1 if conv else -1):
        return None
    return f"{path}, which reads it, reads its pixels, not its channels"


def _norm_fits(norm: nn.Module, size: int, space: int, labels: Tensor) -> bool:
    """Whether the entries of a norm belong to units, which it does not put into groups."""
    left = labels.ndim - 2
    flat = space > 0 == left

    def fits(entries: int) -> bool:
        return entries == size or (flat and entries % size == 0)

    if not in_order(labels, 1):
        return False
    if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return len(norm.normalized_shape) == 1 + left and fits(norm.normalized_shape[0])
    if isinstance(norm, nn.GroupNorm):
        return norm.num_channels == size and norm.num_groups in (1, size) and left == space
    if isinstance(norm, _InstanceNorm):
        return left > 0
    if not space and isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d):
        return False  # whose channels are not the last dimension
    return not isinstance(norm, _NormBase) or fits(norm.num_features)
