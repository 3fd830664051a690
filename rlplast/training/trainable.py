"""Trainable: what the loop drives, and what all trainers share.

A DQN, a SAC agent, a classifier and a language model all look like this to the loop, so
hooks, schedules, checkpoints and metrics are written once. Each one adds its networks, its losses
and its update.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.clock import Clock
from rlplast.core.device import compile_options
from rlplast.core.fast.graphs import Graphs, graphs_of
from rlplast.core.fast.linear import use_fast_linear
from rlplast.core.method.context import Activations
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.install import install_methods
from rlplast.core.method.penalties import Penalties
from rlplast.core.method.readings import Source
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import zero_all
from rlplast.core.network.record import Recorder
from rlplast.core.rng import Streams, derive_seed, torch_stream
from rlplast.optimizers.updater import Updater
from rlplast.training.fingerprint import check_data

__all__ = ["AfterUpdate", "Learnt", "Trainable"]

AfterUpdate = Callable[[Clock, Mapping[str, Activations]], None]
Learnt = tuple[Tensor, Mapping[str, Activations]]  # added to `sums`; activations by network


class Trainable(Source):
    """Something that trains, one step at a time, and the source of what its hooks read.

    `build` makes its networks, `make_update` an update. The defaults: no update owed, no phase
    whose end is measured, no files, nothing to close.

    One that several processes of ``torchrun`` can train together says so by a class attribute
    ``several_processes = True``. Of agents, `rlplast evaluate` calls ``play``, and Python ``act``.

    Attributes:
        means: names of the numbers that each update adds to `sums`.
        saved: names of attributes that a checkpoint holds: tensors, numbers, and what has a
            ``state_dict``.
        networks: the networks hooks may touch, by name.
        updaters: the optimizers of those that train.
        clock: counters so far.
        units: the units its clock counts.
        after_update: called inside each update with the clock that counts it, after the
            optimizer step and before targets and averages follow; and with the activations of
            the update's own forward pass, by network, of those in `recorders`.
        inside_key: what of that clock `after_update` depends on, for a captured update.
        recorders: of the networks whose activations `after_update` reads, by name.
        gradients_read: whether it reads the parameters' gradients.
        penalties: the terms added to its losses.
        fingerprints: of the data, by name, which a resumed run must find again.
    """

    means: tuple[str, ...] = ("train/loss",)
    saved: tuple[str, ...] = ("streams", "penalties", "sums", "updates_summed")

    penalties: Penalties
    clock: Clock
    units: tuple[str, ...]
    after_update: AfterUpdate = staticmethod(lambda clock, activations: None)
    inside_key: Callable[[Clock], Hashable] = staticmethod(lambda clock: None)
    recorders: Mapping[str, Recorder] = {}
    gradients_read: bool = False

    def __init__(self, config: Any, device: torch.device) -> None:
        self.config, self.device, self.units = config, device, config.units
        self.streams = Streams(config.seed, config.continuation)
        self.clock = Clock()
        self.networks: dict[str, Network] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
        self.updaters: dict[str, Updater] = {}
        self.fingerprints: dict[str, str] = {}
        self.sums = torch.zeros(len(self.means), dtype=torch.float64, device=device)
        self.updates_summed = 0
        self._to_compile = self.settings.accelerate == "compile"
        self._graphs = self._new_graphs()

    @property
    def settings(self) -> Any:
        """The section of the config with precision and accelerate: an agent's, or all of it."""
        return getattr(self.config, "agent", self.config)

    def _new_graphs(self) -> Graphs | None:
        key = "accelerate" if self.settings is self.config else "agent.accelerate"
        return graphs_of(self.settings.accelerate, self.device, key)

    def build(self, modules: Mapping[str, Sequence[nn.Module]]) -> None:
        """Make the networks of modules: each one's own and, if it has one, its target.

        The modules of methods are installed, optimizers made, and initial weights drawn.
        """
        for made in modules.values():
            for number, module in enumerate(made):
                module.to(self.device)
                if number:
                    module.requires_grad_(False)
        install_methods(self.config.layers, self.config.hooks, modules, self.config.seed)
        for module in (m for made in modules.values() for m in made):
            use_fast_linear(module)  # now that methods have found the layers of torch they know
        for name, (module, *target) in modules.items():
            optimizers = None
            if any(p.requires_grad for p in module.parameters()):
                seed = derive_seed(self.streams.seed, name)
                self.updaters[name] = Updater(self.config.optimizer_of(name), module, seed)
                optimizers = self.updaters[name].optimizers
            followers = {"target": target[0]} if target else None
            self.networks[name] = Network(name, module, optimizers, followers)
            self._initialise(self.networks[name])
        self.penalties = Penalties(
            self.config.penalties,
            self.networks,
            self,
            total=self.config.reference_time(),
            units=self.config.schedule_units,
            horizon=self.horizon(),
            seed=self.config.stream_seed,
        )

    def _initialise(self, network: Network) -> None:
        network.initialise(torch_stream(self.config.seed, "init", network.name))

    # One step: one vector environment step, one update, or the start of a phase.

    @abstractmethod
    def step(self) -> None:
        """Do exactly one thing: one vector environment step, or one update."""

    def owed(self) -> int:
        """Return how many of the next steps are updates that `update` can make at once."""
        return 0

    def update(self, count: int = 1) -> None:
        """Do so many steps, all of them updates that are owed."""
        raise NotImplementedError

    def owes(self) -> bool:
        """Whether an update is due before the next environment step."""
        return self.owed() > 0

    def phase_over(self) -> bool:
        """Whether a phase starts with the next step once no update is owed; the old is measured."""
        return False

    def next_phase(self) -> None:
        """Start the next phase, with optimizers as new if the config says so."""
        self.go_to(self.clock.advance(phase=1))
        if self.config.optimizer.renew:
            for network in self.networks.values():
                zero_all(network)

    def go_to(self, clock: Clock) -> None:
        """Set the clock, and give networks the optimizers of its phase, if the first has others."""
        self.clock = clock
        for name, updater in self.updaters.items():
            if updater.begin(clock.phase):
                self.networks[name].optimizers = tuple(updater.optimizers)
                self._graphs = self._new_graphs()

    # An update.

    def attach(self, hooks: Hooks) -> None:
        """Let hooks act inside updates."""
        self.after_update, self.inside_key = hooks.after_update, hooks.inside_key
        for recorder in self.recorders.values():  # of hooks attached before
            recorder.stop()
        read = [self.networks[name] for name in hooks.recorded()]
        self.recorders = {n.name: Recorder(n, on=False) for n in read if n.units().points()}
        self.gradients_read = hooks.gradients_read()

    def make_update(
        self,
        after: Clock,
        learn: Callable[[Iterable[Tensor]], Learnt],
        inputs: Iterable[Tensor] = (),
        name: str = "learn",
    ) -> None:
        """Learn from inputs, run the hooks inside the update, and count it.

        On a GPU this can be a CUDA graph, which copies its inputs. What else `learn` reads stays
        where it is.

        Args:
            after: the clock that counts the update.
            learn: computes losses and takes optimizer steps.
            inputs: tensors on the device.
            name: of what is learnt, where updates differ.
        """
        self._after = after
        if self._graphs is None:
            self._finish(learn(inputs), after)
        else:
            key = name, self.inside_key(after), self.penalties.captured_key(after)
            self._graphs(key, lambda *copies: self._finish(learn(copies), after), *inputs)
        self.penalties.last = self.clock = after
        self.updates_summed += 1
        self._to_compile = False

    def _finish(self, learnt: Learnt, after: Clock) -> None:
        """Do what follows learning in an update, on the device."""
        values, activations = learnt
        self.sums += values
        self.after_update(after, activations)

    def call(self, network: str, *inputs: Any) -> tuple[Any, Activations]:
        """Return a network's outputs in an update, and hidden activations if they are recorded."""
        module, recorder = self.networks[network].module, self.recorders.get(network)
        return (module(*inputs), {}) if recorder is None else recorder.of(module, *inputs)

    def penalised(self, network: str, loss: Tensor, whole: Tensor | None = None) -> Tensor:
        """Return a loss with the penalties of this update; see `Penalties.add`."""
        if not self.penalties.terms:
            return loss
        return self.penalties.add(network, loss, whole, clock=self._after)

    def _compiled(self, loss: Any, dynamic: bool | None = False) -> Any:
        """Return a function or module, compiled if the config says so."""
        if not self._to_compile:
            return loss
        return torch.compile(loss, dynamic=dynamic, options=compile_options(self.device))

    @property
    def about_to_compile(self) -> bool:
        """Whether the next step compiles the update, which takes seconds."""
        return self._to_compile

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    # What the loop asks for.

    def horizon(self) -> Clock:
        """Return the clock at the end of the run, as it is known once its data are there."""
        return self.config.horizon()

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the beginning of a run, such as the memory that it takes on a GPU."""
        return ()

    @abstractmethod
    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        """Return scores; draws come from the evaluation stream `number` alone."""

    def metrics(self) -> dict[str, float]:
        """Return means since the last call: losses without penalties, and the penalty."""
        values: dict[str, float] = {}
        if self.updates_summed:
            means = (self.sums / self.updates_summed).tolist()
            values = dict(zip(self.means, means, strict=True))
            values |= self.penalties.metrics(self.updates_summed)
        self.sums.zero_()
        self.updates_summed = 0
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return everything but networks and files."""
        states: dict[str, Any] = {"data": self.fingerprints}
        for name in self.saved:
            value = getattr(self, name)
            states[name] = value.state_dict() if hasattr(value, "state_dict") else value
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `load_files` comes next.

        Raises:
            ConfigError: if the data are other ones by now.
        """
        check_data(state["data"], self.fingerprints)
        for name in self.saved:
            value, saved = getattr(self, name), state[name]
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(saved)
            elif isinstance(value, Tensor):
                value.copy_(saved)
            elif value is not None:
                setattr(self, name, type(value)(saved))

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
