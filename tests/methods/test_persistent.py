"""Persistent: its value, its gradient, where past solutions come from, and what a run remembers."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.core.rng import preserve_global_rng
from rlplast.run import api
from tests.methods.penalty_cases import MODELS, moved
from tests.models import Critic, assert_same
from tests.naive.penalties import persistent_twin, weight_and_bias
from tests.runs import Killed, at_step, final
from tests.supervised_runs import small_supervised


def persistent(network: Network, past: list[Path], seed: int = 0, **params: Any) -> Penalties:
    rows = [{"method": "persistent", "params": {"past": [str(p) for p in past]} | params}]
    return Penalties(rows, {network.name: network}, seed=seed)


def term(network: Network, past: list[Path], seed: int = 0, **params: Any) -> Tensor:
    found = persistent(network, past, seed, **params).of(network.name)
    assert found is not None
    return found


def solution(family: str, seed: int) -> nn.Module:
    """Return a trained-looking module of a family of models."""
    with preserve_global_rng():
        torch.default_generator.manual_seed(seed)
        module = MODELS[family]()
        with torch.no_grad():
            for param in module.parameters():
                param.add_(torch.randn_like(param))
    return module


def saved(module: nn.Module, path: Path) -> Path:
    """Save a state dict in the format of the path's extension."""
    state = {
        name: tensor.detach().contiguous().clone() for name, tensor in module.state_dict().items()
    }
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path


def flat(layer: tuple[Tensor, Tensor | None]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in layer if part is not None])


@pytest.mark.parametrize("norm_power", [1, 2])
@pytest.mark.parametrize("family", MODELS)
def test_value_and_gradient_are_those_of_a_loop_over_layers(
    family: str, norm_power: int, tmp_path: Path
) -> None:
    network, _ = moved(family)
    solutions = [solution(family, seed) for seed in (1, 2)]
    paths = [tmp_path / "first.pt", tmp_path / "second.safetensors"]
    past = [saved(*both) for both in zip(solutions, paths, strict=True)]
    twin = copy.deepcopy(network.module).double()
    doubled = [copy.deepcopy(module).double() for module in solutions]
    found = term(network, past, coef=0.3, norm_power=norm_power)
    expected = persistent_twin(twin, twin, 0.3, doubled, norm_power)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(found.detach()) > 0
    found.backward()
    expected.backward()
    for name, param in network.module.named_parameters():
        wanted = twin.get_parameter(name).grad
        if param.grad is None or wanted is None:
            assert param.grad is wanted is None, name
        else:
            torch.testing.assert_close(param.grad, wanted.float(), rtol=1e-4, atol=1e-6)


def one_layer(weight: list[float], bias: float) -> nn.Linear:
    layer = nn.Linear(len(weight), 1).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weight]))
        layer.bias.fill_(bias)
    return layer


@pytest.mark.parametrize(
    ("now", "then", "power", "expected"),
    [
        (([3.0, 0.0], 4.0), ([3.0, 0.0], 4.0), 1, 5.0),  # θ = Θ: ‖Θ‖
        (([-3.0, 0.0], -4.0), ([3.0, 0.0], 4.0), 1, 5.0),  # and so is θ = −Θ
        (([3.0, 0.0], 4.0), ([3.0, 0.0], 4.0), 2, 1.0),
        (([4.0, 7.0], -3.0), ([3.0, 0.0], 4.0), 1, 0.0),  # orthogonal: weight and bias together
        (([1.0, 2.0], 3.0), ([0.0, 0.0], 2.0), 1, 3.0),
        (([1.0, 2.0], 3.0), ([0.0, 0.0], 0.0), 1, 0.0),  # a layer that is 0 has no direction
    ],
)
def test_value_of_one_layer(
    now: tuple[list[float], float],
    then: tuple[list[float], float],
    power: int,
    expected: float,
    tmp_path: Path,
) -> None:
    network = Network("net", one_layer(*now))
    past = [saved(one_layer(*then), tmp_path / "a.pt")]
    found = term(network, past, coef=0.1, norm_power=power)
    assert float(found.detach()) == pytest.approx(0.1 * expected, abs=1e-15)
    if expected:
        found.backward()
        theta, old = (torch.tensor([*w, b], dtype=torch.float64) for w, b in (now, then))
        sign = math.copysign(1, float(theta @ old))
        wanted = 0.1 * sign * old / old.norm() ** power
        grads = [p.grad.flatten() for p in network.module.parameters() if p.grad is not None]
        torch.testing.assert_close(torch.cat(grads), wanted)


def test_members_of_a_stack_meet_the_same_member(tmp_path: Path) -> None:
    network, _ = moved("stacked")
    old = solution("stacked", 1)
    past = [saved(old, tmp_path / "stack.pt")]
    total = term(network, past, coef=0.3)
    expected = []
    for slot in range(2):
        critic, first = Critic(), Critic()
        critic.load_state_dict({n: t[slot] for n, t in network.module.state_dict().items()})
        first.load_state_dict({n: t[slot] for n, t in old.state_dict().items()})
        own = [saved(first, tmp_path / f"{slot}.pt")]
        expected.append(term(Network("net", critic), own, coef=0.3))
    torch.testing.assert_close(total, sum(expected))
    swapped = {n: t.detach().flip(0) for n, t in old.state_dict().items()}
    torch.save(swapped, tmp_path / "swapped.pt")
    assert not torch.allclose(term(network, [tmp_path / "swapped.pt"], coef=0.3), total)


def test_partial_is_one_layer_that_the_seed_draws(tmp_path: Path) -> None:
    network, _ = moved("mlp")
    old = solution("mlp", 1)
    past = [saved(old, tmp_path / "a.pt")]
    pairs = zip(weight_and_bias(network.module), weight_and_bias(old), strict=True)
    alone = []
    for mine, theirs in pairs:
        now, then = flat(mine), flat(theirs)
        alone.append(float((now @ then).abs() / then.norm()))
    drawn = []
    for seed in range(30):
        found = float(term(network, past, seed, form="partial", coef=1.0).detach())
        (layer,) = [i for i, value in enumerate(alone) if found == pytest.approx(value)]
        again = persistent(network, past, seed, form="partial", coef=1.0)
        assert [again.of("net") == found for _ in range(3)] == [True] * 3
        drawn.append(layer)
    assert set(drawn) == {0, 1, 2}
    assert float(term(network, past, coef=1.0).detach()) == pytest.approx(sum(alone))


@pytest.mark.parametrize("past", [[], None])
def test_without_past_a_run_is_plain_training(past: list[str] | None, tmp_path: Path) -> None:
    params = {} if past is None else {"past": past}
    plain = small_supervised(penalties=[], total="2 epochs", hooks=[])
    first = plain | {"penalties": [{"method": "persistent", "params": params}]}
    for name, config in (("plain", plain), ("first", first)):
        api.train(config, tmp_path / name)
    weights = [dict(model_of(tmp_path / n).module.state_dict()) for n in ("plain", "first")]
    assert_same(*weights)


# Where past solutions come from.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("persistent") / "run"
    api.train(small_supervised(hooks=[], penalties=[], total="10 updates"), folder)
    return folder


def model_of(run: Path, checkpoint: str = "newest") -> Network:
    return api.load(run, checkpoint).agent().networks["model"]


SOURCES: dict[str, Callable[[Path, Path], Path]] = {
    "run": lambda run, _: run,
    "checkpoint": lambda run, _: run / "checkpoints/step-10",
    "its file": lambda run, _: run / "checkpoints/step-10/tensors.safetensors",
    "state dict": lambda run, to: saved(model_of(run).module, to / "a.pt"),
    "safetensors": lambda run, to: saved(model_of(run).module, to / "a.safetensors"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_solution(source: str, run: Path, tmp_path: Path) -> None:
    network = model_of(run)  # at the solution itself: λ Σ ‖Θ_l‖
    norms = [flat(own).norm() for own in weight_and_bias(network.module)]
    found = term(network, [SOURCES[source](run, tmp_path)], coef=0.5)
    assert float(found.detach()) == pytest.approx(0.5 * float(sum(norms)), rel=1e-5)
    older = term(network, [run / "checkpoints/step-5"], coef=0.5)
    assert not torch.allclose(older, found)


def test_bad_sources_are_named(run: Path, tmp_path: Path) -> None:
    network, _ = moved("mlp")
    with pytest.raises(ConfigError, match="none does not exist"):
        persistent(network, [tmp_path / "none"])
    with pytest.raises(ConfigError, match=r"none\.pt does not exist"):
        persistent(network, [tmp_path / "none.pt"])
    with pytest.raises(ConfigError, match=r"run has no net\.0\.weight of shape \(6, 5\): allowed"):
        persistent(network, [run])
    torch.save({"0.weight": torch.zeros(2, 2)}, tmp_path / "small.pt")
    with pytest.raises(ConfigError, match=r"small\.pt has no net\.0\.weight of shape \(6, 5\)"):
        persistent(network, [tmp_path / "small.pt"])
    torch.save(network.module, tmp_path / "module.pt")
    with pytest.raises(DamagedFile, match="never unpickled"):
        persistent(network, [tmp_path / "module.pt"])
    with pytest.raises(ConfigError, match=r"\.past = 'a\.pt': allowed is a list of paths"):
        Penalties([{"method": "persistent", "params": {"past": "a.pt"}}], {"net": network})


# Runs.


def test_a_resumed_run_has_its_past_from_its_checkpoint(run: Path, tmp_path: Path) -> None:
    file = saved(model_of(run).module, tmp_path / "past.pt")
    rows = [{"method": "persistent", "params": {"coef": 0.1, "past": [str(run), str(file)]}}]
    config = small_supervised(penalties=rows)

    def kill() -> None:
        raise Killed

    api.train(config, tmp_path / "through")
    with pytest.raises(Killed):
        api.train(config, tmp_path / "run", observer=at_step(8, kill))
    saved(model_of(run, "step-5").module, file)  # another solution
    api.resume(tmp_path / "run")
    expected = final(tmp_path / "through")
    assert final(tmp_path / "run") == expected
    api.train(config, tmp_path / "other")
    assert final(tmp_path / "other")["metrics"] != expected["metrics"]


@pytest.mark.slow
def test_two_dimensional_example_of_the_paper(tmp_path: Path) -> None:
    """Section 2: plain descent ends in (2, −2); pushed off it, in the deeper (−1.957, −1.028).

    The printed loss lacks a bracket; this is the one with the two minima that the paper names.
    """

    def descend(past: list[Path]) -> nn.Linear:
        point = nn.Linear(2, 1, bias=False).double()
        with torch.no_grad():
            point.weight.copy_(torch.tensor([[-0.335, -1.4]]))
        penalties = persistent(Network("net", point), past, coef=0.1)
        for _ in range(50_000):
            x, y = point.weight[0]
            loss = -torch.exp(-((x - 2) ** 2 + (y + 2) ** 2) / 5)
            loss = loss - 1.5 * torch.exp(-((x + 2) ** 2 + (y + 1) ** 2))
            (gradient,) = torch.autograd.grad(penalties.add("net", loss), point.weight)
            with torch.no_grad():
                point.weight.sub_(gradient, alpha=0.001)
        return point

    plain = descend([])
    assert plain.weight[0].tolist() == pytest.approx([2.0, -2.0], abs=2e-3)
    pushed = descend([saved(plain, tmp_path / "plain.pt")])
    assert pushed.weight[0].tolist() == pytest.approx([-1.957, -1.028], abs=2e-3)
