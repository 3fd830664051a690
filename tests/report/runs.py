"""Small run folders and studies, written by hand: what `rlplast report` reads."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

__all__ = ["metric_rows", "receipt_row", "smooth_score", "write_run", "write_study"]

Score = Callable[[str, str, int, int], float | None]  # of task, arm, seed, x

ENV_IDS = {
    "asterix": "atari/Asterix",
    "breakout": "atari/Breakout",
    "walk": "dmc/humanoid-walk",
    "h1": "humanoid_bench/h1-walk-v0",
    "mini": "minatar/breakout",
}
NO_HOOK = "none"


def smooth_score(task: str, arm: str, seed: int, x: int) -> float:
    """A rising score; every arm but `none` drops at x = 3000 and then rises faster."""
    height = 100.0 + 5 * len(task) + 3 * seed
    if arm == NO_HOOK or x < 3000:
        return height * (1 - 0.5 ** (x / 2000))
    return (height + 10 * len(arm)) * (1 - 0.5 ** ((x - 2500) / 700))


def receipt_row(method: str, x: int, network: str = "q", norm: float | None = 5.0) -> dict:
    """One line of receipts.jsonl; `norm=None` for the summary of an every-update hook."""
    row = {"method": method, "network": network, "clock": {"updates": x // 2, "env_steps": x}}
    row |= {"crossings": 1, "entries_touched": 100, "sfe": 1.5, "firings": 1, "log_factor": None}
    row |= {"dfi_before": None, "dfi_after": None, "norm_before": norm, "norm_after": norm}
    return row | {"optimizer_policy": "keep", "followers": {"target": "copy"}, "time/seconds": 0.01}


def metric_rows(
    score: Callable[[int], float | None], xs: Sequence[int], key: str = "eval/return_mean"
) -> list[dict]:
    """Lines of metrics.jsonl at `xs` env_steps: metrics, an evaluation, a log line."""
    rows = []
    for x in xs:
        clock = {"updates": x // 2, "env_steps": x}
        norms = {"metric/weight_norm/q": 5 + x / 1000, "metric/dormant_ratio/q": 0.1}
        rows.append(clock | norms)
        rows.append(clock | {key: score(x)})
        losses = {"train/loss": 1 / (1 + x), "train/return": 1.0, "train/q": 2.0}
        rows.append(clock | losses | {"time/seconds": x / 100})
    return rows


def write_run(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    receipts: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run's folder; `config` and `info` add to a DQN's of 6000 env_steps."""
    folder.mkdir(parents=True)
    whole = {
        "kind": "dqn",
        "seed": 1,
        "threads": 1,
        "total": "6000 env_steps",
        "env": {"id": "atari/Asterix", "num_envs": 4},
        "agent": {"lr": 1e-4},
        "hooks": [],
        "penalties": [],
        "layers": [],
    }
    whole |= config or {}
    info_row = {"command": ["rlplast", "train"], "seed": whole["seed"], "status": "done"}
    info_row |= {"versions": {"rlplast": "0.4.0"}, "git_revision": "abc1234", "host": "here"}
    (folder / "config.yaml").write_text(yaml.safe_dump(whole))
    (folder / "run.json").write_text(json.dumps(info_row | dict(info or {})))
    for name, lines in (("metrics", rows), ("receipts", receipts)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def write_study(
    folder: Path,
    arms: Sequence[str] = (NO_HOOK, "fire", "full_reset"),
    seeds: Sequence[int] = (1, 2, 3),
    tasks: Sequence[str] = ("asterix",),
    *,
    score: Score = smooth_score,
    key: str = "eval/return_mean",
    total: int = 6000,
    every: int = 500,
    branch: int = 3000,
    baseline: str | None = NO_HOOK,
    name: str = "demo",
    statuses: Mapping[tuple[str, str, int], str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a study of DQNs whose arms leave a prefix at `branch` env_steps; return its folder.

    Tasks are keys of `ENV_IDS`, or other words, which become `gym/<word>`. An arm is `none`, or a
    method with a hook that fires at `branch`. `statuses` says what run.json does of cells that are
    not done; one that is `absent` has no folder, and one that `diverged` failed by that.
    `config` is added to every run's.
    """
    study = folder / name
    cells = []
    times = [f"{branch} env_steps"]

    def add(task: str, seed: int, arm: str | None, status: str) -> None:
        key = sha256(f"{task} {seed} {arm}".encode()).hexdigest()[:12]
        label = f"{arm or 'prefix-50pct'}-{key[:8]}"
        cell = {"key": key, "kind": "arm" if arm else "prefix", "task": task, "seed": seed}
        cell |= {"arm": arm, "folder": f"cells/{task}/seed-{seed}/{label}"}
        cell |= {"parent": prefixes.get((task, seed), {}).get("key")}
        cell |= {"starts": times if arm else [], "stops": [] if arm else times}
        cells.append(cell)
        if arm is None:
            prefixes[task, seed] = cell
        if status != "absent":
            write(cell, prefixes[task, seed], status)

    def write(cell: dict, prefix: dict, status: str) -> None:
        task, seed, arm = cell["task"], cell["seed"], cell["arm"]
        xs = range(every, (total if arm else branch - 1) + 1, every)
        rows = metric_rows(lambda x: score(task, arm or NO_HOOK, seed, x), xs, key)
        fires = arm not in (None, NO_HOOK)
        info: dict[str, Any] = {"status": status}
        if status == "diverged":
            info = {"status": "failed", "diverged": True}
        if arm:
            info["branched_from"] = {
                "run": f"../{Path(prefix['folder']).name}",
                "checkpoint": f"step-{branch}",
                "clock": {"updates": branch // 2, "env_steps": branch},
                "seconds": branch / 100,
            }
        own = {
            "seed": seed,
            "total": f"{total} env_steps",
            "env": {"id": ENV_IDS.get(task, f"gym/{task}"), "num_envs": 4},
            "hooks": [{"method": arm, "at": "50%"}] if fires else [],
        }
        receipts = [receipt_row(str(arm), branch)] if fires else []
        write_run(study / cell["folder"], rows, receipts, own | dict(config or {}), info)

    prefixes: dict[tuple[str, int], dict] = {}
    for task, seed in itertools.product(tasks, seeds):
        add(task, seed, None, "done")
        for arm in arms:
            status = (statuses or {}).get((task, arm, seed), "done")
            add(task, seed, arm, status)
            end = {"done": "done", "failed": "failed", "diverged": "failed"}.get(status)
            if end is not None:
                (study / "claims").mkdir(parents=True, exist_ok=True)
                words = json.dumps({"end": end, "exit": int(end == "failed"), "reason": ""})
                (study / "claims" / f"{cells[-1]['key']}.1").write_text(words)
    plan = {
        "format": 1,
        "versions": {},
        "retries": 0,
        "name": name,
        "baseline": baseline,
        "arms": list(arms),
    }
    plan |= {"tasks": list(tasks), "seeds": list(seeds), "cells": cells}
    (study / "study.json").write_text(json.dumps(plan))
    return study
