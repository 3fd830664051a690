"""Kinds of runs: what the key ``kind`` of a config can be."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rlplast import plugins
from rlplast.core.errors import ConfigError, shortened
from rlplast.core.registry import load_plugins, look_up
from rlplast.training.config import RunConfig
from rlplast.training.trainable import Trainable

__all__ = ["Kind", "get_kind", "kinds", "register_kind"]


@dataclass(frozen=True)
class Kind:
    """A kind of run, with the ``module:Class`` of its config and of its `Trainable`."""

    name: str
    config: str
    trainable: str
    origin: str = "rlplast"

    def config_class(self) -> type[RunConfig]:
        """Return the config's class; ConfigError if it cannot be imported, or is no config."""
        found = self._import(self.config)
        if not (isinstance(found, type) and issubclass(found, RunConfig)):
            raise ConfigError(f"{self._quoted(self.config)} is no class derived from RunConfig")
        return found

    def trainable_class(self) -> Callable[[Any, torch.device], Trainable]:
        """Return what is called with a config and a device; ConfigError if it is not there."""
        return self._import(self.trainable)

    def _import(self, path: str) -> Any:
        module, _, name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except Exception as error:
            if module.startswith("rlplast."):
                raise
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(
                f"{self._quoted(path)} cannot be imported ({cause}): fix it"
            ) from error
        if not callable(found):
            raise ConfigError(f"{self._quoted(path)} is no class")
        return found

    def _quoted(self, path: str) -> str:
        return f"kind {self.name!r} from {self.origin}: {path}"


_OURS = {  # name → config and trainable, inside of rlplast
    "dqn": ("agents.dqn_config:DQNConfig", "agents.dqn:DQN"),
    "sac": ("agents.sac_config:SACConfig", "agents.sac:SAC"),
    "ppo": ("agents.ppo_config:PPOConfig", "agents.ppo:PPO"),
    "supervised": ("supervised.config:SupervisedConfig", "supervised.trainer:Supervised"),
    "gpt": ("gpt.config:GPTConfig", "gpt.trainer:GPTTrainer"),
}
_KINDS = {n: Kind(n, f"rlplast.{config}", f"rlplast.{made}") for n, (config, made) in _OURS.items()}


def register_kind(name: str, *, config: str, trainable: str) -> None:
    """Add a kind of run. Call it in a module that `--import` or an entry point names.

    Args:
        name: the value of a config's key ``kind``.
        config: ``module:Class`` of its config, a dataclass derived from
            `rlplast.training.config.RunConfig`.
        trainable: ``module:Class`` of its trainer, a `rlplast.training.trainable.Trainable` made
            from a config and a device.

    Raises:
        ConfigError: for a name that is taken, or a class not given as ``module:Class``.
    """
    for key, path in (("config", config), ("trainable", trainable)):
        if not all(isinstance(path, str) and part for part in str(path).partition(":")):
            raise ConfigError(f"kind {name!r}: {key} = {path!r}: allowed is 'module:Class'")
    new = Kind(name, config, trainable, plugins.origin(trainable.partition(":")[0]))
    taken = _KINDS.get(name, new)
    if (taken.config, taken.trainable) != (config, trainable):  # else a module imported twice
        raise ConfigError(f"kind {name!r} is taken, by {taken.origin}: choose another name")
    _KINDS[name] = new


def kinds() -> dict[str, Kind]:
    """Return every kind by name: ours, then those of plug-ins and imported modules."""
    load_plugins(plugins.KINDS)
    return dict(_KINDS)


def get_kind(name: Any) -> Kind:
    """Return a kind by name; ConfigError names the nearest one if there is none."""
    return look_up(name, kinds(), f"kind = {shortened(name)}")
