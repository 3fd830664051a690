"""A `Network` made of a saved state dict: what names and shapes tell, without the modules.

- `select`, `weights_of`: the tensors a command works on.
- `StateNetwork`: the state dict as a `Network` that methods can edit.

A tensor of two dimensions counts as the weight of a linear layer, embeddings included,
since they look the same; one of three or more as a conv kernel, of one group. A packed
query/key/value projection (``c_attn``, ``qkv``, ``in_proj_weight``) is split as in a module whose
parts follow one another.
Layers of rank-1 weights are norm layers. Layers follow each other in file order, which in
a ``.safetensors`` written by its library is alphabetical for each dtype.
"""

import fnmatch
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rlplast.core.errors import BadWeights, ConfigError, did_you_mean
from rlplast.core.network.blocks import Block, BlockSpec
from rlplast.core.network.network import Network, torch_default
from rlplast.core.network.packing import packed_rows

__all__ = ["StateNetwork", "select", "weights_of"]

RUNNING = ("running_mean", "running_var")


def select(
    tensors: Mapping[str, Tensor], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[str]:
    """Return the names of the tensors to work on, in file order.

    Args:
        tensors: a state dict.
        include: globs; floating tensors of any shape that match one. None: floating tensors
            with two or more dimensions, of a checkpoint of a run the weights among them.
        exclude: globs; what matches one is taken out again.

    Raises:
        ConfigError: for a glob that matches nothing, or if nothing is left.
    """

    def matches(name: str, globs: Iterable[str]) -> bool:
        return any(name == glob or fnmatch.fnmatchcase(name, glob) for glob in globs)

    for option, globs in (("--include", include), ("--exclude", exclude)):
        for glob in globs:
            if not any(matches(name, [glob]) for name in tensors):
                raise ConfigError(
                    f"{option} {glob!r} matches no tensor: {did_you_mean(glob, tensors)}"
                )
    weights = weights_of(tensors)
    chosen = [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
        and tensor.numel() > 0
        and (matches(name, include) if include else tensor.ndim >= 2 and name in weights)
        and not matches(name, exclude)
    ]
    if not chosen:
        raise ConfigError(
            "no tensor is selected: allowed are floating tensors, by default those with two or "
            f"more dimensions; the file has {', '.join(tensors)}"
        )
    return chosen


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights in a checkpoint's tensors; all tensors of any other file.

    A checkpoint of a run also holds what optimizers remember (``…:exp_avg``), memories of
    sleeping units, and states of streams, environments and counters (``state/…``).
    """
    if not any(name.startswith("state/") for name in tensors):
        return dict(tensors)
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith("state/")
        and ":" not in name
        and not name.rpartition(".")[2].startswith("memory_")
    }


class _StateLayer(nn.Module):
    """The tensors of one layer, as `BlockSpec`s say."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], specs: list[BlockSpec]) -> None:
        super().__init__()
        # Names come from a file: they need not be fit for attributes.
        self._parameters.update(parameters)
        self._specs = specs

    def block_specs(self) -> list[BlockSpec]:
        return self._specs


class _StateNorm(nn.LayerNorm):
    """A norm layer's scale, shift and running statistics; which norm it is does not matter."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor]):
        super().__init__(1, elementwise_affine=False)
        self._parameters.update(parameters)
        self._buffers.update(buffers)


class _StateModel(nn.Module):
    """All layers of a file, by path."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._modules.update(layers)  # dotted paths, and an empty one for a bare layer
        self._order = list(layers)

    def forward_order(self) -> list[str]:
        return self._order


def _places(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, str]]:
    """Return ``{name: (path of its layer, name inside it)}``; a layer has one weight.

    Where names have no layers (``fc1``, ``fc2``) or a layer has several weights (an LSTM),
    each weight is a layer of its own, together with its bias.
    """
    weights = {name for name, tensor in tensors.items() if tensor.ndim >= 2}
    count = Counter(name.rpartition(".")[0] for name in weights)
    places = {}
    for name in tensors:
        path, dot, attribute = name.rpartition(".")
        own = f"{path}{dot}{attribute.replace('bias', 'weight')}"
        places[name] = (own if count[path] > 1 and own in weights else path, attribute)
    return places


def _specs(path: str, tensors: Mapping[str, Tensor]) -> list[BlockSpec]:
    """Return what the names and shapes of one layer's tensors tell."""
    weight = next((t for t in tensors.values() if t.ndim >= 2), None)
    specs = []
    for name, tensor in tensors.items():
        if weight is None or (tensor.ndim < 2 and "bias" not in name):
            specs.append(BlockSpec(name, "other", "other"))
            continue
        role = "weight" if tensor.ndim >= 2 else "bias"
        d_out, d_in, *kernel = weight.shape
        area = math.prod(kernel)
        kind, fans = "conv" if kernel else "linear", (d_in * area, d_out * area)
        # Torch's own attention has one tensor of that name, whose parts follow one another.
        own = "qkv" if name.startswith("in_proj_") else path.rpartition(".")[2]
        parts = packed_rows(own, d_out, d_in)
        specs += [
            BlockSpec(name, role, kind, part, None, (rows,), fans[0], fans[1] // len(parts))
            for part, rows in parts.items()
        ] or [BlockSpec(name, role, kind, fan_in=fans[0], fan_out=fans[1])]
    return specs


def _is_norm(tensors: Mapping[str, Tensor]) -> bool:
    known = all(name in ("weight", "bias", *RUNNING) for name in tensors)
    centred = "weight" in tensors or "running_mean" in tensors
    return known and centred and all(t.ndim == 1 for t in tensors.values())


def _layer(path: str, own: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> nn.Module:
    parameters = {n: t for n, t in own.items() if isinstance(t, nn.Parameter)}
    if not _is_norm(stored):
        return _StateLayer(parameters, _specs(path, stored))
    return _StateNorm(parameters, {n: t for n, t in own.items() if n not in parameters})


def _fresh(block: Block, generator: torch.Generator) -> Tensor:
    if block.kind == "other":
        raise ConfigError(
            f"{block.name}: its name and shape tell no initialisation law: leave it out with "
            "--exclude, or take initial weights from --init FILE"
        )
    return torch_default(block, generator)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Return the same key for names of one tensor (tied weights), and for no others."""
    return (_memory(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


class StateNetwork:
    """A state dict as a `Network`; edits stay in a copy until `store`.

    Half precision is worked on in float32, so that a result is rounded once, by `store`.

    Args:
        tensors: the state dict, in file order; not changed before `store`.
        selected: names of the tensors that may be edited.
        initial: θ0 by name, with at least the selected tensors; None for the weights as
            they are.

    Attributes:
        network: the Network; tensors that are not selected are frozen in it.

    Raises:
        ConfigError: if θ0 lacks a selected tensor or has it in another shape.
    """

    network: Network

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        selected: Sequence[str],
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._stored = {name: tensors[name] for name in selected}
        memory = {_memory(tensor) for tensor in self._stored.values()}
        self._beside = {
            name: (tensor, tensor.clone())
            for name, tensor in tensors.items()
            if name not in self._stored and _memory(tensor) in memory
        }
        self._work: dict[tuple[object, ...], Tensor] = {}
        layers: dict[str, dict[str, Tensor]] = {}
        stored: dict[str, dict[str, Tensor]] = {}
        places = _places(tensors)
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or tensor.numel() == 0:
                continue
            path, attribute = places[name]
            buffer = attribute in RUNNING
            if buffer and name not in self._stored:
                continue  # buffers cannot be frozen
            stored.setdefault(path, {})[attribute] = tensor
            work = self._working_copy(tensor, name in self._stored, buffer)
            layers.setdefault(path, {})[attribute] = work
        modules = {path: _layer(path, own, stored[path]) for path, own in layers.items()}
        self._fill(self._stored if initial is None else _matching(initial, self._stored))
        self.network = Network("model", _StateModel(modules), init=_fresh)  # keeps these as θ0
        self._fill(self._stored)

    def _working_copy(self, tensor: Tensor, selected: bool, buffer: bool) -> Tensor:
        key = _identity(tensor)
        if key not in self._work:
            value = tensor
            if selected:
                double = tensor.dtype == torch.float64
                value = tensor.to(torch.float64 if double else torch.float32, copy=True)
            self._work[key] = value if buffer else nn.Parameter(value, requires_grad=selected)
        return self._work[key]

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in self._stored.items():
            self._work[_identity(tensor)].copy_(values[name])

    @torch.no_grad()
    def store(self) -> None:
        """Write the edited values back into the state dict's own tensors, in their dtype.

        Raises:
            BadWeights: if a value is too large for the dtype the tensor is stored in.
            ConfigError: if a tensor shares memory with another one that is not edited alike.
        """
        edited = {n: self._work[_identity(t)].detach() for n, t in self._stored.items()}
        for name, tensor in self._stored.items():
            tensor.copy_(edited[name])
            if edited[name].isfinite().all() and not tensor.isfinite().all():
                raise BadWeights(f"{name} does not fit {tensor.dtype} any more; nothing is written")
        wanted = {n: (t, edited[n].to(t.dtype)) for n, t in self._stored.items()}
        for name, (tensor, value) in (wanted | self._beside).items():
            if not tensor.allclose(value, rtol=0, atol=0, equal_nan=True):
                raise ConfigError(
                    f"{name} shares memory with another tensor, which is not edited alike: "
                    "include or exclude both, or save copies of them (clone)"
                )


def _matching(initial: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    for name, tensor in stored.items():
        value = initial.get(name)
        if value is None or value.shape != tensor.shape:
            found = "lacks it" if value is None else f"has it with shape {list(value.shape)}"
            raise ConfigError(
                f"{name} has shape {list(tensor.shape)}, the --init file {found}: give the same "
                "network's initial weights"
            )
    return initial
