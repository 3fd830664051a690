"""A study's key ``search``: which arms' samples are searched, and how.

- `SearchConfig`: its keys; `parse` checks them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rlplast.core.errors import ConfigError, check_choice, check_known
from rlplast.training.best import higher_is_better

__all__ = ["SCORES", "SearchConfig"]

SCORES = "eval/"  # begins the names of what evaluations measure
_MOST = 100_000  # trials


@dataclass(frozen=True)
class SearchConfig:
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
    trials: int
    arm: str | None = None
    direction: str | None = None
    sampler: str = "tpe"
    pruner: str = "median"
    startup_trials: int = 10
    seed: int = 0

    @classmethod
    def parse(cls, data: Any, sampled: Sequence[str]) -> "SearchConfig":
        """Check the mapping of a study.

        Args:
            data: the mapping.
            sampled: names of the arms that have a sample.

        Raises:
            ConfigError: naming the key, its value and what is allowed.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"search = {data!r}: allowed is a mapping with metric and trials")
        check_known("search", data, [field.name for field in fields(cls)])
        for key in ("metric", "trials"):
            if key not in data:
                raise ConfigError(
                    f"search has no {key}: it needs metric, such as eval/accuracy, "
                    "and trials, how many"
                )
        given: dict[str, Any] = {
            key: value for key, value in data.items() if value is not None or key in _NEEDED
        }
        search = cls(**given)
        search._check(sampled)
        return search

    def _check(self, sampled: Sequence[str]) -> None:
        metric = self.metric
        if not isinstance(metric, str) or not metric.startswith(SCORES) or metric == SCORES:
            raise ConfigError(
                f"search.metric = {metric!r}: allowed is what evaluations measure, as it is called "
                "in metrics.jsonl, such as eval/return_mean or eval/accuracy"
            )
        for key, least in (("trials", 1), ("startup_trials", 1), ("seed", 0)):
            value = getattr(self, key)
            if type(value) is not int or not least <= value <= _MOST:
                raise ConfigError(
                    f"search.{key} = {value!r}: allowed is a whole number from {least} to {_MOST}"
                )
        check_choice("search.sampler", self.sampler, ("tpe", "random"))
        check_choice("search.pruner", self.pruner, ("median", "none"))
        if self.direction is not None:
            check_choice("search.direction", self.direction, ("maximize", "minimize"))
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


_NEEDED = ("metric", "trials")
