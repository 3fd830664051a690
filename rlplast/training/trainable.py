"""Trainable: what the loop needs of anything that trains.

A DQN, a SAC agent, a classifier and a language model all look like this to the loop, so
hooks, schedules, checkpoints and metrics are written once.
"""

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rlplast.core.clock import Clock
from rlplast.core.method.context import Activations, Source
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.core.network.record import Recorder

__all__ = ["AfterUpdate", "Trainable", "attach", "go_to", "no_hooks", "no_key", "penalties_of"]

AfterUpdate = Callable[[Clock, Mapping[str, Activations]], None]


def no_hooks(clock: Clock, activations: Mapping[str, Activations]) -> None:
    """Do nothing after an update."""


def no_key(clock: Clock) -> Hashable:
    """Return a constant key: nothing inside an update reads the clock."""
    return None


def attach(trainable: Any, hooks: Hooks) -> None:
    """Let hooks act inside a trainable's updates."""
    trainable.after_update = hooks.after_update
    trainable.inside_key = hooks.inside_key
    read = [trainable.networks[name] for name in hooks.recorded()]
    trainable.recorders = {n.name: Recorder(n, on=False) for n in read if n.units().points()}
    trainable.gradients_read = hooks.gradients_read()


def go_to(trainable: Any, clock: Clock) -> None:
    """Set a trainer's clock to that of a checkpoint whose tensors are to be loaded."""
    trainable.clock = clock
    getattr(trainable, "begin_phase", tuple)()


def penalties_of(trainable: Any) -> Penalties:
    """Return the penalties of a trainable's config, once it has data and networks."""
    config = trainable.config
    return Penalties(
        config.penalties,
        trainable.networks,
        trainable,
        total=config.reference_time(),
        units=config.schedule_units,
        horizon=getattr(trainable, "horizon", config.horizon)(),
        seed=config.stream_seed,
    )


class Trainable(Source, Protocol):
    """Something that trains, one step at a time, and the source of what its hooks read.

    The defaults: no update owed, no phase whose end is measured, no files, nothing to close.

    One that knows its end better than its config does, once its data are there, says it in a
    method ``horizon() -> Clock``. One whose phases have optimizers of their own gives its networks
    those of its clock in a method ``begin_phase()``. One that several processes of ``torchrun`` can
    train together says so by a class attribute ``several_processes = True``. Of agents,
    `rlplast evaluate` calls ``play``, and Python ``act``.

    Attributes:
        networks: the networks hooks may touch, by name.
        clock: counters so far.
        units: the units its clock counts.
        after_update: called inside each update with the clock that counts it, after the
            optimizer step and before targets and averages follow; and with the activations of
            the update's own forward pass, by network, of those in `recorded`.
        inside_key: what of that clock `after_update` depends on, for a captured update.
        recorders: of the networks whose activations `after_update` reads, by name.
        gradients_read: whether it reads the parameters' gradients.
        penalties: the terms added to its losses.
    """

    networks: dict[str, Network]
    clock: Clock
    units: tuple[str, ...]
    after_update: AfterUpdate
    inside_key: Callable[[Clock], Hashable] = no_key
    recorders: Mapping[str, Recorder]
    gradients_read: bool = False
    penalties: Penalties

    def step(self) -> None:
        """Do exactly one thing: one vector environment step, or one update."""
        ...

    def owed(self) -> int:
        """Return how many of the next steps are updates that `update` can make at once."""
        return 0

    def update(self, count: int) -> None:
        """Do so many steps, all of them updates that are owed."""
        raise NotImplementedError

    def owes(self) -> bool:
        """Whether an update is due before the next environment step."""
        return self.owed() > 0

    @property
    def about_to_compile(self) -> bool:
        """Whether the next step compiles the update, which takes seconds."""
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the beginning of a run, such as the memory that it takes on a GPU."""
        return ()

    def phase_over(self) -> bool:
        """Whether a phase starts with the next step once no update is owed; the old is measured."""
        return False

    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        """Return scores; draws come from the evaluation stream `number` alone."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return what training measured since the last call, under ``train/`` names."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything but networks and files: streams, environments, counters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def save_files(self, previous: Path | None) -> Callable[[Path], None]:
        """Return what writes bulk data (a replay), as they are now, into a checkpoint's folder.

        That is called once, in another thread, and may link to files of the checkpoint `previous`.
        """
        return lambda folder: None

    def load_files(self, folder: Path) -> None:
        """Read what `save_files` wrote; called after `load_state_dict`."""
        return

    def close(self) -> None:
        """Release environments and processes."""
        return
