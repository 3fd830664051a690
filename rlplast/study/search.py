"""Search for the best values of an arm's sample: what to try next, and what to stop.

- `open_searches`: the searches of a study, one per task and arm, with what they know from before.
- `Search`: asks Optuna for values, tells it what came of them.

Optuna's storage, ``search.log`` in the study's folder, holds a trial once it is over, and by number
the values of those that have begun. What is tried next depends on that, on the seed and on the
number of the trial, and on nothing else: an interrupted search goes on as if it had not been.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError
from rlplast.core.optional import import_optional
from rlplast.core.rng import derive_seed
from rlplast.study.plan import Cell
from rlplast.study.search_config import SearchConfig
from rlplast.study.spec import ArmRun, StudyConfig, runs_of_trial

__all__ = ["STORAGE", "Search", "open_searches"]

STORAGE = "search.log"
PlanRuns = Callable[[Sequence[ArmRun]], list[Cell]]


def open_searches(study: StudyConfig, folder: Path, plan_runs: PlanRuns) -> list["Search"]:
    """Return a search for every task and arm, each with the trials it has had.

    A search whose arm, space, seeds or settings have changed is another one; its number of trials
    may change.

    Args:
        study: has a key ``search``.
        folder: the study's.
        plan_runs: from runs to cells, their configs resolved.

    Raises:
        ConfigError: if Optuna is not installed, or an arm is never evaluated.
    """
    optuna = import_optional("optuna", "search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    config = study.search_config()
    if config is None:
        return []
    planned = {
        (task, arm): plan_runs(runs)
        for task in study.task_list()
        for arm in study.searched()
        if (runs := runs_of_trial(study, task, arm, 0, {}))
    }
    for (_, arm), cells in planned.items():
        if cells[0].config.evaluate.every is None:
            raise ConfigError(
                f"arm {arm!r}: evaluate.every = null with search: trials are judged by "
                "evaluations, give them a period"
            )
    backend = optuna.storages.journal.JournalFileBackend(str(folder / STORAGE))
    storage = optuna.storages.JournalStorage(backend)
    searches = []
    for (task, arm), cells in planned.items():
        space = study.searched()[arm]["sample"]["keys"]
        stored = optuna.create_study(
            storage=storage,
            study_name=_name(task, arm, config, space, cells),
            direction="maximize" if config.maximizes else "minimize",
            load_if_exists=True,
        )
        searches.append(Search(study, config, task, arm, space, stored, plan_runs))
    return searches


def _name(
    task: str, arm: str, config: SearchConfig, space: Mapping[str, Any], cells: Sequence[Cell]
) -> str:
    about = {**dataclasses.asdict(config), "trials": None, "arm": None, "space": space}
    content = json.dumps([about, [cell.key for cell in cells]], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return "/".join(part for part in (task, arm, digest) if part)


@dataclass
class Search:
    """The trials of one arm in one task.

    Attributes:
        study: the study.
        config: its key ``search``.
        task: the task.
        arm: the arm.
        space: its sample's keys.
        stored: Optuna's study, in the study's folder.
        plan_runs: from runs to cells.
    """

    study: StudyConfig
    config: SearchConfig
    task: str
    arm: str
    space: Mapping[str, Any]
    stored: Any
    plan_runs: PlanRuns

    def begun(self) -> dict[int, dict[str, Any]]:
        """Return what Optuna chose for each trial that has begun, by number from 1."""
        chosen = self.stored.user_attrs
        return {number: chosen[f"trial {number}"] for number in range(1, len(chosen) + 1)}

    def over(self) -> dict[int, Any]:
        """Return Optuna's record of each trial that is over, by number from 1."""
        trials = self.stored.get_trials(deepcopy=False)
        return {trial.user_attrs["number"]: trial for trial in trials}

    def ask(self) -> int | None:
        """Begin a trial; return its number, or None if there are enough."""
        import optuna

        config, number = self.config, len(self.begun()) + 1
        if number > config.trials:
            return None
        seed = derive_seed(config.seed, "search", self.task, self.arm, number) % 2**32
        if config.sampler == "random":
            sampler: Any = optuna.samplers.RandomSampler(seed=seed)
        else:
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=config.startup_trials)
        # A copy is asked, so that the storage has no trial that is neither begun nor over.
        copy = optuna.create_study(direction=self.stored.direction, sampler=sampler)
        copy.add_trials(self.stored.get_trials(deepcopy=False))
        self.stored.set_user_attr(f"trial {number}", copy.ask(self._distributions()).params)
        return number

    def cells(self, number: int) -> list[Cell]:
        """Return the cells of a trial, one per seed."""
        chosen = self.chosen(number)
        return self.plan_runs(runs_of_trial(self.study, self.task, self.arm, number, chosen))

    def chosen(self, number: int) -> dict[str, Any]:
        """Return a trial's values by dotted key."""
        params = self.begun()[number]
        return {
            key: json.loads(params[key]) if isinstance(choice, list) else params[key]
            for key, choice in self.space.items()
        }

    def prunes(self, number: int, values: Mapping[int, float]) -> bool:
        """Whether a trial with these values of evaluations, by their number, should stop."""
        import optuna

        if self.config.pruner == "none":
            return False
        pruner = optuna.pruners.MedianPruner(n_startup_trials=self.config.startup_trials)
        trial = self._trial(number, "RUNNING", None, values)
        return pruner.prune(self.stored, trial)

    def tell(
        self, number: int, state: str, value: float | None, values: Mapping[int, float]
    ) -> None:
        """Store a trial that is over.

        Args:
            number: from 1.
            state: COMPLETE, PRUNED or FAIL.
            value: what it is judged by.
            values: of its evaluations, by their number.
        """
        self.stored.add_trial(self._trial(number, state, value, values))

    def best(self) -> tuple[int, float] | None:
        """Return number and value of the best trial that came to its end; None if there is none."""
        done = [t for t in self.over().values() if t.state.name == "COMPLETE"]
        if not done:
            return None
        sign = 1 if self.config.maximizes else -1
        found = max(done, key=lambda trial: (sign * trial.value, -trial.user_attrs["number"]))
        return found.user_attrs["number"], found.value

    def _trial(
        self, number: int, state: str, value: float | None, values: Mapping[int, float]
    ) -> Any:
        import optuna

        return optuna.trial.create_trial(
            state=optuna.trial.TrialState[state],
            value=value,
            params=self.begun()[number],
            distributions=self._distributions(),
            intermediate_values={step: x for step, x in values.items() if math.isfinite(x)},
            user_attrs={"number": number},
        )

    def _distributions(self) -> dict[str, Any]:
        from optuna import distributions

        found: dict[str, Any] = {}
        for key, choice in self.space.items():
            if isinstance(choice, list):  # as text: Optuna takes no lists and mappings
                texts = dict.fromkeys(json.dumps(value, sort_keys=True) for value in choice)
                found[key] = distributions.CategoricalDistribution(tuple(texts))
            elif choice.get("integer", False):
                found[key] = distributions.IntDistribution(choice["low"], choice["high"])
            else:
                low, high = float(choice["low"]), float(choice["high"])
                log = choice.get("log", False)
                found[key] = distributions.FloatDistribution(low, high, log=log)
        return found
