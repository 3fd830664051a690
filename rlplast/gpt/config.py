"""The config of a GPT run; its defaults are those of FIRE A.4.2 (nanoGPT)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError, check_choice, check_known, did_you_mean
from rlplast.core.validation import Section, check_value
from rlplast.gpt.embedded import EMBEDDED
from rlplast.gpt.model import GPTModelConfig
from rlplast.optimizers.config import OptimizerConfig
from rlplast.training.config import EvaluateConfig, MetricsConfig, RunConfig

__all__ = ["GPTConfig", "GPTEvaluateConfig", "Phase", "StartConfig"]

Weight = Annotated[float, Field(gt=0, le=1_000_000)]  # of a corpus
PHASE_KEYS = ("updates", "mixture")


@dataclass(frozen=True)
class Phase:
    """Some updates on one mixture of corpora."""

    start: int  # updates of the run before it
    updates: int
    shares: dict[str, float]  # probability that a sequence comes from a corpus; they sum to 1


@dataclass
class StartConfig(Section):
    """Where the first weights come from; optimizer, streams and clock always start anew.

    Attributes:
        run: folder of another GPT run, which gives its weights and its θ0; null for new random
            weights. {seed} stands for this run's seed.
        checkpoint: newest, best, or a checkpoint's name such as step-30000.
        huggingface: folder of a GPT-2 in Hugging Face's format. Its weights are θ0 too.
    """

    run: str | None = None
    checkpoint: str = "newest"
    huggingface: str | None = None

    def check(self) -> None:
        """Check the values together."""
        if self.run is not None and self.huggingface is not None:
            raise ConfigError(
                f"start.run = {self.run!r} and start.huggingface = {self.huggingface!r}: allowed "
                "is one of them"
            )


@dataclass
class GPTEvaluateConfig(EvaluateConfig):
    """How often and on how much the model is evaluated.

    Attributes:
        episodes: not used by a GPT.
        batches: batches of `batch_size` sequences per corpus, spread evenly over its validation
            part. A smaller part is used whole.
    """

    batches: Annotated[int, Field(ge=1, le=1_000_000)] = 20


def _adamw() -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        lr=6e-4,
        weight_decay=0.1,
        decay="matrices",
        betas=(0.9, 0.95),
        schedule="cosine",
        warmup=0.1,
        warmup_max=2000,
        lr_min=6e-5,
        clip_norm=1.0,
        renew=True,
    )


@dataclass
class GPTConfig(RunConfig):
    """A GPT that learns from one mixture of corpora after another.

    Attributes:
        model: the GPT's sizes.
        corpora: a mapping of name → ``embedded/`` and one of stdlib, docstrings, topics, ebcdic and
            entities, or a folder written by ``rlplast tokens``. All corpora are evaluated, also
            those that no phase uses.
        phases: a list of mappings. ``updates`` is a number or such as ``96k updates``. ``mixture``
            is a mapping of corpus → weight: the probability of a corpus is its weight over the sum
            of all.
        batch_size: sequences per update, over all processes.
        micro_batch: sequences per forward pass of a process. The gradients of several passes add up
            to that of the update. null: all at once.
        optimizer: the optimizer and its learning rate. The schedule starts again at every phase.
        precision: fp32, or bf16 or fp16 for autocast in forward passes. fp16 needs CUDA, and its
            gradients are scaled.
        accelerate: off, compile (torch.compile), or graph (CUDA graphs, on a GPU).
        start: where the first weights come from.
        evaluate: how often and on how much the model is evaluated.
    """

    units: ClassVar[tuple[str, ...]] = ("updates", "tokens", "phase")

    kind: str = "gpt"
    total: Annotated[str, Field(examples=["20k updates"])] = "auto"
    model: GPTModelConfig = field(default_factory=GPTModelConfig)
    corpora: dict[str, Any] = field(default_factory=dict)
    phases: list[dict[str, Any]] = field(default_factory=list)
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 480
    micro_batch: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    optimizer: OptimizerConfig = field(default_factory=_adamw)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    accelerate: Literal["off", "compile", "graph"] = "off"
    start: StartConfig = field(default_factory=StartConfig)
    evaluate: GPTEvaluateConfig = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=GPTEvaluateConfig
    )
    metrics: MetricsConfig = field(default_factory=lambda: MetricsConfig(batch_size=8))

    def check(self) -> None:
        """Check values against their ranges and against each other."""
        super().check()
        self.model.check()
        self.optimizer.check()
        if self.optimizer.stepped != "update":
            raise ConfigError(
                f"optimizer.stepped = {self.optimizer.stepped!r}: a GPT run has no epochs; "
                "allowed is update"
            )
        self.optimizer.refuse_first_phase(f"a {self.kind} run has one optimizer for all phases")
        self.start.check()
        self.check_processes(1)
        self._check_corpora()
        if self.checkpoint.best is not None:
            scores = ["loss", *(f"{name}/loss" for name in self.corpora)]
            check_choice("checkpoint.best", self.checkpoint.best, scores)
        if self.total_time().unit != "updates":
            raise ConfigError(f"total = {self.total!r}: allowed is a number of updates, or auto")

    def _check_corpora(self) -> None:
        if not self.corpora:
            raise ConfigError(
                "corpora = {}: allowed is a mapping of names to sources, such as "
                "{stdlib: embedded/stdlib}"
            )
        for name, source in self.corpora.items():
            if not isinstance(source, str) or not source:
                raise ConfigError(
                    f"corpora.{name} = {source!r}: allowed are "
                    + "".join(f"embedded/{text}, " for text in EMBEDDED)
                    + "or a folder written by `rlplast tokens`"
                )
            if not name or "/" in name:
                raise ConfigError(f"corpora: name {name!r}: allowed is text without a slash")
        self.phase_list()

    def phase_list(self) -> list[Phase]:
        """Return the phases, checked."""
        if not self.phases:
            raise ConfigError(
                "phases = []: allowed is a list of mappings, such as "
                "[{updates: 1000, mixture: {stdlib: 1}}]"
            )
        checked: list[Phase] = []
        start = 0
        for i, phase in enumerate(self.phases):
            key = f"phases[{i}]"
            check_known(key, phase, PHASE_KEYS)
            updates = _updates(f"{key}.updates", phase.get("updates"))
            checked.append(Phase(start, updates, self._shares(f"{key}.mixture", phase)))
            start += updates
        return checked

    def _shares(self, key: str, phase: Mapping[str, Any]) -> dict[str, float]:
        mixture = phase.get("mixture")
        if not isinstance(mixture, Mapping) or not mixture:
            raise ConfigError(f"{key} = {mixture!r}: allowed is a mapping of corpora to weights")
        for name, weight in mixture.items():
            if name not in self.corpora:
                raise ConfigError(f"{key}: {name!r}: {did_you_mean(str(name), self.corpora)}")
            check_value(f"{key}.{name}", weight, Weight, 1.0)
        whole = sum(mixture.values())
        return {name: weight / whole for name, weight in mixture.items()}

    def to_resume(self) -> "GPTConfig":
        """Return the config of a run whose checkpoint is then loaded: it needs no other run."""
        return replace(self, start=StartConfig())

    def own_batch(self, processes: int) -> tuple[int, int]:
        """Return the sequences per update of each of so many processes, and per forward pass."""
        sequences = self.batch_size // processes
        return sequences, self.micro_batch or sequences

    def check_processes(self, count: int) -> None:
        """Raise ConfigError if so many processes cannot split the batch or capture graphs."""
        if self.batch_size % count:
            raise ConfigError(
                f"batch_size = {self.batch_size} with {count} processes: allowed is a multiple"
            )
        sequences, micro = self.own_batch(count)
        if sequences % micro:
            raise ConfigError(
                f"micro_batch = {micro}: allowed is a divisor of {sequences}, the sequences of a "
                f"process (batch_size = {self.batch_size}, {count} processes)"
            )
        if self.accelerate == "graph" and count > 1:
            raise ConfigError(
                f"accelerate = 'graph' with {count} processes: allowed are off and compile"
            )

    def whole_time(self) -> Time:
        """Return the updates of all phases."""
        return Time(sum(phase.updates for phase in self.phase_list()), "updates")

    def horizon(self) -> Clock:
        """Return the clock at the end of the run; its phase is the number of phases begun."""
        updates = int(self.total_time().value)
        return Clock(
            updates=updates,
            tokens=updates * self.batch_size * self.model.context,
            phase=sum(phase.start < updates for phase in self.phase_list()),
        )


def _updates(key: str, value: Any) -> int:
    if isinstance(value, str):
        time = Time.parse(value, key)
        if time.unit != "updates" or time.value < 1:
            raise ConfigError(f"{key} = {value!r}: allowed is a positive number of updates")
        return int(time.value)
    return check_value(key, value, PositiveInt, 1000)
