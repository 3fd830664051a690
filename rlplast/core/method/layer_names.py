"""Names and globs of layers: what the key ``layers`` of a hook, penalty or layer means."""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.network.blocks import Block

__all__ = ["check_layers", "in_layers", "stands_for"]

_MEMBER = re.compile(r"^\[(?=[^]]+\]\.)")


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


def check_layers(
    label: str, globs: Iterable[str], blocks: Mapping[str, Sequence[Block]], what: str
) -> None:
    """Refuse a name or glob that means no layer in any network; `what` ends the message."""
    every = [block for of_network in blocks.values() for block in of_network]
    for glob in globs:
        if any(in_layers(block, [glob]) for block in every):
            continue
        remedy = did_you_mean(glob, {name for block in every for name in _names(block) if name})
        for network in blocks:
            if glob.startswith((f"{network}.", f"{network}[")):
                remedy = f"leave {network!r} out of it, and give networks: [{network}]"
        raise ConfigError(f"{label}.layers: {glob!r} matches no layer {what}: {remedy}")
