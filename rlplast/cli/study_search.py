"""What `rlplast study` says of a search, and how it opens one.

- `drawn_trials`: cells that stand for the trials, before any is chosen.
- `open_trials`: the trials of a study, as the scheduler takes them.
- `said_of_search`, `show_best`: what is printed before and after.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlplast.cli.cell import config_path
from rlplast.cli.output import say
from rlplast.cli.study_cells import cells_of, write_study
from rlplast.cli.tables import counted
from rlplast.study.folder import StudyFolder
from rlplast.study.plan import Cell
from rlplast.study.spec import ArmRun, StudyConfig, runs_of

if TYPE_CHECKING:
    from rlplast.study.search import Search
    from rlplast.study.trials import Trials

__all__ = ["drawn_trials", "open_trials", "said_of_search", "show_best"]


def drawn_trials(study: StudyConfig, count: int | None = None) -> list[Cell]:
    """Return cells that stand for trials before any is chosen, of values drawn at random.

    Args:
        study: the study.
        count: of each task and arm that is searched; default: as many as there are trials.
    """
    others = {(run.task, run.arm) for run in runs_of(study)}
    trials: dict[tuple[str, str], list[ArmRun]] = {}
    for run in runs_of(study.drawn(count)) if study.search is not None else ():
        if (run.task, run.arm) not in others:
            trials.setdefault((run.task, run.arm), []).append(run)
    return [cell for runs in trials.values() for cell in cells_of(study, runs)]


def open_trials(
    study: StudyConfig, cells: Sequence[Cell], folder: StudyFolder, source: str
) -> "Trials | None":
    """Return the trials of a study, which write themselves into its plan; None without a search.

    Raises:
        ConfigError: if Optuna is not installed, or an arm that is searched is never evaluated.
    """
    if study.search is None:
        return None
    from rlplast.study.search import open_searches  # imports Optuna
    from rlplast.study.trials import Trials

    def announce(trials: list[Cell]) -> None:
        write_study(folder, study, [*cells, *trials], source)

    searches = open_searches(study, folder.path, lambda runs: cells_of(study, runs))
    return Trials(searches, folder.path, cells, announce)


def said_of_search(study: StudyConfig) -> Iterator[str]:
    """Yield a line for each arm that is searched."""
    search = study.search_config()
    if search is None:
        return
    each = counted(len(study.seed_list()), "run")
    tasks = len(study.task_list())
    for arm in study.searched():
        where = f" in each of {tasks} tasks" if tasks > 1 else ""
        way = "highest" if search.maximizes else "lowest"
        yield (
            f"search: {counted(search.trials, 'trial')} of {arm}{where}, {each} each, for the "
            f"{way} {search.metric} (sampler {search.sampler}, pruner {search.pruner})"
        )


def show_best(searches: "Sequence[Search]", root: Path) -> None:
    """Print the best trial of each search as a command to run."""
    for search in searches:
        where = f"{search.task}/{search.arm}" if search.task else search.arm
        states = [trial.state.name for trial in search.over().values()]
        rest = ", ".join(
            f"{states.count(state)} {word}"
            for state, word in (("PRUNED", "pruned"), ("FAIL", "failed"))
            if state in states
        )
        best = search.best()
        about = f"search: {where}: {counted(len(states), 'trial')}" + (f", {rest}" if rest else "")
        if best is None:
            say(f"{about}; none came to its end")
            continue
        number, value = best
        config = config_path(root, search.cells(number)[0].key)
        chosen = " ".join(f"--{key} {_word(v)}" for key, v in search.chosen(number).items())
        say(
            f"{about}; best is #{number} with {search.config.metric} = {value:g}:\n"
            f"  rlplast train {config} {chosen}"
        )


def _word(value: object) -> str:
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))
