"""Hooks with a condition, in a whole run."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.training import checkpoint
from rlplast.training.loop import Loop
from tests.core.toy import (
    HOOKS,
    STEPS,
    Toy,
    assert_same_training,
    interrupted_and_resumed,
    killed_and_resumed,
    loop,
    run,
    stopped_in_evaluation,
)
from tests.marks import every_step
from tests.runs import final

FRESH = {"init": "fresh"}
NORM = "metric/weight_norm/net"
WHEN: tuple[dict[str, Any], ...] = (
    {
        "method": "head_reset",
        "when": {"metric": "weight_norm", "above": 0, "cooldown": "6 env_steps"},
        "params": FRESH,
    },
    {"method": "shrink_perturb", "when": {"metric": "eval/score", "above": 0}, "params": FRESH},
    {
        "method": "full_reset",
        "when": {"metric": "train/loss", "above": 0, "cooldown": "2 updates"},
        "from": "5 env_steps",
        "until": "12 env_steps",
        "params": FRESH,
    },
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
    counts = [sum(f[0] == hook["method"] for f in fired) for hook in WHEN]
    assert counts == [3, 3, 2]
    ends = WHEN[:2]  # nothing fires on what is measured at the end
    run(when_loop(tmp_path / "end", ends, metrics="16 env_steps", evaluate="8 updates"))
    left = final(tmp_path / "end")
    assert {NORM, "eval/score"} <= set().union(*left["metrics"])
    assert (left["receipts"], left["state.json"]["unread"]) == ([], {})


def test_scheduled_hooks_come_first_then_what_is_measured_then_conditions_then_the_checkpoint(
    tmp_path: Path,
) -> None:
    stored = {"params": {"init": "stored"}}
    hooks = (
        {"method": "head_reset", "when": {"metric": "train/loss", "above": -1}},
        {"method": "shrink_perturb", "when": {"metric": "weight_norm", "above": -1}},
        {"method": "full_reset", "when": {"metric": "eval/score", "above": -1}} | stored,
        {"method": "swr", "every": "1 updates"},
        {"method": "fire", "at": "4 updates"},
    )
    every = {key: "4 updates" for key in ("log", "save", "evaluate", "metrics")}
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


def note(folder: Any, name: str, events: list[str]) -> None:
    """Let a folder's method say what it writes, in one word."""
    write = getattr(folder, name)

    def noted(*args: Any) -> None:
        row = args[-1]
        events.append(row["method"] if name == "receipt" else next(iter(row)).split("/")[0])
        write(*args)

    setattr(folder, name, noted)


def test_condition_that_never_holds_equals_no_hook(tmp_path: Path) -> None:
    run(when_loop(tmp_path / "without", HOOKS))
    never = [
        {"method": "full_reset", "when": {"metric": metric, "below": -1}}
        for metric in ("weight_norm", "eval/score", "train/loss", "train/other")
    ]
    run(when_loop(tmp_path / "never", (*never, *HOOKS)))
    assert_same_training(final(tmp_path / "never"), final(tmp_path / "without"))


def test_score_that_no_evaluation_has_ends_the_run_at_the_first_one(tmp_path: Path) -> None:
    hook = {"method": "fire", "when": {"metric": "eval/scor", "above": 0}}
    with pytest.raises(ConfigError, match=r"hooks\[1\].*'eval/scor'"):
        run(when_loop(tmp_path, (HOOKS[0], hook)))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum("eval/score" in json.loads(line) for line in lines) == 1


SCORES = {1: 5.0, 2: 3.0, 3: 4.0, 4: 2.0, 5: 2.5, 6: 3.0, 7: 3.0, 8: 3.0}


def best_loop(folder: Path) -> Loop:
    """A run that is put back to its start at each evaluation, also at the best ones."""
    hook = {
        "method": "full_reset",
        "when": {"metric": "eval/loss", "above": 0},
        "params": {"init": "stored"},
    }
    made = when_loop(folder, (hook,), best="loss", evaluate="1 updates", save="5 env_steps")
    toy = made.trainable
    assert isinstance(toy, Toy)
    toy.evaluate = lambda number, episodes: {"loss": SCORES[toy.clock.updates]}
    return made


def test_best_checkpoint_is_what_was_evaluated_before_a_hook_changed_it(tmp_path: Path) -> None:
    run(best_loop(tmp_path))
    about = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    tensors, state = checkpoint.load(tmp_path / "checkpoints" / about["checkpoint"])
    assert state["clock"]["updates"] == 4
    assert state["unread"] == {"eval/loss": 2.0}
    assert not torch.equal(tensors["net.0.weight"], tensors["net.0.weight@initial"])
    fired = [updates for _, _, updates in firings(final(tmp_path)["receipts"])]
    assert fired == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("best", [None, "score"])
def test_conditions_see_what_they_would_after_a_signal_in_an_evaluation(
    best: str | None, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"metrics": "2 updates", "evaluate": "2 updates", "best": best}
    run(when_loop(tmp_path / "through", **options))
    for evaluation in range(1, 5):
        folder = tmp_path / str(evaluation)
        stopped_in_evaluation(when_loop(folder, **options), evaluation)
        run(when_loop(folder, **options))
        assert final(folder) == final(tmp_path / "through"), evaluation


Uninterrupted = tuple[Callable[[Path], Loop], dict[str, Any]]


@pytest.fixture(scope="module", params=[when_loop, best_loop])
def through(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Uninterrupted:
    folder = tmp_path_factory.mktemp("through")
    run(request.param(folder))
    return request.param, final(folder)


@every_step(STEPS)
def test_run_killed_after_any_step_and_resumed_equals_the_uninterrupted_one(
    step: int, tmp_path: Path, through: Uninterrupted
) -> None:
    make, expected = through
    killed_and_resumed(lambda: make(tmp_path), step)
    assert final(tmp_path) == expected


def test_run_interrupted_at_every_step_equals_the_uninterrupted_one(
    tmp_path: Path, through: Uninterrupted
) -> None:
    make, expected = through
    interrupted_and_resumed(lambda: make(tmp_path), STEPS - 1)
    assert final(tmp_path) == expected
    method = "head_reset" if make is when_loop else "full_reset"  # cooldowns; the best moments
    assert sum(name == method for name, _, _ in firings(expected["receipts"])) >= 2
