"""Networks of SAC: a Gaussian actor, twin critics as one network, and the temperature.

Source: Haarnoja et al. 2018; trunks of SimBa (Lee et al. 2025, as in FIRE's SAC) and of
Stable-Baselines3 (fully-connected layers), of DrQ for pictures (`rlplast.agents.encoders`). Like
`rlplast.agents.networks`, each declares its forward order and initializers, and returns its
hidden activations. Those that users bring are in `rlplast.agents.own_sac`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlplast.agents.encoders import DRQ_CONVS, Encoder, Projection
from rlplast.agents.losses import between
from rlplast.agents.networks import ACTIVATIONS, Convs, convs_of, orthogonal
from rlplast.agents.own_sac import OwnActor, OwnCritic
from rlplast.core.errors import ConfigError, check_choice
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import torch_default
from rlplast.core.network.order import Order
from rlplast.core.network.own import is_factory
from rlplast.core.network.stacked import StackedLayerNorm, StackedLinear
from rlplast.core.network.units import NONLINEARITY, Step, UnitSpec, activated
from rlplast.metrics.ranks import at_least_float32

__all__ = ["KINDS", "Actor", "Critic", "Temperature", "TrunkSpec", "actor_of", "critic_of"]

KINDS = ("simba", "mlp", "drq")
LOG_STD_LAWS = ("squash", "clamp")
EXPANSION = 4  # of the hidden layer inside a residual block
NORM_EPS = 1e-6  # flax's default
# Standard deviation of a standard normal cut at ±2; he_normal divides by it.
CUT_NORMAL_STD = 0.87962566103423978


@dataclass(frozen=True)
class TrunkSpec:
    """What comes before the heads.

    Attributes:
        kind: ``simba``, ``mlp``, or ``drq``: an ``mlp`` of what pictures are encoded to.
        width: units of a layer, at least 1; of the residual stream in ``simba``.
        blocks: residual blocks (``simba``) or hidden layers (others), at least 1.
        init: ``auto`` or ``orthogonal``, see `_TrunkNetwork.init_block`.
        activation: of `rlplast.agents.networks.ACTIVATIONS`.
        hidden: of ``mlp`` and ``drq``: widths of the layers, instead of `width` and `blocks`.
        convs: of ``drq``: channels, kernel and stride of each convolution.
        features: of ``drq``: numbers that features of pictures are projected to.
    """

    kind: str
    width: int
    blocks: int
    init: str = "auto"
    activation: str = "relu"
    hidden: tuple[int, ...] | None = None
    convs: Convs = DRQ_CONVS
    features: int = 50

    @classmethod
    def of(cls, agent: Any, network: str) -> "TrunkSpec":
        """Return what a SAC's config says of its ``actor`` or ``critic``; `agent` is a section."""
        return cls(
            agent.network,
            getattr(agent, f"{network}_width"),
            getattr(agent, f"{network}_blocks"),
            agent.init,
            agent.activation,
            None if agent.hidden is None else tuple(agent.hidden),
            DRQ_CONVS if agent.convs is None else convs_of(agent.convs),
            agent.features,
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers, but for ``simba``."""
        return (self.width,) * self.blocks if self.hidden is None else self.hidden

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("trunk kind", self.kind, KINDS)
        for name in ("width", "blocks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"trunk {name} = {getattr(self, name)}: allowed is at least 1")


_STACKED = (StackedLinear, StackedLayerNorm)


def _computed(layer: nn.Module, x: Tensor, member: int | None) -> Tensor:
    """Return a layer's output, or that of one member of a stacked layer."""
    return layer(x) if member is None else cast(StackedLinear, layer).member(x, member)


def _is_plain(layer: nn.Module) -> bool:
    """Say whether a stacked layer is as built: no method or hook changes what it computes."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or hasattr(layer, NONLINEARITY)
    return type(layer) in _STACKED and not hooked


class _ResidualBlock(nn.Module):
    """x + fc2(f(fc1(norm(x)))), where f is ReLU or another nonlinearity."""

    def __init__(self, norm: nn.Module, fc1: nn.Module, fc2: nn.Module, nonlinearity: Step) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2, self.nonlinearity = norm, fc1, fc2, nonlinearity

    def forward(self, x: Tensor, member: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the sum and the activations after the nonlinearity."""
        z = _computed(self.fc1, _computed(self.norm, x, member), member)
        inner = activated(self.fc1, z, self.nonlinearity)
        return x + _computed(self.fc2, inner, member), inner


class _TrunkNetwork(nn.Module):
    """A trunk with linear heads side by side; in `members` copies if that is not None.

    ``simba``: input linear, residual blocks x + fc2(relu(fc1(norm(x)))) with 4·width units
    inside, a last norm. Others: fc1, fc2, … Residual networks are not
    homogeneous: the order they declare says what reads what inside a block, and SWR's
    Theorem 1 holds for an ``mlp`` only.
    """

    def __init__(
        self, d_in: int, trunk: TrunkSpec, heads: dict[str, int], members: int | None = None
    ) -> None:
        super().__init__()
        self.trunk, self.members = trunk, members
        self.heads: tuple[str, ...] = tuple(heads)
        self.activation = ACTIVATIONS[trunk.activation]
        width = trunk.width
        if trunk.kind == "simba":
            self.input = self._linear(d_in, width)
            self.blocks = nn.ModuleList(self._block(width) for _ in range(trunk.blocks))
            self.norm = self._norm(width)
        else:
            for i, width in enumerate(trunk.widths):
                self.add_module(f"fc{i + 1}", self._linear(d_in, width))
                d_in = width
        for name, d_out in heads.items():
            self.add_module(name, self._linear(width, d_out))

    def _linear(self, d_in: int, d_out: int) -> nn.Module:
        if self.members is None:
            return nn.Linear(d_in, d_out)
        return StackedLinear(self.members, d_in, d_out)

    def _norm(self, dim: int) -> nn.Module:
        if self.members is None:
            return nn.LayerNorm(dim, eps=NORM_EPS)
        return StackedLayerNorm(self.members, dim, eps=NORM_EPS)

    def _block(self, width: int) -> "_ResidualBlock":
        norm, inner = self._norm(width), EXPANSION * width
        linears = self._linear(width, inner), self._linear(inner, width)
        return _ResidualBlock(norm, *linears, self.activation[1])

    def _trunk_order(self) -> list[str]:
        if self.trunk.kind != "simba":
            return [f"fc{i + 1}" for i in range(len(self.trunk.widths))]
        indices = range(self.trunk.blocks)
        inner = [f"blocks.{i}.{name}" for i in indices for name in ("norm", "fc1", "fc2")]
        return ["input", *inner, "norm"]

    def forward_order(self) -> Order:
        """Return the layers' names in forward order; heads, side by side, last."""
        return [*self._before_trunk(), *self._trunk_order(), self.heads]

    def _before_trunk(self) -> list[str]:
        """Return the layers that come before the trunk: those that read pictures."""
        return ["projection.linear", "projection.norm"] if self.trunk.kind == "drq" else []

    def unit_specs(self) -> list[UnitSpec]:
        """Return the units of each hidden layer; those of a residual stream are none."""
        if self.trunk.kind == "simba":
            blocks = (f"blocks.{i}" for i in range(self.trunk.blocks))
            pairs = [(f"{b}.fc1", (f"{b}.fc2",)) for b in blocks]
        else:
            order = self._trunk_order()
            pairs = list(zip(order, [*((name,) for name in order[1:]), self.heads], strict=True))
        named = self.activation[0]
        return [UnitSpec(own, reads, nonlinearity=named, replaceable=True) for own, reads in pairs]

    def residual_branches(self) -> list[list[str]]:
        """Return the layer whose output each residual block adds."""
        return [[f"blocks.{i}.fc2"] for i in range(self.trunk.blocks) if self.trunk.kind == "simba"]

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Draw one Block by the trunk's initializer, on the CPU.

        ``mlp``: torch's own initializers, as Stable-Baselines3. ``simba``: weights inside residual
        blocks He-normal, cut at two standard deviations; other weights orthogonal with gain
        1; biases 0; norms 1 and 0. With ``init: orthogonal`` all weights are orthogonal with gain
        √2, but for the head `log_std` with gain 1; biases 0 (Nikishin et al. 2022).
        """
        if self.trunk.init == "orthogonal" and block.kind != "norm":
            return orthogonal(block, generator, 1.0 if block.path == "log_std" else math.sqrt(2))
        if self.trunk.kind == "mlp" or block.kind == "norm":
            return torch_default(block, generator)
        if self.trunk.kind == "drq":
            return orthogonal(block, generator, math.sqrt(2) if block.kind == "conv" else 1.0)
        value = torch.zeros(block.view.shape)
        if block.role == "bias":
            return value
        if block.path.startswith("blocks."):
            std = math.sqrt(2 / block.spec.fan_in) / CUT_NORMAL_STD
            return nn.init.trunc_normal_(value, 0, std, -2 * std, 2 * std, generator=generator)
        return nn.init.orthogonal_(value, generator=generator)

    def _hidden(self, x: Tensor, member: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the heads read, and the activations of each layer; of one member or all."""
        activations: dict[str, Tensor] = {}
        if self.trunk.kind != "simba":
            for name in self._trunk_order():
                layer = self.get_submodule(name)
                x = activations[name] = activated(
                    layer, _computed(layer, x, member), self.activation[1]
                )
            return x, activations
        x = _computed(self.input, x, member)
        for i, block in enumerate(self.blocks):
            x, activations[f"blocks.{i}.fc1"] = block(x, member)
        return _computed(self.norm, x, member), activations


class Actor(_TrunkNetwork):
    """Mean and logarithm of the standard deviation of a Gaussian before tanh.

    Args:
        obs_dim: entries of an observation; of ``drq`` the features of the critics' encoder.
        action_dim: entries of an action.
        trunk: what comes before the two linear heads `mean` and `log_std`.
        log_std_min: lower bound of `log_std`.
        log_std_max: upper bound.
        log_std: how a head's output x gets between the bounds: ``squash`` is
            min + ½(max − min)(tanh x + 1), as SimBa; ``clamp`` cuts, as Stable-Baselines3.

    Raises:
        ConfigError: for another `log_std`, or bounds in the wrong order.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        trunk: TrunkSpec,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        log_std: str = "squash",
    ) -> None:
        drq = trunk.kind == "drq"
        d_in = trunk.features if drq else obs_dim
        super().__init__(d_in, trunk, {"mean": action_dim, "log_std": action_dim})
        self.projection = Projection(obs_dim, d_in) if drq else None
        check_choice("log_std", log_std, LOG_STD_LAWS)
        if not log_std_min < log_std_max:
            raise ConfigError(
                f"log_std_min = {log_std_min}: allowed is less than log_std_max = {log_std_max}"
            )
        self.log_std_how, self.bounds = log_std, (log_std_min, log_std_max)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log_std, (batch, action_dim), at least float32, of (batch, obs_dim)."""
        return self.forward_activations(obs)[0]

    def forward_activations(self, obs: Tensor) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        """Return what `forward` does and the activations after each ReLU, (batch, units)."""
        hidden, activations = self._hidden(obs if self.projection is None else self.projection(obs))
        mean, log_std = (at_least_float32(self.get_submodule(head)(hidden)) for head in self.heads)
        return (mean, between(log_std, self.log_std_how, *self.bounds)), activations


class Critic(_TrunkNetwork):
    """Values of an action by every member of an ensemble, in one batched computation.

    With pictures (``drq``) its members share an encoder and a projection of what it gives. It takes
    pictures, or features that its encoder has given already.

    Args:
        obs_dim: entries of an observation; of ``drq`` the features of its encoder.
        action_dim: entries of an action.
        trunk: what comes before the linear head `head`.
        members: how many.
        encoder: of ``drq``: what it reads pictures with.
        bins: if values are categorical; None for one number.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        trunk: TrunkSpec,
        members: int = 2,
        encoder: Encoder | None = None,
        bins: int | None = None,
    ) -> None:
        drq = trunk.kind == "drq"
        d_in = trunk.features if drq else obs_dim
        super().__init__(d_in + action_dim, trunk, {"head": bins or 1}, members)
        self.members, self.encoder, self.bins = members, encoder, bins
        self.projection = Projection(obs_dim, d_in) if drq else None

    def _before_trunk(self) -> list[str]:
        convs = [] if self.encoder is None else [f"encoder.{n}" for n in self.encoder.order]
        return [*convs, *super()._before_trunk()]

    def unit_specs(self) -> list[UnitSpec]:
        """Return the units of each hidden layer; numbers that pictures are projected to are none.

        The actor reads the last convolution too, and what it reads is not edited with a unit.
        """
        convs = [] if self.encoder is None else self.encoder.unit_specs_before("projection.linear")
        return [*convs, *super().unit_specs()]

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values, (members, batch), or logits, (members, batch, bins), at least float32.

        They are of observations (batch, *obs_shape), or of features (batch, features), and actions
        (batch, action_dim) in [−1, 1].
        """
        return self._values(obs, action)[0]

    def forward_activations(self, obs: Tensor, action: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return values and the activations after each ReLU, (batch, units, …).

        Each member has its own, named like its Blocks: ``[0].fc1``, ``[1].fc1``, …
        """
        values, activations, split = self._values(obs, action)
        for name, stacked in activations.items():
            split |= {f"[{member}].{name}": own for member, own in enumerate(stacked)}
        return values, split

    def _values(
        self, obs: Tensor, action: Tensor
    ) -> tuple[Tensor, Mapping[str, Iterable[Tensor]], dict[str, Tensor]]:
        """Return what `forward` does, and activations: each member's own, and shared ones."""
        shared: dict[str, Tensor] = {}
        if self.encoder is not None and obs.ndim > 2:
            obs, shared = self.encoder(obs)
        if self.projection is not None:
            obs = self.projection(obs)
        x, head = torch.cat([obs, action], dim=-1), self.get_submodule("head")
        if self._one_by_one(x):
            members = [self._hidden(x, i) for i in range(self.members)]
            heads = [_computed(head, hidden, i) for i, (hidden, _) in enumerate(members)]
            activations = {
                name: [activations[name] for _, activations in members] for name in members[0][1]
            }
            return self._squeezed(torch.stack(heads)), activations, shared
        hidden, activations = self._hidden(x)
        return at_least_float32(self._squeezed(head(hidden))), activations, shared

    def _squeezed(self, values: Tensor) -> Tensor:
        return values.squeeze(-1) if self.bins is None else values

    def _one_by_one(self, x: Tensor) -> bool:
        """Say whether members are computed one after the other.

        In compiled float32 code on a CPU they are: products of matrices, unlike batched ones, need
        no copies between their layouts. Layers in which a method acts have all members at once.
        """
        layers = [self.get_submodule(name) for name in (*self._trunk_order(), *self.heads)]
        return (
            torch.compiler.is_compiling()
            and x.is_cpu
            and x.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and all(map(_is_plain, layers))
        )


class Temperature(nn.Module):
    """The weight α of the entropy, as the exponential of its one parameter.

    Args:
        initial: α at the start, positive.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(initial)))

    def forward_order(self) -> Order:
        """Return no layer: there is none."""
        return []

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Return log(initial); nothing is drawn."""
        return torch.full(block.view.shape, math.log(self.initial))

    def forward(self) -> Tensor:
        """Return α, shape (1,)."""
        return self.log_alpha.exp()


def critic_of(
    agent: Any,
    obs_shape: Sequence[int],
    action_dim: int,
    obs_scale: float = 1 / 255,
    seed: int = 0,
) -> Critic | OwnCritic:
    """Return the critics of a SAC's config.

    Args:
        agent: its section ``agent``.
        obs_shape: shape of one (stacked) observation.
        action_dim: entries of an action.
        obs_scale: factor that brings pictures into [0, 1].
        seed: that buffers of a user's networks are drawn from.

    Raises:
        ConfigError: if the network does not fit the observations, or as `OwnCritic` says.
    """
    bins = agent.values and agent.values.bins
    if is_factory(agent.network):
        return OwnCritic(agent.network, obs_shape, action_dim, agent.critics, seed, bins)
    axes = 3 if agent.network == "drq" else 1
    if len(obs_shape) != axes:
        what = "pictures (bytes with two or three axes)" if axes == 3 else "vectors"
        others = "a function of yours" if axes == 3 else "drq, for pictures"
        raise ConfigError(
            f"agent.network = {agent.network!r} needs {what}, this environment gives shape "
            f"{tuple(obs_shape)}: use another network, such as {others}"
        )
    trunk, encoder, obs_dim = TrunkSpec.of(agent, "critic"), None, obs_shape[0]
    if agent.network == "drq":
        encoder = Encoder(obs_shape, trunk.convs, trunk.activation, obs_scale)
        encoder.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        obs_dim = encoder.features
    return Critic(obs_dim, action_dim, trunk, agent.critics, encoder, bins)


def actor_of(
    agent: Any,
    obs_shape: Sequence[int],
    action_dim: int,
    critic: Critic | OwnCritic,
    seed: int = 0,
) -> Actor | OwnActor:
    """Return the actor of a SAC's config; of pictures it reads the critics' features.

    Args:
        agent: its section ``agent``.
        obs_shape: shape of one (stacked) observation.
        action_dim: entries of an action.
        critic: what `critic_of` returned.
        seed: that buffers of a user's network are drawn from.
    """
    log_std = agent.log_std_min, agent.log_std_max, agent.log_std
    if is_factory(agent.network):
        return OwnActor(agent.network, obs_shape, action_dim, *log_std, seed)
    encoder = getattr(critic, "encoder", None)
    obs_dim = obs_shape[0] if encoder is None else encoder.features
    return Actor(obs_dim, action_dim, TrunkSpec.of(agent, "actor"), *log_std)
