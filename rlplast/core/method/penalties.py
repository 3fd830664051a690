"""Penalties: the terms of a run that are added to losses.

- `Penalties`: all of a run; adds those of a network to its loss.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, NothingToEdit, did_you_mean
from rlplast.core.method.context import Context
from rlplast.core.method.listing import parse_row
from rlplast.core.method.method import Method, State, has_face
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.registry import check_range

__all__ = ["Penalties", "Term"]


@dataclass(frozen=True)
class Term:
    """A method's term in one network.

    Attributes:
        key: its place in the config's list, and the name of its network.
        method: the method.
        network: the network whose loss it is added to.
        blocks: the trainable Blocks that it reads.
        state: the method's own tensors; its plan, if it has one, changes them.
    """

    key: str
    method: Method
    network: Network
    blocks: tuple[Block, ...]
    state: State


class Penalties:
    """All penalties of a run.

    Attributes:
        terms: every term, in the config's order.
        sum: total of the terms since the last call of `metrics`, float64 on the networks'
            device; None without penalties.

    Args:
        configs: the config's list of penalties.
        networks: the run's networks by name.

    Raises:
        ConfigError: for unknown keys, methods, networks, layers or parameters, for a config
            that finds nothing to penalise in a network it names, or in any, and for weights
            kept in low precision beside fp32 masters: the loss has no gradient in a master.
    """

    def __init__(
        self, configs: Iterable[Mapping[str, Any]], networks: Mapping[str, Network]
    ) -> None:
        self.terms = [term for network in networks.values() for term in _installed(network)]
        for i, config in enumerate(configs):
            self.terms += _parse(f"penalties[{i}]", config, networks)
        used = [term.blocks[0].view.device for term in self.terms]
        self.sum = torch.zeros((), dtype=torch.float64, device=used[0]) if used else None

    def of(self, name: str) -> Tensor | None:
        """Return the sum of a network's terms, 0-d and differentiable; None if it has none."""
        terms = [
            t.method.term(Context(t.network, t.blocks, reads=t.method.reads), t.state)
            for t in self.terms
            if t.key.endswith(f"/{name}")
        ]
        return torch.stack(terms).sum() if terms else None

    def add(self, name: str, loss: Tensor) -> Tensor:
        """Return a network's loss plus its terms, which count in `metrics`.

        Call it outside autocast, which would compute the terms in low precision.
        """
        term = self.of(name)
        if term is None or self.sum is None:
            return loss
        self.sum += term.detach()
        return loss + term

    def metrics(self, updates: int) -> dict[str, float]:
        """Return ``train/penalty``, the mean per update of all networks' terms; {} if none.

        Args:
            updates: updates since the last call.
        """
        if self.sum is None or updates == 0:
            return {}
        mean = float(self.sum / updates)
        self.sum.zero_()
        return {"train/penalty": mean}

    def state_dict(self) -> dict[str, Any]:
        """Return the sum not yet read by `metrics`, and the methods' own tensors."""
        if self.sum is None:
            return {}
        return {"sum": self.sum} | {t.key: t.state for t in self.terms if t.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the saved run may have had no penalties."""
        if self.sum is not None:
            self.sum.zero_()
            if "sum" in state:
                self.sum.copy_(state["sum"])
        for term in self.terms:
            for name, tensor in state.get(term.key, {}).items():
                term.state[name].copy_(tensor)


def _installed(network: Network) -> list[Term]:
    """Return the terms of methods whose modules the network has."""
    found = []
    for i, method in enumerate(network.installed):
        blocks = _blocks(network, method, None) if has_face(method, "term") else ()
        if blocks:
            key = f"installed[{i}]/{network.name}"
            found.append(Term(key, method, network, blocks, method.setup(network, blocks)))
    return found


def _parse(label: str, config: Any, networks: Mapping[str, Network]) -> list[Term]:
    row = parse_row(label, config, "penalties", networks)
    globs = check_range(f"{row.label}.layers", config.get("layers"), None, "names")
    found = {name: _blocks(networks[name], row.method, globs) for name in row.networks}
    for glob in globs or ():
        _check_glob(row.label, row.method, glob, [networks[name] for name in row.networks])
    for name, blocks in found.items():
        if not blocks and (row.named or not any(found.values())):
            raise NothingToEdit(f"{row.label} finds nothing to penalise in network {name!r}")
        for block in blocks:
            if block.copies:
                raise ConfigError(
                    f"{row.label}: {networks[name].qualified(block)} is kept in "
                    f"{block.copies[0].dtype} beside an fp32 master, which gets no gradient from "
                    "the loss: train it in float32 (autocast may still compute in low precision), "
                    "or leave it out by `networks` or `layers`"
                )
    return [
        Term(f"{label}/{name}", row.method, networks[name], blocks, state)
        for name, blocks in found.items()
        if blocks
        for state in [row.method.setup(networks[name], blocks)]
    ]


def _blocks(network: Network, method: Method, globs: Sequence[str] | None) -> tuple[Block, ...]:
    return tuple(
        block
        for block in network.trainable()
        if method.covers(block) and (globs is None or any(_is(block, g) for g in globs))
    )


def _layer_names(block: Block) -> set[str]:
    """Return what a config may call a Block's layer: with slot and part, without, and by tie."""
    return {block.layer, block.path, *(alias.rpartition(".")[0] for alias in block.aliases)}


def _is(block: Block, glob: str) -> bool:
    # Compared as it is too: in a glob the brackets of ``[0].fc1`` are a set of characters.
    return any(glob == name or fnmatch.fnmatchcase(name, glob) for name in _layer_names(block))


def _check_glob(label: str, method: Method, glob: str, networks: Sequence[Network]) -> None:
    blocks = [block for network in networks for block in _blocks(network, method, None)]
    if not any(_is(block, glob) for block in blocks):
        names = {name for block in blocks for name in _layer_names(block) if name}
        raise ConfigError(
            f"{label}.layers: {glob!r} matches no layer that it penalises: "
            f"{did_you_mean(glob, names)}"
        )
