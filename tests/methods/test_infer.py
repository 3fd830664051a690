"""infer beside a slow twin, closed forms, and runs that nobody interrupted."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLinear
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.gpt.runs import write_corpora
from tests.methods.feature_runs import Termed, run_of
from tests.models import FAMILIES
from tests.naive import features as naive

PARAMS = {"coef": 0.7, "beta": 1.5, "heads": 3}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


def made(family: Any, x: Tensor | None = None, **params: Any) -> Termed:
    return Termed(family, x, method="infer", params=PARAMS | params)


def twin(termed: Termed) -> Tensor:
    features = naive.last_features(termed.module, termed.x)
    with torch.no_grad():
        start = naive.last_features(termed.start, termed.x)
    whole = features.ndim == 2
    pairs = [(features, start)] if whole else list(zip(features, start, strict=True))
    terms = [naive.infer(now, then, **PARAMS, seed=termed.seed) for now, then in pairs]  # type: ignore
    return torch.stack(terms).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_value_and_gradient_are_the_twins(family: str) -> None:
    termed = made(family)
    head = [n for n, _ in termed.module.named_parameters()][-1].rpartition(".")[0]
    found = termed.gradients()
    torch.testing.assert_close(termed.term(), twin(termed))
    termed.module.zero_grad()
    twin(termed).backward()
    for name, parameter in termed.module.named_parameters():
        wanted = parameter.grad
        mine = found[name]
        assert (mine is None) == (wanted is None), name
        assert (mine is None) == name.startswith(f"{head}.") or family == "tied", name
        if mine is not None:
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-6, msg=name)


def test_nothing_is_to_be_kept_at_initialisation() -> None:
    for family in FAMILIES:
        termed = made(family, beta=1.0)
        assert float(termed.term().detach()) > 0, family
        termed.module.load_state_dict(termed.start.state_dict())
        assert float(termed.term().detach()) == 0, family
        assert not any(g.any() for g in termed.gradients().values() if g is not None), family
        scaled = made(family, beta=0.5)
        scaled.module.load_state_dict(scaled.start.state_dict())
        assert float(scaled.term().detach()) > 0, family
    moved = made("conv_batchnorm", beta=1.0)
    with torch.no_grad():  # the initial weights are read anew, as a checkpoint is loaded
        for block in moved.network.blocks:
            moved.network.initial[block.name].copy_(block.view)
    assert float(moved.term().detach()) == 0


def test_two_linear_layers_have_the_closed_form() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 2)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    termed = made(module, x)
    rows = [naive.direction(termed.seed, 0, i, 5) for i in range(3)]
    w = torch.tensor(rows, dtype=torch.float64)
    now, start = (m.get_parameter("0.weight").detach() for m in (module, termed.start))
    moved = w @ (now - 1.5 * start)
    torch.testing.assert_close(termed.term(), 0.7 * (moved @ x.mT).square().mean(1).sum())
    expected = 0.7 * 2 * w.mT @ moved @ x.mT @ x / 6
    torch.testing.assert_close(termed.gradients()["0.weight"], expected)


def test_directions_are_of_the_runs_seed_and_move_no_stream() -> None:
    before = torch.get_rng_state()
    termed = made("mlp")
    rows = [{"method": "infer", "params": PARAMS}]
    found = [
        Penalties(rows, {"net": termed.network}, probe=termed.x, seed=seed).of("net")
        for seed in (0, 0, 1)
    ]
    assert torch.equal(found[0], found[1])  # type: ignore[arg-type]
    assert not torch.equal(found[0], found[2])  # type: ignore[arg-type]
    assert torch.equal(before, torch.get_rng_state())


def test_heads_side_by_side_that_read_one_input_count_once(corpora: dict[str, str]) -> None:
    config = run_of("sac", corpora, "infer", coef=1.0, batch=4)
    agent: Any = build_trainable(read_config(config))
    while agent.clock.updates < 3:
        agent.step()
    network = agent.networks["actor"]
    rows = [{"method": "infer", "networks": ["actor"], "params": {"batch": 4}}]
    both = Penalties(rows, agent.networks, agent).of("actor")
    network.module.get_submodule("mean").is_head = True
    one = Network("actor", network.module, initial=network.initial)
    alone = Penalties(rows, {"actor": one}, agent).of("actor")
    torch.testing.assert_close(alone, both)


def test_a_stacked_layer_that_reads_one_input_for_all_members_is_a_head_too() -> None:
    module = nn.Sequential(nn.Linear(4, 6), StackedLinear(2, 6, 1))
    termed = made(module, torch.randn(5, 4))
    single = nn.Sequential(termed.module[0], nn.Linear(6, 1))  # type: ignore[index]
    rows = [{"method": "infer", "params": PARAMS}]
    initial = {"0.weight": termed.start[0].weight, "0.bias": termed.start[0].bias}  # type: ignore
    initial |= {"1.weight": torch.zeros(1, 6), "1.bias": torch.zeros(1)}
    network = Network("net", single, initial=initial)
    alone = Penalties(rows, {"net": network}, probe=termed.x).of("net")
    torch.testing.assert_close(termed.term(), alone)
