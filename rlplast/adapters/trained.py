"""What hooks may touch in somebody else's trainer, and what is refused."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.blocks import unwrap
from rlplast.core.network.network import Init, Network, Place
from rlplast.core.network.optim_state import DRAWN, moments, shared

__all__ = ["check_policies", "find_networks", "raw_optimizer", "refuse_sharded"]

_SHARDED = (
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "torch.distributed.optim",
    "torch.distributed.tensor",
    "torch.distributed._tensor",
    "deepspeed",
    "accelerate.utils.deepspeed",
    "fairscale",
)
_OPTIMIZER_WRAPPERS = ("AcceleratedOptimizer", "LightningOptimizer")


def raw_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimizer that a trainer wrapped; ConfigError if it is none or sharded."""
    refuse_sharded([optimizer])
    while type(optimizer).__name__ in _OPTIMIZER_WRAPPERS:
        optimizer = optimizer.optimizer
        refuse_sharded([optimizer])
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"the trainer's optimizer is a {type(optimizer).__name__}: allowed is a "
            "torch.optim.Optimizer"
        )
    return optimizer


def refuse_sharded(things: Iterable[object]) -> None:
    """Raise ConfigError for modules, tensors and optimizers that hold only a part of the whole."""
    for thing in things:
        for kind in type(thing).__mro__:
            if kind.__module__.startswith(_SHARDED) or hasattr(thing, "ds_id"):
                raise ConfigError(
                    f"{type(thing).__name__} ({kind.__module__}) is sharded: each process holds "
                    "a part, and hooks edit whole tensors; train on one device or with "
                    "DistributedDataParallel"
                )


def find_networks(
    root: nn.Module,
    optimizers: Sequence[Optimizer],
    paths: Mapping[str, str | Sequence[str]] | None,
    init: Callable[[str], Init | None] = lambda path: None,
) -> dict[str, Network]:
    """Return the networks of a module.

    Args:
        root: the module that the trainer trains; wrappers are taken off.
        optimizers: all optimizers of the trainer.
        paths: network name → path of a part of `root` ("" is all of it), or a list of that
            path and those of its followers; None for one network ``model`` of everything.
        init: returns the initializer of the part at a path, None for torch's.

    Raises:
        ConfigError: for a path that does not exist, a sharded part, or a trainable parameter
            that is in no optimizer.
    """
    root = unwrap(root)
    modules = dict(root.named_modules())
    networks = {}
    for name, value in ({"model": ""} if paths is None else paths).items():
        places = [value] if isinstance(value, str) else list(value)
        for path in places:
            if path not in modules:
                raise ConfigError(f"networks[{name!r}] = {path!r}: {did_you_mean(path, modules)}")
        part, *followers = (modules[path] for path in places)
        refuse_sharded([*part.modules(), *part.parameters()])
        held = {id(p) for p in part.parameters()}
        trains = [o for o in optimizers for g in o.param_groups if held & set(map(id, g["params"]))]
        trains = list(dict.fromkeys(trains)) or optimizers
        by_path = dict(zip(places[1:], followers, strict=True))
        network = networks[name] = Network(name, part, trains, by_path, init=init(places[0]))
        for path, each in zip(places, (network, *network.followers.values()), strict=True):
            each.place = Place(partial(root.get_submodule, path))
    return networks


def check_policies(hooks: Hooks) -> None:
    """Raise an error, before training, for state that a hook could not reset when it is due."""
    for hook in hooks.hooks:
        for network in () if hook.optimizer == "keep" else hook.networks:
            for block in network.trainable():
                moments(network, block.param)
    _check_shared_state(hooks)


def _check_shared_state(hooks: Hooks) -> None:
    """Refuse to reset what an optimizer keeps for all of its parameters, for one network of two."""
    owners = [(o, n.name) for n in hooks.networks.values() for o in n.optimizers]
    for hook in hooks.hooks:
        for network in hook.networks if hook.optimizer == "network" else ():
            for optimizer in network.optimizers:
                other = next((n for o, n in owners if o is optimizer and n != network.name), None)
                common = [name for name in shared(optimizer) if name != DRAWN]
                if other is not None and common:
                    raise ConfigError(
                        f"hook {hook.key!r} resets {', '.join(common)} of the "
                        f"{type(optimizer).__name__} that trains {network.name!r} and {other!r}: "
                        "allowed are optimizer: parameter, touched or keep"
                    )
