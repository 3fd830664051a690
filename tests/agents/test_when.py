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
from tests.runs import Killed, at_step, final, kill, lines

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


def trained(
    kind: str, corpora: dict[str, str], hooks: list[dict[str, Any]], folder: Path, **options: Any
) -> Path:
    changes = {"hooks": hooks, "metrics": METRICS, "checkpoint": {"every": "10%", "keep": 20}}
    api.train(small_run(kind, corpora, **changes), folder, **options)
    return folder


def clocks(folder: Path, key: str) -> list[int]:
    """Return the updates at which a value was measured, but for the end of the run."""
    found = lines(folder, "metrics")
    end = {u: found[-1][u] for u in ("updates", "env_steps", "tokens") if u in found[-1]}
    return [r["updates"] for r in found if key in r and any(r[u] < n for u, n in end.items())]


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
    run = trained(kind, corpora, hooks, tmp_path / "run")
    receipts = lines(run, "receipts")
    assert list(dict.fromkeys(r["method"] for r in receipts)) == methods
    first = next(r for r in lines(run, "metrics") if "metric/weight_norm/" in str(r))
    assert {r["clock"]["updates"] for r in receipts} == {first["updates"]}
    assert len({(r["method"], r["network"]) for r in receipts}) == len(receipts)
    assert any(r["sfe"] > 0 for r in receipts)


@pytest.mark.parametrize("kind", slow_but(["dqn", "supervised"], KINDS))
def test_hooks_fire_at_every_evaluation_and_log_line_and_after_a_rest_and_resume(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    keys = dict(zip(("full_reset", "shrink_perturb"), VALUES[kind], strict=True))
    hooks = [{"method": m, "when": {"metric": key, "above": -1e9}} for m, key in keys.items()]
    rests = {"metric": "weight_norm", "above": 0, "cooldown": "30%"}
    hooks.append({"method": "fire", "when": rests})
    steps: list[Any] = []
    through = trained(kind, corpora, hooks, tmp_path / "through", observer=steps.append)
    fired: dict[str, list[int]] = {}
    for row in lines(through, "receipts"):
        fired.setdefault(row["method"], []).append(row["clock"]["updates"])
    for method, key in keys.items():
        measured = clocks(through, key)
        assert measured and set(fired[method]) == set(measured)
    folder, killed = tmp_path / "killed", at_step(round(0.65 * len(steps)), kill)
    with pytest.raises(Killed):
        trained(kind, corpora, hooks, folder, observer=killed)
    assert lines(folder, "receipts")
    api.resume(folder)
    assert final(folder) == final(through)


@pytest.mark.parametrize("kind", slow_but(["dqn"], KINDS))
def test_condition_that_never_holds_equals_no_hook_bit_for_bit(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    never = [
        {"method": "full_reset", "when": {"metric": metric, "below": -1e9}}
        for metric in ("dormant_ratio", *VALUES[kind])
    ]
    without = final(trained(kind, corpora, [], tmp_path / "without"))
    having = final(trained(kind, corpora, never, tmp_path / "never"))
    assert having["metrics"] == without["metrics"]
    assert having["receipts"] == []
    tensors = safetensors.torch.load(having["tensors.safetensors"])
    for name, tensor in safetensors.torch.load(without["tensors.safetensors"]).items():
        assert torch.equal(tensors[name], tensor), name
