"""Methods on the models: SWR keeps every decision, FIRE edits exactly the tensors of its scope."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.rng import torch_stream
from rlplast.supervised.models import ModelConfig, build_model
from tests.cases import CASES, fire, install
from tests.methods.nets import changed, randomise, relative_error, snapshot
from tests.naive.interventions import fire_twin
from tests.supervised.small_models import build, images, network

# --- SWR --------------------------------------------------------------------------------------

SWR_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "mlp": ({}, 256),
    "cnn": ({}, 256),
    "vgg16": ({"width": 16, "hidden": [128, 128]}, 16),
}


def digits(samples: int) -> Tensor:
    """The first images of scikit-learn's digits, (n, 1, 8, 8), mean 0 and deviation 1."""
    from sklearn.datasets import load_digits

    x = torch.from_numpy(np.asarray(load_digits()["images"]))[:samples, None]
    return (x - x.mean()) / x.std()


@torch.no_grad()
def trained(name: str, **keys: Any) -> rlplast.Network:
    """A float64 network for digits whose tensors grew by factors of their own, and turned."""
    module = build_model(ModelConfig(name, **keys), (1, 8, 8), 10).double()
    made = rlplast.Network("model", module)
    made.initialise(torch_stream(1, "init", "model"))
    generator = torch.Generator().manual_seed(2)
    for p in module.parameters():
        p.mul_(1.5 + 1.5 * torch.rand((), generator=generator))
        p.add_(0.02 * torch.randn(p.shape, generator=generator))
    return made


def swr_often(made: rlplast.Network, **options: Any) -> None:
    """Fire often and hard, and check that every weight matrix is another one."""
    weights = made.select(lambda b: b.role == "weight")
    before = {b.name: b.view.clone() for b in weights}
    for _ in range(20):
        rlplast.swr(made, coef=0.2, coef_head=0.3, rule="exact", **options)
    for b in weights:
        moved = (b.view - before[b.name]).norm() / before[b.name].norm()
        assert moved > 0.1, b.name


@pytest.mark.parametrize("name", SWR_MODELS)
@torch.no_grad()
def test_swr_keeps_the_decision_on_every_sample(name: str) -> None:
    keys, samples = SWR_MODELS[name]
    made, x = trained(name, **keys), digits(samples)
    before = made.module(x)
    swr_often(made)
    after = made.module(x)
    assert before.argmax(1).unique().numel() > 1
    assert torch.equal(after.argmax(1), before.argmax(1))
    factor = (before * after).sum() / before.square().sum()
    assert 0 < factor < 0.9
    torch.testing.assert_close(after, factor * before, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("eps", "tolerance"), [(1e-30, 1e-9), (1e-5, 1e-3)])
@torch.no_grad()
def test_swr_keeps_decisions_of_a_batch_norm_net_in_training_up_to_its_epsilon(
    eps: float, tolerance: float
) -> None:
    made, x = trained("cnn_bn"), digits(256)
    for norm in (m for m in made.module.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.eps = eps
    made.module.train()
    before = made.module(x)
    swr_often(made)
    after = made.module(x)
    factor = (before * after).sum() / before.square().sum()
    rest = (after - factor * before).norm() / (factor * before).norm()
    assert factor < 0.9 and rest < tolerance
    top = before.topk(2).values
    certain = (top[:, 0] - top[:, 1]) > 2 * tolerance * before.norm(dim=1)
    assert certain.double().mean() > 0.95
    assert torch.equal(after.argmax(1)[certain], before.argmax(1)[certain])


@torch.no_grad()
def test_swr_keeps_decisions_of_a_batch_norm_net_in_evaluation_if_its_statistics_follow() -> None:
    kept = {}
    for follow in (True, False):
        made, x = trained("cnn_bn"), digits(256)
        for _ in range(60):
            made.module.train()(x)  # running statistics of this data
        made.module.eval()
        before = made.module(x)
        swr_often(made, rescale_running_stats=follow)
        kept[follow] = float((made.module(x).argmax(1) == before.argmax(1)).double().mean())
    assert kept[True] == 1.0
    assert kept[False] < 1.0


# --- FIRE -------------------------------------------------------------------------------------

RESNET18 = {"conv1.weight", "fc1.weight", "head.weight"}
RESNET18 |= {f"layer{i}.{j}.conv{k}.weight" for i in range(1, 5) for j in (0, 1) for k in (1, 2)}
RESNET18 |= {f"layer{i}.0.downsample.0.weight" for i in (2, 3, 4)}
VGG16 = {f"conv{i}.weight" for i in range(1, 14)} | {"fc1.weight", "fc2.weight", "head.weight"}
ITERATIONS = 6


@pytest.mark.parametrize(
    ("name", "scope", "keys", "edited"),
    [
        ("resnet18", "resnet", {"width": 4, "hidden": [8]}, RESNET18),
        ("vgg16", "vgg", {"width": 4, "hidden": [64, 64]}, VGG16),
        ("vgg16", "vgg", {"width": 4, "hidden": [64, 64], "batch_norm": True}, VGG16),
    ],
)
def test_fire_edits_convs_and_linear_weights_and_nothing_else(
    name: str, scope: str, keys: dict, edited: set[str]
) -> None:
    module = randomise(build(name, **keys), 1)
    before = snapshot(module)
    receipt = rlplast.fire(module, scope=scope, iterations=ITERATIONS)
    assert changed(before, module) == edited
    after = snapshot(module)
    for key in edited:
        twin = fire_twin(before[key].numpy(), ITERATIONS, "cubic")
        assert relative_error(after[key], twin) <= 1e-5, key
    assert receipt.entries_touched == sum(before[key].numel() for key in edited)


@pytest.mark.parametrize(("name", "depth"), [("vit_tiny", 3), ("deit_tiny", 2)])
def test_fire_edits_query_and_key_rows_of_a_vision_transformer_alone(name: str, depth: int) -> None:
    width = 12
    module = randomise(build(name, width=width, depth=depth), 1)
    before = snapshot(module)
    receipt = rlplast.fire(module, scope="vit", iterations=ITERATIONS)
    after = snapshot(module)
    packed = [f"blocks.{i}.attn.qkv.weight" for i in range(depth)]
    assert changed(before, module) == set(packed)
    for key in packed:
        for rows in (slice(0, width), slice(width, 2 * width)):
            twin = fire_twin(before[key][rows].numpy(), ITERATIONS, "cubic")
            assert relative_error(after[key][rows], twin) <= 1e-5, key
            assert (after[key][rows] != before[key][rows]).all(), key
        assert torch.equal(after[key][2 * width :], before[key][2 * width :]), key
    assert receipt.entries_touched == depth * 2 * width * width


def test_fire_edits_query_and_key_of_fires_vision_transformer_alone() -> None:
    module = randomise(build("vit_tiny_fire"), 1)
    before = snapshot(module)
    rlplast.fire(module, scope="vit", iterations=ITERATIONS)
    edited = {f"blocks.{i}.attn.to_{part}.weight" for i in (0, 1) for part in "qk"}
    assert changed(before, module) == edited
    after = snapshot(module)
    for key in edited:
        assert (
            relative_error(after[key], fire_twin(before[key].numpy(), ITERATIONS, "cubic")) < 1e-5
        )


def test_mlp_units_of_fires_vision_transformer_live_and_sleep() -> None:
    module = build("vit_tiny_fire")
    found = rlplast.replace_layers(module, life=[1, 2], recovery=[1, 2])
    assert found == [f"blocks.{i}.mlp.fc1" for i in (0, 1)]


# --- Every method -----------------------------------------------------------------------------

EVERYWHERE = ("cnn_bn", "resnet18", "vit_tiny", "vit_tiny_fire")
REFUSED = {
    ("swr", "resnet18"): r"model branches: add joins",
    ("swr", "vit_tiny"): r"blocks\.0\.attn\.qkv\.\w\.weight is one part .* no forward order",
    ("swr", "vit_tiny_fire"): r"model branches",
}
REFUSED |= {("scale_weights", name): message for (_, name), message in REFUSED.items()}


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("method", CASES)
def test_a_method_edits_a_model_in_place_or_says_why_not(method: str, name: str) -> None:
    module = build(name)
    install(method, module)
    made = network(module)
    (optimizer,) = made.optimizers
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.full_like(p, 0.1)
    optimizer.step()
    parameters = {key: (id(p), p.data_ptr()) for key, p in made.module.named_parameters()}
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    before = snapshot(made.module)
    message = REFUSED.get((method, name))
    if message is None:
        fire(method, made, inputs=images(name, 16))
        assert bool(changed(before, made.module)) is not CASES[method].follows
    else:
        with pytest.raises(ConfigError, match=message):
            fire(method, made, inputs=images(name, 16))
        assert not changed(before, made.module)
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == held
    now = {key: (id(p), p.data_ptr()) for key, p in made.module.named_parameters()}
    assert now == parameters
    assert all(p.isfinite().all() for p in made.module.parameters())


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("mlp", {"head"}),
        ("cnn_bn", {"fc1", "head"}),
        ("vgg16", {"fc1", "fc2", "head"}),
        ("resnet18", {"fc1", "head"}),
        ("vit_tiny", {"head"}),  # its patches are embedded by a conv, yet it is no conv net
        ("vit_tiny_fire", {"head"}),
    ],
)
def test_head_reset_finds_the_classifier(name: str, head: set[str]) -> None:
    module = randomise(build(name), 3)
    before = snapshot(module)
    rlplast.head_reset(module)
    assert changed(before, module) == {f"{layer}.{r}" for layer in head for r in ("weight", "bias")}
