"""Metrics of outputs in runs: what is measured, what is remembered, and that nothing moves."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.metrics import output_probe, outputs
from rlplast.metrics.balance import lipschitz_bound
from rlplast.metrics.output_probe import OF_CHURN
from rlplast.metrics.probe import RunMetrics
from rlplast.run import api
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.every_kind import small_run
from tests.runs import final, forget

SAMPLES = 5


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_probe, "SAMPLES", SAMPLES)


def dqn() -> Any:
    return trained(build_trainable(read_config(small_run("dqn", {}, hooks=[]))), 3)


def trained(made: Any, updates: int) -> Any:
    while made.clock.updates < updates:
        made.step()
    return made


def single_gradient(made: Any, value: Any) -> Tensor:
    made.networks["q"].module.zero_grad(set_to_none=True)
    value.backward()
    grads = [p.grad.flatten() for p in made.networks["q"].module.parameters()]
    made.networks["q"].module.zero_grad(set_to_none=True)
    return torch.cat(grads)


def test_of_a_dqn_the_values_are_those_of_loops_over_samples() -> None:
    measure = RunMetrics([*OF_CHURN, "lipschitz_estimate"], 8)
    made = dqn()
    measure(made, 1)
    older = copy.deepcopy(made.online)
    found = {k.split("/")[1]: v for k, v in measure(trained(made, 6), 2).items()}
    online, batch = made.online, made.sample(8, 2)
    now, then = online(batch.obs).detach(), older(batch.obs).detach()
    assert found["churn"] == pytest.approx(float((now - then).square().mean()), rel=1e-4)
    assert found["churn_size"] == pytest.approx(float((now - then).abs().mean()), rel=1e-4)
    assert found["churn_argmax"] == float((now.argmax(1) != then.argmax(1)).float().mean())
    some = made.sample(SAMPLES, 2).obs.float()
    steepest = 0.0
    for one in some:
        slopes = torch.autograd.functional.jacobian(lambda x: online(x[None])[0], one).flatten(1)
        steepest = max(steepest, float(torch.linalg.svdvals(slopes)[0]))
    assert found["lipschitz_estimate"] == pytest.approx(steepest, rel=1e-4)
    weights = [online.get_submodule(name).weight.detach() for name in online.order]
    assert steepest <= float(lipschitz_bound(weights))


def test_samples_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made, drawn = dqn(), []
    sample = made.sample
    monkeypatch.setattr(made, "sample", lambda size, n: drawn.append(sample(size, n)) or drawn[-1])
    measure = RunMetrics(["ntk_effective_rank", "gradient_covariance"], 8)
    found = {k.split("/")[1]: v for k, v in measure(made, 2).items()}
    singles = [one for one in drawn if len(one.obs) == 1][:SAMPLES]
    assert len(singles) == SAMPLES
    of_loss = torch.stack([single_gradient(made, made.td_loss(one)[0]) for one in singles])
    of_values = torch.stack([single_gradient(made, made.online(one.obs).sum()) for one in singles])
    expected = float(outputs.gradient_covariance(of_loss.double()))
    assert found["gradient_covariance"] == pytest.approx(expected, rel=1e-4)
    expected = float(outputs.ntk_effective_rank(of_values.double()))
    assert found["ntk_effective_rank"] == pytest.approx(expected, rel=1e-3)


def test_what_churn_compares_with_is_in_checkpoints(tmp_path: Path) -> None:
    metrics = {"every": "20%", "names": ["churn"], "batch_size": 8}
    config = small_run("supervised", {}, hooks=[], metrics=metrics, evaluate={"every": None})
    config |= {"checkpoint": {"every": "30%", "keep": 9}}
    api.train(config, tmp_path / "run")
    expected = final(tmp_path / "run")
    saved = sorted(int(p.name.split("-")[1]) for p in tmp_path.glob("run/checkpoints/step-*"))
    forget(tmp_path / "run", after=saved[len(saved) // 2])
    api.resume(tmp_path / "run")
    assert final(tmp_path / "run") == expected
    measured = [row for row in expected["metrics"] if any("/churn/" in key for key in row)]
    assert len(measured) >= 3
