"""Networks of the agents: described as data, initialised by Block.

A network declares the forward order of its layers (``forward_order``) and the initializer that
initialises each Block (``init_block``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.agents.user_networks import user_q
from rlplast.core.errors import ConfigError, check_choice
from rlplast.core.network.blocks import Block
from rlplast.core.network.factory import is_factory
from rlplast.core.network.network import torch_default
from rlplast.core.network.units import Step, UnitSpec, activated

__all__ = [
    "ACTIVATIONS",
    "ARCHITECTURES",
    "Activation",
    "Architecture",
    "Convs",
    "Init",
    "Output",
    "QNetwork",
    "architecture_of",
    "cast_input",
    "channels_last",
    "check_network",
    "conv_layers",
    "convs_of",
    "orthogonal",
    "q_network",
    "refuse_given",
]

Activation = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh"]
Output = Literal["linear", "softmax"]
Init = Literal["xavier_uniform", "torch", "orthogonal"]
# In the names of units, and as the networks compute them: ReLU in place saves a large allocation.
ACTIVATIONS: dict[Activation, tuple[Step, Step]] = {
    "relu": (F.relu, torch.relu_),
    "leaky_relu": (F.leaky_relu, F.leaky_relu),
    "elu": (F.elu, F.elu),
    "gelu": (F.gelu, F.gelu),
    "silu": (F.silu, F.silu),
    "tanh": (torch.tanh, torch.tanh),
}
Convs = tuple[tuple[int, int, int], ...]  # channels, kernel, stride of each layer; no padding


@dataclass(frozen=True)
class Architecture:
    """A Q-network as data."""

    convs: Convs = ()
    hidden: tuple[int, ...] = (256, 256)  # widths of the fully-connected layers before the head
    activation: Activation = "relu"  # after each of these layers, of `ACTIVATIONS`
    output: Output = "linear"  # what the head's outputs pass through


ARCHITECTURES = {
    "nature": Architecture(((32, 8, 4), (64, 4, 2), (64, 3, 1)), (512,)),  # Mnih et al. 2015
    "minatar": Architecture(((16, 3, 1),), (128,)),  # Young & Tian 2019
    "mlp": Architecture((), (256, 256)),
    "mlp_small": Architecture((), (64, 64)),
}


def architecture_of(agent: Any, obs_shape: Sequence[int], auto: str = "mlp") -> Architecture:
    """Return the architecture of a DQN's or a PPO's section ``agent``.

    `obs_shape` is of a stacked observation; `auto` is what ``auto`` means if it is no picture.

    Raises:
        ConfigError: for convolutions on flat observations.
    """
    name, pictures = agent.network, len(obs_shape) == 3
    if name == "auto":
        name = auto if not pictures else "nature" if obs_shape[-1] >= 36 else "minatar"
    named = ARCHITECTURES[name]
    if named.convs and not pictures:
        raise ConfigError(
            f"agent.network = {name!r} needs image observations, this environment gives "
            f"shape {tuple(obs_shape)}: allowed is mlp or mlp_small"
        )
    convs = named.convs if agent.convs is None else convs_of(agent.convs)
    if convs and not pictures:
        raise ConfigError(
            f"agent.convs = {agent.convs!r}: this environment gives no pictures but shape "
            f"{tuple(obs_shape)}; leave it out"
        )
    hidden = named.hidden if agent.hidden is None else tuple(agent.hidden)
    output: Any = getattr(agent, "output", named.output)
    return Architecture(convs, hidden, agent.activation, output)


def check_network(agent: Any, ours: Sequence[str]) -> None:
    """Refuse an unknown ``agent.network``, or a key of our networks (`ours`) beside a user's."""
    if is_factory(agent.network):
        why = f"it is of our networks, and agent.network = {agent.network!r} is your own"
        refuse_given(agent, ours, f"{why}; leave it out")
    else:
        check_choice("agent.network", agent.network, ("auto", *ARCHITECTURES))


def refuse_given(agent: Any, names: Sequence[str], why: str) -> None:
    """Refuse keys of a section ``agent`` with other values than their defaults.

    Raises:
        ConfigError: for the first one, with the reason.
    """
    usual = type(agent)()
    for name in names:
        if getattr(agent, name) != getattr(usual, name):
            raise ConfigError(f"agent.{name} = {getattr(agent, name)!r}: {why}")


def convs_of(rows: Sequence[Sequence[int]]) -> Convs:
    """Return what ``agent.convs`` says: [channels, kernel, stride] of each layer."""
    for number, row in enumerate(rows):
        whole = isinstance(row, Sequence) and all(type(size) is int and size > 0 for size in row)
        if not whole or len(row) != 3:
            raise ConfigError(
                f"agent.convs[{number}] = {row!r}: allowed is [channels, kernel, stride], whole "
                "numbers from 1"
            )
    return tuple((channels, kernel, stride) for channels, kernel, stride in rows)


def conv_layers(shape: Sequence[int], convs: Convs) -> tuple[dict[str, nn.Module], int]:
    """Return convolutions by name, and how many numbers the last one gives of one observation.

    Raises:
        ConfigError: if they do not fit observations of the shape.
    """
    layers: dict[str, nn.Module] = {}
    size = tuple(shape)
    for number, (channels, kernel, stride) in enumerate(convs, 1):
        if min(size[1:]) < kernel:
            raise ConfigError(
                f"agent.network: convolutions {[list(conv) for conv in convs]} do not fit "
                f"observations of shape {tuple(shape)}: choose agent.convs that do, another "
                "network, or larger pictures"
            )
        layers[f"conv{number}"] = nn.Conv2d(size[0], channels, kernel, stride)
        size = (channels, *((side - kernel) // stride + 1 for side in size[1:]))
    return layers, math.prod(size)


def q_network(
    agent: Any, obs_shape: Sequence[int], num_actions: int, obs_scale: float = 1.0, seed: int = 0
) -> nn.Module:
    """Return the network of a DQN's section ``agent``; see `QNetwork` and `user_q`."""
    if is_factory(agent.network):
        return user_q(agent.network, obs_shape, num_actions, obs_scale, seed)
    arch, bins = architecture_of(agent, obs_shape), agent.values and agent.values.bins
    return QNetwork(arch, obs_shape, num_actions, obs_scale, agent.init, bins)


class QNetwork(nn.Module):
    """Action values of an observation: convolutions, fully-connected layers, a head.

    Args:
        arch: the trunk.
        obs_shape: shape of one (stacked) observation.
        num_actions: number of discrete actions.
        obs_scale: factor on observations, 1/255 for frames.
        init: ``xavier_uniform`` with zero biases (FIRE's DQN), ``torch``, or ``orthogonal``: gain
            √2, of the head 1, zero biases.
        bins: of each action, if values are categorical; None for one number.
    """

    head_gains: ClassVar[dict[str, float]] = {"head": 1.0}  # of orthogonal weights

    def __init__(
        self,
        arch: Architecture,
        obs_shape: Sequence[int],
        num_actions: int,
        obs_scale: float = 1.0,
        init: str = "xavier_uniform",
        bins: int | None = None,
    ) -> None:
        super().__init__()
        self.obs_scale, self.bins = obs_scale, bins
        self.init = init
        self.activation, self.output = ACTIVATIONS[arch.activation], arch.output
        self.order: list[str] = []
        convs, width = conv_layers(obs_shape, arch.convs)
        for name, layer in convs.items():
            self._add(name, layer)
        for i, hidden in enumerate(arch.hidden, 1):
            self._add(f"fc{i}", nn.Linear(width, hidden))
            width = hidden
        self._add("head", nn.Linear(width, num_actions * (bins or 1)))

    def _add(self, name: str, layer: nn.Module) -> None:
        self.add_module(name, layer)
        self.order.append(name)

    def forward_order(self) -> list[str]:
        """Return the layers' names in forward order."""
        return self.order

    def unit_specs(self) -> list[UnitSpec]:
        """Return the units of each hidden layer."""
        pairs, (named, _) = pairwise(self.order), self.activation
        return [UnitSpec(layer, (after,), (), named, replaceable=True) for layer, after in pairs]

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Draw one Block by this network's initializer."""
        if self.init == "torch" or block.kind == "norm":
            return torch_default(block, generator)
        if self.init == "orthogonal":
            return orthogonal(block, generator, self.head_gains.get(block.path, math.sqrt(2)))
        if block.role == "bias":
            return torch.zeros(block.view.shape)
        bound = math.sqrt(6 / (block.spec.fan_in + block.spec.fan_out))
        return torch.empty(block.view.shape).uniform_(-bound, bound, generator=generator)

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values, (batch, actions), or logits of bins, (batch, actions, bins)."""
        values = self.get_submodule(self.order[-1])(self._hidden(obs))
        if self.bins is not None:
            return values.unflatten(1, (-1, self.bins))
        return values.softmax(1) if self.output == "softmax" else values

    def _hidden(self, obs: Tensor) -> Tensor:
        """Return what the head reads, (batch, features)."""
        x = cast_input(obs)
        if self.obs_scale != 1.0:
            x = x * self.obs_scale
        for name in self.order[:-1]:
            layer = self.get_submodule(name)
            if isinstance(layer, nn.Linear) and x.ndim > 2:
                x = x.flatten(1)
            x = activated(layer, layer(x), self.activation[1])
        return x.flatten(1)


def orthogonal(block: Block, generator: torch.Generator, gain: float) -> Tensor:
    """Draw a weight orthogonal, on the CPU, and a bias 0; a convolution's rows are its filters."""
    value = torch.zeros(block.view.shape)
    if block.role == "bias":
        return value
    return nn.init.orthogonal_(value, gain, generator=generator)


def cast_input(obs: Tensor) -> Tensor:
    """Return observations channels-last, in float32 or what autocast would round them to."""
    kind = obs.device.type
    low = torch.is_autocast_enabled(kind)
    return channels_last(obs).to(torch.get_autocast_dtype(kind) if low else torch.float32)


def channels_last(obs: Tensor) -> Tensor:
    """Put observations into the memory layout of the convolutions, as bytes where they are."""
    if obs.ndim != 4:
        return obs
    if torch.compiler.is_compiling() and obs.dtype == torch.uint8 and obs.shape[1] == 4:
        # Four frames make one 32-bit word per pixel: shifts are vectorised, a transposition of
        # bytes is not. Measured: 0.13 against 0.40 ms for 32 observations in bf16.
        frames = obs.to(torch.int32)
        word = frames[:, 0] | frames[:, 1] << 8 | frames[:, 2] << 16 | frames[:, 3] << 24
        return word.view(torch.uint8).unflatten(-1, (obs.shape[-1], 4)).permute(0, 3, 1, 2)
    return obs.contiguous(memory_format=torch.channels_last)
