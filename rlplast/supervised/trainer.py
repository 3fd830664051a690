"""A classifier, or a regression, on a stream of phases, as a Trainable."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.batches import batch_slices
from rlplast.core.clock import Clock
from rlplast.core.device import on_device
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Activations
from rlplast.core.network.factory import is_factory
from rlplast.core.network.network import Network
from rlplast.core.network.single import check_single
from rlplast.core.rng import torch_stream
from rlplast.metrics.calibration import mca
from rlplast.optimizers.updater import Updater
from rlplast.supervised.augment import augment
from rlplast.supervised.config import SupervisedConfig
from rlplast.supervised.data import Dataset, load_data, normaliser
from rlplast.supervised.formats import Images
from rlplast.supervised.models import build_model
from rlplast.supervised.objective import REGRESSION, classification
from rlplast.supervised.place import (
    Position,
    check_total,
    end_of_run,
    position,
    updates_before,
)
from rlplast.supervised.regression import load_regression
from rlplast.supervised.streams import TASKS, phases
from rlplast.supervised.tasks import task_data
from rlplast.training.fingerprint import fingerprint
from rlplast.training.trainable import Learnt, Trainable

__all__ = ["Supervised"]

EVALUATION_BATCH = 1000  # images per forward pass


class Supervised(Trainable):
    """A model and its stream of data; one step is one update, or the start of the next phase.

    Every epoch's order is a stream of its own, so the place in the data follows from the clock.
    """

    means = ("train/loss", "train/accuracy")
    saved = (*Trainable.saved, "images_summed", "online", "online_images")
    config: SupervisedConfig

    def __init__(self, config: SupervisedConfig, device: torch.device) -> None:
        super().__init__(config, device)
        seed = config.seed
        regression = config.data.regression
        load = load_regression if regression else load_data
        self.data = load(config.data, seed).to(device)
        self.objective = REGRESSION if regression else classification(config.label_smoothing)
        parts = {"data.train": self.data.train, "data.test": self.data.test}
        self.fingerprints = {name: fingerprint(i.fingerprinted()) for name, i in parts.items()}
        self.normaliser: Tensor | None = None  # factor and offset, once they are needed
        self.shown: tuple[int, Dataset, int] | None = None  # phase, its data, updates before it
        self.stream = phases(
            config.stream, self.data.train.y, self.data.test.y, self.data.num_classes, seed
        )
        check_total(self.stream, config.batch_size, config.total_time())
        if len(self.stream) == 1:
            name = config.optimizer.name
            config.optimizer.refuse_first_phase(f"this run has one phase, so {name} never trains")
        self.model = build_model(config.model, self.data.input_shape, self.data.num_classes)
        in_tensor_cores = config.matmul == "high" or config.precision == "bf16"
        if device.type == "cuda" and in_tensor_cores and not is_factory(config.model.name):
            # The order that they read; pictures in another one would be copied for every layer.
            self.model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.build({"model": (self.model,)})
        parts = -(-config.batch_size // (config.micro_batch or config.batch_size))
        if config.batch_size // parts == 1:  # images of the smallest part
            keys = f"batch_size = {config.batch_size}, micro_batch = {config.micro_batch}"
            check_single(keys, self.model, torch.zeros(1, *self.data.input_shape, device=device))
        self.order: tuple[tuple[int, int], Tensor] | None = None  # of the epoch now
        self.images_summed = 0
        self.online = torch.zeros((), dtype=torch.float64, device=device)  # of the task so far
        self.online_images = 0
        self._loss = self._compiled(self.task_loss, dynamic=None)

    def _initialise(self, network: Network) -> None:
        if not self.config.model.pretrained:  # else θ0 is what was published
            super()._initialise(network)

    # One step: an update, or the start of a phase.

    def step(self) -> None:
        """Do one update, or start the next phase if this one is over."""
        here = self.here()
        epochs = self.stream[self.clock.phase].epochs
        if here.epoch == epochs:  # hooks fire between this phase and the next
            self.next_phase()
            self.online.zero_()
            self.online_images = 0
            return
        if self.config.optimizer.stepped == "epoch":
            self.updater.set_lr(here.epoch, epochs)
        else:
            self.updater.set_lr(here.updates, epochs * here.batches)
        self._update(here)

    @property
    def updater(self) -> Updater:
        """The optimizers of the model."""
        return self.updaters["model"]

    def here(self) -> Position:
        """Return where in its phase the run is."""
        phase = self.stream[self.clock.phase]
        return position(phase, self.config.batch_size, self.clock.updates - self._phase()[1])

    @property
    def task(self) -> Dataset:
        """The data as the phase that has begun shows them; its phase's indices are of these."""
        return self._phase()[0]

    def _phase(self) -> tuple[Dataset, int]:
        number, size = self.clock.phase, self.config.batch_size
        if self.shown is None or self.shown[0] != number:
            now, seed = self.stream[number], self.config.seed
            data = task_data(self.config.stream, self.data, now, number, seed)
            self.shown = number, data, updates_before(self.stream, size, number)
        return self.shown[1:]

    def _update(self, here: Position) -> None:
        chosen = self._chosen(here)
        after = self.clock.advance(updates=1, epochs=int(here.batch == here.batches - 1))
        count = -(-len(chosen) // (self.config.micro_batch or len(chosen)))
        parts = chain.from_iterable(self._parts(chosen, count))
        self.make_update(after, partial(self._learn, len(chosen), count), parts)
        self.images_summed += len(chosen)
        if self.config.stream.name in TASKS:
            self.online_images += len(chosen)

    def _learn(self, size: int, count: int, parts: Iterable[Tensor]) -> Learnt:
        """Learn from `size` images, and the targets behind them, in `count` parts."""
        self.updater.zero_grad()
        whole, right = torch.zeros((2,), device=self.device)
        recorded, tensors = [], iter(parts)
        for i, (inputs, targets) in enumerate(zip(tensors, tensors, strict=True), 1):
            loss, outputs, activations = self._loss(inputs, targets)
            recorded.append(activations)
            right = right + self._right(loss.detach(), outputs.detach(), targets)
            loss = loss * (len(targets) / size)
            whole = whole + loss.detach()
            if i == count:
                loss = self.penalised("model", loss, whole)
            loss.backward()
        self.updater.step()
        joined = recorded[0]
        if count > 1:
            joined = {name: torch.cat([part[name] for part in recorded]) for name in joined}
        return torch.stack([whole, right]), {"model": joined}

    def _right(self, loss: Tensor, outputs: Tensor, y: Tensor) -> Tensor | int:
        """Return how many answers are right, and add them to the online means."""
        right = None if self.objective.right is None else self.objective.right(outputs, y)
        if self.config.stream.name in TASKS:
            self.online += loss * len(y) if right is None else right
        return 0 if right is None else right

    def _shuffled(self, seed: int, *stream: str | int) -> Tensor:
        """Return the indices of this phase's training images in the order of a named stream."""
        indices = self.stream[self.clock.phase].train
        generator = torch_stream(seed, *stream)
        order = indices[torch.randperm(len(indices), generator=generator)]
        return on_device(order, self.task.train.y.device)

    def _chosen(self, here: Position) -> Tensor:
        size, key = self.config.batch_size, (self.clock.phase, here.epoch)
        if self.order is None or self.order[0] != key:
            self.order = key, self._shuffled(self.streams.seed, "data", "epoch", *key)
        chosen = self.order[1][here.batch * size :]
        return chosen[:size] if here.batch < here.batches - 1 else chosen

    def _parts(self, chosen: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        steps, name = self.config.augment, ("data", "augment", self.clock.updates)
        stream = torch_stream(self.streams.seed, *name) if steps else None
        for indices in chosen.tensor_split(count):
            x, y = self.task.train.batch(indices)
            if stream is not None:  # of raw pixels, so that what a crop adds is black
                x = augment(x, steps, stream)
            yield self.normalise(x), y

    def normalise(self, x: Tensor) -> Tensor:
        """Return raw images with mean 0 and variance 1 per channel, other inputs as they are."""
        if self.config.data.regression:
            return x
        if self.normaliser is None:
            self.normaliser = normaliser(self.data)
        factor, offset = self.normaliser
        return x.to(torch.float32, copy=True).mul_(factor).add_(offset)

    def task_loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Activations]:
        """Return the mean loss of a batch, its outputs, and activations if recorded."""
        with self._autocast():
            outputs, activations = self.call("model", x)
        outputs = outputs.float()
        return self.objective.loss(outputs, y), outputs, activations

    # What the loop asks for.

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; see `end_of_run`."""
        return end_of_run(self.stream, self.config.batch_size, self.config.total_time())

    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        """Return accuracy, loss and ECE, or a regression's loss, on what this phase is tested on.

        If these are validation images, ``test_accuracy`` and so on are on the test images.
        ``accuracy_all`` is on all classes, ``online_…`` on the task's batches so far, each before
        its update. Neither argument matters.
        """
        test = self.stream[self.clock.phase].test.to(self.device)
        scores = self._score(self.task.test[test])
        if self.config.stream.name == "class_incremental":
            scores["accuracy_all"] = self._score(self.data.test)["accuracy"]
        if self.data.unseen is not None:
            unseen = self._score(self.data.unseen)
            scores |= {f"test_{name}": value for name, value in unseen.items()}
        if self.data.corrupted:
            sets = self.data.corrupted.items()
            scores["mca"] = mca({name: self._score(read())["accuracy"] for name, read in sets})
        if self.online_images:
            name = "online_loss" if self.objective.right is None else "online_accuracy"
            scores[name] = float(self.online) / self.online_images
        return scores

    @torch.no_grad()
    def _score(self, images: Images) -> dict[str, float]:
        outputs = torch.cat([self.predict(x) for x in images.parts(EVALUATION_BATCH)])
        return self.objective.scores(outputs, images.y.to(self.device))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return outputs (n, outputs) of raw images (n, channels, height, width), in eval mode."""
        with self.reading(), self._autocast():
            parts = x.to(self.device).split(EVALUATION_BATCH)
            return torch.cat([self.model(self.normalise(p)).float() for p in parts])

    def metrics(self) -> dict[str, float]:
        """Return means since the last call: loss, penalty, accuracy on training batches."""
        right = int(self.sums[1])
        values = super().metrics()
        if values:
            values |= {"train/lr": self.updater.lr, "train/accuracy": right / self.images_summed}
            if self.objective.right is None:
                del values["train/accuracy"]
        self.images_summed = 0
        return values

    def sample(self, size: int, number: int) -> Images:
        """Return raw training images of this phase, drawn from a stream of their own."""
        return Images(
            *self.task.train.batch(self._shuffled(self.config.seed, "probe", number)[:size])
        )

    def batches(self, count: int | None, size: int, number: int) -> Iterator[Images]:
        """Yield raw training images of this phase in one random order, again and again.

        `count` None is one pass.
        """
        order = self._shuffled(self.config.seed, "batches", number)
        parts = [order[part] for part in batch_slices(len(order), size)]
        for chosen in parts if count is None else islice(cycle(parts), count):
            yield Images(*self.task.train.batch(chosen))

    def _loss_on(self, network: str, batch: Images) -> Tensor:
        return self.task_loss(self.normalise(batch.pixels()), batch.y)[0]

    def _outputs_on(self, network: str, batch: Images, module: nn.Module) -> Tensor:
        return module(self.normalise(batch.pixels()))

    def _activations_on(self, network: str, batch: Images) -> Activations:
        """Return activations, (images, units, …) with one value per pixel or token."""
        found, images = super()._activations_on(network, batch), len(batch.y)
        return {
            name: value if len(value) == images else value.unflatten(0, (images, -1)).mT
            for name, value in found.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return streams and sums; the place in the data follows from the clock."""
        # Of stored pictures the normaliser takes a pass over all of them.
        kept = {"normaliser": self.normaliser} if self.data.train.stored else {}
        return kept | super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; ConfigError if the data are other ones by now."""
        super().load_state_dict(state)
        if self.clock.phase >= len(self.stream):
            raise ConfigError(
                f"stream: the config has phases 0 to {len(self.stream) - 1}, and the checkpoint is "
                f"in phase {self.clock.phase}: resume with the config it was saved with"
            )
        if state.get("normaliser") is not None:
            self.normaliser = state["normaliser"].to(self.device)
