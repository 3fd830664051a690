"""Find the units of a network: ask modules that declare theirs, trace the others."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.network.blocks import Block
from rlplast.core.network.modes import in_mode, reading
from rlplast.core.network.trace import (
    UNTRACEABLE,
    Tracer,
    acts_by_rows,
    asks_shape,
    is_matrix,
    why,
)
from rlplast.core.network.unit_modes import Found, joined
from rlplast.core.network.unit_walk import ReaderSearch, alone, name_of
from rlplast.core.network.units import (
    NONLINEARITY,
    PER_UNIT,
    ActivationPoint,
    Part,
    UnitGroup,
    UnitMap,
    UnitSpec,
)

__all__ = ["JOINED", "find_units"]

JOINED = "joined"  # attribute of layers: the method that gives each output twice


def find_units(
    module: nn.Module, blocks: Sequence[Block], given: Sequence[UnitSpec] | None = None
) -> UnitMap:
    """Return the units of a module: declared, traced, or `given` by the user.

    Refused are declared units of a layer that does not exist or is declared twice, and given ones
    that cannot be edited one by one.
    """
    refused: dict[str, str] = {}
    heads: set[str] = set()
    untraced: set[str] = set()
    unseen: dict[str, list[str]] = {}
    if given is not None:
        found = [_declared(spec, "") for spec in given]
    else:
        found, unseen = _in_both_modes(module, refused, untraced, heads)
    paths = {path for path, _ in module.named_modules(remove_duplicate=False)}
    for path in (p for f in found for p in _paths(f.spec)):
        if path not in paths:
            near = did_you_mean(path, paths - {""})
            raise ConfigError(f"declared units name no module {path!r}: {near}")
    twice = [path for path, n in Counter(each.spec.layer for each in found).items() if n > 1]
    if twice:
        raise ConfigError(f"units of {', '.join(twice)} are declared twice: allowed is once")
    by_path: dict[str, list[Block]] = {}
    for block in blocks:
        by_path.setdefault(block.path, []).append(block)
    groups: list[UnitGroup] = []
    others = dict(getattr(module, "stream_activations", dict)())
    tied = _tied(blocks)
    found = [_with_own(module, each) for each in found]
    for each in found:
        path = each.spec.layer
        problem = _problem(module, each.spec, by_path, tied)
        problem = problem or _unknown_inside(module, each, by_path, unseen)
        if problem is not None and given is not None:
            raise ConfigError(f"declared units of {path}: {problem}")
        if problem is not None:
            refused[path] = problem
            if _gives_twice(module.get_submodule(path)) is not None:
                others |= {g.name: g.point for g in _groups_of(module, each, by_path) if g.point}
            continue
        refused.pop(path, None)
        groups += _groups_of(module, each, by_path)
    named = {g.name.partition("].")[2] or g.name for g in groups} | refused.keys()
    named |= {part.block.path for g in groups for part in g.incoming}
    known = {p for p, m in module.named_modules() if is_matrix(m)} - named
    for path in sorted(known):
        refused.setdefault(path, "its outputs are the network's, or go into a residual stream")
    unknown = frozenset(untraced & refused.keys())
    return UnitMap(tuple(groups), refused, unknown, frozenset(heads), others)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _declared(spec: UnitSpec, prefix: str) -> Found:
    spec = _whole(spec, prefix)
    anchor = spec.norms[0] if spec.norms and not spec.norms_last else spec.layer
    module = "" if spec.replaceable else None
    point = ActivationPoint(anchor, (spec.nonlinearity,), norms=spec.norms, nonlinearity=module)
    return Found(spec, name_of(spec.nonlinearity), point)


def _with_own(module: nn.Module, found: Found) -> Found:
    """Return the same with the nonlinearity that a method has put in its place, if one has."""
    replaced = getattr(module.get_submodule(found.spec.layer), NONLINEARITY, None)
    if replaced is None or found.point.nonlinearity != "":
        return found
    step = alone(replaced) if isinstance(replaced, nn.Module) else replaced
    return replace(found, nonlinearity=name_of(replaced), point=replace(found.point, steps=(step,)))


def _whole(spec: UnitSpec, prefix: str) -> UnitSpec:
    """Return a spec whose paths begin at the network."""
    downstream, norms, beside = (
        tuple(_join(prefix, path) for path in paths)
        for paths in (spec.downstream, spec.norms, spec.beside)
    )
    layer = _join(prefix, spec.layer)
    return replace(spec, layer=layer, downstream=downstream, norms=norms, beside=beside)


def _paths(spec: UnitSpec) -> tuple[str, ...]:
    return (spec.layer, *spec.beside, *spec.downstream, *spec.norms)


def _own(spec: UnitSpec, by_path: Mapping[str, Sequence[Block]]) -> list[Block]:
    """Return the weights and biases whose rows are the units."""
    rows = [b for path in (spec.layer, *spec.beside) for b in by_path.get(path, ())]
    return [b for b in rows if b.role in ("weight", "bias")]


def _in_both_modes(
    module: nn.Module, refused: dict[str, str], untraced: set[str], heads: set[str]
) -> tuple[list[Found], dict[str, list[str]]]:
    """Return what `_search` finds in both modes, and what no trace saw called, by traced module."""
    calls: dict[str, set[str]] = {}  # of each traced module
    modes = []
    for train in (True, False):
        with reading(module, evaluate=False), in_mode(module, train=train):
            modes.append([*_search(module, "", refused, untraced, heads, calls)])
    with reading(module, evaluate=False):
        unseen = {p: [*_unseen(module.get_submodule(p), p, called)] for p, called in calls.items()}
    training, evaluation = modes
    return list(joined(training, evaluation, refused)), unseen


def _search(
    module: nn.Module,
    prefix: str,
    refused: dict[str, str],
    untraced: set[str],
    heads: set[str],
    calls: dict[str, set[str]],
) -> Iterator[Found]:
    """Yield what modules declare or a trace finds; write the other arguments."""
    declared = getattr(module, "unit_specs", None)
    if declared is not None:
        yield from (_declared(spec, prefix) for spec in declared())
        return
    if isinstance(module, nn.MultiheadAttention):
        yield _declared(UnitSpec("", ("out_proj",), heads=module.num_heads), prefix)
        return
    children = dict(module.named_children())
    if not children or is_matrix(module):
        return
    try:
        graph = Tracer().trace(module)
    except UNTRACEABLE as error:
        problem = f"{prefix or type(module).__name__} could not be traced ({why(error)})"
        for path in _unknown(module, prefix):
            untraced.add(path)
            refused[path] = (
                f"{problem}: declare it in unit_specs() of the module, or pass "
                "units=[rlplast.UnitSpec(...)] to its Network"
            )
        for name, child in children.items():
            yield from _search(child, _join(prefix, name), refused, untraced, heads, calls)
        return
    if not prefix:
        heads |= _heads(module, graph)
    yield from _traced(module, graph, prefix, refused)
    leaves = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    read = [str(n.target).rpartition(".")[0] for n in graph.nodes if n.op == "get_attr"]
    calls.setdefault(prefix, set()).update(_join(prefix, path) for path in (*leaves, *read))
    for path in dict.fromkeys(leaves):  # parts that the trace kept whole
        child = module.get_submodule(path)
        # Torch's composite layers, such as its transformers, are whole to the trace.
        if hasattr(child, "unit_specs") or any(map(is_matrix, child.modules())):
            yield from _search(child, _join(prefix, path), refused, untraced, heads, calls)


def _unknown(module: nn.Module, prefix: str) -> list[str]:
    """Return the layers of a module that could not be traced as a whole."""
    # A list of modules computes nothing, and who declares some units has left out the others.
    known = bool(prefix) and isinstance(module, nn.ModuleList | nn.ModuleDict)
    if known or any(hasattr(part, "unit_specs") for part in module.modules()):
        return []
    return [_join(prefix, path) for path, child in module.named_modules() if is_matrix(child)]


def _heads(module: nn.Module, graph: torch.fx.Graph) -> set[str]:
    """Return the layers from which a graph's outputs come without another layer in between."""
    modules = dict(module.named_modules())
    layers: set[str] = set()
    ahead, seen = [node for node in graph.nodes if node.op == "output"], set[torch.fx.Node]()
    while ahead:
        for node in ahead.pop().all_input_nodes:
            if node.op == "call_module" and is_matrix(modules[str(node.target)]):
                layers.add(str(node.target))
            elif node not in seen:
                seen.add(node)
                ahead.append(node)
    return layers


def _traced(
    module: nn.Module, graph: torch.fx.Graph, prefix: str, refused: dict[str, str]
) -> Iterator[Found]:
    modules = dict(module.named_modules())
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    direct = {  # whose weights are read by the code around them
        str(node.target).rpartition(".")[0]
        for node in graph.nodes
        if node.op == "get_attr" and not all(map(asks_shape, node.users))
    }
    for node in graph.nodes:
        if node.op != "call_module" or not is_matrix(modules[str(node.target)]):
            continue
        path = str(node.target)
        if isinstance(modules[path], nn.MultiheadAttention):
            continue
        search = ReaderSearch(modules, path, prefix)
        if calls.count(path) > 1:
            search.problem = "it is used more than once in a forward pass"
        elif path in direct:
            search.problem = "its weight is used outside of it too"
        else:
            search.problem = _gives_twice(modules[path])
            search.follow(node, [])  # which stops at a problem
        for other in (*search.downstream, *search.norms):
            if search.problem is None and (calls.count(other) > 1 or other in direct):
                search.problem = f"{_join(prefix, other)}, which reads it, reads something else too"
        if search.problem is None and not search.downstream:
            search.problem = "nothing reads its outputs"
        if search.problem is not None:
            refused[_join(prefix, path)] = search.problem
            continue
        downstream = tuple(dict.fromkeys(search.downstream))
        norms = tuple(dict.fromkeys(search.norms))
        spec = _whole(UnitSpec(path, downstream, norms), prefix)
        point = ActivationPoint(
            _join(prefix, search.anchor),
            tuple(search.steps),
            between=tuple(search.between),
            norms=spec.norms,
            nonlinearity=_join(prefix, search.module) if calls.count(search.module) == 1 else None,
        )
        yield Found(spec, search.nonlinearity or "linear", point, prefix)


def _tied(blocks: Sequence[Block]) -> dict[str, str]:
    """Return the path of each layer that shares a tensor with another one → what is tied."""
    tied: dict[str, str] = {}
    for block in blocks:
        for alias in block.aliases:
            tied[block.path] = f"{block.name} is tied to {', '.join(block.aliases)}"
            tied[alias.rpartition(".")[0]] = f"{alias} is tied to {block.name}"
    return tied


def _gives_twice(layer: nn.Module) -> str | None:
    joined = getattr(layer, JOINED, None)
    return None if joined is None else f"{joined} gives its readers two entries per output"


def _problem(
    module: nn.Module,
    spec: UnitSpec,
    by_path: Mapping[str, Sequence[Block]],
    tied: Mapping[str, str],
) -> str | None:
    """Say why a layer's outputs cannot be edited unit by unit; None if they can."""
    if (problem := _gives_twice(module.get_submodule(spec.layer))) is not None:
        return problem
    for path in _paths(spec):
        if path in tied:
            return tied[path]
    rows = _own(spec, by_path)
    if not any(b.role == "weight" for b in rows):
        return "it has no weight with a row per unit"
    size = spec.heads or rows[0].view.shape[0]
    for other in spec.downstream:
        if getattr(module.get_submodule(other), "groups", 1) != 1:
            return f"{other}, which reads it, is a grouped conv"
        weights = [b for b in by_path.get(other, ()) if b.role == "weight"]
        if not weights:
            return f"{other}, which reads it, has no weight with a column per unit"
        members = {b.spec.member for b in rows}
        if len(members) > 1 and members != {b.spec.member for b in weights}:
            return f"{other}, which reads it, is shared by its members"
        columns = weights[0].view.shape[1]
        spatial = rows[0].kind == "conv" and weights[0].kind == "linear"
        fits = columns % size == 0 if spatial or spec.heads else columns == size
        if not fits:
            return (
                f"{other} has {columns} columns, which do not belong to its {size} outputs one by "
                "one"
            )
    for block in (b for norm in spec.norms for b in by_path.get(norm, ())):
        if block.view.ndim > 0 and not _per_unit(block, size):
            entries = f"{block.view.shape[0]} entries"
            return f"{block.name} has {entries}, which do not belong to its {size} outputs"
    return None


def _unseen(part: nn.Module, path: str, called: set[str]) -> Iterator[str]:
    """Yield the layers that no trace saw called, as those of another method of the module.

    Of a part of several layers only those that read none of the others.
    """
    if path in called:
        return
    if any(other.startswith(f"{path}." if path else "") for other in called):
        for name, child in part.named_children():
            yield from _unseen(child, _join(path, name), called)
        return
    found = _search(part, path, {}, set(), set(), {})
    read = {reader for each in found for reader in each.spec.downstream}
    for name, layer in part.named_modules():
        if is_matrix(layer) and _join(path, name) not in read:
            yield _join(path, name)


def _unknown_inside(
    module: nn.Module,
    found: Found,
    by_path: Mapping[str, Sequence[Block]],
    unseen: Mapping[str, Sequence[str]],
) -> str | None:
    """Say what a trace did not see: a layer's own way to compute, or one that may read units."""
    if found.within is None:
        return None
    for path in (found.spec.layer, *found.spec.downstream):
        layer = module.get_submodule(path)
        if not acts_by_rows(layer):
            return f"{path} is a {type(layer).__name__}, which does more than torch's own layer"
    rows = by_path[found.spec.layer][0].view
    for path in unseen[found.within]:
        for block in (b for b in by_path.get(path, ()) if b.role == "weight"):
            columns = block.view.shape[1] * block.groups
            flattened = rows.ndim > 2 == block.view.ndim and columns % len(rows) == 0
            if columns == len(rows) or flattened:
                return (
                    f"{path} may read it, which was not called when the module was traced: declare "
                    "both in unit_specs() of the module, or pass units=[rlplast.UnitSpec(...)] to "
                    "its Network"
                )
    return None


def _groups_of(
    module: nn.Module, found: Found, by_path: Mapping[str, Sequence[Block]]
) -> Iterator[UnitGroup]:
    """Yield the group of a layer, or one per member of a stacked layer."""
    spec, path = found.spec, found.spec.layer
    own = _own(spec, by_path)
    inner = [p for p in by_path if p.startswith(f"{path}.") and path]  # norms inside the layer
    norms = [b for p in inner for b in by_path[p] if b.kind == "norm"]
    norms += [b for n in spec.norms for b in by_path.get(n, ())]
    reading = [b for d in spec.downstream for b in by_path[d] if b.role == "weight"]
    for reader in spec.downstream:  # a reader says which frozen layers read what it reads
        beside = getattr(module.get_submodule(reader), "beside", ())
        reading += [b for p in beside for b in by_path[p] if b.spec.tensor == "weight"]
    own_place = found.point.nonlinearity == ""
    place = _join(path, NONLINEARITY) if own_place else found.point.nonlinearity
    slopes = [b for b in by_path.get(place or "", ()) if hasattr(b.module, PER_UNIT)]
    members = list(dict.fromkeys(b.spec.member for b in own))
    stacked = len(members) if hasattr(module.get_submodule(path), "members") else 0
    for member in members:
        rows = [b for b in own if b.spec.member == member]
        rows.sort(key=lambda b: b.role != "weight")
        size = spec.heads or rows[0].view.shape[0]
        between = [b for b in norms if b.spec.member in (member, None) and _per_unit(b, size)]
        columns = [b for b in reading if member is None or b.spec.member == member]
        name = path if member is None or not stacked else f"[{member}].{path}"
        heads = spec.heads > 0
        space = size if rows[0].kind == "conv" else 0
        point = replace(found.point, units=space, members=stacked)
        yield UnitGroup(
            name=name,
            size=size,
            incoming=tuple(Part(b, 0, b.view.shape[0] // size) for b in rows),
            norms=tuple(Part(b, 0, b.view.shape[0] // size) for b in between),
            outgoing=tuple(Part(b, 1, b.view.shape[1] // size) for b in columns),
            activation=None if heads else name,
            nonlinearity="heads" if heads else found.nonlinearity,
            point=None if heads else point,
            slopes=tuple(Part(b, 0) for b in slopes if b.spec.member == member),
        )


def _per_unit(block: Block, size: int) -> bool:
    return block.view.ndim > 0 and block.view.shape[0] % size == 0
