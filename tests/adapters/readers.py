"""Small networks and trainers for methods that read activations."""

from typing import Any

import torch
from torch import Tensor, nn

from rlplast.adapters.driver import Driver
from rlplast.adapters.reading import LastBatch
from rlplast.adapters.trained import find_networks
from rlplast.core.clock import Clock
from rlplast.core.network.network import Network
from tests.adapters.hosts import sb3_model
from tests.adapters.toys import row, silence

SMALL: dict[str, Any] = {"net_arch": [12, 12], "activation_fn": nn.ReLU}


def sb3(name: str, **options: Any) -> Any:
    return sb3_model(name, **({"policy_kwargs": SMALL} | options))


def net(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(4)
    layers = [nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 10)]
    found = nn.Sequential(*layers, *extra)
    silence(Network("model", found))
    return found


NEVER = row("toy_least", params={"period": 10**9})  # keeps its books and resets nothing
IDLE = row("toy_silent", every="3 updates", params={"at_most": -1.0})  # finds no such unit


def has_hooks(*modules: nn.Module) -> bool:
    every = [part for module in modules for part in module.modules()]
    return any(part._forward_hooks or part._forward_pre_hooks for part in every)


def begun(hooks: Any, module: nn.Module, optimizer: Any, shards: int = 1, **options: Any) -> Driver:
    driver = Driver(hooks, "100 updates", **options)
    networks = find_networks(module, [optimizer], None)
    steps = {optimizer: lambda: True}
    source = LastBatch(networks)
    about: dict[str, Any] = {"fresh": True, "units": (), "source": source, "shards": shards}
    driver.begin(networks, lambda: steps, Clock(), None, **about)
    return driver


def sizes(driver: Driver) -> dict[str, Tensor]:
    (hook,) = (h for h in driver.state_dict()["hooks"].values() if h and "states" in h)
    return {k: v.clone() for k, v in hook["states"]["model"].items()}
