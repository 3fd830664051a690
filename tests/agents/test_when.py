"""Hooks with a condition in everything that trains."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from rlplast.run import api
from tests.cases import CASES, method_of
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.marks import slow_but
from tests.runs import Killed, at_step, final

METRICS = {"every": "20%", "names": ["weight_norm", "dormant_ratio"], "batch_size": 8}
# Of each kind a score of its evaluations, and what every log line has.
VALUES = {
    "dqn": ("eval/return_mean", "train/epsilon"),
    "sac": ("eval/return_mean", "train/temperature"),
    "ppo": ("eval/return_mean", "train/entropy"),
    "supervised": ("eval/accuracy", "train/loss"),
    "gpt": ("eval/low/loss", "train/loss"),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


def config_of(kind: str, corpora: dict[str, str], hooks: list[dict[str, Any]]) -> dict[str, Any]:
    changes = {"hooks": hooks, "metrics": METRICS, "checkpoint": {"every": "10%", "keep": 20}}
    return small_run(kind, corpora, **changes)


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def clocks(folder: Path, key: str) -> list[int]:
    """Return the updates at which a value was measured, but for the end of the run."""
    lines = rows(folder, "metrics")
    end = {u: lines[-1][u] for u in ("updates", "env_steps", "tokens") if u in lines[-1]}
    return [r["updates"] for r in lines if key in r and any(r[u] < n for u, n in end.items())]


@pytest.mark.parametrize("kind", slow_but(["dqn", "supervised"], KINDS))
def test_every_intervention_fires_when_a_value_is_measured(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    able = [method for method, case in CASES.items() if kind not in case.refuses]
    methods = [method for method in able if not method_of(method).fires_once]
    when = {"metric": "weight_norm", "above": 0, "cooldown": "100%"}
    hooks = [
        {"method": method, "when": when, "params": dict(CASES[method].params)} for method in methods
    ]
    api.train(config_of(kind, corpora, hooks), tmp_path / "run")
    receipts = rows(tmp_path / "run", "receipts")
    assert list(dict.fromkeys(r["method"] for r in receipts)) == methods
    first = next(r for r in rows(tmp_path / "run", "metrics") if "metric/weight_norm/" in str(r))
    assert {r["clock"]["updates"] for r in receipts} == {first["updates"]}
    assert len({(r["method"], r["network"]) for r in receipts}) == len(receipts)
    assert any(r["sfe"] > 0 for r in receipts)


@pytest.mark.parametrize("kind", slow_but(["dqn", "supervised"], KINDS))
def test_hooks_fire_at_every_evaluation_and_every_log_line(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    score, logged = VALUES[kind]
    hooks = [
        {"method": "full_reset", "when": {"metric": score, "above": -1e9}},
        {"method": "shrink_perturb", "when": {"metric": logged, "above": -1e9}},
    ]
    api.train(config_of(kind, corpora, hooks), tmp_path / "run")
    receipts = rows(tmp_path / "run", "receipts")
    for method, key in (("full_reset", score), ("shrink_perturb", logged)):
        fired = [r["clock"]["updates"] for r in receipts if r["method"] == method]
        measured = clocks(tmp_path / "run", key)
        assert sorted(set(fired)) == sorted(set(measured))
        assert measured


@pytest.mark.parametrize("kind", slow_but(["dqn"], KINDS))
def test_condition_that_never_holds_equals_no_hook_bit_for_bit(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    never = [
        {"method": "full_reset", "when": {"metric": metric, "below": -1e9}}
        for metric in ("dormant_ratio", *VALUES[kind])
    ]
    for name, hooks in (("without", []), ("never", never)):
        api.train(config_of(kind, corpora, hooks), tmp_path / name)
    without, having = final(tmp_path / "without"), final(tmp_path / "never")
    assert having["metrics"] == without["metrics"]
    assert having["receipts"] == []
    tensors = safetensors.torch.load(having["tensors.safetensors"])
    for name, tensor in safetensors.torch.load(without["tensors.safetensors"]).items():
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize("kind", slow_but(["dqn"], KINDS))
def test_run_killed_between_two_measurements_and_resumed_equals(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    rest = {"metric": "weight_norm", "above": 0, "cooldown": "30%"}
    hooks = [
        {"method": "full_reset", "when": rest},
        {"method": "fire", "when": {"metric": VALUES[kind][1], "above": -1e9, "cooldown": "15%"}},
    ]
    config = config_of(kind, corpora, hooks)
    steps = 0

    def count(loop: Any) -> None:
        nonlocal steps
        steps += 1

    api.train(config, tmp_path / "through", observer=count)
    fired = {r["clock"]["updates"] for r in rows(tmp_path / "through", "receipts")}
    assert len(fired) > 2

    def kill() -> None:
        raise Killed

    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        api.train(config, folder, observer=at_step(round(0.65 * steps), kill))
    assert 0 < len(rows(folder, "receipts"))
    api.resume(folder)
    assert final(folder) == final(tmp_path / "through")
