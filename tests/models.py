"""Six model families, tiny, with an optimizer, a lagging follower and data to train on."""

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from rlplast.core.method.context import Activations
from rlplast.core.method.readings import OwnSource
from rlplast.core.network.network import Network
from rlplast.core.network.record import record
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.rng import preserve_global_rng
from rlplast.optimizers.adam_o import AdamO
from rlplast.optimizers.schedule_free import ScheduleFree
from rlplast.optimizers.trac import Trac
from rlplast.optimizers.upgd import UPGD

BATCH = 8
WIDTH = 6
TOKENS = 7


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(5, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        h = h + torch.relu(self.fc(self.norm(h)))
        return self.head(h)


class TiedLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(self.embed(x))))


class StackedPair(nn.Module):
    """Twin critics: what two `Critic`s compute, in one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = StackedLinear(2, 5, WIDTH)
        self.fc2 = StackedLinear(2, WIDTH, WIDTH)
        self.head = StackedLinear(2, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(5, WIDTH)
        self.fc2 = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3)
    )


def _conv(batch_norm: bool) -> nn.Module:
    def block(channels: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(4)] if batch_norm else []
        return [nn.Conv2d(channels, 4, 3), *norm, nn.ReLU()]

    layers = [*block(2), *block(4), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "mlp": _mlp,
    "conv": lambda: _conv(batch_norm=False),
    "conv_batchnorm": lambda: _conv(batch_norm=True),
    "residual": Residual,
    "tied": TiedLM,
    "stacked": StackedPair,
}

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
LR = 1e-2

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adam": functools.partial(Adam, lr=LR),
    "adamw_fused": functools.partial(AdamW, lr=LR, fused=True),
    "sgd_momentum": functools.partial(SGD, lr=LR, momentum=0.9),
}

# Every other form torch offers on a CPU, and ours.
FORMS: dict[str, MakeOptimizer] = {
    "adam_amsgrad": functools.partial(Adam, lr=LR, amsgrad=True),
    "adam_amsgrad_fused": functools.partial(Adam, lr=LR, amsgrad=True, fused=True),
    "adam_foreach": functools.partial(Adam, lr=LR, foreach=True),
    "adam_maximize": functools.partial(Adam, lr=LR, maximize=True),
    "adam_weight_decay": functools.partial(Adam, lr=LR, weight_decay=0.1),
    "adamw_foreach_amsgrad": functools.partial(AdamW, lr=LR, foreach=True, amsgrad=True),
    "rmsprop": functools.partial(RMSprop, lr=LR),
    "rmsprop_foreach": functools.partial(RMSprop, lr=LR, foreach=True),
    "rmsprop_centered_momentum": functools.partial(RMSprop, lr=LR, centered=True, momentum=0.9),
    "rmsprop_maximize": functools.partial(RMSprop, lr=LR, maximize=True),
    "sgd_plain": functools.partial(SGD, lr=LR),
    "sgd_nesterov": functools.partial(SGD, lr=LR, momentum=0.9, nesterov=True),
    "sgd_dampening": functools.partial(SGD, lr=LR, momentum=0.9, dampening=0.5),
    "sgd_fused": functools.partial(SGD, lr=LR, momentum=0.9, fused=True),
    "sgd_foreach_maximize": functools.partial(
        SGD, lr=LR, momentum=0.9, foreach=True, maximize=True
    ),
    "adam_o": lambda params: AdamO(params, lr=LR),
    "schedule_free": functools.partial(ScheduleFree, lr=LR),
    "trac": lambda params: Trac(Adam(params, lr=LR)),
    "upgd": functools.partial(UPGD, lr=LR),
}


def build(family: str, seed: int = 0) -> nn.Module:
    """Return a new model; torch's global stream stays as it is."""
    with preserve_global_rng():
        torch.default_generator.manual_seed(seed)
        return FAMILIES[family]()


def data(family: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return inputs and regression targets for a family."""
    generator = torch.Generator().manual_seed(seed)
    if family == "tied":
        x = torch.randint(TOKENS, (BATCH,), generator=generator)
        return x, torch.randn(BATCH, TOKENS, generator=generator)
    if family.startswith("conv"):
        x = torch.randn(BATCH, 2, 6, 6, generator=generator)
        return x.to(memory_format=torch.channels_last), torch.randn(BATCH, 3, generator=generator)
    shape = (2, BATCH, 1) if family == "stacked" else (BATCH, 3)
    return torch.randn(BATCH, 5, generator=generator), torch.randn(shape, generator=generator)


def observed(network: Network, *inputs: Tensor) -> Activations:
    """Return what a probe reads of a network."""
    return OwnSource({network.name: network}, None).activations(network.name, {"": inputs})


def recorded(module: nn.Module, *inputs: Tensor, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return what a module gives in its mode, and the activations of this pass."""
    with record(Network("net", module, **options)) as found:
        assert found == {}
        output = module(*inputs)
    return output, found


def loss_of(module: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the squared error, summed over the members of a stacked pair."""
    out = module(x)
    return F.mse_loss(out, y) * (2 if out.ndim == 3 else 1)


@dataclass
class Subject:
    """A model that trains, as hooks see it."""

    module: nn.Module
    network: Network
    optimizer: Optimizer
    x: Tensor
    y: Tensor

    @property
    def follower(self) -> nn.Module:
        return self.network.followers["target"].module

    def update(self, times: int = 1) -> None:
        for _ in range(times):
            self.optimizer.zero_grad(set_to_none=True)
            loss_of(self.module, self.x, self.y).backward()
            self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """Return every tensor by name: weights, buffers, optimizer state, follower."""
        tensors = dict(self.module.state_dict(keep_vars=True))
        for name, param in self.module.named_parameters():
            for key, value in self.optimizer.state.get(param, {}).items():
                if value is not None:
                    tensors[f"{name}:{key}"] = value
        follower = self.follower.state_dict(keep_vars=True)
        return tensors | {f"target.{name}": value for name, value in follower.items()}

    def snapshot(self) -> dict[str, Tensor]:
        """Return copies of `state`."""
        return {name: value.detach().clone() for name, value in self.state().items()}


def _nothing(module: nn.Module) -> None:
    """Install nothing."""


def subject(
    family: str,
    optimizer: MakeOptimizer | str = "adam",
    updates: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    install: Callable[[nn.Module], object] = _nothing,
) -> Subject:
    """Return a model `updates` updates after its initialisation; its follower is still there.

    What `install` puts into the model is there before its follower and its optimizer.
    """
    module = build(family, seed).to(device, dtype)
    install(module)
    follower = copy.deepcopy(module).requires_grad_(False)
    make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    trained_by = make(module.parameters())
    network = Network("net", module, trained_by, {"target": follower})
    x, y = data(family, seed)
    x, y = (t.to(device, dtype if t.is_floating_point() else t.dtype) for t in (x, y))
    made = Subject(module, network, trained_by, x, y)
    if isinstance(optimizer, str) and install is _nothing:
        _train_once(made, (family, optimizer, updates, seed, dtype, device))
    else:
        made.update(updates)
    return made


_TRAINED: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def _train_once(made: Subject, key: tuple[Any, ...]) -> None:
    """Train, or copy what the first subject of its kind became."""
    if key in _TRAINED:
        tensors, gradients, entries = _TRAINED[key]
        for name, tensor in made.module.state_dict().items():
            tensor.copy_(tensors[name])
    else:
        made.update(key[2])
        state = made.optimizer.state
        gradients = {n: p.grad for n, p in made.module.named_parameters()}
        entries = {n: state[p] for n, p in made.module.named_parameters() if p in state}
        tensors = {n: t.clone() for n, t in made.module.state_dict().items()}
        _TRAINED[key] = tensors, gradients, _copies(entries)
    for name, param in made.module.named_parameters():
        grad = gradients[name]
        param.grad = None if grad is None else grad.clone()
    params = dict(made.module.named_parameters())
    made.optimizer.state.update({params[n]: e for n, e in _copies(entries).items()})


def _copies(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: t.clone() if isinstance(t, Tensor) else t for key, t in entry.items()}
        for name, entry in entries.items()
    }


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Assert that two snapshots are equal bit for bit."""
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
