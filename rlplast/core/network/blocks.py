"""Blocks: the views of a module's tensors that methods may read and edit.

A stacked parameter gives one Block per member, a packed q/k/v projection one per part, a tied
tensor only one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from rlplast.core.errors import BadWeights
from rlplast.core.network.packing import UNKNOWN, packed_rows

__all__ = ["NORMS", "VARIANCES", "Block", "BlockSpec", "blocks_of", "unwrap"]

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)
VARIANCES = ("running_var", "ra_var")  # buffers of norm layers that begin with 1
_WRAPPERS = ("module", "_orig_mod")


@dataclass(frozen=True)
class BlockSpec:
    """What a module says about one view of one of its tensors.

    Modules with a layout of their own (stacked, packed) return these from a method
    ``block_specs()``; see `rlplast.core.network.stacked.StackedLinear`.

    Attributes:
        tensor: attribute name of the parameter or buffer in the module.
        role: weight, bias, scale, shift (of a norm layer), embedding, buffer or other.
        kind: linear, conv, norm, embedding or other: what the layer is; ``lifecycle`` for the
            buffers of a layer whose units sleep.
        part: name of the view inside a packed tensor, such as ``q``, or ``q.0`` of the first head;
            empty if none; ``packed`` for a whole one whose parts are not known.
        member: index of the member of a stacked (ensemble) parameter; None if not stacked.
        index: what selects the view from the tensor.
        fan_in: inputs feeding one output unit of the layer.
        fan_out: outputs fed by one input unit of the layer.
        transposed: whether a weight is stored (d_in, d_out).
        memory: attribute name of the buffer that remembers the rows of sleeping units.
        head: whether the layer's outputs are the network's, as its ``is_head = True`` says too.
        start: what the scale of a norm layer begins with.
    """

    tensor: str
    role: str
    kind: str
    part: str = ""
    member: int | None = None
    index: tuple[Any, ...] = ()
    fan_in: int = 0
    fan_out: int = 0
    transposed: bool = False
    memory: str = ""
    head: bool = False
    start: float = 1.0


@dataclass(eq=False)
class Block:
    """One editable view; compares by identity.

    Only `Network.refresh` changes one: it stays the same Block when the module's memory moves.

    Attributes:
        name: unique in its network, such as ``fc1.weight`` or ``[0].fc1.weight``; of a weight
            stored (d_in, d_out) ``c_fc.weight_T``.
        layer: name without its last part; weight and bias of one layer share it.
        path: path of the module in the network, without member and part.
        spec: what the module declared.
        param: the tensor that the module and the optimizer hold.
        view: `param` at `spec.index`, detached; in torch's (d_out, d_in, ...) layout.
        module: the module the tensor belongs to.
        aliases: other names of the same tensor (tied weights).
        memory: the buffer that remembers the rows of sleeping units, laid out as `view`; edits of
            `view` are written there too.
    """

    name: str
    layer: str
    path: str
    spec: BlockSpec
    param: Tensor
    view: Tensor
    module: nn.Module
    aliases: tuple[str, ...] = ()
    memory: Tensor | None = None

    @property
    def role(self) -> str:
        """Role of the tensor in its layer."""
        return self.spec.role

    @property
    def kind(self) -> str:
        """Kind of the layer."""
        return self.spec.kind

    @property
    def groups(self) -> int:
        """Groups of a conv layer, which divide its output channels; 1 of other layers."""
        return int(getattr(self.module, "groups", 1)) if self.kind == "conv" else 1

    @property
    def trainable(self) -> bool:
        """Whether this is a parameter that training moves (a buffer or a frozen one is not)."""
        return self.spec.role != "buffer" and self.param.requires_grad

    def like(self, tensor: Tensor) -> Tensor:
        """Return the view of `tensor`, laid out as `param` is, that belongs to this Block."""
        return _part(tensor.detach(), self.spec)

    def take(self, other: "Block") -> None:
        """View what another Block of the same name does."""
        self.param, self.view, self.module = other.param, other.view, other.module
        self.aliases, self.memory = other.aliases, other.memory

    def live(self) -> Tensor:
        """Return `view` with its gradient: a loss computed from it trains `param`."""
        return _part(self.param, self.spec)


def _part(tensor: Tensor, spec: BlockSpec) -> Tensor:
    part = tensor[spec.index] if spec.index else tensor
    return part.mT if spec.transposed else part


def unwrap(module: nn.Module) -> nn.Module:
    """Return the raw module below DistributedDataParallel and torch.compile wrappers."""
    while True:
        inner = [module._modules[w] for w in _WRAPPERS if w in module._modules]
        wrapped = type(module).__name__ in ("DistributedDataParallel", "OptimizedModule")
        if not wrapped or not inner or inner[0] is None:
            return module
        module = inner[0]


def _layer_specs(
    kind: str, fan_in: int, fan_out: int, parts: Mapping[str, slice], transposed: bool = False
) -> list[BlockSpec]:
    """Return weight and bias of a layer, or of each of its parts."""
    specs = []
    fan_out //= len({part.partition(".")[0] for part in parts}) or 1
    for part, rows in (parts or {"": None}).items():
        bias = () if rows is None else (rows,)
        weight = (slice(None), *bias) if transposed and bias else bias
        specs += [
            BlockSpec("weight", "weight", kind, part, None, weight, fan_in, fan_out, transposed),
            BlockSpec("bias", "bias", kind, part, None, bias, fan_in, fan_out),
        ]
    return specs


def _attention_specs(module: nn.MultiheadAttention) -> list[BlockSpec]:
    d = module.embed_dim
    sizes = {"q": d, "k": module.kdim, "v": module.vdim}
    apart = [
        BlockSpec(f"{part}_proj_weight", "weight", "linear", part, None, (), size, d)
        for part, size in sizes.items()
    ]
    packed = [
        replace(spec, tensor=f"in_proj_{spec.tensor}")
        for spec in _layer_specs("linear", d, 3 * d, packed_rows("qkv", 3 * d, d))
    ]
    return [*packed, *apart]  # of which absent ones are dropped


def _specs(module: nn.Module, path: str, around: nn.Module | None) -> list[BlockSpec]:
    """Return what is known of a module's own tensors; absent ones are dropped later."""
    name = path.rpartition(".")[2]
    declared = getattr(module, "block_specs", None)
    if declared is not None:
        return list(declared())
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        # Transformers' x·W + b with W (d_in, d_out), as in its GPT-2.
        d_in, d_out = module.get_parameter("weight").shape
        parts = packed_rows(name, d_out, d_in, around)
        return _layer_specs("linear", d_in, d_out, parts, transposed=True)
    if isinstance(module, nn.Linear):
        d_in, d_out = module.in_features, module.out_features
        return _layer_specs("linear", d_in, d_out, packed_rows(name, d_out, d_in, around))
    if isinstance(module, _ConvNd) and not isinstance(module, _ConvTransposeNd):
        d_in, d_out = (c // module.groups for c in (module.in_channels, module.out_channels))
        area, parts = math.prod(module.kernel_size), packed_rows(name, d_out, d_in, around)
        return _layer_specs("conv", d_in * area, d_out * area, parts if module.groups == 1 else {})
    if isinstance(module, NORMS):
        return [
            BlockSpec("weight", "scale", "norm"),
            BlockSpec("bias", "shift", "norm"),
            *_buffer_specs(module, "norm"),
        ]
    if hasattr(module, "ra_mean") and hasattr(module, "ra_var"):  # sb3-contrib's BatchRenorm
        roles = {"scale": "scale", "bias": "shift", "ra_mean": "buffer", "ra_var": "buffer"}
        return [BlockSpec(tensor, role, "norm") for tensor, role in roles.items()]
    if isinstance(module, nn.Embedding):
        return [BlockSpec("weight", "embedding", "embedding")]
    if isinstance(module, nn.MultiheadAttention):
        return _attention_specs(module)
    return []


def _all_specs(module: nn.Module, path: str, around: nn.Module | None) -> list[BlockSpec]:
    """Return `_specs` and, as ``other``, every tensor they say nothing about."""
    memories: Mapping[str, str] = getattr(module, "memories", {})
    specs = [replace(s, memory=memories.get(s.tensor, "")) for s in _specs(module, path, around)]
    # A weight kept as a buffer (a frozen copy) is a buffer, whatever layer holds it.
    specs = [
        replace(s, role="buffer", kind="other")
        if s.role != "buffer" and s.tensor in module._buffers
        else s
        for s in specs
    ]
    known = {spec.tensor for spec in specs}
    parameters = [BlockSpec(name, "other", "other") for name in module._parameters]
    rest = parameters + _buffer_specs(module, "lifecycle" if memories else "other")
    return specs + [spec for spec in rest if spec.tensor not in known]


def _buffer_specs(module: nn.Module, kind: str) -> list[BlockSpec]:
    transient = module._non_persistent_buffers_set
    return [BlockSpec(name, "buffer", kind) for name in module._buffers if name not in transient]


def _name(path: str, spec: BlockSpec) -> str:
    part = "" if spec.part == UNKNOWN else spec.part
    parts = [f"[{spec.member}]" if spec.member is not None else "", path, part]
    # A name of a state dict stands for the tensor as it is stored.
    suffix = spec.role if part else spec.tensor + "_T" * spec.transposed
    return ".".join([p for p in parts if p] + [suffix])


def blocks_of(module: nn.Module) -> tuple[Block, ...]:
    """Return a module's Blocks, in registration order, each tensor's view once.

    A tensor without entries has none. Wrappers are taken off.

    Raises:
        BadWeights: if a tensor is on the ``meta`` device.
    """
    blocks: dict[tuple[int, str], Block] = {}
    aliases: dict[tuple[int, str], list[str]] = {}
    modules = dict(unwrap(module).named_modules())
    for path, layer in modules.items():
        around = modules.get(path.rpartition(".")[0]) if path else None
        for spec in _all_specs(layer, path, around):
            tensor = layer._parameters.get(spec.tensor)
            if tensor is None:
                tensor = layer._buffers.get(spec.tensor)
            if tensor is None or not tensor.numel():
                continue
            name = _name(path, spec)
            if tensor.is_meta:
                raise BadWeights(f"{name} is on the meta device: load or initialise it first")
            key = (id(tensor), repr(spec.index))
            if key in blocks:
                aliases.setdefault(key, []).append(name)
                continue
            remembered = layer._buffers.get(spec.memory)
            blocks[key] = Block(
                name=name,
                layer=name.rpartition(".")[0],
                path=path,
                spec=spec,
                param=tensor,
                view=_part(tensor.detach(), spec),
                module=layer,
                memory=None if remembered is None else _part(remembered.detach(), spec),
            )
    return tuple(replace(b, aliases=tuple(aliases.get(key, ()))) for key, b in blocks.items())
