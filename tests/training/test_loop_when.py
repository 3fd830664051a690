"""Hooks with a condition, in a whole run; test_loop_resume.py kills such runs."""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.training import checkpoint
from rlplast.training.loop import Loop
from tests.core.toy import HOOKS, Toy, assert_same_training, loop, run, stopped_in_evaluation
from tests.runs import final

FRESH, STORED = ({"params": {"init": init}} for init in ("fresh", "stored"))
NORM = "metric/weight_norm/net"


def row(method: str, metric: str, above: float = 0, **more: Any) -> dict[str, Any]:
    """A hook that fires while a value is above a bound."""
    cooldown = {"cooldown": more.pop("cooldown")} if "cooldown" in more else {}
    return {"method": method, "when": {"metric": metric, "above": above} | cooldown} | more


WHEN = (
    row("head_reset", "weight_norm", cooldown="6 env_steps", **FRESH),
    row("shrink_perturb", "eval/score", **FRESH),
    row("full_reset", "train/loss", cooldown="2 updates", until="12 env_steps", **FRESH)
    | {"from": "5 env_steps"},
)


def when_loop(
    folder: Path,
    hooks: tuple[dict[str, Any], ...] = (*WHEN[:2], *HOOKS, WHEN[2]),
    best: str | None = None,
    **options: Any,
) -> Loop:
    made = loop(folder, hooks=hooks, **options)
    made.intervals = dataclasses.replace(made.intervals, best=best)
    net = made.trainable.networks["net"]
    made.measure = lambda t, number: {
        NORM: math.sqrt(sum(float(b.view.square().sum()) for b in net.trainable()))
    }
    return made


SCORES = {1: 5.0, 2: 3.0, 3: 4.0, 4: 2.0, 5: 2.5, 6: 3.0, 7: 3.0, 8: 3.0}


def reset_loop(folder: Path) -> Loop:
    """A run that is put back to its start at each evaluation, also at the best ones."""
    hook = row("full_reset", "eval/loss", **STORED)
    made = when_loop(folder, (hook,), best="loss", evaluate="1 updates", save="5 env_steps")
    toy = made.trainable
    assert isinstance(toy, Toy)
    toy.evaluate = lambda number, episodes: {"loss": SCORES[toy.clock.updates]}
    return made


def firings(receipts: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Return what fired where, without summaries of every-update hooks."""
    return [
        (r["method"], r["clock"]["env_steps"], r["clock"]["updates"])
        for r in receipts
        if r["method"] != "swr"
    ]


def due_by_hand(lines: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Return what the conditions above fulfil, line after line; the slow twin."""
    found: list[tuple[str, int, int]] = []
    norm_rests_until, loss_rests_until = 0, 0
    for (steps, updates), group in itertools.groupby(
        lines, lambda line: (line["env_steps"], line["updates"])
    ):
        values = {key: value for line in group for key, value in line.items()}
        if steps >= 16:
            break
        if NORM in values and steps >= norm_rests_until:
            found.append(("head_reset", steps, updates))
            norm_rests_until = steps + 6
        if values.get("eval/score", 0) > 0:
            found.append(("shrink_perturb", steps, updates))
        loss = values.get("train/loss", 0)
        if loss > 0 and 5 <= steps <= 12 and updates >= loss_rests_until:
            found.append(("full_reset", steps, updates))
            loss_rests_until = updates + 2
    return found


def test_each_value_is_read_once_when_it_is_measured(tmp_path: Path) -> None:
    run(when_loop(tmp_path, WHEN, metrics="2 env_steps", evaluate="2 updates"))
    left = final(tmp_path)
    fired = firings(left["receipts"])
    assert fired == due_by_hand(left["metrics"])
    assert [sum(f[0] == hook["method"] for f in fired) for hook in WHEN] == [3, 3, 2]
    ends = WHEN[:2]  # nothing fires on what is measured at the end
    run(when_loop(tmp_path / "end", ends, metrics="16 env_steps", evaluate="8 updates"))
    left = final(tmp_path / "end")
    assert {NORM, "eval/score"} <= set().union(*left["metrics"])
    assert (left["receipts"], left["state.json"]["unread"]) == ([], {})


def note(folder: Any, name: str, events: list[str]) -> None:
    """Let a folder's method say what it writes, in one word."""
    write = getattr(folder, name)

    def noted(*args: Any) -> None:
        written = args[-1]
        receipt = name == "receipt"
        events.append(written["method"] if receipt else next(iter(written)).split("/")[0])
        write(*args)

    setattr(folder, name, noted)


def test_scheduled_hooks_come_first_then_what_is_measured_then_conditions_then_the_checkpoint(
    tmp_path: Path,
) -> None:
    hooks = (
        row("head_reset", "train/loss", -1),
        row("shrink_perturb", "weight_norm", -1),
        row("full_reset", "eval/score", -1, **STORED),
        {"method": "swr", "every": "1 updates"},
        {"method": "fire", "at": "4 updates"},
    )
    every = dict.fromkeys(("log", "save", "evaluate", "metrics"), "4 updates")
    made = when_loop(tmp_path, hooks, keep=9, **every)
    events: list[str] = []
    for name in ("metrics", "receipt"):
        note(made.folder, name, events)
    run(made)  # ends at 8 updates, where nothing fires
    lines = ["metric", "eval", "swr", "train"]  # swr: the summary up to the log line
    assert events == ["fire", *lines, "head_reset", "shrink_perturb", "full_reset", *lines]
    tensors, state = checkpoint.load(tmp_path / "checkpoints" / "step-8")
    assert state["clock"]["updates"] == 4
    assert torch.equal(tensors["net.0.weight"], tensors["net.0.weight@initial"])
    left = final(tmp_path)
    (measured,) = (m[NORM] for m in left["metrics"] if NORM in m and m["updates"] == 4)
    by_method = {r["method"]: r for r in left["receipts"]}
    assert by_method["head_reset"]["norm_before"] == pytest.approx(measured)  # fired before it


def test_hook_that_never_fires_equals_no_hook(tmp_path: Path) -> None:
    run(when_loop(tmp_path / "without", HOOKS))
    never: list[dict[str, Any]] = [
        {"method": "full_reset", "when": {"metric": metric, "below": -1}}
        for metric in ("weight_norm", "eval/score", "train/loss", "train/other")
    ]
    never.append(dict.fromkeys(("from", "until"), "9 updates"))
    never[-1] |= {"method": "head_reset", "every": "1 updates"}
    run(when_loop(tmp_path / "never", (*never, *HOOKS)))
    assert_same_training(final(tmp_path / "never"), final(tmp_path / "without"))


def test_score_that_no_evaluation_has_ends_the_run_at_the_first_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hooks\[1\].*'eval/scor'"):
        run(when_loop(tmp_path, (HOOKS[0], row("fire", "eval/scor"))))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum("eval/score" in json.loads(line) for line in lines) == 1


def test_best_checkpoint_is_what_was_evaluated_before_a_hook_changed_it(tmp_path: Path) -> None:
    run(reset_loop(tmp_path))
    about = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    tensors, state = checkpoint.load(tmp_path / "checkpoints" / about["checkpoint"])
    assert state["clock"]["updates"] == 4
    assert state["unread"] == {"eval/loss": 2.0}
    assert not torch.equal(tensors["net.0.weight"], tensors["net.0.weight@initial"])
    fired = [updates for _, _, updates in firings(final(tmp_path)["receipts"])]
    assert fired == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("best", "evaluations"), [(None, [2]), ("score", [1, 3, 4])])
def test_conditions_see_what_they_would_after_a_signal_in_an_evaluation(
    best: str | None, evaluations: list[int], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"metrics": "2 updates", "evaluate": "2 updates", "best": best}
    run(when_loop(tmp_path / "through", **options))
    for evaluation in evaluations:
        folder = tmp_path / str(evaluation)
        stopped_in_evaluation(when_loop(folder, **options), evaluation)
        run(when_loop(folder, **options))
        assert final(folder) == final(tmp_path / "through"), evaluation
