"""What runs measured, as tables of pandas."""

import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlplast.core.clock import UNITS, Time
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.report import arms as naming
from rlplast.run.differences import is_free, texts
from rlplast.run.read import read_best, read_config, read_info, read_lines, status_in, unaltered
from rlplast.study.folder import config_path
from rlplast.study.published import PublishedCurve, PublishedPoint
from rlplast.study.state import StudyState
from rlplast.training.config import read_yaml

__all__ = [
    "PREFIX",
    "SMOKE",
    "NothingDone",
    "Results",
    "averaged",
    "comparable",
    "frame",
    "read",
    "read_run",
    "runs",
]

EVALUATIONS = ("eval/return_mean", "eval/accuracy", "eval/loss")
TRAINING = ("train/return", "train/accuracy", "train/loss")
# Streams whose phases are tasks → the score a run on them is judged by.
SCORE_OF_TASKS = {
    "random_labels": "eval/accuracy",
    "permuted_pixels": "eval/online_accuracy",
    "flipped_bits": "eval/online_loss",
}
UNIT_OF_PHASES = {"supervised": "epochs"}  # what `total: auto` counts; updates in other kinds
SMOKE = "this is a smoke, small runs of a moment: nothing in it is a result"
PREFIX = ""  # what stands for the arm of a prefix: no arm has such a name
GOING = ("absent", "running", "interrupted")  # statuses of cells that are to end yet
IDENTITY = ["study", "task", "arm", "seed", "continuation", "status"]
Row = Mapping[str, Any]


class NothingDone(ConfigError):
    """Raised when there are runs, and none of them is finished."""


@dataclass(frozen=True)
class Results:
    """What some folders hold.

    Attributes:
        name: of the study or folder; several joined by " + ".
        arms: in the order in which they are shown.
        tasks: likewise.
        baseline: the arm that others are compared with, if there is one.
        runs: a row per run that has begun, by its number: `IDENTITY`, folder, source (the folder of
            its study), given (the config that its study wrote for it; else its own), kind, score (a
            name of metrics.jsonl), unit, total, final_share, branch, branch_updates,
            seconds_before, best_at, recovered (the score from which a continuation counts as
            recovered; NaN for the best one of its prefix); later what `statistics.measure` adds.
            The prefixes of studies are among them, as arm "".
        numbers: a row per measured number: run, line, the counters of the clock, name, value (NaN
            for what was no finite number).
        receipts: run → its lines of receipts.jsonl.
        configs: run → config.yaml.
        infos: run → run.json.
        missing: cells that are not finished, in words.
        notes: what a reader should know about how runs were put together.
        published: curves of others that studies hold their arms against.
        left: the status of each cell that is to end yet.
    """

    name: str
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    baseline: str | None
    runs: pd.DataFrame
    numbers: pd.DataFrame
    receipts: Mapping[int, list[dict[str, Any]]]
    configs: Mapping[int, dict[str, Any]]
    infos: Mapping[int, dict[str, Any]]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    published: tuple[PublishedCurve, ...] = ()
    left: tuple[str, ...] = ()

    @cached_property
    def done(self) -> pd.DataFrame:
        """The finished runs, without prefixes."""
        own = self.runs
        return own[(own.status == "done") & (own.arm != PREFIX)]

    @cached_property
    def going(self) -> pd.DataFrame:
        """The runs that have not ended and have a score."""
        own = self.runs
        return own[own.status.isin(GOING) & (own.arm != PREFIX) & (own.score != "")]

    @cached_property
    def _places(self) -> Mapping[Any, np.ndarray]:
        return self.numbers.groupby(["run", "name"], observed=True).indices

    def named(self, name: str, run: int) -> pd.DataFrame:
        """Return the rows of a number of a run."""
        return self.numbers.iloc[self._places.get((run, name), [])]

    def curve(self, run: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a number over a run as (xs, ys), of shape (points,): xs ascend in its unit."""
        place = self._places.get((run, name), np.empty(0, int))
        ys = self.numbers["value"].to_numpy()[place]
        xs = self.numbers[self.runs.at[run, "unit"]].to_numpy()[place]
        known = ~np.isnan(ys)
        return xs[known].astype(float), ys[known]

    def scheduled(self, run: int) -> list[dict[str, Any]]:
        """Return the receipts of scheduled firings; others sum up what a hook did in updates."""
        return [row for row in self.receipts[run] if row.get("norm_after") is not None]

    def of(self, task: str, arm: str | None = None) -> pd.DataFrame:
        """Return the finished runs of a task, or an arm's of them."""
        own = self.done[self.done.task == task]
        return own if arm is None else own[own.arm == arm]


def frame(*folders: str | Path) -> pd.DataFrame:
    """Return every number that runs measured, a row each.

    Args:
        *folders: of studies, of runs, or with such folders somewhere in them.

    Returns:
        Columns: ``study`` ("" outside of one), ``task``, ``arm``, ``seed``, ``continuation`` (from
            1), ``status`` (done, running, failed, interrupted), the counters of the clock
            (``updates``, ``env_steps``, ``epochs``, ``phase``, …; 0 where a run does not count it),
            ``name`` (as in metrics.jsonl, such as ``eval/return_mean``), ``value`` (NaN where it
            was no finite number). Arms have the numbers of the prefixes that they share.

    Raises:
        ConfigError: if there is no run.
        DamagedFile: if a file is cut or altered.

    Examples:
        ``curves = rlplast.frame("runs/a")``, then ``seaborn.lineplot(curves[curves.name ==
        "eval/return_mean"], x="env_steps", y="value")``.
    """
    found = read(map(Path, folders))
    about = found.runs[found.runs.arm != PREFIX][IDENTITY]
    rows = found.numbers[found.numbers.run.isin(about.index)]
    place = about.index.get_indexer(rows.run)
    kinds = {name: pd.CategoricalDtype(about[name].unique()) for name in IDENTITY}  # in its order
    own = {name: about[name].astype(kinds[name]).iloc[place].array for name in IDENTITY}
    own |= {name: about[name].to_numpy()[place] for name in ("seed", "continuation")}
    clock = [unit for unit in UNITS if unit in rows and rows[unit].any()]
    table = rows[[*clock, "name", "value"]].reset_index(drop=True)
    return pd.concat([pd.DataFrame(own), table], axis=1)


def runs(*folders: str | Path) -> pd.DataFrame:
    """Return a row per run.

    Args:
        *folders: as of `frame`.

    Returns:
        Columns: ``study``, ``task``, ``arm``, ``seed``, ``continuation``, ``status``, ``diverged``
            (something was not finite: no final score), ``kind``, ``score`` (its name), ``final``
            (mean of it in the last tenth, or the share that ``evaluate.final`` says), ``area``
            (mean height of its curve), ``best_at`` (of the checkpoint ``best``, if it is kept),
            ``unit`` and ``total`` (what the run's length counts, and how many), ``updates``,
            ``seconds`` and ``cpu_seconds`` (its prefix included), ``fired/METHOD`` (firings of all
            hooks of a method, at one moment once for all networks), the keys of the config that
            differ between runs, by dotted name, as text, and ``folder``. A run that has not ended
            has the numbers up to now.

    Raises:
        ConfigError: if there is no run.
        DamagedFile: if a file is cut or altered.
    """
    from rlplast.report.statistics import measure

    return table_of_runs(measure(read(map(Path, folders))))


def table_of_runs(found: Results) -> pd.DataFrame:
    """Return what `runs` does, of results that were measured."""
    own = found.runs[found.runs.arm != PREFIX]
    shown = ["kind", "score", "final", "area", "best_at", "unit", "total", "updates"]
    lost = np.array([bool(found.infos[run].get("diverged")) for run in own.index], bool)
    own = own.assign(diverged=lost | ((own.status == "done") & own.final.isna()))
    about = own[[*IDENTITY, "diverged", *shown, "seconds", "cpu_seconds"]]
    fired = pd.DataFrame({run: _fired(found.receipts[run]) for run in own.index}).T
    fired = fired.reindex(own.index).fillna(0).astype(int)
    settings = pd.DataFrame({run: texts(found.configs[run]) for run in own.index}).T
    settings = settings.reindex(own.index)
    differing = [
        key
        for key in settings
        if key not in about and not is_free(key) and settings[key].nunique(dropna=False) > 1
    ]
    parts = [about, fired, settings[differing], own.folder.map(str)]
    return pd.concat(parts, axis=1).reset_index(drop=True)


def _fired(receipts: Iterable[Row]) -> dict[str, int]:
    """Return how often the hooks of each method fired, at one moment once for all networks."""
    moments: dict[str, dict[Any, int]] = {}
    for row in receipts:
        moment = row.get("hook"), *row["clock"].items()
        moments.setdefault(f"fired/{row['method']}", {})[moment] = int(row.get("firings") or 1)
    return {name: sum(own.values()) for name, own in moments.items()}


def _walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
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


def read(folders: Iterable[Path]) -> Results:
    """Read all runs of some folders.

    Args:
        folders: of studies, of runs, or with such folders somewhere in them. The arm of a run
            outside a study is what its hooks say.

    Raises:
        ConfigError: if there is no run.
        DamagedFile: if a file is cut or altered; it names the file and the line.
    """
    folders = list(folders)
    studies, plain = _find(folders)
    name = " + ".join(folder.resolve().name for folder in folders)
    parts = []
    for path in [*studies, *([None] if plain else [])]:
        with unaltered(path or ", ".join(map(str, plain))):
            parts.append(_of_runs(plain, name) if path is None else _of_study(path))
    if not parts:
        raise ConfigError(
            f"{', '.join(map(str, folders)) or 'nothing'}: no study and no run is in there; "
            "allowed are folders of `rlplast study` and `rlplast train`, or folders of those"
        )
    return _merge(parts)


def read_run(folder: Path) -> Results:
    """Return a run's folder as results of one run, number 0, that were not measured."""
    with unaltered(folder):
        run = _Run("", "", "run", 0, 1, "done", folder, folder)
        return _merge([_Part("", ["run"], [run.task], runs=[run])])


def _find(folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of studies and those of runs that are in no study, each once."""
    studies: dict[Path, Path] = {}
    single: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"{folder} is no folder: allowed are folders of `rlplast study` and `rlplast train`"
            )
        for path, inner, files in _walk(folder):
            if "study.json" in files:
                studies.setdefault(path.resolve(), path)
                inner.clear()
            elif "run.json" in files:
                # a prefix that lies outside of its study is nobody's run
                prefix = path.name.startswith("prefix-") and "study" in read_info(path)
                if path == folder or not prefix:
                    single.setdefault(path.resolve(), path)
                inner.clear()
    in_study = [real for real in single if not studies.keys().isdisjoint(real.parents)]
    return list(studies.values()), [path for real, path in single.items() if real not in in_study]


@dataclass
class _Run:
    """A run, read. Its other attributes come from its files; `_COLUMNS` are in `Results.runs`."""

    study: str
    task: str  # if "" what the config says
    arm: str
    seed: int
    continuation: int
    status: str
    folder: Path
    source: Path  # the folder of the study, or of the run
    recovered: float = math.nan
    given: Path | None = None

    def __post_init__(self) -> None:
        own = self.folder / "config.yaml"
        self.given = self.given if self.given and self.given.is_file() else own
        self.lines, self.receipts = (
            read_lines(self.folder / f"{own}.jsonl") for own in ("metrics", "receipts")
        )
        self.config, self.info = dict(read_config(self.folder)), dict(read_info(self.folder))
        self.task = self.task or naming.task_of(self.config)
        self.kind = str(self.config.get("kind"))
        self.unit, self.total = _length(self.config, self.lines, self.folder)
        self.names = set().union(*self.lines)
        self.score = _score(self.names, self.config)
        self.final_share = float((self.config.get("evaluate") or {}).get("final", 0.1))
        origin = self.info.get("branched_from") or {}
        clock, best = origin.get("clock") or {}, read_best(self.folder)
        self.branch = float(clock.get(self.unit, math.nan))
        self.branch_updates = float(clock.get("updates", math.nan))
        self.seconds_before = float(origin.get("seconds", 0.0))
        clocks = {
            "metrics.jsonl": self.lines,
            "receipts.jsonl": [row.get("clock") for row in self.receipts],
            "run.json": [clock] if origin else [],
            "checkpoints/best.json": [] if best is None else [best.clock],
        }
        for name, own in clocks.items():
            _check_clocks(own, self.unit, self.folder / name)
        self.best_at = math.nan if best is None else float(best.clock[self.unit])


@dataclass
class _Part:
    """One study, or the runs that are in none."""

    name: str
    arms: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    baseline: str | None = None
    runs: list[_Run] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    published: list[PublishedCurve] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def _begun(info: Row, *about: Any) -> list[_Run]:
    """Return a run that is not done; none if its files are half written, as of one that runs."""
    try:
        return [_Run(*about)]
    except DamagedFile:
        if info.get("diverged"):  # no verdict may do without it
            raise
        return []


def _of_study(study: Path) -> _Part:
    """Read a study's cells; unfinished ones are named with what workers say of them."""
    state = StudyState(study)
    plan, fates = state.study, {row["key"]: fate for row, fate in state.fates()}
    name = plan["name"] or study.resolve().name
    tasks = [task for task in plan["tasks"] if task]
    part = _Part(name, list(plan["arms"]), tasks, plan["baseline"])
    level = math.nan if plan.get("recovered") is None else float(plan["recovered"])
    for own in plan.get("published", ()):
        points = tuple(PublishedPoint(**point) for point in own["points"])
        part.published.append(PublishedCurve(**own | {"points": points}))
    part.notes = [SMOKE] if plan.get("smoke") else []
    for cell in plan["cells"]:
        folder, seed, fate = study / cell["folder"], cell["seed"], fates[cell["key"]]
        arm = cell["arm"] if cell["kind"] == "arm" else PREFIX
        info = read_info(folder)
        status = status_in(info)
        about = (name, cell["task"] or "", arm, seed, cell.get("continuation", 1))
        places = (folder, study, level, config_path(study, cell["key"]))
        if status == "done":
            part.runs.append(_Run(*about, status, *places))
            continue
        label = "/".join(own for own in (cell["task"], f"seed-{seed}", arm or "prefix") if own)
        words = _in_words(status)
        if fate == "failed":
            words = f"failed at attempt {len(state.claims.attempts[cell['key']])}"
            reason = state.claims.reason(cell["key"])
            words += f" ({reason})" if reason else ""
        part.missing.append(f"{label}: {words}")
        if status in GOING and fate not in ("failed", "skipped"):
            part.left.append(status)
        if arm != PREFIX and info:
            over = fate == "failed" and status in GOING
            part.runs += _begun(info, *about, fate if over else status, *places)
    part.tasks = list(dict.fromkeys([*part.tasks, *(run.task for run in part.runs)]))
    return part


def _in_words(status: str) -> str:
    return {"absent": "not started", "running": "running, or killed"}.get(status, status)


def _of_runs(folders: Sequence[Path], name: str) -> _Part:
    """Read runs that are in no study; what they are called comes from their configs."""
    part = _Part(name)
    for folder in folders:
        info = read_info(folder)
        status = status_in(info)
        if status != "done":
            part.missing.append(f"{folder}: {_in_words(status)}")
        about = ("", "", "", 0, 1, status, folder, folder)
        part.runs += [_Run(*about)] if status == "done" else _begun(info, *about)
    for run in part.runs:
        run.arm, run.seed = naming.label_of(run.config), int(run.config.get("seed", 0))
    done = [run for run in part.runs if run.status == "done"]
    names, part.notes = naming.number_variants(
        [run.config for run in done], [run.task for run in done], [run.arm for run in done]
    )
    for run, label in zip(done, names, strict=True):
        run.arm = label
    part.left = [run.status for run in part.runs if run.status == "running" and run.score]
    arms = {run.arm for run in part.runs}
    part.baseline = naming.NO_TREATMENT if naming.NO_TREATMENT in arms else None
    part.arms = sorted(arms, key=lambda own: (own != part.baseline, own))
    part.tasks = list(dict.fromkeys(run.task for run in part.runs))
    return part


def _merge(parts: Sequence[_Part]) -> Results:
    """Put studies together; of a seed that several have, all runs of the first one are kept."""
    notes = [note for part in parts for note in part.notes]
    arms = list(dict.fromkeys(arm for part in parts for arm in part.arms))
    tasks = list(dict.fromkeys(task for part in parts for task in part.tasks))
    baselines = list(dict.fromkeys(part.baseline for part in parts if part.baseline is not None))
    if len(baselines) > 1:
        notes.append(f"baseline is {baselines[0]}; {', '.join(baselines[1:])} is one elsewhere")
    first: dict[tuple[str, str, int], _Run] = {}
    found = []
    for run in (run for part in parts for run in part.runs):
        other = run
        if run.status == "done" and run.arm != PREFIX:
            other = first.setdefault((run.task, run.arm, run.seed), run)
        if run.source == other.source:
            found.append(run)
        else:
            notes.append(f"{run.folder} repeats task, arm and seed of {other.folder}: left out")
    order = [*arms, PREFIX]
    found.sort(key=lambda r: (tasks.index(r.task), order.index(r.arm), r.seed, r.continuation))
    return Results(
        name=" + ".join(dict.fromkeys(part.name for part in parts)),
        arms=tuple(arms),
        tasks=tuple(tasks),
        baseline=baselines[0] if baselines else None,
        runs=pd.DataFrame(
            [[getattr(run, name) for name in _COLUMNS] for run in found], None, _COLUMNS
        ),
        numbers=_numbers(found),
        receipts={i: run.receipts for i, run in enumerate(found)},
        configs={i: run.config for i, run in enumerate(found)},
        infos={i: run.info for i, run in enumerate(found)},
        missing=tuple(words for part in parts for words in part.missing),
        notes=tuple(notes),
        published=tuple({(own.task, own.arm): own for p in parts for own in p.published}.values()),
        left=tuple(status for part in parts for status in part.left),
    )


_COLUMNS = (
    *(*IDENTITY, "folder", "source", "given", "kind", "score", "unit", "total", "final_share"),
    *("branch", "branch_updates", "seconds_before", "best_at", "recovered"),
)


def _numbers(runs: Sequence[_Run]) -> pd.DataFrame:
    """Return a row per number of the lines of runs; null, a number that was not finite, is NaN."""
    counted = {"updates"}.union(*(run.names | {run.unit} for run in runs))
    units = [unit for unit in UNITS if unit in counted]
    codes: dict[str, int] = defaultdict(
        count(len(units)).__next__, {own: i for i, own in enumerate(units)}
    )
    columns = {name: [np.empty(0, int)] for name in ("run", "line", *units, "name")}
    columns["value"] = [np.empty(0)]
    for number, run in enumerate(runs):
        lines = run.lines
        names = np.fromiter(map(codes.__getitem__, chain.from_iterable(lines)), int)
        values = np.array([*chain.from_iterable(line.values() for line in lines)], float)
        own = names >= len(units)
        line = np.repeat(np.arange(len(lines)), np.array([len(line) for line in lines], int))[own]
        for unit in units:
            columns[unit].append(np.array([line.get(unit, 0) for line in lines], int)[line])
        columns["run"].append(np.full(len(line), number))
        columns["line"].append(line)
        columns["name"].append(names[own])
        columns["value"].append(np.where(np.isfinite(values), values, np.nan)[own])
    table = pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})
    table["name"] = pd.Categorical.from_codes(table["name"] - len(units), list(codes)[len(units) :])
    return table


def comparable(results: Results) -> Results:
    """Return results of which each finished run has a score, the others named as missing.

    Raises:
        NothingDone: if no run is finished.
        ConfigError: if runs of one task, or configs of one arm, cannot be compared.
    """
    done = results.done
    if done.empty:
        raise NothingDone(f"no run is finished yet: {'; '.join(results.missing)}")
    silent = done[done.score == ""]
    if len(silent) == len(done):
        raise ConfigError(
            f"{done.folder.iloc[0]}: nothing to compare runs by was measured: needed is one of "
            f"{', '.join(EVALUATIONS)}, eval/<corpus>/loss, {', '.join(TRAINING)}; "
            "give evaluate.every a period"
        )
    words = tuple(f"{folder}: no score was measured" for folder in silent.folder)
    results = replace(
        results, runs=results.runs.drop(silent.index), missing=(*results.missing, *words)
    )
    about = (("counts", "unit"), ("is judged by", "score"), ("has evaluate.final", "final_share"))
    for task, own in results.done.groupby("task", sort=False):
        for what, column in about:
            other = own[own[column] != own[column].iloc[0]]
            if len(other):
                raise ConfigError(
                    f"task {task}: {other.folder.iloc[0]} {what} {other[column].iloc[0]}, "
                    f"{own.folder.iloc[0]} {own[column].iloc[0]}; "
                    "allowed is one for all runs of a task: report them apart"
                )
    for (task, arm), own in results.done.groupby(["task", "arm"], sort=False):
        first, *others = own.index[~own.duplicated("source")]
        for run in others:  # a run's own config names the folder and checkpoint that it found
            words = naming.differences(*(read_yaml(own.given[number]) for number in (first, run)))
            if words:
                raise ConfigError(
                    f"arm {arm} of task {task} has other configs in {own.folder[first]} and "
                    f"{own.folder[run]}: {'; '.join(words[:4])}: report these studies apart"
                )
    return results


def averaged(results: Results) -> Results:
    """Return results in which the continuations of a seed are one run, their mean.

    It has the numbers that all of them have at one x; NaN where one is not finite. All else is that
    of the first continuation.
    """
    keys, numbers = ["study", "task", "arm", "seed"], results.numbers
    groups = [list(own) for own in results.done.groupby(keys, sort=False).groups.values()]
    several = [own for own in groups if len(own) > 1]
    if not several:
        return results
    parts = [numbers[~numbers.run.isin(np.concatenate(several))]]
    clock = [unit for unit in UNITS if unit in numbers]
    for own in several:
        rows, unit = numbers[numbers.run.isin(own)], results.runs.unit[own[0]]
        nth = rows.groupby(["run", "name", unit], observed=True).cumcount()
        alike = rows.assign(nth=nth).groupby(["name", unit, "nth"], observed=True, sort=False)
        mean = alike[[other for other in clock if other != unit]].mean().astype(np.int64)
        mean["value"] = alike["value"].sum(min_count=len(own)) / len(own)
        mean["line"], mean["run"] = alike["line"].min(), own[0]
        parts.append(mean[alike.size() == len(own)].reset_index()[numbers.columns])
    table = pd.concat(parts).sort_values(["run", "line"], kind="stable", ignore_index=True)
    dropped = [run for own in several for run in own[1:]]
    return replace(results, runs=results.runs.drop(dropped), numbers=table)


def _length(config: Row, lines: Sequence[Row], folder: Path) -> tuple[str, int]:
    """Return the unit of a run's total and its value; where its phases say it, the last x."""
    text = str(config.get("total", "auto"))
    unit = UNIT_OF_PHASES.get(str(config.get("kind")), "updates")
    if text != "auto":
        try:
            time = Time.parse(text, "total")
        except ConfigError as error:
            raise DamagedFile(f"{folder / 'config.yaml'}: {error}") from error
        if time.unit in UNITS and time.unit != "phase":  # a phase is too long to be an axis
            return time.unit, int(time.value)
    return unit, int(lines[-1].get(unit, 0)) if lines else 0


def _check_clocks(clocks: Sequence[Row], unit: str, path: Path) -> None:
    """Check that each line counts `unit`, that it never goes back, and that counts are whole."""
    names = set().union(*clocks)
    for own in (unit, *(other for other in UNITS if other in names and other != unit)):
        last = 0
        for number, clock in enumerate(clocks, start=1):
            count = clock.get(own, None if own == unit else 0)
            if type(count) is not int or count < last or count >= 1 << 63:  # a table's counts
                raise DamagedFile(
                    f"{path}, line {number}: {own} = {count!r}, expected is a count of at least "
                    f"{last}"
                )
            last = count if own == unit else 0


def _score(names: Collection[str], config: Row) -> str:
    """Return the first there is of `EVALUATIONS`, the loss on a corpus, and `TRAINING`."""
    of_tasks = SCORE_OF_TASKS.get(str((config.get("stream") or {}).get("name")), "")
    corpora = sorted(n for n in names if n.startswith("eval/") and n.endswith("/loss"))
    known = (of_tasks, *EVALUATIONS, *corpora, *TRAINING)
    return next((name for name in known if name in names), "")
