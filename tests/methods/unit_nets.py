"""Five networks with hidden units, and the same tensors as the slow twins see them.

Each network says which of its tensors make up a group of units, independently of the map that
`rlplast.core.network.units` finds. Twins and methods draw from one table, `table_row`.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.network.units import Part
from rlplast.core.rng import preserve_global_rng
from tests.methods.nets import snapshot
from tests.models import FAMILIES, OPTIMIZERS, assert_same
from tests.naive import redo as naive
from tests.naive.units import Layer

BATCH = 8
Moments = dict[str, dict[str, Tensor]]


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


def _residual() -> nn.Module:
    layers = {"inp": nn.Linear(5, 4), "one": Block(4, 6), "two": Block(4, 6)}
    return nn.Sequential(OrderedDict(layers | {"head": nn.Linear(4, 3)}))


def _conv(batch_norm: bool) -> nn.Module:
    def norm(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()

    below = [nn.Conv2d(2, 4, 3), norm(4), nn.ReLU(), nn.MaxPool2d(2)]
    above = [nn.Conv2d(4, 3, 2), norm(3), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*below, *above, nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    return net.to(memory_format=torch.channels_last)


Chains = list[dict[str, Layer]]


def _pair(module: nn.Module, first: str, second: str, norm: str | None = None) -> Layer:
    one, two = module.get_submodule(first), module.get_submodule(second)
    fields = {}
    if norm is not None and isinstance(found := module.get_submodule(norm), nn.BatchNorm2d):
        names = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "var": "running_var"}
        fields = {field: getattr(found, name) for field, name in names.items()}
    return Layer(one.weight, one.bias, two.weight, b_next=two.bias, **fields)


def _of(*groups: tuple[str, ...]) -> Callable[[nn.Module], Chains]:
    """Of each group: its layer, the one that reads it, and perhaps a norm."""
    return lambda module: [{names[0]: _pair(module, *names) for names in groups}]


def _of_stacked(module: nn.Module) -> Chains:
    def layer(member: int, first: str, second: str) -> Layer:
        one, two = module.get_submodule(first), module.get_submodule(second)
        tensors = [t.detach()[member] for t in (one.weight, one.bias, two.weight, two.bias)]
        return Layer(*tensors[:3], b_next=tensors[3])

    return [
        {
            f"[{member}].{first}": layer(member, first, second)
            for first, second in (("fc1", "fc2"), ("fc2", "head"))
        }
        for member in range(2)
    ]


@dataclass(frozen=True)
class Net:
    """A network for the twins.

    Attributes:
        make: builds it.
        sample: shape of an input.
        chains: module → its groups of units by name, in forward order; a list per member.
        out: shape of the output of a batch.
    """

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]
    chains: Callable[[nn.Module], Chains]
    out: tuple[int, ...] = (BATCH, 3)

    def module(self) -> nn.Module:
        with preserve_global_rng():
            torch.manual_seed(0)
            return self.make()


OF_CONV = _of(("0", "4", "1"), ("4", "8", "5"), ("8", "10"))
NETS: dict[str, Net] = {
    "mlp": Net(FAMILIES["mlp"], (5,), _of(("0", "2"), ("2", "4"))),
    "conv": Net(lambda: _conv(False), (2, 8, 8), OF_CONV),
    "conv_batchnorm": Net(lambda: _conv(True), (2, 8, 8), OF_CONV),
    "residual": Net(_residual, (5,), _of(("one.fc1", "one.fc2"), ("two.fc1", "two.fc2"))),
    "stacked": Net(FAMILIES["stacked"], (5,), _of_stacked, (2, BATCH, 1)),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def table_row(tag: int, unit: int, number: int, entries: int) -> Tensor:
    generator = torch.Generator().manual_seed(10_007 * tag + 101 * unit + number)
    return torch.rand(entries, generator=generator, dtype=torch.float64) * 2 - 1


def table_rows(
    part: Part, mask: Tensor, limit: float, seed: int, tag: int, number: Tensor
) -> Tensor:
    view = part.block.view
    size = math.prod(view.shape[1:])
    whole = torch.stack([table_row(tag, i, int(n), size) for i, n in enumerate(number)])
    return (whole * limit).to(view.dtype).view(view.shape)


def chains(module: nn.Module, net: str) -> Chains:
    return NETS[net].chains(module)


@torch.no_grad()
def entries(module: nn.Module, net: str, masks: dict[str, list[bool]]) -> dict[str, Tensor]:
    """By name of a parameter or buffer: which of its entries the twin's recycling writes."""
    marked = copy.deepcopy(module)
    tensors = {n: t for n, t in marked.state_dict().items() if t.is_floating_point()}
    for tensor in tensors.values():
        tensor.fill_(torch.nan)
    for chain in chains(marked, net):
        layers = list(chain.values())
        zeros = [torch.zeros_like(layer.w) for layer in layers]
        naive.recycle(layers, [masks[name] for name in chain], zeros)
    found = {n: torch.zeros(t.shape, dtype=torch.bool) for n, t in marked.state_dict().items()}
    return found | {n: ~t.isnan() for n, t in tensors.items()}


class Trained:
    def __init__(
        self,
        net: str | Net,
        optimizer: str = "adam",
        install: Callable[[nn.Module], Any] | None = None,
    ) -> None:
        self.net, self.name = (NETS[net], net) if isinstance(net, str) else (net, "")
        self.module = self.net.module()
        if install is not None:
            install(self.module)
        self.optimizer = OPTIMIZERS[optimizer](self.module.parameters())
        self.network = rlplast.Network("net", self.module, self.optimizer)
        self.updates = 0

    @property
    def groups(self) -> list[str]:
        return [name for chain in self.net.chains(self.module) for name in chain]

    def batch(self) -> tuple[Tensor, Tensor]:
        x = normal(BATCH, *self.net.sample, seed=self.updates)
        if x.ndim == 4:
            x = x.to(memory_format=torch.channels_last)
        return x, normal(*self.net.out, seed=self.updates + 500_000)

    def update(self) -> dict[str, Tensor]:
        """One update; returns the activations of its forward pass, as `rlplast.record` does."""
        x, y = self.batch()
        self.optimizer.zero_grad(set_to_none=True)
        units = self.network.units().groups  # none of layers that give each output twice
        with rlplast.record(self.network) if units else nullcontext({}) as found:
            out = self.module(x)
        (out - y).square().mean().backward()
        self.optimizer.step()
        self.updates += 1
        return found

    def gradients(self, x: Tensor) -> dict[str, Tensor]:
        """By name of a Block, those of the size of the outputs in evaluation mode."""
        module = copy.deepcopy(self.module).eval()
        module.zero_grad(set_to_none=True)
        module(x).square().mean().backward()
        grads = {name: p.grad for name, p in module.named_parameters()}
        blocks = self.network.trainable()
        return {b.name: b.like(grads[f"{b.path}.{b.spec.tensor}"]) for b in blocks}

    def ticking(self) -> rlplast.Hooks:
        """Return what ticks the layers that are installed."""
        return rlplast.Hooks([], self.network, "1000 updates")

    def train(self, updates: int) -> Self:
        for _ in range(updates):
            self.update()
        return self

    @property
    def tags(self) -> dict[str, int]:
        return {g.name: i for i, g in enumerate(self.network.units().groups)}

    def moments(self) -> Moments:
        return moments_of(self.module, self.optimizer)

    def state(self) -> dict[str, Tensor]:
        return snapshot(self.module)

    def assert_edited_alone(
        self,
        touched: dict[str, Tensor],
        before: dict[str, Tensor],
        moments: Moments,
        but: str = "nothing",
    ) -> None:
        """Entries not touched are as before, moments of the others 0; `but` ends other names."""
        for name, tensor in self.state().items():
            kept = ~touched[name]
            assert torch.equal(tensor[kept], before[name][kept]) or name.endswith(but), name
        for name, slots in self.moments().items():
            for slot, value in slots.items():
                was = moments[name][slot]
                was = was if slot == "step" else torch.where(touched[name], 0, was)
                assert torch.equal(value, was), (name, slot)


def follow(
    made: Trained,
    hooks: rlplast.Hooks,
    updates: int,
    twin_of: Callable[[dict[str, Layer]], Any],
    check_books: Callable[[list[str], Any], None],
    loose: str = "nothing",
) -> dict[str, int]:
    """Train; after each update compare edit, moments and books with those of each chain's twin.

    Tensors whose names end with `loose` are edited elsewhere too, and compared less strictly.

    Returns:
        The number of recycled units by group.
    """
    shadow = copy.deepcopy(made.module)
    twins = [(chain, twin_of(chain)) for chain in chains(shadow, made.name)]
    total = dict.fromkeys(made.groups, 0)
    for update in range(1, updates + 1):
        found = made.update()
        before, moments = made.state(), made.moments()
        shadow.load_state_dict(before)
        masks: dict[str, list[bool]] = {}
        for chain, twin in twins:
            chosen = twin.step([found[name] for name in chain])
            for (name, layer), units in zip(chain.items(), chosen, strict=True):
                masks[name] = [i in units for i in range(len(layer.w))]
                total[name] += len(units)
        hooks.step(updates=update, activations=found)
        made.assert_edited_alone(entries(made.module, made.name, masks), before, moments, loose)
        expected = shadow.state_dict()
        for name, tensor in made.state().items():
            rtol, atol = (1e-5, 1e-6) if name.endswith(loose) else (1e-6, 0)
            torch.testing.assert_close(tensor, expected[name], rtol=rtol, atol=atol, msg=name)
        for chain, twin in twins:
            check_books(list(chain), twin)
    return total


def moments_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Moments:
    return {
        name: {k: v.clone() for k, v in optimizer.state[p].items() if v is not None}
        for name, p in module.named_parameters()
    }


# Networks of which some units are silent, and what a twin makes of them.


def probe(net: str, seed: int = 99, size: int = 16) -> Tensor:
    x = normal(size, *NETS[net].sample, seed=seed)
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def silent(units: int) -> int:
    return 1 if units < 5 else 2


@torch.no_grad()
def spoil(module: nn.Module, net: str) -> None:
    """Silence the first units of each group, make the third whisper and the others speak up."""
    for chain in chains(module, net):
        for layer in chain.values():
            shift, scale = (layer.b, layer.w) if layer.beta is None else (layer.beta, layer.gamma)
            shift += 3
            scale *= 0.1
            shift[: silent(len(shift))] = -50
            scale[2] *= 1e-3
            shift[2] = 0.02


def prepared(net: str, optimizer: str = "adam") -> Trained:
    made = Trained(net, optimizer).train(3)
    spoil(made.module, net)
    return made


def check_recycling(
    made: Trained,
    masks: dict[str, list[bool]],
    overlap: str,
    fire: Callable[[], rlplast.Receipt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare a firing that recycles some units with the twin, from one draw of all weights."""
    groups = [(name, layer) for c in chains(made.module, made.name) for name, layer in c.items()]
    fresh = {name: normal(*layer.w.shape, seed=1 + i) for i, (name, layer) in enumerate(groups)}
    twin = copy.deepcopy(made.module)
    for chain in chains(twin, made.name):
        own = [masks[name] for name in chain]
        naive.recycle(list(chain.values()), own, [fresh[name] for name in chain], overlap)
    touched = entries(made.module, made.name, masks)
    before, moments = made.state(), made.moments()
    by_block = {g.weight.block.name: fresh[g.name] for g in made.network.units().groups}
    monkeypatch.setattr(made.network, "drawn", lambda block, generator: by_block[block.name])
    receipt = fire()
    assert_same(dict(twin.state_dict()), made.state())
    made.assert_edited_alone(touched, before, moments)
    assert receipt.units == {name: sum(mask) for name, mask in masks.items()}
    assert receipt.entries_touched == sum(int(t.sum()) for t in touched.values())
    assert (receipt.optimizer_policy, receipt.followers) == ("touched", {})
