"""A smoke of a study: each arm for a moment, on few and small data. Nothing of it is a result."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, Interrupted
from rlplast.run.config_file import merged, read_config
from rlplast.run.differences import leaves
from rlplast.run.length import length
from rlplast.run.read import read_lines
from rlplast.study.api import planned_runs, read_study_config, study, study_cells
from rlplast.study.claims import Claims
from rlplast.study.plan import Cell
from rlplast.study.spec import StudyConfig, runs_of
from rlplast.study.spec_checks import Arm
from rlplast.training.config import RunConfig

__all__ = ["run_smoke", "small", "smoke_study"]

# Keys of configs by their value: a whole number is the most that a key may be, anything else
# replaces what it is. A key that is null, or that a config does not have, stays so.
_KEYS = {
    0: "env.workers",
    1: "threads evaluate.episodes evaluate.batches",
    2: "env.num_envs env.tasks env.cycles replay_ratio stream.phases stream.epochs*",
    8: "checkpoint.keep agent.batch_size agent.target_every phases.*.updates",
    16: "micro_batch metrics.batch_size agent.rollout_steps agent.hidden.* agent.*_width",
    32: "batch_size agent.initial_steps agent.initial_updates model.context",
    64: "env.steps_per_task stream.images data.examples",
    128: "total agent.buffer_size",
    "50%": "log.every metrics.every checkpoint.every",
    "100%": "evaluate.every",
    -1e38: "hooks.*.when.above",  # every value is on one side of it
    1e38: "hooks.*.when.below",
    "cpu": "device",
    "off": "accelerate agent.accelerate",
    None: "evaluate.steps percentages_of",
}
_CAPS = {key: most for most, keys in _KEYS.items() for key in keys.split()}
_OF_ROWS = {"awake_fraction": "lifecycle", "unit_age": "cbp"}  # metrics of what few arms have


def run_smoke(
    source: str, path: Path, jobs: int | None = None, **callbacks: Any
) -> tuple[list[tuple[str, float | None, str]], int]:
    """Run a smoke in a new folder; other arguments and errors as of `rlplast.study`.

    Returns:
        Rows of a name, seconds and words: ``ok`` or what is wrong of each cell, then what else
        there is to say. And the number of faults.
    """
    if (path / "study.json").exists():  # its cells may be of other code
        raise ConfigError(f"--out {path} is not empty: --smoke begins anew, choose another one")
    keys, same, replaced = smoke_study(read_study_config(source, jobs=jobs))
    try:
        failures = study(keys, path, jobs=jobs, smoke=True, **callbacks).failures
    except Interrupted:
        raise Interrupted(f"stopped; nothing of {path} is of use: delete it") from None
    cells, wrong = study_cells(StudyConfig.parse(keys)), {f.cell.key: f.reason for f in failures}
    unfired, unmeasured = _missing([c for c in cells if c.arm and c.key not in wrong], path)
    wrong |= unfired
    more = {name: f"the same as {other} when made small" for name, other in same.items()}
    more["never measured"] = ", ".join(unmeasured)
    more["not tried"] = "; ".join(f"{key}: {text}" for text, key in replaced.items())
    claims = Claims(path, 0)
    claims.look()
    seconds = {key: own[-1].row.get("seconds") for key, own in claims.attempts.items()}
    rows = [(cell.name, seconds.get(cell.key), wrong.get(cell.key, "ok")) for cell in cells]
    rows += [(name, None, words) for name, words in more.items() if words]
    return rows, len(wrong) + len(unmeasured)


def smoke_study(study: StudyConfig) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Return the study of the first seed, and of the first of each grid and sample, made small.

    Its keys; the arms that it leaves out, with another that is equal when made small; and texts of
    configs, such as folders, that small ones replace, with their keys.

    Raises:
        ConfigError: naming an arm whose config is wrong, or cannot be made small.
    """
    seeds, tasks = study.seed_list()[:1], list(study.task_list())
    firsts = {name: _first(arm) if arm else arm for name, arm in study.arms.items()}
    one = replace(study, seeds=seeds, arms=firsts, baseline=None, published=None)
    base = merged(study.base)
    arms, first, same, replaced = dict[str, Any](), dict[str, str](), {}, {}
    for run, planned in zip(runs_of(one), planned_runs(one), strict=True):
        config = planned.config
        own = merged(base, *run.overrides).get("smoke") or {}
        try:
            keys = asdict(small(config, own))
        except ConfigError as error:
            raise ConfigError(f"arm {run.arm!r}, made small (key smoke): {error}") from error
        del keys["seed"]
        name = f"{run.task}/{run.arm}".strip("/")
        other = first.setdefault(json.dumps(keys, sort_keys=True), name)
        if other == name:
            arms.setdefault(run.arm, {"tasks": dict.fromkeys(tasks)})["tasks"][run.task] = keys
        else:
            same[name] = other
        given = dict(leaves(asdict(config)))
        replaced |= {given[k]: k for k, _ in leaves(own) if isinstance(given.get(k), str)}
    found = {"base": {"kind": "dqn"}, "arms": arms, "tasks": {name: {} for name in tasks}}
    found |= {"baseline": study.baseline if study.baseline in arms else None, "seeds": seeds}
    return found | {"retries": 0}, same, replaced


def _first(arm: Arm) -> Arm:
    """Return an arm that stands for one run."""
    grid = {key: values[:1] for key, values in (arm.grid or {}).items()}
    sample = replace(arm.sample, count=1) if arm.sample else None
    return replace(arm, grid=grid, sample=sample)


def small(config: RunConfig, own: Mapping[str, Any]) -> RunConfig:
    """Return a run's config made small.

    Sizes are those of the table here, and of the config's own key ``smoke``. Other times in counts
    shrink as the run does, unit by unit: to at least 1, and of updates to 2, since a hook with a
    period of 1 acts inside them.
    """
    data = asdict(config)
    given = {key: value for key, value in leaves(data, lists=True) if value is not None}
    caps = {key: most for key in given for glob, most in _CAPS.items() if fnmatchcase(key, glob)}
    sizes = {key: _capped(given[key], most) for key, most in caps.items()} | {"log.to": []}
    sizes |= ({"total": "auto"} if config.whole_time() else {}) | dict(leaves(own))
    ends, whole = length(read_config(data, sizes)), length(config)
    for key, value in given.items():
        time = None if key in sizes or ".params." in key else _time(value)
        if time and time.unit in ends and time.unit in whole:
            least = min(time.value, 2 if time.unit == "updates" else 1)
            count = max(time.value * ends[time.unit] // whole[time.unit], least)
            sizes[key] = str(Time(int(count), time.unit))
    return read_config(data, sizes)


def _capped(value: Any, most: Any) -> Any:
    if not isinstance(most, int):
        return most
    if time := _time(value):
        return str(Time(min(time.value, most), time.unit))
    return most if isinstance(value, str) else min(value, most)  # text such as 100k


def _time(value: Any) -> Time | None:
    try:
        return Time.parse(value) if isinstance(value, str) else None
    except ConfigError:
        return None


def _missing(cells: list[Cell], study: Path) -> tuple[dict[str, str], list[str]]:
    """Return the hooks without a receipt in words, by cell, and the metrics nobody measured."""
    unfired, listed, measured, methods = {}, dict[str, None](), set[str](), {None}
    for cell in cells:
        config, folder = cell.config, study / cell.folder
        fired = {row["hook"] for row in read_lines(folder / "receipts.jsonl")}
        if missing := [key for key in config.hook_keys() if key not in fired]:
            unfired[cell.key] = f"no receipt of {', '.join(missing)}"
        keys = {key for row in read_lines(folder / "metrics.jsonl") for key in row}
        measured |= {key.split("/")[1] for key in keys if key.startswith("metric/")}
        listed |= dict.fromkeys(config.metrics.names if config.metrics.every else ())
        methods |= {row["method"] for row in (*config.layers, *config.hooks)}
    names = (name for name in listed if _OF_ROWS.get(name) in methods)
    return unfired, [name for name in names if name not in measured]
