"""Persistent: keep a network's layers away from the directions of solutions found before.

Source: Min 2020, Persistent Neurons (arXiv:2007.01419), equations 2, 4 and 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rlplast.core.checkpoint import checkpoint
from rlplast.core.checkpoint.state_file import SUFFIXES, read
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Context
from rlplast.core.method.method import Method, State, method
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.registry import param
from rlplast.core.training.best import find_checkpoint
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Persistent"]


@method("persistent", source="Min 2020, Persistent Neurons, equations 4 and 5")
@dataclass(frozen=True)
class Persistent(Method):
    """Push every layer off its directions in past solutions: coef · Σ_k Σ_l |⟨Θ_k^l, θ^l⟩|/‖Θ_k^l‖.

    A layer is the weight and the bias of a linear or conv layer, one after the other. Norm layers,
    embeddings and what is tied to one, and single numbers do not count (ours). A member of a
    stacked critic is compared with the same member. A layer that is 0 in Θ_k adds nothing. Without
    past solutions the term is 0. They are saved with the run, and a resumed one has them from
    there, whatever the files hold by then.

    Attributes:
        coef: strength λ.
        form: ``full``: all layers. ``partial``: one layer, drawn once per run and network from
            the run's seed (ours: the paper does not say when it draws).
        norm_power: the power of ‖Θ_k^l‖ that it is divided by; the paper's print can be read as 2.
        past: the solutions: folders of runs, of which the newest checkpoint counts, folders of
            checkpoints, and ``.safetensors`` or ``.pt`` files of a state dict.
    """

    coef: float = param(0.01, "[0, inf)")
    form: str = param("full", "full | partial")
    norm_power: int = param(1, "[1, 2]")
    past: tuple[str, ...] = param((), "paths")

    def covers(self, block: Block) -> bool:
        """Return whether a Block is the weight or bias of a linear or conv layer."""
        return block.role in ("weight", "bias") and block.kind in ("linear", "conv")

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return Θ/‖Θ‖^norm_power of every layer, shape (past solutions, its entries).

        Raises:
            ConfigError: if a path holds no weights of this network, naming the first.
        """
        solutions = {path: _weights(Path(path)) for path in self.past}
        state = {}
        for name, own in _layers(blocks).items():
            now = at_least_float32(own[0].view)
            rows = [now.new_zeros(0, sum(block.view.numel() for block in own))]
            for path, tensors in solutions.items():
                found = [_saved(path, tensors, network, block) for block in own]
                flat = torch.cat([value.double().flatten() for value in found])
                size = torch.linalg.vector_norm(flat) ** self.norm_power
                rows.append((flat / size.clamp(min=1e-300)).to(now)[None])
            state[name] = torch.cat(rows)
        return state

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef times the sum over past solutions and layers."""
        layers = list(_layers(context.blocks).items())
        if self.form == "partial":
            layers = [layers[context.seed % len(layers)]]
        terms = []
        for name, own in layers:
            flat = torch.cat([at_least_float32(block.live()).flatten() for block in own])
            terms.append((state[name] @ flat).abs().sum())
        return self.coef * torch.stack(terms).sum()


def _layers(blocks: Sequence[Block]) -> dict[str, list[Block]]:
    """Return the Blocks of each layer, in registration order."""
    layers: dict[str, list[Block]] = {}
    for block in blocks:
        layers.setdefault(block.layer, []).append(block)
    return layers


def _weights(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a past solution."""
    if not path.exists():
        raise ConfigError(f"persistent.past: {path.absolute()} does not exist")
    if path.suffix in SUFFIXES:
        return read(path).tensors
    if not (path / checkpoint.SENTINEL).is_file():
        path = find_checkpoint(path, "newest", "persistent.past")
    return checkpoint.load(path)[0]


def _saved(path: str, tensors: Mapping[str, Tensor], network: Network, block: Block) -> Tensor:
    value = network.value_in(tensors, block)
    if value is None:
        raise ConfigError(
            f"persistent.past: {path} has no {network.qualified(block)} of shape "
            f"{tuple(block.view.shape)}: allowed are weights of the same network"
        )
    return value
