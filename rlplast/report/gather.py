"""Find the runs that a report is about: of studies, of runs' folders, of folders of runs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.report import arms as naming
from rlplast.report.arm_styles import unused
from rlplast.report.continuations import joined
from rlplast.report.run_data import EVALUATIONS, TRAINING, RunData, read_run
from rlplast.run.read import read_config, read_info, status_in, unaltered
from rlplast.study.folder import read_journal, read_study
from rlplast.study.published import PublishedCurve, PublishedPoint
from rlplast.study.show import share_of

__all__ = ["Gathered", "NothingDone", "gather", "walk"]

DONE = "done"
PREFIX = "prefix"
GOING = ("absent", "running", "interrupted")  # statuses of cells that are to end yet
SMOKE = "this is a smoke, runs of a moment on random data: nothing in it is a result"


@dataclass(frozen=True)
class Gathered:
    """What a report is about.

    Attributes:
        name: of the study or folder; several joined by " + ".
        arms: names of arms, in the order in which they are shown.
        tasks: names of tasks, likewise.
        baseline: the arm that others are compared with, if there is one.
        runs: finished runs, in the order of tasks, arms, seeds.
        missing: runs that are not finished, in words.
        prefixes: the studies' prefixes, whose cost several arms share.
        notes: what a reader should know about how runs were put together.
        published: curves of others that studies hold their arms against.
        running: runs that have measured a score and have not ended, or were killed.
        continued: the continuations of which some of `runs` are the means.
        recovered: the score from which a continuation counts as recovered; None for the best one
            of its prefix.
        diverged: task, arm and seed of runs that ended since a loss, weight or action was not
            finite.
        left: of runs and prefixes that are to end yet, whether each has started, and the share
            that is left of it.
    """

    name: str
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    baseline: str | None
    runs: tuple[RunData, ...]
    missing: tuple[str, ...]
    prefixes: tuple[RunData, ...]
    notes: tuple[str, ...]
    published: tuple[PublishedCurve, ...] = ()
    running: tuple[RunData, ...] = ()
    left: tuple[tuple[bool, float], ...] = ()
    diverged: tuple[tuple[str, str, int], ...] = ()
    continued: tuple[RunData, ...] = ()
    recovered: float | None = None

    @property
    def single(self) -> tuple[RunData, ...]:
        """Runs as they were trained: continuations instead of their means."""
        means = {(run.task, run.arm, run.seed) for run in self.continued}
        alone = (run for run in self.runs if (run.task, run.arm, run.seed) not in means)
        return (*alone, *self.continued)


class NothingDone(ConfigError):
    """Raised when there are runs, and none of them is finished; it has what was gathered."""

    def __init__(self, gathered: Gathered) -> None:
        super().__init__(f"no run is finished yet: {'; '.join(gathered.missing)}")
        self.gathered = gathered


def gather(folders: Sequence[Path]) -> Gathered:
    """Read all runs of some folders.

    Args:
        folders: each a study's folder, a run's folder, or one that has such folders somewhere
            in it. The arm of a run outside a study is what its hooks say.

    Raises:
        NothingDone: if no run is finished.
        ConfigError: if there is no run, or if those of one task count different units or have
            different scores.
        DamagedFile: if a file is cut or altered; it names the file and the line.
    """
    studies, plain = _find(folders)
    parts = []
    for path in [*studies, *([None] if plain else [])]:
        with unaltered(path or ", ".join(map(str, plain))):
            name = " + ".join(folder.resolve().name for folder in folders)
            parts.append(_of_runs(plain, name) if path is None else _of_study(path))
    if not parts:
        raise ConfigError(
            f"{', '.join(map(str, folders)) or 'nothing'}: no study and no run is in there; "
            "allowed are folders of `rlplast study` and `rlplast train`, or folders of those"
        )
    merged = _merge(parts)
    if not merged.runs:
        raise NothingDone(merged)
    scored = tuple(run for run in merged.runs if run.score)
    if scored:  # else the first run is named
        silent = tuple(f"{r.folder}: no score was measured" for r in merged.runs if not r.score)
        merged = replace(merged, runs=scored, missing=(*merged.missing, *silent))
    _check_comparable(merged.runs)
    return merged


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield as `os.walk` does, in order, without hidden folders; links are followed once."""
    walked: set[Path] = set()
    for root, inner, files in os.walk(folder, followlinks=True):
        path = Path(root)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if path.resolve() in walked:
            inner.clear()
            continue
        walked.add(path.resolve())
        yield path, inner, files


def _find(folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of studies and those of runs that are in no study, each once."""
    studies: dict[Path, Path] = {}
    runs: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"{folder} is no folder: allowed are folders of `rlplast study` and `rlplast train`"
            )
        for path, inner, files in walk(folder):
            if "study.json" in files:
                studies.setdefault(path.resolve(), path)
                inner.clear()
            elif "run.json" in files:
                if path == folder or not path.name.startswith(f"{PREFIX}-"):
                    runs.setdefault(path.resolve(), path)
                inner.clear()
    in_study = [real for real in runs if not studies.keys().isdisjoint(real.parents)]
    return list(studies.values()), [path for real, path in runs.items() if real not in in_study]


def _of_study(study: Path) -> Gathered:
    """Read a study's finished cells; others are named with what the journal says last."""
    plan, events = read_study(study), read_journal(study)
    runs, prefixes, missing, running, left, diverged = [], [], [], [], [], []
    for cell in plan["cells"]:
        folder, task, seed = study / cell["folder"], cell["task"], cell["seed"]
        arm = cell["arm"] if cell["kind"] == "arm" else PREFIX
        info = read_info(folder)
        status, last = status_in(info), events.get(cell["key"])
        if status == DONE and not _pruned(last):
            own = task or naming.task_of(read_config(folder))  # a study without tasks
            (prefixes if arm == PREFIX else runs).append(read_run(folder, own, arm, seed))
        else:
            name = "/".join(part for part in (task, f"seed-{seed}", arm) if part)
            missing.append(f"{name}: {_in_words(status, last)}")
            if info.get("diverged") and arm != PREFIX and not _pruned(last):
                diverged.append((task or naming.task_of(read_config(folder)), arm, seed))
            if status in GOING and not _over(last):
                started = status != "absent"
                left.append((started, 1 - ((started and share_of(folder, cell)) or 0.0)))
                running += _begun(folder, task, arm, seed) if arm != PREFIX else []
    tasks = [task for task in plan["tasks"] if task] + [run.task for run in runs]
    groups: dict[tuple[str, str, int], list[RunData]] = {}
    for run in runs:
        groups.setdefault((run.task, run.arm, run.seed), []).append(run)
    several = any(cell.get("continuation", 1) > 1 for cell in plan["cells"])
    return Gathered(
        name=plan["name"] or study.resolve().name,
        arms=tuple(plan["arms"]),
        tasks=tuple(dict.fromkeys(tasks)),
        baseline=plan["baseline"],
        runs=tuple(map(joined, groups.values())),
        missing=tuple(missing),
        prefixes=tuple(prefixes),
        notes=(SMOKE,) if plan.get("smoke") else (),
        published=tuple(map(_published, plan.get("published", ()))),
        running=tuple(running),
        left=tuple(left),
        diverged=tuple(dict.fromkeys(diverged)),
        continued=tuple(run for run in runs if several and run.branch is not None),
        recovered=plan.get("recovered"),
    )


def _begun(folder: Path, task: str | None, arm: str | None, seed: int) -> list[RunData]:
    """Return a run that has not ended, if it has a score; its files may be half written."""
    try:
        config = read_config(folder)
        own = naming.label_of(config) if arm is None else arm
        run = read_run(folder, task or naming.task_of(config), own, seed)
    except DamagedFile:
        return []
    return [run] if run.score else []


def _published(row: Mapping[str, Any]) -> PublishedCurve:
    """Return a curve as study.json has it."""
    points = tuple(PublishedPoint(**point) for point in row["points"])
    return PublishedCurve(**{**row, "points": points})


def _pruned(event: Mapping[str, Any] | None) -> bool:
    """Whether a search stopped a cell, or meant to when it had just ended."""
    return event is not None and event.get("event") == "pruned"


def _over(event: Mapping[str, Any] | None) -> bool:
    """Whether the journal says that a cell will not go on."""
    return event is not None and event.get("event") in ("failed", "skipped", "pruned")


def _in_words(status: str, event: Mapping[str, Any] | None = None) -> str:
    if _pruned(event):
        return "pruned by the search"
    words = {"absent": "not started", "running": "running, or killed"}.get(status, status)
    if event is not None and event.get("event") == "failed":
        words = f"failed with exit {event.get('exit')} at attempt {event.get('attempt')}"
        words += f" ({event['reason']})" if event.get("reason") else ""
    return words


def _of_runs(folders: Sequence[Path], name: str) -> Gathered:
    """Read runs that are in no study; what they are called comes from their configs."""
    infos = {folder: read_info(folder) for folder in folders}
    statuses = {folder: status_in(info) for folder, info in infos.items()}
    done = [folder for folder in folders if statuses[folder] == DONE]
    missing = [f"{own}: {_in_words(statuses[own])}" for own in folders if own not in done]
    configs = [read_config(folder) for folder in done]
    tasks = [naming.task_of(config) for config in configs]
    labels = [naming.label_of(config) for config in configs]
    labels, notes = naming.number_variants(configs, tasks, labels)
    runs = [
        read_run(folder, task, label, int(config.get("seed", 0)))
        for folder, config, task, label in zip(done, configs, tasks, labels, strict=True)
    ]
    running = [
        run for own in folders if statuses[own] == "running" for run in _begun(own, None, None, 0)
    ]
    running = [replace(run, seed=int(run.config.get("seed", 0))) for run in running]
    lost = [read_config(own) for own in folders if own not in done and infos[own].get("diverged")]
    diverged = [(naming.task_of(c), naming.label_of(c), int(c.get("seed", 0))) for c in lost]
    tasks += [run.task for run in running] + [task for task, _, _ in diverged]
    labels += [run.arm for run in running] + [arm for _, arm, _ in diverged]
    baseline = naming.NO_TREATMENT if naming.NO_TREATMENT in labels else None
    arms = sorted(set(labels), key=lambda own: (own != baseline, own))
    return Gathered(
        name=name,
        arms=tuple(arms),
        tasks=tuple(dict.fromkeys(tasks)),
        baseline=baseline,
        runs=tuple(runs),
        missing=tuple(missing),
        prefixes=(),
        notes=tuple(notes),
        running=tuple(running),
        left=tuple(
            (True, 1 - run.metrics[-1].get(run.unit, 0) / max(1, run.total)) for run in running
        ),
        diverged=tuple(diverged),
    )


def _merge(parts: Sequence[Gathered]) -> Gathered:
    """Put studies together; arms of one name stay apart where their configs differ."""
    arms: list[str] = []
    runs: dict[tuple[str, str, int], RunData] = {}
    published: dict[tuple[str, str], PublishedCurve] = {}
    running: list[RunData] = []
    continued: list[RunData] = []
    diverged: list[tuple[str, str, int]] = []
    notes = [note for part in parts for note in part.notes]
    for part in parts:
        for arm in part.arms:
            own = [run for run in part.runs if run.arm == arm]
            others = [run for run in runs.values() if run.arm == arm]
            name = arm
            if _conflict(own, others):
                name = unused(f"{arm} ({part.name})", arms)
                notes.append(f"{name} has another config than {arm} of {others[0].folder}")
            arms.append(name)
            for curve in part.published:
                if curve.arm == arm:
                    published[curve.task, name] = replace(curve, arm=name)
            running += [replace(run, arm=name) for run in part.running if run.arm == arm]
            continued += [replace(run, arm=name) for run in part.continued if run.arm == arm]
            diverged += [(task, name, seed) for task, own, seed in part.diverged if own == arm]
            for run in own:
                kept = runs.setdefault((run.task, name, run.seed), replace(run, arm=name))
                if kept.folder != run.folder:
                    notes.append(
                        f"{run.folder} repeats task, arm and seed of {kept.folder}: left out"
                    )
    arms = list(dict.fromkeys(arms))
    tasks = list(dict.fromkeys(task for part in parts for task in part.tasks))
    baselines = list(dict.fromkeys(p.baseline for p in parts if p.baseline is not None))
    if len(baselines) > 1:
        notes.append(f"baseline is {baselines[0]}; {', '.join(baselines[1:])} is one elsewhere")
    levels = list(dict.fromkeys(part.recovered for part in parts if part.continued))
    if len(levels) > 1:
        words = ["the best score of the prefix" if own is None else f"{own:g}" for own in levels]
        notes.append(
            f"continuations recover from {words[0]}; elsewhere from {', '.join(words[1:])}"
        )
    order = sorted(runs.values(), key=lambda r: (tasks.index(r.task), arms.index(r.arm), r.seed))
    return Gathered(
        name=" + ".join(dict.fromkeys(part.name for part in parts)),
        arms=tuple(arms),
        tasks=tuple(tasks),
        baseline=baselines[0] if baselines else None,
        runs=tuple(order),
        missing=tuple(words for part in parts for words in part.missing),
        prefixes=tuple(run for part in parts for run in part.prefixes),
        notes=tuple(notes),
        published=tuple(published.values()),
        running=tuple(running),
        left=tuple(share for part in parts for share in part.left),
        diverged=tuple(dict.fromkeys(diverged)),
        continued=tuple(continued),
        recovered=levels[0] if levels else None,
    )


def _conflict(ours: Sequence[RunData], theirs: Sequence[RunData]) -> bool:
    """Whether two arms of one name are not one: on tasks of both by all, else by hooks etc."""
    if not ours or not theirs:
        return False
    common = {run.task for run in ours} & {run.task for run in theirs}
    if not common:
        one, other = ({naming.treatment(run.config) for run in own} for own in (ours, theirs))
        return one.isdisjoint(other)
    one, other = (
        {(run.task, naming.substance(run.config)) for run in own if run.task in common}
        for own in (ours, theirs)
    )
    return one != other


def _check_comparable(runs: Sequence[RunData]) -> None:
    """Refuse runs of one task that no axis or no score has in common."""
    first: dict[str, RunData] = {}
    for run in runs:
        if not run.score:
            raise ConfigError(
                f"{run.folder}: nothing to compare runs by was measured: needed is one of "
                f"{', '.join(EVALUATIONS)}, eval/<corpus>/loss, {', '.join(TRAINING)}; "
                "give evaluate.every a period"
            )
        other = first.setdefault(run.task, run)
        for what, own, theirs in (
            ("counts", run.unit, other.unit),
            ("is judged by", run.score, other.score),
            ("has evaluate.final", run.final_share, other.final_share),
        ):
            if own != theirs:
                raise ConfigError(
                    f"task {run.task}: {run.folder} {what} {own}, {other.folder} {theirs}; "
                    "allowed is one for all runs of a task: report them apart"
                )
