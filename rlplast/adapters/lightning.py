"""Hooks in Lightning (``lightning.pytorch``)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rlplast.adapters.callback import DriverCallback
from rlplast.adapters.reading import LastBatch
from rlplast.adapters.trained import find_networks, raw_optimizer, refuse_sharded
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ConfigError(
        f'rlplast.adapters.lightning needs lightning ({error}): pip install "rlplast[lightning]"'
    ) from error

__all__ = ["HookCallback"]


class HookCallback(DriverCallback, Callback):
    """Fire a list of hooks while ``Trainer(callbacks=[HookCallback(hooks)]).fit(module)`` runs.

    θ0 and the hooks' state are part of Lightning's checkpoints (``callbacks`` → `state_key`).

    Args:
        hooks: the hook list of a run's config, or the path of a YAML file that holds one.
        total: the run's length, which percentages refer to; default:
            ``trainer.estimated_stepping_batches`` updates. Needed with manual optimization.
        seed: seed of the streams that firings draw from.
        receipts: a file to which each receipt is appended.
        networks: network name → path of a part of the LightningModule, or a list of that path
            and those of its followers; default: one network ``model`` of everything. Needed with
            several optimizers: list the network that each update steps last at the end, for its
            steps are the updates.
        probe: as of `rlplast.Hooks`: a batch, or (size, generator) → a batch, that scheduled
            hooks read; default: the last training batch.
        loss: as of `rlplast.Hooks`, batch → loss, for hooks that read gradients.

    Raises:
        ConfigError: if the list, the module or its optimizers are not supported; the latter two
            when training begins.
    """

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint."""
        return "rlplast.adapters.lightning.HookCallback"

    def state_dict(self) -> dict[str, Any]:
        """Return θ0, the hooks' state and counters: tensors and plain values."""
        return self.driver.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.driver.load_state_dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take hold of module and optimizers; fire what is due at the start."""
        refuse_sharded([trainer.strategy.model, *trainer.strategy.optimizers])
        optimizers = [raw_optimizer(o) for o in trainer.strategy.optimizers]
        if not optimizers or (len(optimizers) > 1 and self.paths is None):
            raise ConfigError(
                f"{type(pl_module).__name__} has {len(optimizers)} optimizers: one trains the "
                "network 'model'; for several pass networks={name: path of a part}, the one that "
                "each update steps last at the end"
            )
        networks = find_networks(pl_module, optimizers, self.paths)
        total, epochs = trainer.estimated_stepping_batches, trainer.max_epochs or 0
        # Lightning counts every step of every optimizer, and under manual optimization one a batch.
        alone = pl_module.automatic_optimization and len(optimizers) == 1
        known = alone and math.isfinite(total) and total > 0
        self.driver.begin(
            networks,
            lambda: {list(networks.values())[-1].optimizers[-1]: lambda: True},
            Clock(updates=int(total) if known else 0, epochs=max(0, epochs)),
            f"{total} updates" if known else None,
            fresh=trainer.global_step == 0,
            units=("epochs",),
            source=LastBatch(networks),
            whole=partial(_untoggled, pl_module),
            optimizers=lambda: [raw_optimizer(o) for o in trainer.strategy.optimizers],
            epochs=trainer.current_epoch,
        )
        self._logged = self.driver.clock.updates

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the epochs that are done, and fire what is due by them."""
        self.driver.advance(epochs=trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Leave the summaries of every-update hooks every ``log_every_n_steps`` updates."""
        whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        if pl_module.automatic_optimization and whole:  # a step that was skipped leaves passes
            self.driver.drop_passes()
        period, updates = getattr(trainer, "log_every_n_steps", 0), self.driver.clock.updates
        if period > 0 and updates // period > self._logged // period:
            self._logged = updates
            self.driver.flush()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the last summaries and let go of the optimizers."""
        self.driver.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Let go of the optimizers."""
        self.driver.detach()


@contextmanager
def _untoggled(module: LightningModule) -> Iterator[None]:
    """Undo for a while what ``toggle_optimizer`` froze for the backward pass of one loss."""
    trains: dict[Any, bool] = dict(module._param_requires_grad_state)
    toggled = {parameter: parameter.requires_grad for parameter in trains}
    try:
        for parameter, flag in trains.items():
            parameter.requires_grad = flag
        yield
    finally:
        for parameter, flag in toggled.items():
            parameter.requires_grad = flag
