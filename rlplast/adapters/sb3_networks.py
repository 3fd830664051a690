"""What Stable-Baselines3 and sb3-contrib algorithms have: networks, initializers, orders, units."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from rlplast.adapters.sb3_parts import PARTS, parts_of
from rlplast.adapters.trained import raw_optimizer, refuse_sharded
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import NORMS, Block, unwrap
from rlplast.core.network.network import DefaultInit, Init, Network, Place, torch_default
from rlplast.core.network.trace import is_activation, is_matrix
from rlplast.core.network.unit_search import JOINED
from rlplast.core.network.unit_walk import alone
from rlplast.core.network.units import UnitSpec

__all__ = ["find_networks", "optimizers_of"]

_Q_NETWORKS = (("q_net", "q_net_target"), ("quantile_net", "quantile_net_target"))
_EXTRACTOR = "features_extractor"
_KNOWN_EXTRACTORS = ("FlattenExtractor", "NatureCNN")  # list their layers in forward order
_UPDATES_ELSEWHERE = ("TRPO",)  # its policy moves without an optimizer's step

Chains = Sequence[Sequence[str]]


def find_networks(model: Any, named: Collection[str] = ()) -> dict[str, Network]:
    """Return the networks of an algorithm, each with its optimizer, followers and initializer.

    PPO and A2C have ``actor`` and ``critic`` if the user's lists named one of them, else
    ``policy``.

    Raises:
        ConfigError: if its layout is not known, it is sharded, networks share layers, or a policy
            is named beside its parts.
    """
    policy = model.policy
    networks = _networks_of(model, policy, named)
    paths = {module: path for path, module in policy.named_modules()}
    for network in networks.values():
        path = paths.get(network.module)
        network.place = Place(partial(_place, model, policy, network.module, path))
    return networks


def _place(model: Any, policy: Any, module: nn.Module, path: str | None) -> nn.Module:
    """Return what an algorithm trains now in a network's place; `path` is None outside a policy."""
    outside = path is None and model.policy is policy
    return module if outside else model.policy.get_submodule(path or "")


def _networks_of(model: Any, policy: Any, named: Collection[str]) -> dict[str, Network]:
    refuse_sharded([*policy.modules(), *policy.parameters()])
    if not {kind.__name__ for kind in type(model).__mro__} & set(_UPDATES_ELSEWHERE):
        if hasattr(policy, "actor") and hasattr(policy, "critic"):
            return _actor_critic(model)
        for online, target in _Q_NETWORKS:
            if hasattr(policy, online):
                q, follower = getattr(policy, online), getattr(policy, target)
                return {"q": _network("q", q, [[online]], policy.optimizer, follower)}
        if hasattr(policy, "mlp_extractor") and hasattr(policy, "optimizer"):
            return _on_policy(policy, named)
    raise ConfigError(
        f"{type(model).__name__} ({type(model).__module__}) is not supported: its networks and "
        "optimizers are not known; allowed are DQN, QRDQN, SAC, TQC, CrossQ, TD3, DDPG, PPO, A2C "
        "of stable_baselines3 and sb3_contrib, and what derives from them"
    )


def optimizers_of(model: Any) -> list[Optimizer]:
    """Return the optimizers that an algorithm has now."""
    policy = model.policy
    holders = [policy, getattr(policy, "actor", None), getattr(policy, "critic", None)]
    optimizers = [getattr(holder, "optimizer", None) for holder in holders]
    optimizers.append(getattr(model, "ent_coef_optimizer", None))
    return [raw_optimizer(optimizer) for optimizer in optimizers if optimizer is not None]


def _actor_critic(model: Any) -> dict[str, Network]:
    policy = model.policy
    extractor = policy.actor.features_extractor
    if policy.share_features_extractor and any(True for _ in extractor.parameters()):
        raise ConfigError(
            f"actor and critic of this {type(model).__name__} share their features extractor: "
            "hooks on both would edit it twice; pass policy_kwargs with "
            "share_features_extractor=False"
        )
    actor, critic = policy.actor, policy.critic
    spread = isinstance(getattr(actor, "log_std", None), nn.Module)  # not with gSDE, not in TD3
    initializer = _initializer({"log_std": getattr(actor, "log_std_init", 0.0)}, {})
    networks = {
        "actor": _network(
            "actor",
            actor,
            [["latent_pi"] if spread else ["latent_pi", "mu"]],
            actor.optimizer,
            getattr(policy, "actor_target", None),
            heads=("mu", "log_std") if spread else (),
            initializer=initializer,
        ),
        "critic": _network(
            "critic",
            critic,
            [[name] for name, _ in critic.named_children() if name.startswith("qf")],
            critic.optimizer,
            getattr(policy, "critic_target", None),
            initializer=initializer,
        ),
    }
    if getattr(model, "ent_coef_optimizer", None) is not None:
        networks["temperature"] = _temperature(model)
    return networks


def _temperature(model: Any) -> Network:
    """Return log α, a bare tensor there, as a network; its initializer is its start."""
    module = nn.Module()
    module._parameters["log_alpha"] = model.log_ent_coef
    optimizer = raw_optimizer(model.ent_coef_optimizer)

    def start(block: Block, generator: torch.Generator) -> Tensor:
        return network.initial[block.name].clone()

    network = Network("temperature", module, optimizer, init=start)
    return network


def _on_policy(policy: Any, named: Collection[str]) -> dict[str, Network]:
    """Return a policy with its value function, or both apart; they start as the library's do."""
    parts = [name for name in PARTS if name in named]
    if parts and "policy" in named:
        raise ConfigError(
            f"the lists name 'policy' and {parts[0]!r}, which is a part of it: name actor and "
            "critic, or policy alone"
        )
    gains = dict.fromkeys((_EXTRACTOR, "vf_features_extractor", "mlp_extractor"), 2**0.5)
    gains |= {"action_net": 0.01, "value_net": 1.0}
    initializer = _initializer({"log_std": policy.log_std_init}, gains if policy.ortho_init else {})
    make = partial(_network, optimizer=policy.optimizer, initializer=initializer)
    chains = {
        "actor": ["mlp_extractor.policy_net", "action_net"],
        "critic": ["mlp_extractor.value_net", "value_net"],
    }
    if parts:
        return {name: make(name, part, [chains[name]]) for name, part in parts_of(policy).items()}
    shared, both = policy.share_features_extractor, list(chains.values())
    if not shared:
        both = [[_EXTRACTOR, *both[0]], ["vf_features_extractor", *both[1]]]
    return {"policy": make("policy", policy, both, shared=shared)}


def _network(
    name: str,
    module: nn.Module,
    chains: Chains,
    optimizer: Optimizer,
    target: nn.Module | None = None,
    *,
    heads: tuple[str, ...] = (),
    shared: bool = True,
    initializer: Init | None = None,
) -> Network:
    """Return a network whose forward order and units are known.

    A chain lists parts that are run one after the other, after the features extractor if `shared`;
    the `heads` read its end. Several chains become members, as in one stacked network.
    """
    module = unwrap(module)
    order: Any = None  # of type Order
    units = None
    extractor = type(getattr(module, _EXTRACTOR)).__name__
    if extractor in _KNOWN_EXTRACTORS and _is_plain(module):
        trunk = [_EXTRACTOR] if shared else []
        units = _units(module, [[*trunk, *chain] for chain in chains], heads)
        if not any(map(_renormalises, module.modules())):
            parts = [*trunk, *(part for chain in chains for part in chain)]
            order = [leaf for part in parts for leaf in _leaves(module, part)]
            order += [heads] if heads else []
    followers = {} if target is None else {"target": target}
    optimizer = raw_optimizer(optimizer)
    network = Network(
        name, module, optimizer, followers, order=order, init=initializer, units=units
    )
    if len(chains) > 1:
        for member in (network, *network.followers.values()):
            member.blocks = tuple(_as_member(block, chains) for block in member.blocks)
    return network


def _units(module: nn.Module, chains: Chains, heads: tuple[str, ...]) -> list[UnitSpec] | None:
    """Return what the units of chains are; None where that is left to tracing."""
    if getattr(module, "use_sde", False) or any(hasattr(m, JOINED) for m in module.modules()):
        return None
    readers: dict[str, dict[str, None]] = {}
    steps: dict[str, nn.Module] = {}
    norms: dict[str, dict[str, None]] = {}
    for chain in chains:
        before = ""
        for name, layer in _computing(module, chain):
            if is_matrix(layer):
                readers.setdefault(before, {})[name] = None
                before = name
            elif is_activation(layer):
                steps.setdefault(before, alone(layer))
            elif _renormalises(layer) and (not before or before in steps):
                norms.setdefault(before, {})[name] = None
            else:
                return None
        readers.setdefault(before, {}).update(dict.fromkeys(heads))
    return [
        UnitSpec(
            layer,
            tuple(names),
            tuple(norms.get(layer, ())),
            nonlinearity=steps.get(layer, nn.Identity()),
            norms_last=True,
        )
        for layer, names in readers.items()
        if layer and names
    ]


def _computing(module: nn.Module, chain: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules without parts that do more than reshape, in forward order."""
    modules = dict(module.named_modules())
    for part in chain:
        for name, layer in modules.items():
            inside = f"{name}.".startswith(f"{part}.")
            whole = next(layer.children(), None) is None
            if inside and whole and not isinstance(layer, nn.Flatten | nn.Identity):
                yield name, layer


def _as_member(block: Block, chains: Chains) -> Block:
    for i, chain in enumerate(chains):
        if any(f"{block.name}.".startswith(f"{part}.") for part in chain):
            return dataclasses.replace(block, spec=dataclasses.replace(block.spec, member=i))
    return block


def _holds(module: nn.Module) -> bool:
    return isinstance(module, NORMS) or any(True for _ in module.parameters(recurse=False))


def _leaves(module: nn.Module, part: str) -> list[str]:
    names = [n for n, m in module.named_modules() if f"{n}.".startswith(f"{part}.") and _holds(m)]
    return [n for n in names if not any(n.startswith(f"{other}.") for other in names)]


_KNOWN_CODE = ("torch.", "stable_baselines3.", "sb3_contrib.", "rlplast.")


def _is_plain(module: nn.Module) -> bool:
    """Say whether layers below are run as theirs are, and it is known what they do to a scale."""
    if not all(type(m).forward.__module__.startswith(_KNOWN_CODE) for m in module.modules()):
        return False
    layers = [m for m in module.modules() if m is not module and _holds(m)]
    known = (nn.Linear, _ConvNd, *NORMS)
    return all(
        isinstance(m, known) or _renormalises(m) or hasattr(m, "block_specs") for m in layers
    )


def _renormalises(module: nn.Module) -> bool:
    """Say whether a module is CrossQ's batch renormalisation: what it does to a scale changes."""
    return hasattr(module, "ra_mean") and hasattr(module, "ra_var")


def _initializer(constants: Mapping[str, float], gains: Mapping[str, float]) -> Init:
    """Return an initializer: constants by tensor, orthogonal weights by part, or torch's."""

    def init(block: Block, generator: torch.Generator) -> Tensor:
        shape = block.view.shape
        if block.name in constants:
            return torch.full(shape, float(constants[block.name]))
        if isinstance(block.module, nn.RNNBase):
            bound = block.module.hidden_size**-0.5
            return torch.empty(shape).uniform_(-bound, bound, generator=generator)
        gain = next((g for part, g in gains.items() if block.name.startswith(f"{part}.")), None)
        if gain is None or block.kind not in ("linear", "conv"):
            return torch_default(block, generator)
        if block.role == "bias":
            return torch.zeros(shape)
        return nn.init.orthogonal_(torch.empty(shape), gain, generator=generator)

    return DefaultInit(init)
