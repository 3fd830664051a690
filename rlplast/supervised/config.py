"""The config of a supervised run."""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError, check_choice
from rlplast.optimizers.config import OptimizerConfig
from rlplast.supervised.augment import Augmentation
from rlplast.supervised.data import DataConfig
from rlplast.supervised.models import ModelConfig
from rlplast.supervised.streams import TASKS, StreamConfig
from rlplast.training.config import RunConfig

__all__ = ["SupervisedConfig"]

_READERS = {  # keys of `data` → the sets that read them
    "examples": ("bit_flipping", "curve", "random"),
    "file": ("table",),
    "like": ("random",),
}


@dataclass
class SupervisedConfig(RunConfig):
    """A classifier, or a regression, that learns from a stream of phases.

    Attributes:
        data: the images, or the examples of a regression.
        model: the network. For a regression it has one output per target.
        stream: which images come when, and for how many epochs.
        optimizer: the optimizer and its learning rate.
        batch_size: images per update. The last batch of an epoch may be smaller; a single left-over
            image joins the batch before it.
        micro_batch: images per forward pass. The gradients of several passes add up to that of the
            batch, and BatchNorm sees one pass at a time. null: the whole batch.
        label_smoothing: probability that the training loss spreads evenly over all classes.
        augment: random changes of training images: a list of crop, flip.
        precision: fp32, or bf16 for autocast in forward passes.
        accelerate: off, compile (torch.compile), or graph (CUDA graphs, on a GPU).
    """

    units: ClassVar[tuple[str, ...]] = ("updates", "epochs", "phase")

    kind: str = "supervised"
    total: Annotated[str, Field(examples=["20k updates"])] = "auto"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    micro_batch: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augment: list[Augmentation] = field(default_factory=list)
    precision: Literal["fp32", "bf16"] = "fp32"
    accelerate: Literal["off", "compile", "graph"] = "off"

    def check(self) -> None:
        """Check values against their ranges and against each other."""
        super().check()
        if len(set(self.augment)) < len(self.augment):
            raise ConfigError(f"augment = {self.augment!r}: allowed is each name once")
        self.model.check()
        self.optimizer.check()
        self.stream.epochs_of_phases()
        self._check_together()
        if self.checkpoint.best is not None:
            check_choice("checkpoint.best", self.checkpoint.best, self._scores())
        if self.total_time().unit not in ("updates", "epochs"):
            raise ConfigError(
                f"total = {self.total!r}: a supervised run ends after updates or epochs; for its "
                "first phases set stream.phases"
            )

    def _scores(self) -> list[str]:  # of an evaluation
        regression, stream = self.data.regression, self.stream.name
        scores = ["loss"] if regression else ["accuracy", "loss", "ece"]
        scores += ["mca"] if self.data.corrupted else []
        scores += ["accuracy_all"] if stream == "class_incremental" else []
        if stream in TASKS:
            scores += ["online_loss" if regression else "online_accuracy"]
        return scores

    def _check_together(self) -> None:
        """Refuse keys that the data or the stream do not read, and data that do not fit it."""
        data, stream = self.data, self.stream.name
        for key, readers in _READERS.items():
            value = getattr(data, key)
            if value is not None and data.name not in readers:
                raise ConfigError(
                    f"data.{key} = {value!r}: {data.name} does not read it, only "
                    f"{' and '.join(readers)}"
                )
        if stream == "flipped_bits" and data.name != "bit_flipping":
            raise ConfigError(
                f"stream.name = 'flipped_bits' with data.name = {data.name!r}: allowed is "
                "bit_flipping, whose bits it flips"
            )
        if data.stored and stream == "permuted_pixels":
            raise ConfigError(
                "stream.name = 'permuted_pixels' with data.huggingface.in_memory = False: it "
                "changes all pictures at once; keep them in memory"
            )
        if data.corrupted and stream in TASKS:
            raise ConfigError(
                f"data.corrupted = {data.corrupted!r}: under {stream} the images or labels are "
                "not those that were corrupted; leave it out"
            )
        if not data.regression:
            return
        if stream in ("class_incremental", "random_labels"):
            raise ConfigError(
                f"stream.name = {stream!r} with data.name = {data.name!r}: it has no classes; "
                "give another stream or other data"
            )
        given = {key: getattr(self, key) for key in ("label_smoothing", "augment")}
        given |= {
            f"data.{key}": getattr(data, key) for key in ("folder", "corrupted", "validation")
        }
        for key, value in given.items():
            if value:
                raise ConfigError(
                    f"{key} = {value!r}: data.name = {data.name!r}, a regression, does not read "
                    "it; leave it out"
                )

    def whole_time(self) -> Time:
        """Return the epochs of all phases."""
        return Time(sum(self.stream.epochs_of_phases()), "epochs")

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; 0 for what is not known in advance."""
        total, epochs = self.total_time(), self.stream.epochs_of_phases()
        if total.unit == "updates":
            return Clock(phase=len(epochs)).advance(updates=int(total.value))
        starts = accumulate(epochs[:-1], initial=0)
        return Clock(epochs=int(total.value), phase=sum(s < total.value for s in starts))
