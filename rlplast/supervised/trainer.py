"""A classifier on a stream of phases, as a Trainable.

One step is one update, or the start of the next phase. Where a run is in its stream follows
from its clock alone: every epoch's order is a stream of its own, so there is no loader to save.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.checkpoint.fingerprint import check_data, fingerprint
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Activations
from rlplast.core.method.install import install_methods
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import zero_all
from rlplast.core.network.optimizers import Updater
from rlplast.core.network.record import in_mode, record
from rlplast.core.rng import Streams, derive_seed, torch_stream
from rlplast.core.training.trainable import AfterUpdate, Trainable, no_hooks, penalties_of
from rlplast.methods.label_smoothing import label_smoothing
from rlplast.metrics.calibration import accuracy, ece, mca
from rlplast.supervised.augment import augment
from rlplast.supervised.config import SupervisedConfig
from rlplast.supervised.data import Images, load_data, normaliser
from rlplast.supervised.models import build_model, model_taps
from rlplast.supervised.streams import Phase, phases

__all__ = ["Position", "Supervised", "batches_per_epoch", "position"]

EVALUATION_BATCH = 1000  # images per forward pass


class Position(NamedTuple):
    """Where in its phase a run is, counted from the phase's start."""

    epoch: int  # whole epochs done
    batch: int  # batches done of the epoch that has begun
    batches: int  # batches per epoch
    updates: int  # updates done


def batches_per_epoch(phase: Phase, batch_size: int) -> int:
    """Return the updates of one epoch.

    The last batch holds what is left, and is no batch of its own if that is a single image, of
    which BatchNorm knows no variance: it joins the one before.
    """
    full, left = divmod(len(phase.train), batch_size)
    return max(1, full + (left > 1))


def position(stream: list[Phase], batch_size: int, clock: Clock) -> Position:
    """Return the place in the stream that a clock stands for."""
    before = sum(p.epochs * batches_per_epoch(p, batch_size) for p in stream[: clock.phase])
    updates, batches = clock.updates - before, batches_per_epoch(stream[clock.phase], batch_size)
    return Position(updates // batches, updates % batches, batches, updates)


class Supervised(Trainable):
    """A classifier and its stream of data.

    Args:
        config: a checked config.
        device: where data and model live.
    """

    units: tuple[str, ...] = SupervisedConfig.units

    def __init__(self, config: SupervisedConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        seed = config.seed
        self.streams = Streams(seed)
        self.data = load_data(config.data, seed).to(device)
        parts = {"data.train": self.data.train, "data.test": self.data.test}
        self.fingerprints = {name: fingerprint([i.x, i.y]) for name, i in parts.items()}
        self.factor, self.offset = (t.to(device) for t in normaliser(self.data))
        self.stream = phases(
            config.stream, self.data.train.y, self.data.test.y, self.data.num_classes, seed
        )
        _check_total(config, self.stream)
        self.model = build_model(config.model, self.data.input_shape, self.data.num_classes)
        self.model.to(device)
        install_methods(config.layers, config.hooks, {"model": (self.model,)}, seed)
        self.updater = Updater(config.optimizer, self.model, derive_seed(seed, "model"))
        network = Network("model", self.model, self.updater.optimizers)
        if not config.model.pretrained:  # else θ0 is what was published
            network.initialise(torch_stream(seed, "init", "model"))
        self.networks = {"model": network}
        self.penalties = penalties_of(self)
        self.clock = Clock()
        self.after_update: AfterUpdate = no_hooks
        self.recorded: frozenset[str] = frozenset()
        self.order: tuple[tuple[int, int], Tensor] | None = None  # of the epoch now
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.right = torch.zeros((), dtype=torch.int64, device=device)  # answers
        self.updates_summed = self.images_summed = 0
        compiled = config.accelerate == "compile"
        self._loss = torch.compile(self.task_loss) if compiled else self.task_loss

    # One step: an update, or the start of a phase.

    def step(self) -> None:
        """Do one update, or start the next phase if this one is over."""
        here = position(self.stream, self.config.batch_size, self.clock)
        epochs = self.stream[self.clock.phase].epochs
        if here.epoch == epochs:  # hooks fire between this phase and the next
            self.clock = self.clock.advance(phase=1)
            if self.config.optimizer.renew:
                zero_all(self.networks["model"])
            return
        if self.config.optimizer.stepped == "epoch":
            self.updater.set_lr(here.epoch, epochs)
        else:
            self.updater.set_lr(here.updates, epochs * here.batches)
        self._update(here)

    def _update(self, here: Position) -> None:
        x, y = self._batch(here)
        loss, logits, activations = self._loss(x, y)
        self.loss_sum += loss.detach()
        self.right += (logits.detach().argmax(1) == y).sum()
        self.updates_summed += 1
        self.images_summed += len(y)
        clock = self.clock.advance(updates=1, epochs=int(here.batch == here.batches - 1))
        self.updater.minimise(self.penalties.add("model", loss, clock=clock))
        self.clock = clock
        self.after_update(self.clock, {"model": activations})

    def _shuffled(self, *stream: str | int) -> Tensor:
        """Return the indices of this phase's training images in the order of a named stream."""
        indices = self.stream[self.clock.phase].train
        generator = torch_stream(self.config.seed, *stream)
        return indices[torch.randperm(len(indices), generator=generator)].to(self.device)

    def _batch(self, here: Position) -> tuple[Tensor, Tensor]:
        """Return augmented and normalised images, and labels."""
        config, key = self.config, (self.clock.phase, here.epoch)
        if self.order is None or self.order[0] != key:
            self.order = key, self._shuffled("data", "epoch", *key)
        chosen = self.order[1][here.batch * config.batch_size :]
        if here.batch < here.batches - 1:
            chosen = chosen[: config.batch_size]
        x = self.data.train.x.index_select(0, chosen)
        if config.augment:  # of raw pixels, so that what a crop adds is black
            stream = torch_stream(config.seed, "data", "augment", self.clock.updates)
            x = augment(x, config.augment, stream)
        return self.normalise(x), self.data.train.y.index_select(0, chosen)

    def normalise(self, x: Tensor) -> Tensor:
        """Return raw images with mean 0 and standard deviation 1 per channel of all training."""
        return x.to(torch.float32, copy=True).mul_(self.factor).add_(self.offset)

    def task_loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Activations]:
        """Return the mean cross-entropy of a batch, its logits, and activations if recorded."""
        with self._autocast():
            logits, found = self._taps(x) if self.recorded else (self.model(x), {})
        logits = logits.float()
        loss = label_smoothing(logits, y, label_smoothing=self.config.label_smoothing)
        return loss, logits, {k: v.detach() for k, v in found.items()}

    def _taps(self, x: Tensor) -> tuple[Tensor, Activations]:
        """Return logits and activations; of models from elsewhere those of their units."""
        network = self.networks["model"]
        if hasattr(self.model, "forward_taps") or not network.units().groups:
            return model_taps(self.model, x)
        with record(network) as found:
            logits = self.model(x)
        return logits, found

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    # What the loop asks for.

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; its phase is the number of phases begun.

        An epoch that the end cuts short counts, so that the end of the one before it does not
        pass for the run's.
        """
        total, size = self.config.total_time(), self.config.batch_size
        end = Clock()
        for number, phase in enumerate(self.stream):
            each = batches_per_epoch(phase, size)
            left = phase.epochs * each
            if total.unit == "epochs":
                left = min(left, (int(total.value) - end.epochs) * each)
            elif total.unit == "updates":
                left = min(left, int(total.value) - end.updates)
            if left <= 0 or (total.unit == "phase" and number == total.value):
                break
            end = end.advance(updates=left, epochs=-(-left // each), phase=1)
        return end

    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        """Return accuracy, loss and ECE on the images held out that this phase is tested on.

        With ``data.corrupted`` also mCA; where classes come one after the other, also the accuracy
        on the held-out images of all classes. Neither argument matters: all images count.
        """
        test = self.stream[self.clock.phase].test.to(self.device)
        scores = self._score(self.data.test[test])
        if self.config.stream.name == "class_incremental":
            scores["accuracy_all"] = self._score(self.data.test)["accuracy"]
        if self.data.corrupted:
            sets = self.data.corrupted.items()
            scores["mca"] = mca({name: self._score(read())["accuracy"] for name, read in sets})
        return scores

    @torch.no_grad()
    def _score(self, images: Images) -> dict[str, float]:
        logits, y = self.predict(images.x), images.y.to(self.device)
        return {
            "accuracy": float(accuracy(logits, y)),
            "loss": float(F.cross_entropy(logits, y)),
            "ece": float(ece(logits, y)),
        }

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of raw images (n, channels, height, width), in eval mode."""
        with self._evaluating(), self._autocast():
            parts = x.to(self.device).split(EVALUATION_BATCH)
            return torch.cat([self.model(self.normalise(p)).float() for p in parts])

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = {m: m.training for m in self.model.modules()}
        self.model.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def metrics(self) -> dict[str, float]:
        """Return means since the last call: loss, penalty, accuracy on training batches."""
        values: dict[str, float] = {}
        if updates := self.updates_summed:
            values = {
                "train/loss": float(self.loss_sum) / updates,
                "train/accuracy": int(self.right) / self.images_summed,
                "train/lr": self.updater.lr,
                **self.penalties.metrics(updates),
            }
        self.loss_sum.zero_()
        self.right.zero_()
        self.updates_summed = self.images_summed = 0
        return values

    def sample(self, size: int, number: int) -> Images:
        """Return raw training images of this phase, drawn from a stream of their own."""
        return self.data.train[self._shuffled("probe", number)[:size]]

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Images]:
        """Yield raw training images of this phase in one random order, from its start if need be.

        None is one pass.
        """
        parts = self._shuffled("batches", number).split(size)
        for chosen in parts if count is None else islice(cycle(parts), count):
            yield self.data.train[chosen]

    def loss(self, network: str, batch: Images, train: bool = False) -> Tensor:
        """Return the mean cross-entropy of a batch; in eval mode no statistics move."""
        with nullcontext() if train else self._evaluating():
            return self.task_loss(self.normalise(batch.x), batch.y)[0]

    def outputs(self, network: str, batch: Images, module: nn.Module | None = None) -> Tensor:
        """Return the logits of a batch, (batch, classes)."""
        module = self.model if module is None else module
        with in_mode(module, train=False):
            return module(self.normalise(batch.x))

    @torch.no_grad()
    def activations(self, network: str, batch: Images) -> Activations:
        """Return hidden activations on a batch, after the nonlinearity, in eval mode."""
        with self._evaluating():
            return self._taps(self.normalise(batch.x))[1]

    def state_dict(self) -> dict[str, Any]:
        """Return streams and sums; the place in the data follows from the clock."""
        return {
            "streams": self.streams.state_dict(),
            "penalties": self.penalties.state_dict(),
            "loss_sum": self.loss_sum,
            "right": self.right,
            "data": self.fingerprints,
            "counted": [self.updates_summed, self.images_summed],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ConfigError: if the data are other ones by now.
        """
        check_data(state["data"], self.fingerprints)
        if self.clock.phase >= len(self.stream):
            raise ConfigError(
                f"stream: the config has phases 0 to {len(self.stream) - 1}, and the checkpoint is "
                f"in phase {self.clock.phase}: resume with the config it was saved with"
            )
        self.streams.load_state_dict(state["streams"])
        self.penalties.load_state_dict(state["penalties"])
        self.loss_sum.copy_(state["loss_sum"])
        self.right.copy_(state["right"])
        self.updates_summed, self.images_summed = state["counted"]


def _check_total(config: SupervisedConfig, stream: list[Phase]) -> None:
    """Refuse a total in updates that the stream does not have."""
    total = config.total_time()
    whole = sum(p.epochs * batches_per_epoch(p, config.batch_size) for p in stream)
    if total.unit == "updates" and total.value > whole:
        raise ConfigError(f"total = {config.total!r}: the stream ends after {whole} updates")
