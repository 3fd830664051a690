"""Network: a module, and what hooks may read and edit of it."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as _AttentionOutput
from torch.optim.swa_utils import AveragedModel

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.blocks import VARIANCES, Block, blocks_of, unwrap
from rlplast.core.network.memory import check_memory, check_module
from rlplast.core.network.modes import BORROWED
from rlplast.core.network.renewal import Snapshot, view_anew
from rlplast.core.network.unit_search import find_units
from rlplast.core.network.units import UnitGroup, UnitMap, UnitSpec

__all__ = [
    "INSTALLED",
    "DefaultInit",
    "Init",
    "Network",
    "Place",
    "by_name",
    "part_of",
    "starts_of",
    "torch_default",
]

INSTALLED = "rlplast_installed"  # attribute of modules: the methods they come from

_SEED_FACTOR = 6364136223846793005  # Knuth's, for a generator modulo 2^64


def torch_default(block: Block, generator: torch.Generator) -> Tensor:
    """Draw a Block anew by torch's initializer for its layer, on the CPU in float32.

    Linear and conv: U(−1/√fan_in, 1/√fan_in); the packed attention projection: Xavier-uniform over
    the whole packed matrix, attention biases zero; norm layers 1 and 0 with running statistics at
    their start; embeddings N(0, 1).

    Raises:
        ConfigError: for a tensor whose initializer is not known.
    """
    shape = block.view.shape
    if block.role == "buffer":
        return torch.ones(shape) if block.spec.tensor in VARIANCES else torch.zeros(shape)
    if block.role in ("scale", "shift"):
        return torch.full(shape, block.spec.start if block.role == "scale" else 0.0)
    if block.role == "embedding" and _starts_as_its_class(block):
        value = torch.randn(shape, generator=generator)
        padding = getattr(block.module, "padding_idx", None)
        return value if padding is None else value.index_fill(0, torch.tensor(padding), 0)
    if not _starts_as_its_class(block):
        raise ConfigError(
            f"{block.name} does not begin as torch's layers do, and how is not known: take its "
            "initial weights (init='stored'), leave it out, or pass init= to its Network"
        )
    if isinstance(block.module, nn.MultiheadAttention) and block.spec.part:
        if block.role == "bias":
            return torch.zeros(shape)
        packed = block.module.in_proj_weight
        rows = block.spec.fan_out if packed is None else packed.shape[0]
        bound = math.sqrt(6 / (block.spec.fan_in + rows))
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    if isinstance(block.module, _AttentionOutput) and block.role == "bias":
        return torch.zeros(shape)
    if block.kind in ("linear", "conv"):
        bound = 1 / math.sqrt(block.spec.fan_in) if block.spec.fan_in else 0.0
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    raise ConfigError(
        f"{block.name}: no initializer is known for a {type(block.module).__name__}: take "
        "its initial weights (init='stored'), leave it out, or pass init= to its Network"
    )


def _starts_as_its_class(block: Block) -> bool:
    """Whether a layer draws by torch's initializer: neither its own nor that of a LoRA's B."""
    reset: Any = getattr(block.module, "reset_parameters", None)
    known = isinstance(block.module, nn.Linear | _ConvNd | nn.Embedding)
    return (not known or reset.__module__.startswith("torch.")) and "lora_B" not in block.path


def part_of(tensors: Mapping[str, Tensor], block: Block) -> Tensor | None:
    """Return a Block's part of its tensor in a state dict; None if there is none that fits."""
    whole = tensors.get(".".join(p for p in (block.path, block.spec.tensor) if p))
    return None if whole is None or whole.shape != block.param.shape else block.like(whole)


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def _frozen_in(group: UnitGroup) -> list[str]:
    blocks = [part.block for part in group.parts]
    return [b.name for b in blocks if b.role != "buffer" and not b.trainable]


def starts_of(block: Block) -> Mapping[str, float]:
    """Return what a module says of where its own tensors begin."""
    starts = getattr(block.module, "starts", None)
    return starts if isinstance(starts, Mapping) else {}


Init = Callable[[Block, torch.Generator], Tensor]


@dataclass(frozen=True)
class DefaultInit:
    """An initializer that a trainer's models begin with, where the user gave none."""

    draw: Init

    def __call__(self, block: Block, generator: torch.Generator) -> Tensor:
        """Return a new value for a Block."""
        return self.draw(block, generator)


class Place:
    """Where a trainer has a module: returns the one that is there now. A copy has no place."""

    def __init__(self, find: Callable[[], nn.Module]) -> None:
        self.find = find

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None."""


class Network:
    """A module, and what hooks need to know about it.

    Args:
        name: name of the network in configs and receipts.
        module: the raw module, or one wrapped in DDP or torch.compile.
        optimizer: the optimizer (or several) that trains it; None for inspection only.
        followers: target networks and averages that follow this network, such as ``{"target":
            module}``. A bare module gets the name ``target``.
        init: initializer, which draws a new value for a Block. Default: the module's own
            ``init_block``, else `torch_default`.
        initial: θ0, the weights before training, by Block name or as a state dict. Default: a copy
            of the current weights.
        order: names of the layers in forward order, for methods that need it. Default: the module's
            own ``forward_order()``, else it is traced.
        units: `UnitSpec`s of its layers. Default: the modules' own ``unit_specs()``, else traced.

    Raises:
        ConfigError: if a trainable parameter is in no optimizer or in two, if two share memory, if
            a follower is built differently, or if `initial` lacks a tensor.
        BadWeights: if a tensor is on the ``meta`` device.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        followers: Mapping[str, nn.Module] | nn.Module | None = None,
        *,
        init: Init | None = None,
        initial: Mapping[str, Tensor] | None = None,
        order: Sequence[str] | None = None,
        units: Sequence[UnitSpec] | None = None,
    ) -> None:
        self.name = name
        self.module = unwrap(module) if isinstance(module, nn.Module) else module
        given: Any = () if optimizer is None else optimizer
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            tuple(given) if isinstance(given, Iterable) else (given,)
        )
        check_module(name, self.module, self.optimizers)
        self.compiled = any(map(_is_compiled, module.modules()))
        self.blocks = blocks_of(self.module)
        check_memory(name, self.module, self.blocks)
        self.version = 0  # grows whenever `refresh` finds that parameters or layers have changed
        self._seen = Snapshot(self.module)
        self.init: Init = init or getattr(self.module, "init_block", None) or torch_default
        self.order, self._given_units = order, units
        self.cache: dict[Any, Any] = {}  # what methods found out of this `version`, as an order
        self.ticks: Any = None  # what `rlplast.tick` does
        self.place: Place | None = None
        self._follows = False
        self.initial = self._initial(initial)
        if isinstance(followers, nn.Module):
            followers = {"target": followers}
        for key, follower in (followers or {}).items():
            if isinstance(follower, AveragedModel):
                raise ConfigError(
                    f"follower {key!r} of {name!r} is an AveragedModel, which counts its averages "
                    "beside the weights: pass the module in it, its .module"
                )
        self.followers = {
            key: Network(
                f"{name}.{key}",
                follower,
                init=self.init,
                initial=self.initial,
                order=order,
                units=units,
            )
            for key, follower in (followers or {}).items()
        }
        self.check_optimizers()
        for key, follower in self.followers.items():
            follower.initial, follower._follows = self.initial, True  # one θ0 for all
            if [b.name for b in follower.blocks] != [b.name for b in self.blocks]:
                raise ConfigError(
                    f"follower {key!r} of {name!r} has other layers than {name!r} (swap layers "
                    "into both: replace_layers on both with the same seed, or deepcopy after it)"
                )
            for layer in follower.module.modules():
                if hasattr(layer, "follows"):
                    vars(layer)["follows"] = True

    def load_initial(self, saved: Mapping[str, Tensor]) -> None:
        """Copy a θ0 that was saved into this one.

        Raises:
            ConfigError: if it lacks a tensor, or one has another shape.
        """
        for name, value in self._initial(saved).items():
            self.initial[name].copy_(value)

    def _initial(self, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        if given is None:
            return {b.name: b.view.clone() for b in self.blocks}
        # A wrapped module's state dict has the wrappers' names in front.
        bare = {re.sub(r"^((module|_orig_mod)\.)+", "", name): t for name, t in given.items()}
        given, initial = bare | dict(given), {}
        for block in self.blocks:
            names = [name for name in (block.name, *block.aliases) if name in given]
            value = given[names[0]] if names else part_of(given, block)
            if value is None and block.kind == "lifecycle":  # θ0 of before the layer was swapped
                value = block.view
            if value is None or value.shape != block.view.shape:
                state = "absent" if value is None else f"of shape {tuple(value.shape)}"
                raise ConfigError(
                    f"initial value of {self.name}.{block.name} is {state}: "
                    f"needed is shape {tuple(block.view.shape)}"
                )
            initial[block.name] = value.detach().clone()  # a state dict moves with its module
        return initial

    def check_optimizers(self) -> None:
        """Refuse a trainable parameter that is not in exactly one optimizer, if there is any."""
        if not self.optimizers:
            return
        groups = [g for o in self.optimizers for g in o.param_groups]
        held = Counter(id(p) for g in groups for p in g["params"])
        for block in self.blocks:
            times = held[id(block.param)]
            if block.trainable and times != 1:
                where = "no optimizer" if times == 0 else f"{times} optimizers"
                raise ConfigError(
                    f"{self.name}.{block.name} is trainable and in {where}: every trainable "
                    "parameter belongs to exactly one (pass all of them, or freeze it)"
                )

    def refresh(self) -> None:
        """View the module's tensors where they are now: after ``.to()``, ``.data =`` and the like.

        Blocks stay the same objects. θ0 goes along, to the device and at least the precision of the
        weights. Our own trainers need none of this.

        Raises:
            ConfigError: if layers came or went, or a parameter trains that no optimizer holds.
            BadWeights: if a tensor is on the ``meta`` device.
        """
        if any(BORROWED in vars(part) for part in self.module.modules()):  # it is being read
            return
        for follower in self.followers.values():
            follower.refresh()
        if self.place is not None and unwrap(self.place.find()) is not self.module:
            raise ConfigError(
                f"network {self.name!r} is another module now than when training began: let the "
                "trainer begin anew, with new hooks"
            )
        now = Snapshot(self.module)
        layers = now.same_layers(self._seen)
        if layers and now.same_buffers(self._seen):
            return
        groups = [g for o in self.optimizers for g in o.param_groups]
        trained = [p for g in groups for p in g["params"]] if self.optimizers else None
        view_anew(self.name, self.module, self.blocks, trained)
        self._seen = now
        if not layers:
            self.version += 1
            self.cache.clear()
        for block in () if self._follows else self.blocks:  # followers have the network's θ0
            value = self.initial[block.name]
            wide = torch.promote_types(value.dtype, block.view.dtype)
            self.initial[block.name] = value.to(block.view.device, wide)

    def qualified(self, block: Block) -> str:
        """Return a Block's name with the network's, such as ``critic[0].fc1.weight``."""
        dot = "" if block.name.startswith("[") else "."
        return f"{self.name}{dot}{block.name}"

    def select(self, rule: Callable[[Block], bool]) -> tuple[Block, ...]:
        """Return the Blocks for which `rule` holds, in registration order."""
        return tuple(b for b in self.blocks if rule(b))

    def trainable(self) -> tuple[Block, ...]:
        """Return the Blocks of parameters that require a gradient."""
        return self.select(lambda b: b.trainable)

    def units(self) -> UnitMap:
        """Return which entries belong to which hidden unit; found once."""
        if "units" not in self.cache:
            self.cache["units"] = find_units(self.module, self.blocks, self._given_units)
        return self.cache["units"]

    def units_of(self, blocks: Sequence[Block]) -> tuple[UnitGroup, ...]:
        """Return the groups with activations, none frozen, whose incoming weight is in `blocks`."""
        key = ("units", *map(id, blocks))
        if key not in self.cache:
            whole = self._with_activations(blocks)
            self.cache[key] = tuple(g for g in whole if not _frozen_in(g))
        return self.cache[key]

    def units_in(self, blocks: Sequence[Block]) -> tuple[UnitGroup, ...]:
        """Return what `units_of` returns, for a method that needs units.

        Raises:
            NothingToEdit: if there are none, with what is known of why.
        """
        groups = self.units_of(blocks)
        if not groups:
            frozen = [name for g in self._with_activations(blocks) for name in _frozen_in(g)]
            reasons = [f"{name or 'it'}: {why}" for name, why in self.units().refused.items()]
            reasons += [f"{name} is frozen" for name in dict.fromkeys(frozen)]
            raise NothingToEdit(
                f"network {self.name!r} has no hidden units in scope"
                + (f" ({'; '.join(reasons)})" if reasons else "")
            )
        return groups

    def _with_activations(self, blocks: Sequence[Block]) -> list[UnitGroup]:
        chosen = {id(b) for b in blocks}
        groups = self.units().groups
        return [g for g in groups if g.point is not None and id(g.weight.block) in chosen]

    @property
    def installed(self) -> tuple[Any, ...]:
        """The methods whose modules are in the module, whole or part of what they were put into."""
        methods: list[Any] = []
        for each in (m for part in self.module.modules() for m in vars(part).get(INSTALLED, ())):
            if each not in methods:
                methods.append(each)
        return tuple(methods)

    def fresh(self, block: Block, generator: torch.Generator) -> Tensor:
        """Return a new draw of a Block by this network's initializer, not yet rounded.

        A module may say in ``starts`` where a tensor of its own begins. Without an initializer of
        the network's own, what is zero everywhere in θ0, such as a LoRA's B, begins at zero again.
        Buffers return to θ0, but for running statistics, and for the seed of a layer's draws, which
        moves on.
        """
        parameter = block.role != "buffer" and block.spec.tensor not in starts_of(block)
        default = self.init is torch_default or isinstance(self.init, DefaultInit)
        if parameter and default and not self.initial[block.name].any():
            return torch.zeros_like(block.view)
        return self.drawn(block, generator)

    def drawn(self, block: Block, generator: torch.Generator) -> Tensor:
        """Return what `fresh` does, whatever θ0 is: for units that have to come alive."""
        if block.spec.tensor in starts_of(block):
            return block.view.new_tensor(starts_of(block)[block.spec.tensor]).expand_as(block.view)
        if block.kind == "lifecycle" and block.spec.tensor == "seed":
            return block.view * _SEED_FACTOR + 1
        if block.role == "buffer" and block.kind != "norm":
            return self.initial[block.name].clone()
        return self.init(block, generator).to(block.view.device)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw every Block anew and take the result as θ0; followers become copies."""
        with torch.no_grad():
            for block in self.blocks:
                block.view.copy_(self.drawn(block, generator))
                self.initial[block.name].copy_(block.view)
            for mine, theirs in self.followed():
                theirs.view.copy_(mine.view)

    def followed(self) -> Iterator[tuple[Block, Block]]:
        """Yield each Block with its follower's, for every follower.

        A follower has no lifecycle of its own: of its buffers only ``followed_buffers`` are among
        them, such as a mask that it shares.
        """
        for follower in self.followers.values():
            for mine, theirs in zip(self.blocks, follower.blocks, strict=True):
                shared = getattr(mine.module, "followed_buffers", ())
                if mine.kind != "lifecycle" or mine.spec.tensor in shared:
                    yield mine, theirs


def by_name(networks: Any) -> dict[str, Network]:
    """Return one `Network`, or a mapping of them, by their own names.

    Anything else is refused, and so are two that share a parameter which trains.
    """
    given = networks
    if not isinstance(networks, Mapping):
        given = {getattr(networks, "name", "net"): networks}
    for key, network in given.items():
        if not isinstance(network, Network) or network.name != key:
            what = getattr(network, "name", type(network).__name__)
            raise ConfigError(
                f"networks[{key!r}] is {what!r}: allowed is a Network of that name, made by "
                f"rlplast.Network({key!r}, …)"
            )
    owners: dict[int, tuple[str, str]] = {}
    for key, network in given.items():
        for block in network.trainable():
            owner, name = owners.setdefault(id(block.param), (key, network.qualified(block)))
            if owner != key:
                raise ConfigError(
                    f"networks {owner!r} and {key!r} share {name}: hooks would edit it once for "
                    "each; make one Network of a module that holds both"
                )
    return dict(given)
