"""What every run's config has, whatever it trains, and the one YAML loader."""

import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from rlplast.core.clock import UNITS, Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.schedule import KEYS, Schedule, hook_identity, unique
from rlplast.core.validation import Section
from rlplast.training.intervals import Intervals

__all__ = [
    "CheckpointConfig",
    "EvaluateConfig",
    "LogConfig",
    "MetricsConfig",
    "RunConfig",
    "dump_yaml",
    "parse_yaml",
    "read_yaml",
]


Logger = Literal["tensorboard", "wandb", "mlflow", "trackio"]


# Ill-formed scalars and keys, and nesting without end, come out of ruamel.yaml as these.
_YAML_ERRORS = (YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


def parse_yaml(text: str, where: str = "YAML") -> Any:
    """Parse YAML 1.2 text; every config and every command-line value comes through here.

    Raises:
        ConfigError: naming the line that is not YAML, or gives a key twice.

    Examples:
        >>> parse_yaml("{lr: 1e-3, on: 1}")  # YAML 1.1 would read text and a boolean
        {'lr': 0.001, 'on': 1}
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except _YAML_ERRORS as error:
        raise ConfigError(f"{where} is no valid YAML: {_problem(error)}") from error


def _problem(error: Exception) -> str:
    """Say on one line what is wrong, and where if it is known."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem}, line {mark.line + 1}, column {mark.column + 1}"
    return " ".join(str(error).split())


def dump_yaml(value: Any, flow: bool | None = False, width: int = 10**6) -> str:
    """Return a value as YAML that `parse_yaml` reads back to an equal one, and YAML 1.1 too.

    Args:
        value: mappings, lists and plain values; keys keep their order.
        flow: whether all is in braces and brackets; None: the innermost alone.
        width: characters of a line, at most if it can be.
    """
    yaml, out = YAML(typ="safe", pure=True), io.StringIO()
    yaml.default_flow_style, yaml.width = flow, width
    yaml.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
    yaml.Representer = _Representer
    yaml.dump(value, out)
    return out.getvalue().removesuffix("...\n")


class _Representer(SafeRepresenter):
    """Quotes what YAML 1.1 reads as truth, and writes a point into ``1e-05``, else text there."""

    def represent_str(self, data: str) -> ScalarNode:
        truth = data.lower() in ("y", "n", "yes", "no", "on", "off")
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="'" if truth else None)

    def represent_float(self, data: float) -> ScalarNode:
        node = super().represent_float(data)
        digits, e, exponent = node.value.partition("e")
        node.value = f"{digits}.0e{exponent}" if e and "." not in digits else node.value
        return node


_Representer.add_representer(str, _Representer.represent_str)
_Representer.add_representer(float, _Representer.represent_float)


def read_yaml(path: Path) -> Any:
    """Read a YAML file; ConfigError if it is absent or no valid YAML."""
    try:
        return parse_yaml(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} cannot be read: {error}") from error


@dataclass
class LogConfig(Section):
    """How often a line of training metrics is written, and where it goes beside the folder.

    Attributes:
        every: how often: a percentage of the total, or a number with a unit.
        to: the loggers that get the lines too: tensorboard, wandb (Weights & Biases), mlflow,
            trackio.
    """

    every: str = "1%"
    to: list[Logger] = field(default_factory=lambda: ["tensorboard"])


@dataclass
class EvaluateConfig(Section):
    """How often and how long the agent is evaluated.

    Attributes:
        every: how often; null for never.
        episodes: full episodes per evaluation.
        final: share of the run, at its end, whose scores are averaged to the final score.
    """

    every: str | None = "10%"
    episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    final: Annotated[float, Field(gt=0, le=1)] = 0.1


@dataclass
class MetricsConfig(Section):
    """How often plasticity metrics are measured, and which.

    Attributes:
        every: how often; null for never.
        names: which metrics; `rlplast list metrics` shows all.
        batch_size: samples in the probe batch.
    """

    every: str | None = "5%"
    names: list[str] = field(
        default_factory=lambda: [
            "weight_norm",
            "weight_difference",
            "dormant_ratio",
            "active_fraction",
            "srank",
            "effective_rank",
            "feature_norm",
            "gradient_norm",
            "awake_fraction",
        ]
    )
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 256


@dataclass
class CheckpointConfig(Section):
    """How often the run is saved.

    Attributes:
        every: how often.
        keep: how many of the newest checkpoints stay.
        best: score of an evaluation, such as loss or return_mean. The checkpoint with the best
            score stays too. The lowest is best if the name ends with loss, else the highest; null
            for none.
    """

    every: str = "10%"
    keep: Annotated[int, Field(ge=1, le=1_000_000)] = 2
    best: str | None = None


@dataclass
class RunConfig(Section):
    """Keys of every run.

    Attributes:
        units: what the run's clock counts (no key of a config).
        kind: what trains: dqn, sac, ppo, supervised, gpt, or another kind of `rlplast list kinds`.
        seed: seed of all random streams of the run.
        threads: CPU threads of torch. Results repeat bit for bit only with the same number.
        device: auto, cpu, cuda or cuda:N. auto is decided when a run starts: cuda if there is one.
        matmul: how a GPU multiplies float32 matrices and convolves: highest keeps all digits, high
            uses TF32, which has 10 bits of them and is faster.
        deterministic: whether a GPU uses kernels whose results repeat bit for bit where they would
            not, which can be slower: those of GPTs and vision transformers.
        total: length of the run, such as ``200k env_steps``; of a classifier in updates or epochs,
            of a GPT in updates. With ``auto`` it is the length of all
            phases, if the config itself gives them.
        hooks: methods and when they fire. Keys: method, at|every|on|when, first, from, until,
            networks, scope, layers, optimizer, followers, params.
        penalties: terms added to the loss. Keys: method, from, until, networks, layers, params.
        layers: modules put in when the networks are built. Keys: method, networks, params.
        log: how often a line of training metrics is written, and where it goes beside the folder.
        evaluate: how often, and how long, the run is evaluated.
        metrics: how often plasticity metrics are measured, and which.
        checkpoint: how often the run is saved, and which checkpoints stay.
        continuation: which continuation of one branch the run is, from 1. Later ones draw anew from
            the branch on: `stream_seed`. A study with ``continuations`` sets it.
        percentages_of: the length that percentages are a share of; null for the total. ``resume
            --total`` sets it, so that an extended run keeps its schedule.
        smoke: keys of the config itself with the values that ``rlplast study NAME --smoke`` takes,
            such as ``{data: {name: random}, model: {width: 4}}``. They change no other run.
    """

    units: ClassVar[tuple[str, ...]] = UNITS

    kind: str = "dqn"
    seed: int = 1
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    device: str = "auto"
    matmul: Literal["highest", "high"] = "highest"
    deterministic: bool = False
    total: Annotated[str, Field(examples=["20k updates"])] = "200k env_steps"
    hooks: list[dict[str, Any]] = field(default_factory=list)
    penalties: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    log: LogConfig = field(default_factory=LogConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    continuation: Annotated[int, Field(ge=1)] = 1
    percentages_of: str | None = None
    smoke: dict[str, Any] = field(default_factory=dict)

    @property
    def stream_seed(self) -> int:
        """What the draws of learning derive from; data and tasks derive from `seed`."""
        from rlplast.core.rng import continued_seed  # here, as torch takes a second

        return continued_seed(self.seed, self.continuation)

    def total_time(self) -> Time:
        """Return the run's length; ConfigError for a percentage, zero, or more than all phases."""
        whole = self.whole_time()
        if whole is not None and self.total == "auto":
            return whole
        total = Time.parse(self.total, "total")
        if total.unit == "%" or total.value < 1:
            raise ConfigError(f"total = {self.total!r}: allowed is a positive number with a unit")
        if whole is not None and total.unit == whole.unit and total.value > whole.value:
            raise ConfigError(f"total = {self.total!r}: allowed is at most all phases, {whole}")
        return total

    def check(self) -> None:
        """Check values against their ranges and against each other, else raise ConfigError."""
        if len(set(self.log.to)) < len(self.log.to):
            raise ConfigError(f"log.to = {self.log.to!r}: allowed is each once")

    def resolved(self, parent: "RunConfig | None" = None) -> "RunConfig":
        """Return the config with what a run settles as it starts, or its `parent` has settled."""
        if self.device != "auto":
            return self
        if parent is not None:
            return replace(self, device=parent.device)
        from rlplast.core.device import choose_device  # here, as torch takes a second

        return replace(self, device=choose_device("auto").type)

    def moved(self, device: str) -> "RunConfig":
        """Return the config of a run that goes on on another device, without graphs on a CPU."""
        found = replace(self, device=device)
        return found if device.startswith("cuda") else found.without_graphs()

    def optimizer_of(self, network: str) -> Any:
        """Return the section of the config with the optimizer of a network, by its name."""
        return vars(self)["optimizer"]

    def without_graphs(self) -> "RunConfig":
        """Return the config with eager updates instead of CUDA graphs."""
        graphs = getattr(self, "accelerate", None) == "graph"
        return replace(self, accelerate="off") if graphs else self

    def check_processes(self, count: int) -> None:
        """Refuse so many processes by ConfigError, if they cannot train the config together."""

    def adds_penalties_apart(self) -> bool:
        """Say whether other penalties leave an update without a term the same, bit for bit."""
        return True

    def to_resume(self) -> "RunConfig":
        """Return the config to build a run from whose checkpoint is then loaded."""
        return self

    def whole_time(self) -> Time | None:
        """Return the length of all phases, which ``total: auto`` stands for; None without any."""
        return None

    def reference_time(self) -> Time:
        """Return the length that percentages refer to."""
        if self.percentages_of in (None, "auto"):
            return self.total_time()
        return Time.parse(self.percentages_of, "percentages_of")

    def hook_keys(self) -> list[str]:
        """Return what receipts call the hooks of each row of ``hooks``."""
        keys: list[str] = []
        for i, row in enumerate(self.hooks):
            timing = {key: row.get(key) for key in KEYS}
            schedule = Schedule.parse(timing, self.reference_time(), f"hooks[{i}]", self.horizon())
            keys.append(unique(hook_identity(row, schedule), keys))
        return keys

    @property
    def schedule_units(self) -> tuple[str, ...]:
        """What schedules of hooks and penalties may count."""
        return self.units

    def intervals(self) -> Intervals:
        """Return the schedules of logging, evaluation, metrics and checkpoints."""
        total = self.reference_time()

        def every(key: str, period: str | None) -> Schedule | None:
            if period is None:
                return None
            schedule = Schedule.parse({"every": period}, total, key, self.horizon())
            for unit in schedule.units() - set(self.units):
                raise ConfigError(
                    f"{key}.every = {period!r}: this run counts {', '.join(self.units)}, not {unit}"
                )
            return schedule

        log = every("log", self.log.every)
        save = every("checkpoint", self.checkpoint.every)
        if log is None or save is None:
            raise ConfigError("log.every and checkpoint.every cannot be null: give a period")
        if self.checkpoint.best is not None and self.evaluate.every is None:
            raise ConfigError(
                f"checkpoint.best = {self.checkpoint.best!r} with evaluate.every = null: it is "
                "found by evaluations, give them a period"
            )
        return Intervals(
            log=log,
            evaluate=every("evaluate", self.evaluate.every),
            metrics=every("metrics", self.metrics.every),
            checkpoint=save,
            episodes=self.evaluate.episodes,
            keep=self.checkpoint.keep,
            best=self.checkpoint.best,
        )

    def horizon(self) -> Clock:
        """Return the clock at the end of the run, for the counters known in advance."""
        total = self.total_time()
        return Clock(**{total.unit: int(total.value)})
