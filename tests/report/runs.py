"""Small run folders and studies, written by hand: what `rlplast report` reads."""

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
    return {
        "method": method,
        "network": network,
        "clock": {"updates": x // 2, "env_steps": x},
        "crossings": 1,
        "entries_touched": 100,
        "sfe": 1.5,
        "dfi_before": None,
        "dfi_after": None,
        "norm_before": norm,
        "norm_after": norm,
        "optimizer_policy": "keep",
        "followers": {"target": "copy"},
        "firings": 1,
        "log_factor": None,
        "time/seconds": 0.01,
    }


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
    said = {"command": ["rlplast", "train"], "seed": whole["seed"], "status": "done"}
    said |= {"versions": {"rlplast": "0.4.0"}, "git_revision": "abc1234", "host": "here"}
    (folder / "config.yaml").write_text(yaml.safe_dump(whole))
    (folder / "run.json").write_text(json.dumps(said | dict(info or {})))
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
    """Write a study of DQNs whose arms leave a prefix at `branch` env_steps.

    Args:
        folder: where the study is written: `folder / name`.
        arms: `none` or methods, each a hook that fires at `branch`.
        seeds: seeds.
        tasks: keys of `ENV_IDS`, or other words, which become `gym/<word>`.
        score: what each evaluation says.
        key: name of the score.
        total: length of a run in env_steps.
        every: env_steps between two evaluations.
        branch: where the arms leave the prefix.
        baseline: said in study.json.
        name: of the study.
        statuses: run.json's status by (task, arm, seed), where it is not done; `absent` for
            a cell without a folder.
        config: more keys of every run's config.

    Returns:
        The study's folder.
    """
    study = folder / name
    cells, journal = [], []

    def cell(task: str, seed: int, arm: str | None, parent: str | None) -> dict:
        own = sha256(f"{task} {seed} {arm}".encode()).hexdigest()[:12]
        label = f"{arm or 'prefix-50pct'}-{own[:8]}"
        times = [f"{branch} env_steps"]
        return {
            "key": own,
            "kind": "arm" if arm else "prefix",
            "task": task,
            "seed": seed,
            "arm": arm,
            "folder": f"cells/{task}/seed-{seed}/{label}",
            "parent": parent,
            "starts": times if arm else [],
            "stops": [] if arm else times,
        }

    def write(own: dict, arm: str, status: str, parent: dict | None) -> None:
        task, seed = own["task"], own["seed"]
        xs = range(every, (total if parent else branch - 1) + 1, every)
        rows = metric_rows(lambda x: score(task, arm, seed, x), xs, key)
        fires = parent is not None and arm != NO_HOOK
        hooks = [{"method": arm, "at": "50%"}] if fires else []
        info: dict[str, Any] = {"status": status}
        if parent is not None:
            clock = {"updates": branch // 2, "env_steps": branch}
            run = f"../{Path(parent['folder']).name}"
            info["branched_from"] = {
                "run": run,
                "checkpoint": f"step-{branch}",
                "clock": clock,
                "seconds": branch / 100,
            }
        own_config = {
            "seed": seed,
            "total": f"{total} env_steps",
            "env": {"id": ENV_IDS.get(task, f"gym/{task}"), "num_envs": 4},
            "hooks": hooks,
        }
        receipts = [receipt_row(arm, branch)] if fires else []
        write_run(study / own["folder"], rows, receipts, own_config | dict(config or {}), info)

    for task in tasks:
        for seed in seeds:
            prefix = cell(task, seed, None, None)
            cells.append(prefix)
            write(prefix, NO_HOOK, "done", None)
            for arm in arms:
                own = cell(task, seed, arm, prefix["key"])
                cells.append(own)
                status = (statuses or {}).get((task, arm, seed), "done")
                if status != "absent":
                    write(own, arm, status, prefix)
                event = status if status in ("done", "failed") else "started"
                journal.append(
                    {
                        "time": "2026-01-01T00:00:00+0000",
                        "cell": own["key"],
                        "name": f"{task}/seed-{seed}/{arm}",
                        "event": event,
                        "attempt": 1,
                        "seconds": 12.3,
                        "exit": 1 if event == "failed" else 0,
                    }
                )
    said = {
        "format": 1,
        "name": name,
        "versions": {"rlplast": "0.4.0", "torch": "2.13.0"},
        "baseline": baseline,
        "arms": list(arms),
        "tasks": list(tasks),
        "seeds": list(seeds),
        "cells": cells,
    }
    (study / "study.json").write_text(json.dumps(said))
    (study / "study.yaml").write_text("base: dqn/asterix\n")
    (study / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in journal))
    return study
