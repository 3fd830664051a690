"""Methods on the models: SWR keeps every decision, FIRE edits exactly the tensors of its scope."""

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.rng import torch_stream
from tests.cases import CASES, fire, install
from tests.methods.nets import changed, randomise, relative_error, snapshot
from tests.naive.interventions import fire_twin
from tests.supervised.small_models import build, images, network

# --- SWR --------------------------------------------------------------------------------------


@torch.no_grad()
def test_swr_keeps_every_decision_of_a_deep_net_with_batch_norm() -> None:
    module = randomise(build("vgg16", batch_norm=True), 1, std=0.3).double().eval()
    for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.eps = 0  # which SWR leaves as it is
    made, x = rlplast.Network("model", module), images("vgg16", 32, torch.float64)
    made.initialise(torch_stream(1, "init", "model"))
    generator = torch.Generator().manual_seed(2)
    for p in module.parameters():  # each grows by a factor of its own
        p.mul_(1.5 + 1.5 * torch.rand((), generator=generator))
    module.get_parameter("head.bias").sub_(module(x).mean(0))  # no class is always the largest
    weights = made.select(lambda b: b.role == "weight")
    before, outputs = {b.name: b.view.clone() for b in weights}, module(x)
    for _ in range(10):
        rlplast.swr(made, coef=0.2, coef_head=0.3, rule="exact", rescale_running_stats=True)
    assert all((b.view - before[b.name]).norm() > 0.1 * before[b.name].norm() for b in weights)
    after = module(x)
    assert torch.equal(after.argmax(1), outputs.argmax(1))
    assert outputs.argmax(1).unique().numel() > 1
    factor = (outputs * after).sum() / outputs.square().sum()
    assert 0 < factor < 0.9
    scale = float(outputs.abs().max())
    torch.testing.assert_close(after, factor * outputs, rtol=0, atol=1e-9 * scale)


# --- FIRE -------------------------------------------------------------------------------------

RESNET18 = {"conv1.weight", "fc1.weight", "head.weight"}
RESNET18 |= {f"layer{i}.{j}.conv{k}.weight" for i in range(1, 5) for j in (0, 1) for k in (1, 2)}
RESNET18 |= {f"layer{i}.0.downsample.0.weight" for i in (2, 3, 4)}
VGG16 = {f"conv{i}.weight" for i in range(1, 14)} | {"fc1.weight", "fc2.weight", "head.weight"}
VIT = {f"blocks.{i}.attn.qkv.weight" for i in range(3)}
FIRE_VIT = {f"blocks.{i}.attn.to_{part}.weight" for i in (0, 1) for part in "qk"}
ITERATIONS = 6


@pytest.mark.parametrize(
    ("name", "scope", "keys", "edited"),
    [
        ("resnet18", "resnet", {"width": 4, "hidden": [8]}, RESNET18),
        ("vgg16", "vgg", {"width": 4, "hidden": [64, 64], "batch_norm": True}, VGG16),
        ("vit_tiny", "vit", {"width": 12, "depth": 3}, VIT),
        ("vit_tiny_fire", "vit", {}, FIRE_VIT),
    ],
)
def test_fire_edits_the_tensors_of_its_scope_and_nothing_else(
    name: str, scope: str, keys: dict, edited: set[str]
) -> None:
    module = randomise(build(name, **keys), 1)
    before = snapshot(module)
    receipt = rlplast.fire(module, scope=scope, iterations=ITERATIONS)
    assert changed(before, module) == edited
    after, touched = snapshot(module), 0
    for key in edited:
        whole = slice(None)
        parts = [slice(0, 12), slice(12, 24)] if name == "vit_tiny" else [whole]  # query and key
        for rows in parts:
            twin = fire_twin(before[key][rows].numpy(), ITERATIONS, "cubic")
            assert relative_error(after[key][rows], twin) <= 1e-5, key
            assert name == "resnet18" or (after[key][rows] != before[key][rows]).all(), key
            touched += before[key][rows].numel()
        if name == "vit_tiny":
            assert torch.equal(after[key][24:], before[key][24:]), key
    assert receipt.entries_touched == touched


def test_mlp_units_of_fires_vision_transformer_live_and_sleep() -> None:
    module = build("vit_tiny_fire")
    found = rlplast.replace_layers(module, life=[1, 2], recovery=[1, 2])
    assert found == [f"blocks.{i}.mlp.fc1" for i in (0, 1)]


# --- Every method -----------------------------------------------------------------------------

EVERYWHERE = ("cnn_bn", "resnet18", "vit_tiny", "vit_tiny_fire")
REFUSED = {
    ("swr", "resnet18"): r"model branches: add joins",
    ("swr", "vit_tiny"): r"model\.blocks\.0 .* may branch",
    ("swr", "vit_tiny_fire"): r"model\.blocks\.0 .* may branch",
}
REFUSED |= {("scale_weights", name): message for (_, name), message in REFUSED.items()}


@pytest.mark.parametrize("method", CASES)
def test_a_method_edits_a_model_in_place_or_says_why_not(method: str) -> None:
    for name in EVERYWHERE:
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
            assert bool(changed(before, made.module)) is not CASES[method].follows, name
        else:
            with pytest.raises(ConfigError, match=message):
                fire(method, made, inputs=images(name, 16))
            assert not changed(before, made.module), name
        assert [id(p) for group in optimizer.param_groups for p in group["params"]] == held
        now = {key: (id(p), p.data_ptr()) for key, p in made.module.named_parameters()}
        assert now == parameters, name
        assert all(p.isfinite().all() for p in made.module.parameters()), name


HEADS = {
    "mlp": {"head"},
    "cnn_bn": {"fc1", "head"},
    "vgg16": {"fc1", "fc2", "head"},
    "resnet18": {"fc1", "head"},
    "vit_tiny": {"head"},  # its patches are embedded by a conv, yet it is no conv net
    "vit_tiny_fire": {"head"},
}


def test_head_reset_finds_the_classifier() -> None:
    for name, head in HEADS.items():
        module = randomise(build(name), 3)
        before = snapshot(module)
        rlplast.head_reset(module)
        edited = {f"{layer}.{role}" for layer in head for role in ("weight", "bias")}
        assert changed(before, module) == edited, name
