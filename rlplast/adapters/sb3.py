"""Hooks in Stable-Baselines3 and sb3-contrib."""

import numbers
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.optim import Optimizer

from rlplast.adapters.callback import DriverCallback
from rlplast.adapters.driver import Driver
from rlplast.adapters.sb3_layers import install_layers
from rlplast.adapters.sb3_networks import find_networks, optimizers_of
from rlplast.adapters.sb3_optimizers import optimizer_class
from rlplast.adapters.sb3_probe import Experience
from rlplast.adapters.state import HookList
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.network.network import Network

try:
    from stable_baselines3.common import callbacks
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.logger import KVWriter
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
except ModuleNotFoundError as error:
    raise ConfigError(
        f'rlplast.adapters.sb3 needs Stable-Baselines3 ({error}): pip install "rlplast[sb3]"'
    ) from error

__all__ = ["CheckpointCallback", "HookCallback", "optimizer_class"]

_NOTHING_LOGGED = "nothing was; give learn a log_interval that the run reaches, as log_interval=1"


class _LogPoint(KVWriter):
    """Tells when Stable-Baselines3 writes a line of its log, and keeps its numbers."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self.flush = flush
        self.unread: dict[str, float] = {}  # by hooks, without times and our own metrics
        self.seen: set[str] = set()  # keys of all numbers so far

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        self.flush()
        for key, value in key_values.items():
            number = isinstance(value, numbers.Real | np.number)
            if number and not key.startswith(("time/", "metric/")):
                self.unread[key] = float(value)
        self.seen |= self.unread.keys()

    def close(self) -> None:  # nothing to close
        return


class HookCallback(DriverCallback, callbacks.BaseCallback):
    """Fire a list of hooks while ``model.learn(..., callback=HookCallback(hooks))`` runs.

    Hooks due by env_steps fire after a step of the environments, before the updates it owes; in PPO
    and A2C between the last update and the next rollout, since one policy should play a whole one.

    What `save` writes lies beside the model's file; call `load` before
    ``learn(..., reset_num_timesteps=False)``.

    Args:
        hooks: the hook list of a run's config, or the path of a YAML file that holds one.
        total: the run's length, which percentages refer to; default: ``total_timesteps`` of the
            first ``learn``, as env_steps. Give it if ``learn`` is called several times.
        seed: seed of the streams that firings draw from.
        receipts: a file to which each receipt is appended.
        verbose: of Stable-Baselines3.
        probe: as of `rlplast.Hooks`: a batch, or (size, generator) → a batch, that scheduled
            hooks read; default: transitions of the replay, or observations of the last rollout.
        loss: as of `rlplast.Hooks`, batch → loss, for hooks and metrics that read gradients.
        penalties: the penalties of a run's config, or the path of a YAML file that holds them.
            Their gradient is added right before each step, after any clipping of gradients.
        layers: the layers of a run's config, or the path of a YAML file that holds them. They are
            put into the policy when ``learn`` is first called.
        metrics: what is measured and how often, as the section of a run's config: a mapping
            ``{"every": "10%", "names": […], "batch_size": 256, "networks": […]}``, of which only
            `every` is needed. Values go into Stable-Baselines3's log, into `metrics`, and into
            ``metrics.jsonl`` beside the file of receipts.

    Raises:
        ConfigError: if a list or the algorithm is not supported; the second at ``learn``.
    """

    def __init__(
        self,
        hooks: HookList,
        total: str | None = None,
        seed: int = 0,
        receipts: str | Path | None = None,
        verbose: int = 0,
        *,
        probe: Any = None,
        loss: Any = None,
        penalties: HookList = (),
        layers: HookList = (),
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        callbacks.BaseCallback.__init__(self, verbose)
        of_run = (hooks, total, seed, receipts, probe, loss, penalties, layers, metrics)
        self.driver = Driver(*of_run, observes=True)
        self._experience: Experience | None = None
        self._at_steps = True  # whether env_steps count at each step: not in most PPO rollouts
        self._log_point = _LogPoint(self.driver.flush)
        self._logged = 0  # lines of metrics that Stable-Baselines3's log has

    def _init_callback(self) -> None:
        if not isinstance(self.model, BaseAlgorithm):
            raise ConfigError(
                f"HookCallback of rlplast.adapters.sb3 is attached to a "
                f"{type(self.model).__name__}: allowed is a Stable-Baselines3 algorithm"
            )

    def _on_training_start(self) -> None:
        model = self.model
        total = model._total_timesteps
        driver, named = self.driver, self.driver.named()
        install_layers(model, driver.layers, driver.configs, named, driver.seed)
        networks = find_networks(model, named)
        recurrent = hasattr(getattr(model, "rollout_buffer", None), "hidden_states_pi")
        # Recurrent policies read more than observations.
        self._experience = None if recurrent else Experience(model, networks, driver.seed)
        driver.begin(
            networks,
            partial(_steps, model, networks),
            Clock(env_steps=total),
            f"{total} env_steps",
            fresh=model.num_timesteps == 0,
            units=("env_steps",),
            training=self.locals,  # of `learn`: a new mapping at each call
            source=self._experience,
            optimizers=partial(optimizers_of, model),
            env_steps=model.num_timesteps,
        )
        if self._log_point not in model.logger.output_formats:
            model.logger.output_formats.append(self._log_point)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The lines measured so far, as in ``metrics.jsonl``: counters, then values."""
        return [] if self.driver.measuring is None else self.driver.measuring.lines

    def _advance(self) -> None:
        self.driver.advance(env_steps=self.model.num_timesteps)
        unread, self._log_point.unread = self._log_point.unread, {}
        if unread:
            self.driver.observe(unread)
        self._log()

    def _log(self) -> None:
        """Hand new metrics to Stable-Baselines3's log; its tables get those of whole networks."""
        for line in self.metrics[self._logged :]:
            for key, value in line.items():
                if key.startswith("metric/"):
                    exclude = ("stdout", "log") if key.count("/") > 2 else None
                    self.model.logger.record(key, value, exclude=exclude)
        self._logged = len(self.metrics)

    def _on_rollout_start(self) -> None:
        model = self.model
        self.driver.drop_passes()  # of PPO's last minibatch, if target_kl stopped it
        if isinstance(model, OnPolicyAlgorithm):
            length = model.n_steps * model.n_envs
            self._at_steps = model.num_timesteps + length >= model._total_timesteps
            self._advance()

    def _on_step(self) -> bool:
        if self._at_steps:
            self._advance()
        return True

    def _on_rollout_end(self) -> None:
        if isinstance(self.model, OnPolicyAlgorithm):
            self.driver.count(env_steps=self.model.num_timesteps)
            if self._experience is not None:
                self._experience.end_rollout()

    def _on_training_end(self) -> None:
        self.driver.end()
        self._log()
        seen, clock = self._log_point.seen, self.driver.clock
        for key in self.driver.waits_for():
            if key not in seen and not key.startswith("metric/"):
                near = did_you_mean(key, seen) if seen else _NOTHING_LOGGED
                warning = f"a hook waits for {key!r}, which was not logged: {near}"
                warnings.warn(warning, stacklevel=2)
        ran = f"{clock.updates} updates and {clock.env_steps} env_steps"
        for label in self.driver.never_due():
            warnings.warn(f"{label} was never due: the run had {ran}", stacklevel=2)
        formats = self.model.logger.output_formats
        formats[:] = [f for f in formats if f is not self._log_point]


class CheckpointCallback(callbacks.CheckpointCallback):
    """Stable-Baselines3's, which saves the hooks' state beside each model it saves.

    ``rl_model_1000_steps.zip`` is joined by the folder ``rl_model_hooks_1000_steps.rlplast``, which
    `HookCallback.load` reads. List `hooks` before this one; the rest is as of Stable-Baselines3's.
    """

    def __init__(self, hooks: HookCallback, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hooks = hooks

    def _on_step(self) -> bool:
        go_on = super()._on_step()
        if self.n_calls % self.save_freq == 0:
            self.hooks.save(self._checkpoint_path("hooks_", extension="rlplast"))
        return go_on


def _steps(
    model: BaseAlgorithm, networks: Mapping[str, Network]
) -> dict[Optimizer, Callable[[], bool]]:
    """Return the optimizers whose step may end an update, and whether it does."""
    if "actor" not in networks or isinstance(model, OnPolicyAlgorithm):
        return {next(iter(networks.values())).optimizers[0]: lambda: True}

    def without_actor() -> bool:  # counted up before the critic's step where the delay is used
        return model._n_updates % getattr(model, "policy_delay", 1) != 0  # type: ignore[attr-defined]

    (actor,), (critic,) = networks["actor"].optimizers, networks["critic"].optimizers
    return {critic: without_actor, actor: lambda: True}
