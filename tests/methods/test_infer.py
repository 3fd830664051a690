"""infer beside a slow twin and closed forms."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.core.rng import derive_seed
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.methods.driven import Driven, assert_close, gradients, run_of
from tests.models import FAMILIES
from tests.naive import features as naive

PARAMS = {"coef": 0.7, "beta": 1.5, "heads": 3}
SEED = derive_seed(0, "penalty", "infer", "net")


def made(of: Any, x: Tensor | None = None, seed: int = 0, **params: Any) -> Driven:
    row = {"method": "infer", "params": PARAMS | params}
    return Driven(of, x, penalty=row, seed=seed).move()


def twin(termed: Driven) -> Tensor:
    features = naive.last_features(termed.module, termed.x)
    with torch.no_grad():
        start = naive.last_features(termed.start, termed.x)
    whole = features.ndim == 2
    pairs = [(features, start)] if whole else list(zip(features, start, strict=True))
    terms = [naive.infer(now, then, **PARAMS, seed=SEED) for now, then in pairs]
    return torch.stack(terms).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_value_and_gradient_are_the_twins_and_nothing_is_to_be_kept_at_initialisation(
    family: str,
) -> None:
    termed = made(family)
    head = [n for n, _ in termed.module.named_parameters()][-1].rpartition(".")[0]
    expected = twin(termed)
    torch.testing.assert_close(termed.term(), expected)
    found = termed.gradients()
    assert family == "tied" or all((g is None) == (head in n) for n, g in found.items())
    assert_close(found, gradients(termed.module, expected))
    plain, scaled = made(family, beta=1.0), made(family, beta=0.5)
    for each in (plain, scaled):
        assert float(each.term().detach()) > 0
        each.module.load_state_dict(each.start.state_dict())
    assert float(plain.term().detach()) == 0
    assert not any(g.any() for g in plain.gradients().values() if g is not None)
    assert float(scaled.term().detach()) > 0
    plain.move()
    with torch.no_grad():  # the initial weights are read anew, as a checkpoint is loaded
        for block in plain.network.blocks:
            plain.network.initial[block.name].copy_(block.view)
    assert float(plain.term().detach()) == 0


def test_heads_side_by_side_that_read_one_input_count_once() -> None:
    agent: Any = build_trainable(read_config(run_of("sac", {}, "infer", coef=1.0, batch=4)))
    while agent.clock.updates < 3:
        agent.step()
    network = agent.networks["actor"]
    for method in ("infer", "sigreg"):
        rows = [{"method": method, "networks": ["actor"], "params": {"batch": 4}}]
        both = Penalties(rows, agent.networks, agent).of("actor")
        network.module.get_submodule("mean").is_head = True
        one = Network("actor", network.module, initial=network.initial)
        alone = Penalties(rows, {"actor": one}, agent).of("actor")
        torch.testing.assert_close(alone, both)
