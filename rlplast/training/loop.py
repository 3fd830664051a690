"""The loop: drives anything that trains, fires hooks, logs, evaluates, checkpoints.

After each step of the Trainable, in this order: scheduled hooks that became due, metrics,
evaluation, log line, hooks whose condition a value just measured fulfils, checkpoint. Every-update
hooks fire inside the update. The end of a run is always measured, evaluated, logged and saved,
after the last update owed; the end of an agent's phase likewise, but for saving.

A checkpoint is the state as it was at its moment; a thread writes it while training goes on.
Whatever needs it to be there (the next one, the end of the run, a signal) waits.

Of several processes (`rlplast.training.distributed`) each runs its own loop, in step with the
others; rank 0 alone measures metrics and writes.
"""

import dataclasses
import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import BadWeights, Diverged, Interrupted
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.receipt import Receipt
from rlplast.core.rng import preserve_global_rng
from rlplast.training import checkpoint, distributed
from rlplast.training.background import Background
from rlplast.training.best import Best, improved, write_best
from rlplast.training.intervals import Intervals, is_due
from rlplast.training.run_folder import RunFolder, clock_fields, near
from rlplast.training.signals import EvaluationStopped, noted_signals
from rlplast.training.trainable import Trainable

__all__ = ["Intervals", "Loop", "Stage"]


class Stage(StrEnum):
    """What has been done at the clock of a run, and so what is left to do there."""

    START = "start"  # nothing
    STEPPED = "stepped"  # a step; nothing that is due after it
    EVALUATING = "evaluating"  # all before the evaluation, which a signal stopped
    MEASURED = "measured"  # all but the hooks that read what was measured
    DONE = "done"  # all that is due after the step
    ENDING = "ending"  # at the end: all before the evaluation, which a signal stopped
    ENDED = "ended"  # the end is measured and logged


_UNFINISHED = (Stage.STEPPED, Stage.EVALUATING)


@dataclass
class Loop:
    """One run.

    Attributes:
        trainable: what trains.
        hooks: its hooks.
        total: the run's length.
        folder: where everything is written.
        intervals: how often.
        measure: returns plasticity metrics by name, given a number that seeds the probe.
        observer: called after every step; its method `begins`, if it has one, before the first.
        until: where to stop early, at whichever comes first: before anything that is due there,
            which a run that goes on from the checkpoint fires first. So runs whose hooks differ
            from there on can share this one (a study's prefix).
        runs: the run's id, then those of the runs it was branched from; none if not known.
        stage: what has been done at the present clock.
        previous: the clock before the newest step.
        latest: the newest value of each name in metrics.jsonl.
        doing: what it does at the moment, in a word, for progress bars.
    """

    trainable: Trainable
    hooks: Hooks
    total: Time
    folder: RunFolder
    intervals: Intervals
    measure: Callable[[Trainable, int], dict[str, float]] = lambda trainable, number: {}
    observer: Callable[["Loop"], None] = lambda loop: None
    until: tuple[Time, ...] = ()
    runs: tuple[str, ...] = ()
    latest: dict[str, float] = field(default_factory=dict)
    doing: str = "training"
    stage: Stage = Stage.START
    previous: Clock = field(default_factory=Clock)
    _saved: tuple[tuple[int, ...], Path] | None = None  # the newest checkpoint, and its position
    _background: Background = field(default_factory=Background)  # writes it
    _best: Best | None = None
    _unread: dict[str, float] = field(default_factory=dict)  # measured, not yet shown to hooks
    _seconds: float = 0.0
    _cpu_seconds: float = 0.0
    _since: float = 0.0
    _cpu_since: float = 0.0

    def run(self) -> None:
        """Run to the end, or to `until`; the state there is checkpointed.

        Raises:
            Interrupted: after SIGINT, SIGTERM or SIGHUP, once a checkpoint is saved; after a second
                SIGINT at once. An evaluation of an agent ends where it is, and is done again after
                the resume.
            Diverged: if the loss or a weight is no longer finite; the last checkpoint is kept.
            RlplastError: if a checkpoint could not be written; the last one is kept.
        """
        try:
            self._run()
        except BadWeights as error:  # a method that met what had diverged
            if any(map(checkpoint.first_not_finite, self.trainable.networks.values())):
                raise Diverged(f"{error}; training diverged before that") from error
            raise

    def _run(self) -> None:
        trainable = self.trainable
        trainable.attach(self.hooks)
        self._since = time.perf_counter()
        self._cpu_since = time.process_time()
        getattr(self.observer, "begins", lambda loop: None)(self)
        with noted_signals() as signals, self._background:
            if self.stage is Stage.START:
                self._checkpoint()  # one precedes the first update
                self._settle()
                self._fired(self.hooks.fire(None, trainable.clock))
                self.stage = Stage.DONE
            elif self.stage is Stage.ENDING:  # at an end that may have moved since
                self._end(signals)
            elif self.stage is Stage.MEASURED:
                self._observe(trainable.clock)
                self.stage = Stage.DONE
            self._fired(self.hooks.fire_what_fell_on_end(trainable.clock))
            while self.stage in _UNFINISHED or not self.done():
                if self.stage not in _UNFINISHED:
                    self.previous = trainable.clock
                    self._step()
                    self.stage = Stage.STEPPED
                if any(trainable.clock[time.unit] >= time.value for time in self.until):
                    self._checkpoint()
                    self._settle()
                    return
                try:
                    self._after_step(self.previous, trainable.clock)
                except EvaluationStopped:
                    self.stage = Stage.EVALUATING
                self.observer(self)
                self._background.check()
                # All ranks stop at one step.
                received = distributed.highest(max(signals, default=0))
                if received and not self.done():
                    self._interrupt(received)
            self._end(signals)

    def _end(self, signals: list[int]) -> None:
        """Measure, evaluate, log and save the end of the run."""
        clock, every, best = self.trainable.clock, self.intervals, False
        if self.stage is not Stage.ENDED:
            try:
                best = self._measure(clock, every.metrics is not None, every.evaluate is not None)
            except EvaluationStopped:
                self.stage = Stage.ENDING
                self._interrupt(max(signals))
            self._log(clock)
            self.stage = Stage.ENDED
        self._unread = {}  # nothing fires at the end
        self._checkpoint(best)
        self._settle()

    def _interrupt(self, received: int) -> NoReturn:
        self._checkpoint()
        self._settle()
        name = signal.Signals(received).name
        resumes = f"`rlplast resume {near(self.folder.path)}`"
        raise Interrupted(f"stopped by {name}; checkpoint saved: {resumes}")

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._background.busy

    def done(self) -> bool:
        """Whether the total is reached and no update is owed."""
        reached = self.trainable.clock[self.total.unit] >= self.total.value
        return reached and (self.total.unit == "updates" or not self.trainable.owes())

    def _step(self) -> None:
        """Do one step, or the updates that are owed until something is due."""
        count, updates = self.trainable.owed(), self.trainable.clock.updates
        if count > 1:
            count = min([count, *(due - updates for due in self._due())])
        if count > 1:
            self.trainable.update(count)
        else:
            self.trainable.step()

    def _due(self) -> Iterator[int]:
        """Yield updates after which something may be due, of each thing the next one."""
        yield from (int(end.value) for end in (self.total, *self.until) if end.unit == "updates")
        for schedule in (*self.intervals.schedules, *self.hooks.schedules):
            due = schedule.next_update(self.trainable.clock)
            if due is not None:
                yield due

    def _after_step(self, previous: Clock, clock: Clock) -> None:
        every = self.intervals
        if self.stage is Stage.STEPPED:
            self._fired(self.hooks.fire(previous, clock))
        if clock[self.total.unit] >= self.total.value:
            self.stage = Stage.DONE  # run() looks at the end, once no update is owed any more
            return
        schedules = (every.metrics, every.evaluate, every.log, every.checkpoint)
        metrics, evaluate, log, due = (is_due(s, previous, clock) for s in schedules)
        if self.trainable.phase_over():  # as the end of a run: after the last update owed
            log = not self.trainable.owes()
            metrics = log and every.metrics is not None
            evaluate = log and every.evaluate is not None
        best = self._measure(clock, metrics, evaluate)
        if log:
            self._log(clock)
        self.stage = Stage.MEASURED
        first = best and len(self.hooks.conditional) > 0  # save what was evaluated, as it was
        if first:
            self._checkpoint(best, due)
        if metrics or evaluate or log:
            self._observe(clock)
        self.stage = Stage.DONE
        if (due or best) and not first:
            self._checkpoint(best, due)

    def _observe(self, clock: Clock) -> None:
        """Give hooks the values just measured, once."""
        values, self._unread = self._unread, {}
        if self.hooks.conditional:
            self.hooks.check_found(values)
            self._fired(self.hooks.observe(distributed.shared(values, self.hooks.reads()), clock))

    def _fired(self, receipts: list[Any]) -> None:
        """Write what has fired; ranks that are then out of step stop here."""
        if receipts:
            distributed.check_in_step(self.trainable.networks.values())
        self._receipts(receipts)

    def _measure(self, clock: Clock, metrics: bool, evaluate: bool) -> bool:
        """Measure and evaluate; return whether this is the best evaluation so far."""
        metrics = metrics and self.stage not in (Stage.EVALUATING, Stage.ENDING)  # once
        if metrics and distributed.rank() == 0:
            with preserve_global_rng(), self._does("measuring"):
                self._write(clock, self.measure(self.trainable, _number(clock)))
        if not evaluate:
            return False
        with preserve_global_rng(), self.hooks.evaluating(), self._does("evaluating"):
            scores = self.trainable.evaluate(_number(clock), self.intervals.episodes)
        self._write(clock, {f"eval/{name}": value for name, value in scores.items()})
        metric = self.intervals.best
        best = improved(self._best, metric, scores) if metric is not None else None
        if best is not None:
            when = clock_fields(clock, self.trainable.units)
            self._best = dataclasses.replace(best, clock=when)
        return best is not None

    def _log(self, clock: Clock) -> None:
        self._receipts(self.hooks.flush(clock))
        values = self.trainable.metrics()
        for name, value in values.items():
            if name.startswith("train/loss") and not math.isfinite(value):
                self._write(clock, values)
                self.folder.flush()
                raise Diverged(
                    f"{name} = {value} at {clock}: training diverged; the last checkpoint is kept "
                    "(lower the learning rate, or look at receipts.jsonl for a hook just before)"
                )
        values["time/seconds"] = self.seconds()
        values["time/cpu_seconds"] = self.cpu_seconds()
        self._write(clock, values)
        self.folder.flush()

    def seconds(self) -> float:
        """Return the wall-clock seconds this run has taken, over all its processes."""
        return self._seconds + time.perf_counter() - self._since

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all threads, over all its processes, without env workers."""
        return self._cpu_seconds + time.process_time() - self._cpu_since

    def _write(self, clock: Clock, values: Mapping[str, float]) -> None:
        if values:
            self.latest.update(values)
            self._unread.update(values)
            self.folder.metrics(clock_fields(clock, self.trainable.units), values)

    def _receipts(self, receipts: list[Receipt]) -> None:
        reset: Counter[str] = Counter()
        for receipt in receipts:
            row = receipt.row()
            row["clock"] = clock_fields(receipt.clock, self.trainable.units)
            self.folder.receipt(row)
            key = f"metric/units_reset/{receipt.network}"
            for layer, units in (receipt.units or {}).items():
                reset[key] += units
                reset[f"{key}/{layer}"] += units
        if receipts and reset:
            self._write(receipts[0].clock, reset)

    def _checkpoint(self, best: bool = False, due: bool = True) -> None:
        """Save the state as it is, unless that is done, and prune; `_settle` waits for it."""
        self._background.wait()
        clock, root, taken = self.trainable.clock, self.folder.checkpoints, None
        position = self._position(clock)
        if self._saved is None or self._saved[0] != position:
            kind = "branch" if not position[-1] else "step" if due else "best"
            path = self._path(position, kind)
            if best and self._best is not None:
                self._best = dataclasses.replace(self._best, checkpoint=path.name)
            taken = self._snapshot(path, position, clock)
            self._saved = position, path
        if distributed.rank() > 0:
            return
        new_best = self._best if best else None
        named = self._best and self._best.checkpoint

        def finish() -> None:
            if taken is not None:
                checkpoint.write(taken)
            if new_best is not None:
                write_best(root, new_best)
            checkpoint.prune(root, self.intervals.keep, named)

        self._background.start(finish)

    def _settle(self) -> None:
        """Wait until the last checkpoint is there, in every process."""
        with self._does("saving"):
            self._background.wait()
        self.folder.flush()
        distributed.barrier()

    @contextmanager
    def _does(self, what: str) -> Iterator[None]:
        self.doing = what
        try:
            yield
        finally:
            self.doing = "training"

    def _position(self, clock: Clock) -> tuple[int, ...]:
        """Return how far the run is; of one clock, before and after what is due there."""
        counts = clock[self.total.unit], clock.updates, clock.env_steps, clock.phase
        return (*counts, int(self._done_until(clock) == clock))

    def _done_until(self, clock: Clock) -> Clock:
        unfinished = self.stage in (*_UNFINISHED, Stage.ENDING)
        return self.previous if unfinished else clock

    def _path(self, position: tuple[int, ...], kind: str) -> Path:
        root = self.folder.checkpoints
        path = root / f"{kind}-{position[0]}"
        if (path / checkpoint.SENTINEL).exists():  # saved at another clock of the same count
            return root / "-".join([kind, *map(str, position)])
        return path

    def _snapshot(
        self, path: Path, position: tuple[int, ...], clock: Clock
    ) -> checkpoint.Snapshot | None:
        """Return the state as it is; every rank gives its own, rank 0 has what is written."""
        trainable = self.trainable
        distributed.check_in_step(trainable.networks.values())
        tensors = {}
        for network in trainable.networks.values():
            tensors.update(checkpoint.network_tensors(network))
            name = checkpoint.first_not_finite(network)
            if name is not None:
                raise Diverged(
                    f"{name} is not finite at {clock}: training diverged; nothing was saved over "
                    "the last good checkpoint"
                )
        state = {
            "clock": dataclasses.asdict(clock),
            "trainable": trainable.state_dict(),
            # A run keeps θ0 once, in a file of its own.
            "hooks": {k: v for k, v in self.hooks.state_dict().items() if k != "initial"},
            "measured": getattr(self.measure, "state_dict", dict)(),
            "lengths": self.folder.lengths(),
            "stage": self.stage,
            "done_until": dataclasses.asdict(self._done_until(clock)),
            "best": dataclasses.asdict(self._best) if self._best else None,
            "unread": {k: v for k, v in self._unread.items() if k in self.hooks.reads()},
            "aliases": [checkpoint.aliases(n) for n in trainable.networks.values()],
            "time/seconds": self.seconds(),
            "time/cpu_seconds": self.cpu_seconds(),
        }
        if distributed.rank() > 0:
            return None
        previous = None if self._saved is None else self._saved[1]
        run = self.runs[0] if self.runs else None
        write = trainable.save_files(previous)

        def write_files(folder: Path) -> None:
            write(folder)
            self.folder.sync()

        return checkpoint.snapshot(path, position, tensors, state, write_files, previous, run)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint: networks, streams, environments, files cut to length.

        Raises:
            DamagedFile: if it, or a file it counts the lines of, is damaged, or is another run's.
        """
        tensors, state = checkpoint.load(path)
        checkpoint.check_run(path, self.runs)
        with checkpoint.fitting(path):
            self._restore(path, tensors, state)

    def _restore(self, path: Path, tensors: dict[str, Tensor], state: Any) -> None:
        self.trainable.go_to(Clock.saved(state["clock"]))
        for network in self.trainable.networks.values():
            checkpoint.load_network_tensors(network, tensors)
        self.trainable.load_state_dict(state["trainable"])
        self.trainable.load_files(path)
        self.hooks.load_state_dict(state["hooks"])
        getattr(self.measure, "load_state_dict", dict)(state.get("measured", {}))
        self.folder.cut(state["lengths"])
        self._best = Best(**state["best"]) if state.get("best") else None
        if distributed.rank() == 0:
            checkpoint.unseal_newer(self.folder.checkpoints, path)
            write_best(self.folder.checkpoints, self._best)
        distributed.barrier()  # nobody deletes what another one still reads
        self.stage, self.previous = Stage(state["stage"]), Clock.saved(state["done_until"])
        self._saved = self._position(self.trainable.clock), path
        self._unread = dict(state["unread"])
        self._seconds = float(state["time/seconds"])
        self._cpu_seconds = float(state["time/cpu_seconds"])


def _number(clock: Clock) -> int:
    """Return a number that differs at every point of a run, to seed what happens there."""
    return clock.updates + clock.env_steps + clock.tokens + clock.epochs + clock.phase
