"""Muon as FIRE's code has it, beside numbers of its own class and a slow twin."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.optimizers.config import OptimizerConfig
from rlplast.optimizers.muon_fire import FireMuon
from rlplast.optimizers.updater import Updater
from rlplast.supervised.models import ModelConfig, build_model
from tests.optimizers.drives import orthogonalised

# Shape → the first four entries that FIRE's SingleDeviceMuonWithAuxAdam gives a tensor of zeros
# by two updates at 0.01 along `waves`: kernels, tokens, wide and tall matrices.
FIRES: dict[tuple[int, ...], list[float]] = {
    (8, 3, 3, 3): [-0.0022266, -0.0016504, -0.0002637, -0.0013867],
    (16, 8, 1, 1): [-0.001416, -0.0016113, -0.000376, -0.0010083],
    (1, 5, 12): [-0.0049121, -0.0042773, 0.0007227, 2.93e-05],
    (6, 10): [0.0019092, -0.0036621, 0.0006445, 0.0007422],
    (10, 6): [-0.005625, -0.003335, -0.0032593, -0.0002051],
}


def waves(shape: tuple[int, ...], number: int) -> Tensor:
    """The gradient of an update; no random numbers, which could differ between versions."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(count**2 * (1.7 + number) + number).float().reshape(shape)


def updated(shape: tuple[int, ...], updates: int = 2, **options: Any) -> Tensor:
    p = nn.Parameter(torch.zeros(shape))
    optimizer = FireMuon([p], lr=1e-3, **options)
    for number in range(updates):
        p.grad = waves(shape, number)
        optimizer.step()
    return p.detach()


def twin(
    shape: tuple[int, ...], updates: int, ratio: float, momentum: float, decay: float
) -> Tensor:
    """The same with float64 and the singular values of single matrices."""
    theta, mean = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    for number in range(updates):
        gradient = waves(shape, number).double()
        mean = momentum * mean + (1 - momentum) * gradient
        ahead = momentum * mean + (1 - momentum) * gradient
        rows = [ahead.reshape(shape[0], -1)] if len(shape) == 4 else ahead.reshape(-1, *shape[-2:])
        size = max(1, shape[-2] / shape[-1]) ** 0.5
        rate = ratio * 1e-3
        theta = theta * (1 - rate * decay) - rate * size * torch.stack(
            [*map(orthogonalised, rows)]
        ).reshape(shape)
    return theta


def test_updates_are_those_of_fires_own_class_and_a_slow_twins() -> None:
    for shape, expected in FIRES.items():
        found = updated(shape).flatten()[:4].tolist()
        # Where the numbers are from, they agree to the last one; bfloat16 has two to three.
        assert found == pytest.approx(expected, rel=0.01, abs=2e-5), shape
    options = {"ratio": 20.0, "momentum": 0.8}
    for shape in (*FIRES, (2, 3, 4, 2), (2, 7, 3)):
        found = updated(shape, 3, weight_decay=5.0, **options).double()
        # The iteration is in bfloat16; the largest entries are 0.017 to 0.048.
        expected = twin(shape, 3, decay=5.0, **options)
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-3, msg=str(shape))
    # A kernel's size is that of its last two dimensions.
    kernel, matrix = updated((12, 3, 1, 1), 1), updated((12, 3), 1)
    torch.testing.assert_close(kernel.reshape(12, 3) * 2, matrix)


# Of FIRE's networks: tensors that its get_optimizer gives to Muon, and to Adam.
NETS: dict[str, tuple[dict[str, Any], list[str] | None, tuple[int, int]]] = {
    "resnet18": ({"hidden": [512], "init": "torch"}, ["fc*", "head"], (20, 44)),
    "vgg16": ({"batch_norm": True, "hidden": [64, 64]}, ["fc*", "head"], (13, 45)),
    "vit_tiny_fire": ({"patch": 4}, None, (75, 93)),
}


def test_heads_and_vectors_are_adams_as_in_fires_code() -> None:
    for name, (keys, head, counts) in NETS.items():
        module = build_model(ModelConfig(name, **keys, width=24), (3, 32, 32), 10)
        params = {} if head is None else {"head": head}
        config = OptimizerConfig("muon_fire", lr=1e-3, params=params)
        config.check()
        muon, adam = Updater(config, module).optimizers
        (matrices,), (rest,) = muon.param_groups, adam.param_groups
        assert (len(matrices["params"]), len(rest["params"])) == counts, name
        assert matrices["lr"] * matrices["ratio"] == 0.01 and rest["lr"] == 1e-3
        assert (rest["betas"], rest["eps"]) == ((0.9, 0.95), 1e-10)
        names = {id(p): name for name, p in module.named_parameters()}
        large = [names[id(p)] for p in rest["params"] if p.ndim >= 2]
        assert all(name.split(".")[0] in ("fc1", "fc2", "head") for name in large) and large
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(ConfigError, match=r"muon_fire\.head"):
        Updater(OptimizerConfig("muon_fire", params={"head": ["fc*"]}), module)
