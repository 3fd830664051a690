"""Find the units of a network: ask modules that declare theirs, trace the others."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn
from torch.fx import Node

from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.network.blocks import Block
from rlplast.core.network.trace import (
    UNTRACEABLE,
    Traced,
    alone,
    in_both_modes,
    is_matrix,
    name_of,
    why,
)
from rlplast.core.network.unit_walk import ways
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
_DIFFERS = (
    "what comes of its outputs in training mode differs from what comes of them in evaluation mode"
)


@dataclass(frozen=True)
class Found:
    """The units of a layer, with whole paths, and where their activations are read."""

    spec: UnitSpec
    point: ActivationPoint  # as yet without `units` and `members`
    nonlinearity: str

    def kind(self) -> tuple[object, ...]:
        """Return what has to be equal in both modes: the units and their activations."""
        spec, point = self.spec, self.point
        units = spec.layer, spec.norms, spec.heads, spec.beside, spec.norms_last
        return *units, self.nonlinearity, point.path, len(point.steps), point.nonlinearity


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
    if given is not None:
        found = [_declared(spec, "") for spec in given]
    else:
        modes = in_both_modes(module, lambda: [*_search(module, "", refused, untraced, heads)])
        found = _joined(*modes, refused)
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
    tied = _tied(module)
    for each in found:
        path = each.spec.layer
        problem = _problem(module, each.spec, by_path, tied)
        if problem is not None and given is not None:
            raise ConfigError(f"declared units of {path}: {problem}")
        if problem is not None:
            refused[path] = problem
            if _gives_twice(module.get_submodule(path)) is not None:
                others |= {g.name: g.point for g in _groups_of(module, each, by_path) if g.point}
            continue
        refused.pop(path, None)
        groups += _groups_of(module, each, by_path)
    known = {p for p, m in module.named_modules() if is_matrix(m)}
    known -= {part.block.path for g in groups for part in g.incoming}
    for path in sorted(known):
        refused.setdefault(path, "its outputs are the network's, or go into a residual stream")
    unknown = frozenset(untraced & refused.keys())
    return UnitMap(tuple(groups), refused, unknown, frozenset(heads), others)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _declared(spec: UnitSpec, prefix: str) -> Found:
    """Return declared units, with paths that begin at the network."""
    keys = ("downstream", "norms", "beside")
    paths = {key: tuple(_join(prefix, path) for path in getattr(spec, key)) for key in keys}
    spec = replace(spec, layer=_join(prefix, spec.layer), **paths)
    anchor = spec.norms[0] if spec.norms and not spec.norms_last else spec.layer
    place = "" if spec.replaceable else None
    point = ActivationPoint(anchor, (spec.nonlinearity,), norms=spec.norms, nonlinearity=place)
    return Found(spec, point, name_of(spec.nonlinearity))


def _paths(spec: UnitSpec) -> tuple[str, ...]:
    return (spec.layer, *spec.beside, *spec.downstream, *spec.norms)


def _joined(
    training: Sequence[Found], evaluation: Sequence[Found], refused: dict[str, str]
) -> list[Found]:
    """Return the units that are found in both modes, with the readers of both.

    Activations are read in evaluation mode, and gradients come from training mode. So a layer that
    is called in one of them only, or whose activations differ, is written to `refused`.
    """
    kinds = {each.kind() for each in training} & {each.kind() for each in evaluation}
    joined: list[Found] = []
    for each in (*evaluation, *training):
        if each.kind() not in kinds:
            refused.setdefault(each.spec.layer, _DIFFERS)
    others = {each.spec.layer: each for each in training}
    for each in (each for each in evaluation if each.kind() in kinds):
        other = others[each.spec.layer]
        readers = dict.fromkeys((*each.spec.downstream, *other.spec.downstream))
        between = dict.fromkeys((*each.point.between, *other.point.between))
        spec = replace(each.spec, downstream=tuple(readers))
        joined.append(replace(each, spec=spec, point=replace(each.point, between=tuple(between))))
    return joined


def _search(
    module: nn.Module, prefix: str, refused: dict[str, str], untraced: set[str], heads: set[str]
) -> Iterator[Found]:
    """Yield what modules declare or a trace finds; write `refused`, `untraced` and `heads`."""
    declared = getattr(module, "unit_specs", None)
    if declared is not None:
        yield from (_declared(spec, prefix) for spec in declared())
        return
    if isinstance(module, nn.MultiheadAttention):
        yield _declared(UnitSpec("", ("out_proj",), heads=module.num_heads), prefix)
        return
    if not module._modules or is_matrix(module):
        return
    try:
        traced = Traced(module, prefix)
    except UNTRACEABLE as error:
        unknown = _unknown(module, prefix, error)
        refused.update(unknown)
        untraced.update(unknown)
        for name, child in module.named_children():
            yield from _search(child, _join(prefix, name), refused, untraced, heads)
        return
    if not prefix:
        heads |= _heads(traced)
    for node in traced.nodes:
        layer, path = traced.called(node), traced.path(node)
        if layer is None or not is_matrix(layer) or isinstance(layer, nn.MultiheadAttention):
            continue
        found = _traced(traced, node, layer)
        if isinstance(found, str):
            refused[path] = found
        else:
            yield found
    for path, part in traced.parts.items():  # such as torch's transformers, which are kept whole
        yield from _search(part, path, refused, untraced, heads)


def _unknown(module: nn.Module, prefix: str, error: Exception) -> dict[str, str]:
    """Return the layers of a module that could not be traced as a whole, and why."""
    # A list of modules computes nothing, and who declares some units has left out the others.
    known = bool(prefix) and isinstance(module, nn.ModuleList | nn.ModuleDict)
    if known or any(hasattr(part, "unit_specs") for part in module.modules()):
        return {}
    problem = (
        f"{prefix or type(module).__name__} could not be traced ({why(error)}): declare it in "
        "unit_specs() of the module, or pass units=[rlplast.UnitSpec(...)] to its Network"
    )
    layers = [path for path, child in module.named_modules() if is_matrix(child)]
    return {_join(prefix, path): problem for path in layers}


def _heads(traced: Traced) -> set[str]:
    """Return the layers from which a graph's outputs come without another layer in between."""
    layers: set[str] = set()
    ahead = [traced.nodes[-1]]
    for node in ahead:  # which grows
        for source in node.all_input_nodes:
            module = traced.called(source)
            if module is not None and is_matrix(module):
                layers.add(traced.path(source))
            elif source not in ahead:
                ahead.append(source)
    return layers


def _traced(traced: Traced, node: Node, layer: nn.Module) -> Found | str:
    """Return the units of a layer, or why it has none."""
    path = traced.path(node)
    if traced.calls[path] > 1:
        return "it is used more than once in a forward pass"
    if path in traced.read:
        return "its weight is used outside of it too"
    found = ways(traced, node)
    for problem in (_gives_twice(layer), *(way.problem for way in found)):
        if problem is not None:
            return problem
    if not found:
        return "nothing reads its outputs"
    readers = tuple(dict.fromkeys(way.reader for way in found))
    norms = tuple(dict.fromkeys(norm for way in found for norm in way.norms))
    for other in (*readers, *norms):
        if traced.calls[other] > 1 or other in traced.read:
            return f"{other}, which reads it, reads something else too"
    acts = {way.nonlinearity: f"{way.reader} after {way.nonlinearity or 'none'}" for way in found}
    if len(acts) > 1:
        return f"its readers differ in nonlinearity: {', '.join(acts.values())}"
    [act], first = acts, found[0]
    between = tuple(dict.fromkeys(name for way in found for name in way.between))
    point = ActivationPoint(first.anchor, (), between=between, norms=norms)
    spec = UnitSpec(path, readers, norms)
    if act is None:
        return Found(spec, point, "linear")
    place = traced.path(act) if traced.calls[traced.path(act)] == 1 else None
    point = replace(point, steps=tuple(first.steps), nonlinearity=place)
    return Found(spec, point, name_of(traced.called(act) or act.target))


def _tied(module: nn.Module) -> dict[str, str]:
    """Return the path of each layer that shares a tensor with another one → what is tied."""
    places: dict[int, list[tuple[str, str]]] = {}
    for path, part in module.named_modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                places.setdefault(id(tensor), []).append((path, _join(path, name)))
    return {
        path: f"{name} is tied to {', '.join(other for _, other in shared if other != name)}"
        for shared in places.values()
        for path, name in shared
        if len(shared) > 1
    }


def _gives_twice(layer: nn.Module) -> str | None:
    joined = getattr(layer, JOINED, None)
    return None if joined is None else f"{joined} gives its readers two entries per output"


def _of(by_path: Mapping[str, Sequence[Block]], paths: Iterable[str], *roles: str) -> list[Block]:
    """Return the Blocks of layers that have one of some roles."""
    return [b for path in paths for b in by_path.get(path, ()) if b.role in roles]


def _problem(
    module: nn.Module,
    spec: UnitSpec,
    by_path: Mapping[str, Sequence[Block]],
    tied: Mapping[str, str],
) -> str | None:
    """Say why a layer's outputs cannot be edited unit by unit; None if they can."""
    if (problem := _gives_twice(module.get_submodule(spec.layer))) is not None:
        return problem
    shared = [tied[path] for path in _paths(spec) if path in tied]
    if shared:
        return shared[0]
    rows = _of(by_path, (spec.layer, *spec.beside), "weight", "bias")
    if not any(b.role == "weight" for b in rows):
        return "it has no weight with a row per unit"
    size, members = spec.heads or rows[0].view.shape[0], {b.spec.member for b in rows}
    for other in spec.downstream:
        weights = _of(by_path, (other,), "weight")
        if not weights:
            return f"{other}, which reads it, has no weight with a column per unit"
        if weights[0].groups != 1:
            return f"{other}, which reads it, is a grouped conv"
        if len(members) > 1 and members != {b.spec.member for b in weights}:
            return f"{other}, which reads it, is shared by its members"
        columns = weights[0].view.shape[1]
        spatial = rows[0].kind == "conv" and weights[0].kind == "linear"
        if columns % size if spatial or spec.heads else columns != size:
            return (
                f"{other} has {columns} columns, which do not belong to its {size} outputs one by "
                "one"
            )
    for block in (b for norm in spec.norms for b in by_path.get(norm, ())):
        if block.view.ndim > 0 and not _per_unit(block, size):
            entries = f"{block.view.shape[0]} entries"
            return f"{block.name} has {entries}, which do not belong to its {size} outputs"
    return None


def _groups_of(
    module: nn.Module, found: Found, by_path: Mapping[str, Sequence[Block]]
) -> Iterator[UnitGroup]:
    """Yield the group of a layer, or one per member of a stacked layer."""
    spec, path, point = found.spec, found.spec.layer, found.point
    layer, nonlinearity, place = module.get_submodule(path), found.nonlinearity, point.nonlinearity
    if place == "":  # it is asked for, and a method may have put another one there
        place, replaced = _join(path, NONLINEARITY), getattr(layer, NONLINEARITY, None)
        if replaced is not None:
            step = alone(replaced) if isinstance(replaced, nn.Module) else replaced
            point, nonlinearity = replace(point, steps=(step,)), name_of(replaced)
    inner = [p for p in by_path if p.startswith(f"{path}.") and path]  # norms inside the layer
    norms = [b for p in inner for b in by_path[p] if b.kind == "norm"]
    norms += [b for n in spec.norms for b in by_path.get(n, ())]
    reading = _of(by_path, spec.downstream, "weight")
    for reader in spec.downstream:  # a reader says which frozen layers read what it reads
        beside = getattr(module.get_submodule(reader), "beside", ())
        reading += [b for p in beside for b in by_path[p] if b.spec.tensor == "weight"]
    slopes = [b for b in by_path.get(place or "", ()) if hasattr(b.module, PER_UNIT)]
    roles = ("weight", "bias")
    own = [b for role in roles for b in _of(by_path, (path, *spec.beside), role)]
    members = list(dict.fromkeys(b.spec.member for b in own))
    stacked = len(members) if hasattr(layer, "members") else 0
    size = spec.heads or own[0].view.shape[0]
    point = replace(point, units=size if own[0].kind == "conv" else 0, members=stacked)
    for member in members:
        name = path if member is None or not stacked else f"[{member}].{path}"

        def parts(blocks: Sequence[Block], dim: int, *known: int | None) -> tuple[Part, ...]:
            """Return the parts of Blocks of one member, or of all members alike."""
            chosen = [b for b in blocks if b.spec.member in known]
            return tuple(Part(b, dim, b.view.shape[dim] // size) for b in chosen)

        every = {b.spec.member for b in reading} if member is None else (member,)
        yield UnitGroup(
            name=name,
            size=size,
            incoming=parts(own, 0, member),
            norms=parts([b for b in norms if _per_unit(b, size)], 0, member, None),
            outgoing=parts(reading, 1, *every),
            activation=None if spec.heads else name,
            nonlinearity="heads" if spec.heads else nonlinearity,
            point=None if spec.heads else point,
            slopes=parts(slopes, 0, member),
        )


def _per_unit(block: Block, size: int) -> bool:
    return block.view.ndim > 0 and block.view.shape[0] % size == 0
