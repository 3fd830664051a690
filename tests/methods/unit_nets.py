"""Four networks with hidden units, and the same tensors as the slow twins see them.

Each network says which of its tensors make up a group of units, independently of the map that
`rlplast.core.network.units` finds.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.rng import preserve_global_rng
from tests.models import OPTIMIZERS
from tests.naive.units import Layer, touched

__all__ = ["NETS", "Net", "Trained", "chains", "entries", "normal", "twin_of"]

BATCH = 8


class Block(nn.Module):
    """The residual block of SimBa."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(5, 4)
        self.one = Block(4, 6)
        self.two = Block(4, 6)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(self.inp(x))))


class StackedPair(nn.Module):
    """Twin critics."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = StackedLinear(2, 5, 6)
        self.fc2 = StackedLinear(2, 6, 6)
        self.head = StackedLinear(2, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def _conv(batch_norm: bool) -> nn.Module:
    def norm(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()

    net = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        norm(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 2),
        norm(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


Chains = list[dict[str, Layer]]


def _pair(module: nn.Module, first: str, second: str, norm: str | None = None) -> Layer:
    one, two = module.get_submodule(first), module.get_submodule(second)
    fields = {}
    if norm is not None and isinstance(found := module.get_submodule(norm), nn.BatchNorm2d):
        fields = {
            "gamma": found.weight,
            "beta": found.bias,
            "mean": found.running_mean,
            "var": found.running_var,
        }
    conv = isinstance(two, nn.Conv2d)
    return Layer(one.weight, one.bias, two.weight, conv, b_next=two.bias, **fields)  # type: ignore


def _of_chain(*names: str) -> Callable[[nn.Module], Chains]:
    pairs = list(itertools.pairwise(names))
    return lambda module: [{a: _pair(module, a, b) for a, b in pairs}]


def _of_conv(module: nn.Module) -> Chains:
    return [
        {
            "0": _pair(module, "0", "4", "1"),
            "4": _pair(module, "4", "8", "5"),
            "8": _pair(module, "8", "10"),
        }
    ]


def _of_residual(module: nn.Module) -> Chains:
    return [{f"{b}.fc1": _pair(module, f"{b}.fc1", f"{b}.fc2") for b in ("one", "two")}]


def _of_stacked(module: nn.Module) -> Chains:
    """A list of layers of its own for each member."""

    def member(slot: int, first: str, second: str) -> Layer:
        one, two = module.get_submodule(first), module.get_submodule(second)
        tensors = [t.detach()[slot] for t in (one.weight, one.bias, two.weight, two.bias)]  # type: ignore
        return Layer(tensors[0], tensors[1], tensors[2], False, b_next=tensors[3])

    return [
        {
            f"[{slot}].{first}": member(slot, first, second)
            for first, second in (("fc1", "fc2"), ("fc2", "head"))
        }
        for slot in range(2)
    ]


@dataclass(frozen=True)
class Net:
    """A network for the twins.

    Attributes:
        make: builds it.
        sample: shape of an input.
        chains: module → its groups of units by name, in forward order; a list per member.
        out: shape of the output of a batch.
        preserves: whether redrawing silent units leaves the function: no norm mixes units.
    """

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]
    chains: Callable[[nn.Module], Chains]
    out: tuple[int, ...] = (BATCH, 3)

    def module(self, seed: int = 0) -> nn.Module:
        with preserve_global_rng():
            torch.manual_seed(seed)
            return self.make()


NETS: dict[str, Net] = {
    "mlp": Net(_mlp, (5,), _of_chain("0", "2", "4")),
    "conv": Net(lambda: _conv(False), (2, 8, 8), _of_conv),
    "conv_batchnorm": Net(lambda: _conv(True), (2, 8, 8), _of_conv),
    "residual": Net(Residual, (5,), _of_residual),
    "stacked": Net(StackedPair, (5,), _of_stacked, (2, BATCH, 1)),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chains(module: nn.Module, net: str) -> Chains:
    return NETS[net].chains(module)


def twin_of(module: nn.Module) -> nn.Module:
    """A copy for a twin to write to."""
    return copy.deepcopy(module)


def entries(module: nn.Module, net: str, masks: dict[str, list[bool]]) -> dict[str, Tensor]:
    """By name of a parameter or buffer: which of its entries a recycling of `masks` touches."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    found = {n: torch.zeros(t.shape, dtype=torch.bool) for n, t in tensors.items()}
    for chain in chains(module, net) if any(map(any, masks.values())) else ():
        hits = touched(list(chain.values()), [masks[name] for name in chain])
        for layer, hit in zip(chain.values(), hits, strict=True):
            for field, mask in hit.items():
                part = getattr(layer, field)
                for name, tensor in tensors.items():
                    place = _place(tensor, part)
                    if place is not None:
                        found[name][place] |= mask
    return found


def _place(whole: Tensor, part: Tensor) -> tuple[int, ...] | None:
    """Where in `whole` a part lies: everywhere, or in a slot."""
    if whole.shape == part.shape:
        return () if whole.data_ptr() == part.data_ptr() else None
    if whole.ndim > 0 and whole.shape[1:] == part.shape:
        slots = [s for s in range(len(whole)) if whole[s].data_ptr() == part.data_ptr()]
        return (slots[0],) if slots else None
    return None


class Trained:
    """A network in training, with its optimizer and batches of its own."""

    def __init__(
        self,
        net: str,
        optimizer: str = "adam",
        seed: int = 0,
        install: Callable[[nn.Module], Any] | None = None,
    ) -> None:
        self.net, self.seed = NETS[net], seed
        self.name = net
        self.module = self.net.module(seed)
        if install is not None:
            install(self.module)
        self.optimizer = OPTIMIZERS[optimizer](self.module.parameters())
        self.network = Network("net", self.module, self.optimizer)
        self.updates = 0

    @property
    def groups(self) -> list[str]:
        return [name for chain in chains(self.module, self.name) for name in chain]

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the next update."""
        seed = 1000 * self.seed + self.updates
        x = normal(BATCH, *self.net.sample, seed=seed)
        if x.ndim == 4:
            x = x.to(memory_format=torch.channels_last)
        return x, normal(*self.net.out, seed=seed + 500_000)

    def update(self) -> dict[str, Tensor]:
        """One update; returns the activations of its forward pass, as `rlplast.record` does."""
        x, y = self.batch()
        self.optimizer.zero_grad(set_to_none=True)
        with rlplast.record(self.network) as found:
            out = self.module(x)
        (out - y).square().mean().backward()
        self.optimizer.step()
        self.updates += 1
        return found

    def train(self, updates: int) -> "Trained":
        for _ in range(updates):
            self.update()
        return self

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer's tensors by parameter, copied."""
        return {
            name: {k: v.clone() for k, v in self.optimizer.state[p].items() if v is not None}
            for name, p in self.module.named_parameters()
        }

    def state(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for name, t in self.module.state_dict().items()}
