"""The path through a network along which its layers can stretch most.

A path leads from an input, or from what an embedding looks up, to an output, along the graph that
autograd records. So it needs no tracing and no declaration, and follows whatever a module computes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.network.record import WithWeights
from rlplast.core.network.trace import is_matrix
from rlplast.metrics.balance import lipschitz_bound
from rlplast.metrics.outputs import NotedInputs

__all__ = ["LongestPath", "longest_path"]

_SUMS = ("AddBackward0", "SubBackward0", "CatBackward0")  # add a weight, do not multiply by it
_LOOK_UP = "EmbeddingBackward0"


@dataclass(frozen=True)
class LongestPath:
    """The path whose product of norms is largest.

    Attributes:
        weights: the Blocks on it, in forward order; one that is used twice is there twice.
        bound: their `lipschitz_bound`; 1 if there are none.
    """

    weights: tuple[Block, ...]
    bound: Tensor


def longest_path(
    network: Network, forward: Callable[[nn.Module], object]
) -> dict[tuple[str, ...], LongestPath]:
    """Return the path from an input to an output along which the product of norms is largest.

    A linear or conv layer counts as its factor in `lipschitz_bound`, and everything else as 1:
    shortcuts, norm layers, nonlinearities, attention. The parts of a packed projection lie side by
    side, and so do the members of an ensemble, which have a path each. Frozen layers count too.

    Args:
        network: the network; its weights are neither moved nor copied.
        forward: calls the module that it is given with a batch, of which one sample is enough, in
            evaluation mode.

    Returns:
        Member → its path. A member is ``("[0]",)`` and so on; ``()`` if there is no ensemble. One
        is left out if no output depends on an input.
    """
    matrices = [block for block in network.blocks if _multiplies(block)]
    held = {id(block.param) for block in matrices}
    tensors = dict(network.module.named_parameters()) | dict(network.module.named_buffers())
    leaves = {name: t.detach().requires_grad_() for name, t in tensors.items() if id(t) in held}
    leaf_of = {id(tensors[name]): id(leaf) for name, leaf in leaves.items()}
    watched = _Watched(WithWeights(network.module, leaves))
    with torch.enable_grad():
        forward(watched)
    found = [t for t in tree_leaves(watched.outputs) if isinstance(t, Tensor)]
    ends = [t.grad_fn for t in found if t.grad_fn is not None]
    steps = _steps(ends, {id(leaf) for leaf in watched.inputs})
    paths: dict[tuple[str, ...], LongestPath] = {}
    for member in dict.fromkeys(block.spec.member for block in matrices):
        by_leaf: dict[int, list[Block]] = {}
        for block in (b for b in matrices if b.spec.member in (member, None)):
            by_leaf.setdefault(leaf_of[id(block.param)], []).append(block)
        path = _largest(steps, ends, by_leaf)
        if path is not None:
            paths[() if member is None else (f"[{member}]",)] = path
    return paths


class _Watched(NotedInputs):
    """A module whose last call is noted: inputs as leaves of the graph, and outputs."""

    outputs: object = None

    def forward(self, *args: Tensor) -> Any:
        """Return what the module does."""
        self.outputs = super().forward(*args)
        return self.outputs


def _multiplies(block: Block) -> bool:
    """Say whether a Block is a matrix that a layer multiplies by; frozen copies are buffers."""
    copy = block.role == "buffer" and block.spec.tensor == "weight" and is_matrix(block.module)
    matrix = block.role in ("weight", "embedding") or copy
    return matrix and block.view.ndim >= 2 and block.view.is_floating_point()


@dataclass(frozen=True)
class _Step:
    """An operation on what depends on the input, which reads `before` and maybe `weights` (ids)."""

    node: Any
    before: Sequence[Any]
    weights: frozenset[int]


def _steps(ends: Sequence[Any], inputs: set[int]) -> list[_Step]:
    """Return the operations between inputs and outputs, each after those it reads."""
    reads: dict[Any, frozenset[int]] = {}  # what depends on no input → the leaves it is made of
    steps: dict[Any, _Step] = {}
    for node in _in_order(ends):
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in inputs:
            reads[node] = frozenset([id(leaf)])
            continue
        nodes = [n for n, _ in node.next_functions if n is not None]
        before = [n for n in nodes if n in steps]
        weights = frozenset[int]().union(*(reads[n] for n in nodes if n not in steps))
        if before or leaf is not None:
            weights = frozenset() if node.name() in _SUMS else weights
            steps[node] = _Step(node, before, weights)
        elif node.name() == _LOOK_UP:
            steps[node] = _Step(node, (), frozenset())
        else:
            reads[node] = weights
    return list(steps.values())


def _in_order(ends: Sequence[Any]) -> list[Any]:
    """Return all nodes of a graph, each after those it reads."""
    order: list[Any] = []
    seen = set[Any]()
    ahead = [(end, False) for end in ends]
    while ahead:
        node, done = ahead.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            ahead.append((node, True))
            ahead += [(n, False) for n, _ in node.next_functions if n is not None]
    return order


def _largest(
    steps: Sequence[_Step], ends: Sequence[Any], by_leaf: Mapping[int, Sequence[Block]]
) -> LongestPath | None:
    """Return the best path to one of the ends; where several Blocks meet the largest counts."""
    factors: dict[Block, Tensor] = {}
    best: dict[Any, tuple[float, Any, Block | None]] = {}  # log of the product, step before, Block
    for step in steps:
        last = max(step.before, key=lambda node: best[node][0], default=None)
        size, block = 0.0 if last is None else best[last][0], None
        if blocks := [b for leaf in step.weights for b in by_leaf.get(leaf, ())]:
            factors |= {b: lipschitz_bound([b.view]) for b in blocks if b not in factors}
            block = max(blocks, key=lambda b: _log(factors[b]))
            size += _log(factors[block])
        best[step.node] = size, last, block
    node = max((end for end in ends if end in best), key=lambda n: best[n][0], default=None)
    if node is None:
        return None
    path: list[Block] = []
    while node is not None:
        _, node, block = best[node]
        path += [] if block is None else [block]
    sizes = [factors[block] for block in reversed(path)] or [torch.ones((), dtype=torch.float64)]
    return LongestPath(tuple(reversed(path)), torch.stack(sizes).prod())


def _log(factor: Tensor) -> float:
    """Return the logarithm; what is no number is largest, so that the product says so."""
    return math.inf if factor.isnan() else float(factor.log())
