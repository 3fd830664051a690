"""A study's key ``search``: which arms' samples are searched, and how.

- `SearchConfig`: its keys; `parse` checks them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from rlplast.core.errors import ConfigError, check_choice
from rlplast.core.validation import Section, validated
from rlplast.training.best import higher_is_better

__all__ = ["SCORES", "SearchConfig"]

SCORES = "eval/"  # begins the names of what evaluations measure
_MOST = 100_000
Trials = Annotated[int, Field(ge=1, le=_MOST)]


@dataclass(frozen=True)
class SearchConfig(Section):
    """The keys of ``search``.

    Attributes:
        metric: what a trial is judged by, such as ``eval/accuracy``: of each seed the value of
            the last evaluation; of the trial their mean.
        trials: how many of each arm and task.
        arm: the arm whose ``sample`` is the space; null for all arms that have one.
        direction: maximize or minimize; null for minimize where lower values are better.
        sampler: tpe, or random.
        pruner: median: a trial whose best evaluation so far is worse than the median of the
            finished trials at the same evaluation is stopped; none.
        startup_trials: so many trials are drawn at random, and no trial is stopped before so many
            are finished.
        seed: of the sampler.
    """

    metric: str
    trials: Trials
    arm: str | int | None = None
    direction: Literal["maximize", "minimize"] | None = None
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["median", "none"] = "median"
    startup_trials: Trials = 10
    seed: Annotated[int, Field(ge=0, le=_MOST)] = 0

    @classmethod
    def parse(cls, data: Any, sampled: Sequence[str]) -> "SearchConfig":
        """Check the mapping of a study.

        Args:
            data: the mapping.
            sampled: names of the arms that have a sample.
        """
        given = data
        if isinstance(data, Mapping):
            given = {k: v for k, v in data.items() if v is not None or k in ("metric", "trials")}
        search = validated(cls, given, "search")
        search._check(sampled)
        return search

    def _check(self, sampled: Sequence[str]) -> None:
        metric = self.metric
        if not metric.startswith(SCORES) or metric == SCORES:
            raise ConfigError(
                f"search.metric = {metric!r}: allowed is what evaluations measure, as it is called "
                "in metrics.jsonl, such as eval/return_mean or eval/accuracy"
            )
        if not sampled:
            raise ConfigError("search: no arm has a sample, whose keys are what is searched")
        if self.arm is not None:
            check_choice("search.arm", str(self.arm), sampled)

    def searches(self, arm: str) -> bool:
        """Whether an arm that has a sample is searched."""
        return self.arm is None or str(self.arm) == arm

    @property
    def maximizes(self) -> bool:
        """Whether higher values are better."""
        if self.direction is not None:
            return self.direction == "maximize"
        return higher_is_better(self.metric)
