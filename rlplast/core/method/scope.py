"""Scopes: which layers a firing works on; and what the key ``layers`` of a row means."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rlplast.core.errors import ConfigError, check_choice, did_you_mean
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.network.packing import QUERY_KEY, UNKNOWN

__all__ = ["SCOPES", "Scope", "in_layers", "narrowed", "scope", "stands_for"]

_MEMBER = re.compile(r"^\[(?=[^]]+\]\.)")


@dataclass(frozen=True)
class Scope:
    """Rules of the Blocks that a firing offers to the method, and of those that it sets to θ0.

    `layers` has names and globs of the layers to which it keeps; None for all.
    """

    edit: Callable[[Block], bool]
    restore: Callable[[Block], bool] = lambda block: False
    layers: tuple[str, ...] | None = None

    def edited(self, network: Network) -> tuple[Block, ...]:
        """Return the Blocks offered to the method: trainable ones and their layers' buffers."""
        return network.select(lambda b: self.edit(b) and self.reaches(b) and _is_live(network, b))

    def restored(self, network: Network) -> tuple[Block, ...]:
        """Return the Blocks set to θ0."""
        return network.select(
            lambda b: self.restore(b) and self.reaches(b) and _is_live(network, b)
        )

    def frozen(self, network: Network) -> tuple[Block, ...]:
        """Return the Blocks that would be edited or restored, if they were not frozen."""
        return network.select(lambda b: self.selects(b) and not _is_live(network, b))

    def selects(self, block: Block) -> bool:
        """Whether a Block would be edited or restored if it trained."""
        return (self.edit(block) or self.restore(block)) and self.reaches(block)

    def reaches(self, block: Block) -> bool:
        """Whether `layers` names a Block's layer, whatever the rules say of it."""
        return in_layers(block, self.layers)

    def left(self, network: Network) -> tuple[Block, ...]:
        """Return the Blocks that training moves and `layers` does not name."""
        return network.select(lambda b: _is_live(network, b) and not self.reaches(b))


def _is_live(network: Network, block: Block) -> bool:
    """Whether training moves a Block; buffers are frozen with their layer or the part around it."""
    if block.role != "buffer":
        return block.trainable
    path, parameters = block.path, list(block.module.parameters(recurse=False))
    while path and not parameters:
        path = path.rpartition(".")[0]
        parameters = list(network.module.get_submodule(path).parameters())
    return not parameters or any(p.requires_grad for p in parameters)


def _is_query_or_key(block: Block) -> bool:
    # A packed layer whose parts are not known is among them, so that methods refuse it.
    name = block.spec.part.partition(".")[0] or block.path.rpartition(".")[2]
    return block.kind in ("linear", "conv") and name in (*QUERY_KEY, UNKNOWN)


def _is_linear(block: Block) -> bool:
    # A linear tied to an embedding goes by the embedding's name; methods decide about ties.
    return block.kind == "linear" or (block.kind == "embedding" and bool(block.aliases))


SCOPES: dict[str, Scope] = {
    "all": Scope(lambda b: True),
    "dqn": Scope(lambda b: b.kind == "conv", restore=lambda b: b.kind == "linear"),
    "sac": Scope(lambda b: b.kind == "linear"),
    "resnet": Scope(lambda b: b.kind in ("conv", "linear")),
    "vgg": Scope(lambda b: b.kind in ("conv", "linear")),
    "vit": Scope(_is_query_or_key),
    "gpt": Scope(_is_linear),
}


def scope(name: str, key: str = "scope") -> Scope:
    """Return the scope called `name`; an unknown one is refused."""
    check_choice(key, name, SCOPES)
    return SCOPES[name]


def narrowed(
    whole: Scope,
    layers: tuple[str, ...] | None,
    networks: Mapping[str, Network],
    label: str,
) -> Scope:
    """Return a scope that keeps to `layers`; all of it for None. Each has to be in some network."""
    if layers is None:
        return whole
    able = [block for network in networks.values() for block in network.select(whole.selects)]
    for glob in layers:
        if any(in_layers(block, [glob]) for block in able):
            continue
        remedy = did_you_mean(glob, {name for block in able for name in _names(block) if name})
        for key in networks:
            if glob.startswith((f"{key}.", f"{key}[")):
                remedy = f"leave {key!r} out of it, and give networks: [{key}]"
        raise ConfigError(
            f"{label}.layers: {glob!r} matches no layer in the hook's scope: {remedy}"
        )
    return replace(whole, layers=layers)


def stands_for(glob: str, name: str) -> bool:
    """Whether a name or glob means `name`; upper and lower case differ.

    Examples:
        >>> stands_for("blocks.*.fc1", "blocks.0.fc1"), stands_for("[*].fc1", "[0].fc1")
        (True, True)
    """
    # In a glob the brackets of ``[0].fc1`` are a set of characters: it is read as a name too.
    as_member = _MEMBER.sub("[[]", glob)
    return glob == name or any(fnmatch.fnmatchcase(name, g) for g in (glob, as_member))


def _names(block: Block) -> set[str]:
    """Return a Block's layer with member and part, without, and by its aliases."""
    return {block.layer, block.path, *(alias.rpartition(".")[0] for alias in block.aliases)}


def in_layers(block: Block, globs: Iterable[str] | None) -> bool:
    """Whether one of `globs` means a Block's layer; None means all.

    A member of a stacked layer is ``[0].fc1``, and ``fc1`` is all of them. A part of a packed
    projection is ``attn.c_attn.q``, and ``attn.c_attn`` is all of it.
    """
    names = _names(block)
    return globs is None or any(stands_for(glob, name) for glob in globs for name in names)
