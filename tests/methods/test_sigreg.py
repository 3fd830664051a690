"""sigreg beside a slow twin, closed forms, what it is for, and runs that nobody interrupted."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.clock import Clock
from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.methods.sigreg import distance_to_normal
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.every_kind import KINDS
from tests.gpt.runs import write_corpora
from tests.marks import slow_but
from tests.methods.feature_runs import Termed, run_of, trained
from tests.models import FAMILIES, build, data
from tests.naive import features as naive
from tests.runs import check_resumes

PARAMS = {"coef": 0.7, "slices": 3}
# What gives the features before the last nonlinearity; else the head reads no hidden units.
GIVEN = {"mlp": "2", "conv": "2", "conv_batchnorm": "4", "stacked": "fc2"}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


def made(family: Any, x: Tensor | None = None, **params: Any) -> Termed:
    return Termed(family, x, method="sigreg", params=PARAMS | params)


def twin(termed: Termed, family: str, update: int = 0) -> Tensor:
    if family in GIVEN:
        [features] = naive.given_by(termed.module, [GIVEN[family]], termed.x)
    else:
        features = naive.last_features(termed.module, termed.x)
    if family in ("conv", "conv_batchnorm"):
        features = features.flatten(1)
    apart = list(features) if family == "stacked" else [features.flatten(0, -2)]
    rest = {**PARAMS, "seed": termed.seed, "update": update}
    return torch.stack([naive.isotropic(each, **rest) for each in apart]).sum()  # type: ignore


@pytest.mark.parametrize("family", FAMILIES)
def test_value_and_gradient_are_the_twins(family: str) -> None:
    termed = made(family)
    found = termed.gradients()
    torch.testing.assert_close(termed.term(), twin(termed, family), rtol=1e-4, atol=1e-6)
    termed.module.zero_grad()
    twin(termed, family).backward()
    for name, parameter in termed.module.named_parameters():
        mine = found[name]
        assert (mine is None) == (parameter.grad is None), name
        if mine is not None:
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_the_distance_has_closed_forms() -> None:
    t = [-5 + 10 * k / 7 for k in range(8)]
    away = torch.eye(3, dtype=torch.float64)
    zero = torch.zeros(2, 5, 3, dtype=torch.float64)  # φ = 1
    expected = sum((1 - math.exp(-(s**2) / 2)) ** 2 for s in t) / 8
    assert distance_to_normal(zero, away).tolist() == pytest.approx([expected] * 2)
    signs = torch.ones(2, 1, dtype=torch.float64) * torch.tensor([[2.0], [-2.0]])  # φ = cos 2t
    expected = sum((math.cos(2 * s) - math.exp(-(s**2) / 2)) ** 2 for s in t) / 8
    assert float(distance_to_normal(signs, away[:1, :1])) == pytest.approx(expected)
    moved = torch.full((4, 1), 0.5, dtype=torch.float64)  # φ = exp(it/2)
    expected = sum(1 - 2 * math.cos(s / 2) * math.exp(-(s**2) / 2) + math.exp(-(s**2)) for s in t)
    assert float(distance_to_normal(moved, away[:1, :1])) == pytest.approx(expected / 8)
    ladder = torch.special.ndtri((torch.arange(20_000).double() + 0.5) / 20_000)
    assert float(distance_to_normal(ladder.unsqueeze(1), away[:1, :1])) < 1e-8


def test_directions_are_of_the_seed_and_the_update_and_move_no_stream() -> None:
    before = torch.get_rng_state()
    termed = made("mlp")

    def value(seed: int, updates: int) -> float:
        rows = [{"method": "sigreg", "params": PARAMS}]
        penalties = Penalties(rows, {"net": termed.network}, probe=termed.x, seed=seed)
        penalties.clock = Clock(updates=updates)
        return float(penalties.of("net").detach())  # type: ignore[union-attr]

    assert value(0, 3) == value(0, 3)
    assert len({value(0, 3), value(0, 4), value(1, 3)}) == 3
    termed.penalties.clock = Clock(updates=4)
    assert value(0, 4) == pytest.approx(float(twin(termed, "mlp", 4).detach()), rel=1e-4)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", KINDS)
def test_updates_of_a_run_read_other_data_and_move_no_stream(
    kind: str, corpora: dict[str, str]
) -> None:
    with_term, seen, networks = trained(run_of(kind, corpora, "sigreg", coef=0.0, batch=3))
    without = trained(run_of(kind, corpora, "sigreg"))[0]
    assert all(torch.equal(a, b) for a, b in zip(with_term, without, strict=True))
    assert networks == (2 if kind in ("sac", "ppo") else 1)
    assert len(seen) == len({number for _, _, number in seen}) == 4 * networks


@pytest.mark.parametrize("kind", slow_but(["ppo", "supervised"], KINDS))
def test_resumed_run_equals_an_uninterrupted_one(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    config = run_of(kind, corpora, "sigreg", coef=0.1, batch=4)
    expected = check_resumes(config | {"evaluate": {"every": None}}, tmp_path)
    logged = [row["train/penalty"] for row in expected["metrics"] if "train/penalty" in row]
    assert any(value > 0 for value in logged)


def test_heads_that_read_one_layer_count_once(corpora: dict[str, str]) -> None:
    """An actor's mean and log σ: the term is that of one head."""
    agent: Any = build_trainable(read_config(run_of("sac", corpora, "sigreg", coef=1.0, batch=4)))
    while agent.clock.updates < 3:
        agent.step()
    network = agent.networks["actor"]
    rows = [{"method": "sigreg", "networks": ["actor"], "params": {"batch": 4}}]
    both = Penalties(rows, agent.networks, agent).of("actor")
    network.module.get_submodule("mean").is_head = True
    one = Network("actor", network.module, initial=network.initial)
    alone = Penalties(rows, {"actor": one}, agent).of("actor")
    torch.testing.assert_close(alone, both)


def test_bad_rows_say_why() -> None:
    x = data("mlp")[0]
    rows: list[tuple[nn.Module, dict[str, Any], str]] = [
        (build("mlp"), {"layers": ["0"]}, "features"),
        (build("mlp").bfloat16(), {}, r"net\.0\.weight"),
        (nn.Sequential(nn.BatchNorm1d(3)), {}, "no head"),
    ]
    for module, keys, match in rows:
        with pytest.raises((ConfigError, BadWeights), match=match):
            Penalties([{"method": "sigreg"} | keys], {"net": Network("net", module)}, probe=x)
