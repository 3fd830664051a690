"""What layers that drop at random share.

A mask is a hash of the layer's seed, its number of updates (a buffer of the layer, and the
method's state), and the entry: it moves no stream and waits for no host.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.install import hidden_layers, named_layers
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State
from rlplast.core.network.trace import is_matrix
from rlplast.core.rng import derive_seed
from rlplast.methods.draws import hashed

__all__ = ["Dropping", "dropped", "readers", "stays"]


def readers(model: nn.Module, method: str) -> dict[str, str]:
    """Return the paths of the layers that read hidden units → the layer whose units they read."""
    return {
        part.block.path: path
        for path, groups in hidden_layers(model, method).items()
        for group in groups
        for part in group.outgoing
    }


def dropped(x: Tensor, p: float | Tensor, updates: Tensor, seed: int) -> Tensor:
    """Return x with a share p of its entries 0, and the others divided by 1 − p.

    Args:
        x: any shape; an entry's draw belongs to its place in it.
        p: in [0, 1).
        updates: how many there were, int64, 0-d.
        seed: of the layer.
    """
    return x * stays(x.shape, p, updates, seed) / (1 - p)


def stays(shape: Sequence[int], p: float | Tensor, updates: Tensor, seed: int) -> Tensor:
    """Return booleans, of which a share p is false; for the arguments see `dropped`."""
    least = p * 2.0**64 - 2.0**63  # of a word that stays, which has 64 bits and a sign
    if not isinstance(least, Tensor):
        least = torch.full((), int(least), dtype=torch.int64, device=updates.device)
    return _stays(updates, least.long(), seed, list(shape))


# One operation to a compiler, which would take 64-bit words made of an arange for addresses.
@torch.library.custom_op("rlplast::stays", mutates_args=())
def _stays(updates: Tensor, least: Tensor, seed: int, shape: Sequence[int]) -> Tensor:
    entries = torch.arange(math.prod(shape), device=updates.device).view(*shape)
    return hashed(updates, seed, entries) >= least


@_stays.register_fake
def _(updates: Tensor, least: Tensor, seed: int, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device=updates.device)


class Dropping(Method):
    """A method that drops in training mode where gradients are recorded, and nowhere else.

    Attributes:
        layers: names or globs of the layers that drop; None: those that read hidden units.
    """

    layers: tuple[str, ...] | None = None

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Let every layer of `places` drop; return their paths."""
        names = self.places(model)
        layers = {path: model.get_submodule(path) for path in names}
        for path, layer in layers.items():
            if hasattr(layer, self._counter):
                raise ConfigError(f"{self.name}: {path} drops by it already")
            self.check_layer(path, layer)
        for path in layers:
            parameters = model.get_submodule(path).parameters()
            device = next(itertools.chain(parameters, model.parameters())).device
            new = self.drop_in(model, path, derive_seed(seed, names[path]))
            zero = torch.zeros((), dtype=torch.int64, device=device)
            new.register_buffer(self._counter, zero, persistent=False)  # the state has it
        return list(names)

    def places(self, model: nn.Module) -> dict[str, str]:
        """Return the paths of the layers that drop → the name of their draws."""
        if self.layers is None:
            return readers(model, self.name)
        paths = named_layers(model, self.layers, is_matrix, f"{self.name}.layers")
        return {path: path for path in paths}

    @property
    def _counter(self) -> str:
        return f"{self.name}_updates"

    def seen(self, layer: nn.Module) -> Tensor | None:
        """Return how many updates a layer has seen; None where it does not drop now."""
        on = layer.training and torch.is_grad_enabled()
        return layer._buffers[self._counter] if on else None

    def check_layer(self, path: str, layer: nn.Module) -> None:
        """Raise a `ConfigError` for a layer that cannot drop; default: none."""

    def drop_in(self, model: nn.Module, path: str, seed: int) -> nn.Module:
        """Let a layer drop, in place; return it, or what is now in its place."""
        raise NotImplementedError

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return the counters of the layers, which read them."""
        return {
            path: layer.get_buffer(self._counter)
            for path, layer in network.module.named_modules()
            if self._counter in layer._buffers
        }

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Count an update."""
        return [Assign(updates, updates + 1) for updates in state.values()]
