"""What the adapters share: a `rlplast.Hooks` driven from inside somebody else's trainer.

Updates are counted by the optimizer itself (``register_step_post_hook``), since no trainer calls
back after each of them; other units at the trainer's callbacks. So hooks due by updates fire right
after the optimizer step that ends an update, before the trainer moves its target networks and
averages. Of data-parallel trainers every rank fires, from streams that are equal on all of them;
the first one alone writes receipts.
"""

import json
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch.optim import Optimizer

from rlplast.adapters.measuring import Measuring, MetricsRow, check_conditions, refuse_conditions
from rlplast.adapters.penalising import add_gradients, check_terms
from rlplast.adapters.reading import Recording, TrainerSource, check_readings, was_skipped
from rlplast.adapters.state import (
    HookList,
    check_match,
    check_start,
    cut_lines,
    fingerprint,
    hooks_text,
    read_list,
)
from rlplast.adapters.trained import check_policies
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.method.context import Activations
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.readings import OwnSource, Source
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.training import watch
from rlplast.core.network.network import Network
from rlplast.core.rng import check_seed
from rlplast.training.distributed import check_in_step
from rlplast.training.run_folder import clock_fields

__all__ = ["Driver"]

_PARTS = ("hooks", "weights", "configs", "seed", "total", "probe", "length")

# What ends an update: returns optimizers, and whether a step of theirs that is just done ends one.
Steps = Callable[[], Mapping[Optimizer, Callable[[], bool]]]

# Who counts an optimizer's steps: a run that was interrupted lets go of it only here.
_HOLDERS: "weakref.WeakKeyDictionary[Optimizer, weakref.ref[Driver]]" = weakref.WeakKeyDictionary()


class Driver:
    """A run's hooks inside a trainer; arguments are as of `rlplast.adapters.sb3.HookCallback`.

    `penalties` is None where the trainer takes none; `observes` says whether the trainer reports
    what it measures, so that hooks may wait for it.

    Raises:
        ConfigError: for a list that cannot be read, hooks that wait for a value that never comes, a
            bad `total` or `seed`, or a loss without a probe.
    """

    def __init__(
        self,
        hooks: HookList,
        total: str | None = None,
        seed: int = 0,
        receipts: str | Path | None = None,
        probe: Any = None,
        loss: Any = None,
        penalties: HookList | None = None,
        layers: HookList = (),
        metrics: Any = None,
        observes: bool = False,
    ) -> None:
        self.configs = read_list(hooks, "hooks")
        self.penalties = None if penalties is None else read_list(penalties, "penalties")
        self.layers = read_list(layers, "layers")
        if not observes:
            refuse_conditions(self.configs)
        self.total = None if total is None else Time.parse(total, "total")
        if self.total is not None and (self.total.unit == "%" or self.total.value < 1):
            raise ConfigError(f"total = {total!r}: allowed is a positive number with a unit")
        if loss is not None and probe is None:
            raise ConfigError("loss= is a function of a batch of probe=: pass probe= too")
        self.seed, self.probe, self.loss = check_seed(seed), probe, loss
        self.path = None if receipts is None else Path(receipts)
        self.measuring = None
        if metrics is not None:
            lines = None if self.path is None else self.path.with_name("metrics.jsonl")
            self.measuring = Measuring(MetricsRow.parse(metrics), lines)
        self.receipts: list[Receipt] = []  # of this process
        self.networks: dict[str, Network] = {}
        self.units: tuple[str, ...] = ()
        self._hooks: Hooks | None = None
        self.loaded: Mapping[str, Any] | None = None  # the state to go on from
        self._whole: Callable[[], AbstractContextManager[None]] = nullcontext
        self._recording: Recording | None = None
        self._source: TrainerSource | None = None
        self._stops: list[weakref.finalize] = []
        self._steps: list[weakref.finalize] = []  # those that let go of optimizers
        self._held: dict[str, int] = {}  # up to where hooks have acted, of units counted ahead
        self._training: object = None
        self._left: Any = {}  # checksums of the weights when it last let go

    @property
    def clock(self) -> Clock:
        """The clock up to which hooks have acted."""
        clock = None if self._hooks is None else self._hooks.clock
        return clock or Clock()

    def named(self) -> set[str]:
        """Return the networks that the lists and the metrics name."""
        lists = [row.get("networks") for row in self._lists()]
        lists += [] if self.measuring is None else [self.measuring.row.networks]
        names = {
            str(n) for networks in lists if isinstance(networks, list | tuple) for n in networks
        }
        keys = [str((row.get("when") or {}).get("metric")).split("/") for row in self.configs]
        return names | {parts[2] for parts in keys if parts[0] == "metric" and len(parts) > 2}

    def begin(
        self,
        networks: Mapping[str, Network],
        steps: Steps,
        horizon: Clock,
        total: str | None,
        *,
        fresh: bool,
        units: tuple[str, ...],
        training: object = None,
        source: TrainerSource | None = None,
        shards: int = 1,
        optimizers: Callable[[], Sequence[Optimizer]] | None = None,
        whole: Callable[[], AbstractContextManager[None]] = nullcontext,
        **counts: int,
    ) -> None:
        """Take hold of a trainer that is about to start, or to go on.

        Args:
            networks: what hooks may touch, by name.
            steps: returns the optimizers whose step may end an update, and whether it does just
                now.
            horizon: the clock at the end of training, 0 where it is not known.
            total: the run's length as the trainer sees it, None if it does not know.
            fresh: whether the trainer starts at its beginning.
            units: what schedules may count, besides updates and phases.
            training: an object of this training alone, which all its callbacks are given; None
                where the trainer itself refuses a second callback.
            source: where scheduled hooks read without a probe; None if nothing fits.
            shards: how many devices of this process each batch is spread over.
            optimizers: returns all optimizers by then; None if a new one is an error.
            whole: a context in which all that trains says so, also inside an optimizer's step.
            **counts: the trainer's counters now.

        Raises:
            ConfigError: if a schedule, an optimizer or the state does not fit, a hook has nothing
                to read, or another driver already began in this training.
            DamagedFile: if the state is of other networks.
        """
        self.detach()
        self._release(steps(), training)
        again = self.loaded is None and self.clock != Clock()  # a second call of the trainer
        state = self.state_dict() | {"weights": self._left} if again else self.loaded or {}
        check_start(fresh, state)
        self.networks, self.units = dict(networks), ("updates", *units, "phase")
        if state:
            check_match(state, self.networks, self._lists(), self.seed, again)
            for name, network in self.networks.items():
                network.load_initial(state["hooks"]["initial"][name])
        hooks = self._parse(state.get("total") or self.total or total, horizon, source)
        reads = check_readings(hooks, source, self.probe, self.loss, max(shards, _processes()))
        if hooks.penalties is not None:
            reads |= check_terms(hooks.penalties, source, self.probe is not None)
        if self.measuring is not None:
            known, loss = source is not None or self.probe is not None, self.loss is not None
            self.measuring.begin(hooks, self.units, known, loss, state.get("measured", {}))
            reads |= self.measuring.reads and self.probe is None
        check_conditions(hooks, self.measuring)
        if state:
            hooks.load_state_dict(state["hooks"])
        if self.path is not None and _writes():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut_lines(self.path, state.get("length"))
        self._hooks, self.loaded, self._training, self._held = hooks, None, training, {}
        self._whole = whole
        self._read(source if reads else None, state.get("probe", {}))
        self._attach(steps, optimizers)
        self.advance(**counts)

    def _parse(self, total: Time | str | None, horizon: Clock, source: Source | None) -> Hooks:
        if total is None:
            raise ConfigError(
                "the trainer does not know how long it will run: pass total=, as '10k updates'"
            )
        if self.total is not None:
            horizon = Clock(**{self.total.unit: int(self.total.value)})
        if self.probe is not None or source is None:
            source = OwnSource(self.networks, self.probe, self.loss, self.seed)
        given = (self.configs, self.networks, total, self.seed, self.units, horizon)
        hooks = Hooks(*given, source=source, penalties=self.penalties)
        check_policies(hooks)
        hooks.watches = False  # `_renew` does that here
        return hooks

    def _release(self, optimizers: Iterable[Optimizer], training: object) -> None:
        """Detach the driver of a training that was interrupted; refuse one of this training."""
        for optimizer in optimizers:
            other = _HOLDERS.get(optimizer, lambda: None)()
            if other is None or other is self:
                continue
            if training is not None and other._training is training:
                raise ConfigError(
                    "two HookCallbacks on one trainer: give it one, which holds the whole list of "
                    "hooks"
                )
            other.detach()

    def _read(self, source: TrainerSource | None, saved: Mapping[str, Any]) -> None:
        """Begin to record updates and to keep batches, if hooks read them, while this lives."""
        hooks = cast(Hooks, self._hooks)
        self._recording, self._source = None, source
        if source is not None:
            source.load_state_dict(saved)
            for handle in source.start():
                self._at_end(handle.remove)
        if recorded := hooks.recorded():
            self._recording = Recording([self.networks[name] for name in sorted(recorded)])
            self._at_end(self._recording.stop)

    def _at_end(self, stop: Callable[[], None]) -> None:
        self._stops.append(weakref.finalize(self, stop))

    def _attach(self, steps: Steps, optimizers: Callable[[], Sequence[Optimizer]] | None) -> None:
        """Count an update after each step that ends one, for as long as this object lives."""
        me: weakref.ref[Driver] = weakref.ref(self)
        for optimizer, ends_update in steps().items():

            def stepped(
                optimizer: Optimizer, _: Any, __: Any, ends: Callable[[], bool] = ends_update
            ) -> None:
                driver = me()
                if driver is not None and ends() and not was_skipped(optimizer):
                    driver._end_update()

            self._at_step(optimizer.register_step_post_hook(stepped).remove)
            _HOLDERS[optimizer] = me

        def renew(optimizer: Optimizer, network: Network) -> None:
            driver = me()
            if driver is not None:
                driver._renew(optimizer, network, steps, optimizers)

        self._at_step(watch(self.networks, renew).remove)
        penalties = cast(Hooks, self._hooks).penalties
        if penalties is None or not penalties.terms:
            return

        def stepping(optimizer: Optimizer, _: Any, __: Any) -> None:
            driver = me()
            if driver is not None:
                clock = driver.clock.advance(updates=1)
                with driver._whole():
                    add_gradients(penalties, driver.networks, clock, driver._paused, optimizer)

        for optimizer in {o for network in self.networks.values() for o in network.optimizers}:
            self._at_step(optimizer.register_step_pre_hook(stepping).remove)

    def _at_step(self, stop: Callable[[], None]) -> None:
        self._steps.append(weakref.finalize(self, stop))

    def _renew(
        self,
        optimizer: Optimizer,
        network: Network,
        steps: Steps,
        optimizers: Callable[[], Sequence[Optimizer]] | None,
    ) -> None:
        """Go over to the optimizers that a trainer has set up anew, right before the first step."""
        if optimizers is None:
            raise ConfigError(
                f"HookCallback: network {network.name!r} is trained by another "
                f"{type(optimizer).__name__} than when training began: give the trainer its "
                "optimizer before it starts"
            )
        now = list(optimizers())
        if not any(optimizer is each for each in now):
            return  # one of the user's own
        for each in self.networks.values():
            own = {id(block.param) for block in each.blocks}
            each.optimizers = tuple(
                o for o in now if own & {id(p) for g in o.param_groups for p in g["params"]}
            )
            each.check_optimizers()
        check_policies(cast(Hooks, self._hooks))
        for stop in self._steps:
            stop()
        self._steps.clear()
        if self._recording is not None:
            self._recording.attach()
        self._attach(steps, optimizers)

    def detach(self) -> None:
        """Let go of the optimizers; the trainer trains on without hooks, which do not come back."""
        attached = bool(self._steps)
        for stop in (*self._steps, *self._stops):
            stop()
        self._steps.clear()
        self._stops.clear()
        self._training = None
        if attached:
            self._left = fingerprint(self.networks)

    def end(self) -> None:
        """Write the last summaries and let go; measure if the run is at its end."""
        if self._hooks is not None and self._steps and self._hooks.at_end(self.clock):
            self.measure()
        self.flush()
        self.detach()

    def _end_update(self) -> None:
        recorded = None if self._recording is None else self._recording.end_update()
        with self._whole():
            self.advance(recorded, updates=self.clock.updates + 1)

    def _paused(self) -> AbstractContextManager[None]:
        return nullcontext() if self._recording is None else self._recording.paused()

    def drop_passes(self) -> None:
        """Forget training passes of which no update has come: their step was skipped."""
        if self._recording is not None:
            self._recording.drop()

    def advance(
        self, activations: Mapping[str, Activations] | None = None, /, **counts: int
    ) -> None:
        """Advance the clock in the units that have moved, and fire what is due.

        `activations` are of the training passes of an update that has just ended, by network.
        """
        if self._hooks is None:
            return
        if back := {unit: self._held.pop(unit) for unit in counts if unit in self._held}:
            self._hooks.go_to(replace(self.clock, **back))
        known, previous = {unit: self.clock[unit] for unit in self.units}, self.clock
        self._fired(self._hooks.step(activations=activations, **(known | counts)))
        due = self.measuring is not None and self.measuring.due(previous, self.clock)
        if due and not self._hooks.at_end(self.clock):  # `end` measures after the last update
            self.observe(self.measure())

    def count(self, **counts: int) -> None:
        """Count what has been done; what is due by it waits for the next `advance` in its unit."""
        if self._hooks is not None:
            self._held = {unit: self.clock[unit] for unit in counts} | self._held
            self._hooks.go_to(replace(self.clock, **counts))

    def measure(self) -> dict[str, float]:
        """Return the values of now by ``metric/…`` key, unless they have just been measured."""
        if self.measuring is None or self._hooks is None:
            return {}
        self._hooks.refresh()
        with self._paused():
            return self.measuring.measure(self.clock, self.units)

    def observe(self, values: Mapping[str, float]) -> None:
        """Tell the hooks what was measured, and fire those that waited for it."""
        if self._hooks is not None and self._hooks.conditional:
            self._hooks.check_found(values)
            self._fired(self._hooks.observe(values))

    def waits_for(self) -> list[str]:
        """Return the keys that hooks wait for."""
        return [] if self._hooks is None else self._hooks.reads()

    def never_due(self) -> list[str]:
        """Return the hooks whose time has not come, once the run is at its end."""
        hooks = self._hooks
        if hooks is None or not hooks.at_end(self.clock):
            return []
        timed = [h for h in hooks.hooks if h.schedule.when is None and h.schedule.on is None]
        return [
            h.label for h in timed if h.method.key == "hooks" and not h.has_been_due(self.clock)
        ]

    def _fired(self, receipts: list[Receipt]) -> None:
        if receipts:
            check_in_step(self.networks.values(), buffers=False)
            if not self._steps:  # in a phase that was started between two trainings
                self._left = fingerprint(self.networks)
        self._keep(receipts)

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context with the weights that evaluations use; ConfigError before `begin`."""
        if self._hooks is None:
            raise ConfigError("evaluating(): training has not begun, so no weights are known yet")
        return self._hooks.evaluating()

    def flush(self) -> None:
        """Keep one summary receipt of each every-update hook since the last flush."""
        if self._hooks is not None and self._steps:
            self._keep(self._hooks.flush())

    def _keep(self, receipts: list[Receipt]) -> None:
        self.receipts += receipts
        if receipts and self.path is not None and _writes():
            with self.path.open("a") as file:
                for receipt in receipts:
                    row = receipt.row() | {"clock": clock_fields(receipt.clock, self.units)}
                    file.write(json.dumps(row, allow_nan=False) + "\n")

    def state_dict(self) -> dict[str, Any]:
        """Return θ0, the hooks' state, and what identifies the run; empty before `begin`."""
        if self._hooks is None:
            return {}
        path, hooks = self.path, self._hooks.state_dict()
        if hooks["clock"] is not None:
            hooks["clock"] |= self._held  # what is due by these units has not fired yet
        return {
            "hooks": hooks,
            "weights": fingerprint(self.networks),
            "configs": hooks_text(self._lists()),
            "seed": self.seed,
            "total": str(self._hooks.total),
            "probe": {} if self._source is None else self._source.state_dict(),
            "length": None if path is None else path.stat().st_size if path.exists() else 0,
            "measured": {} if self.measuring is None else self.measuring.state_dict(),
        }

    def _lists(self) -> list[Mapping[str, Any]]:
        return [*self.configs, *(self.penalties or ()), *self.layers]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, when the trainer begins.

        Raises:
            DamagedFile: if a part is missing, as in a checkpoint of a run.
        """
        if state and (missing := [part for part in _PARTS if part not in state]):
            raise DamagedFile(
                f"what is loaded has no {missing[0]!r}: allowed is what `save` of a callback with "
                "hooks wrote, in this version"
            )
        self.detach()
        self.loaded, self._hooks, self.receipts = state or None, None, []


def _processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _writes() -> bool:
    return _processes() == 1 or dist.get_rank() == 0
