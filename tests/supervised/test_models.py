"""Models: shapes, activations, initializers, sizes, images and keys."""

import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.rng import torch_stream
from rlplast.supervised.models import MODELS, ModelConfig, build_model
from tests.methods.nets import randomise
from tests.models import recorded
from tests.refused import check_refused
from tests.supervised.small_models import CLASSES, OURS, SMALL, build, images, library, network

TAPS = {
    "mlp": ["fc1", "fc2"],
    "cnn": ["conv1", "conv2", "fc1"],
    "cnn_bn": ["conv1", "conv2", "fc1"],
    "lenet5": ["conv1", "conv2", "fc1", "fc2"],
    "alexnet": [*(f"conv{i}" for i in range(1, 6)), "fc1"],
    "vgg16": [*(f"conv{i}" for i in range(1, 14)), "fc1", "fc2"],
    "resnet18": [
        "conv1",
        *(f"layer{i}.{j}.conv{k}" for i in (1, 2, 3, 4) for j in (0, 1) for k in (1, 2)),
        "fc1",
    ],
    "vit_tiny": ["blocks.0.mlp.fc1", "blocks.1.mlp.fc1"],
    "deit_tiny": ["blocks.0.mlp.fc1"],
    "vit_tiny_fire": ["blocks.0.mlp.fc1", "blocks.1.mlp.fc1"],
}


def test_every_model_has_a_small_version() -> None:
    assert SMALL.keys() == MODELS.keys()


@pytest.mark.parametrize("name", SMALL)
def test_a_model_gives_logits_and_every_parameter_a_gradient_and_is_drawn_from_the_seed(
    name: str,
) -> None:
    before = torch.get_rng_state()
    first, again, other = draws(name, 1), draws(name, 1), draws(name, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key, value in first.items() if value.ndim > 1]
    assert weights
    assert not any(torch.equal(first[key], other[key]) for key in weights)
    module = network(build(name)).module
    logits = module(images(name))
    assert logits.shape == (4, CLASSES)
    F.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    assert not [key for key, p in module.named_parameters() if p.grad is None]
    if name not in OURS:
        return
    module.eval()
    logits, taps = recorded(module, images(name))
    assert torch.equal(logits, module(images(name)))
    assert list(taps) == TAPS[name]
    for key, tap in taps.items():
        layer = module.get_submodule(key)
        tokens = module.pos_embed.shape[1] if "it_tiny" in name else 1
        assert tap.shape[:2] == (4 * tokens, layer.weight.shape[0]), key
        if "it_tiny" not in name:
            assert tap.min() == 0 and tap.max() > 0, key  # after the ReLU


# --- Taps -------------------------------------------------------------------------------------


@torch.no_grad()
def test_taps_of_a_chain_are_what_a_hand_written_forward_finds() -> None:
    module = network(build("cnn_bn")).module.train()
    x = images("cnn_bn")
    expected, h = {}, x
    for i in (1, 2):
        h = F.conv2d(h, module.get_parameter(f"conv{i}.weight"), padding=1)
        h = (h - h.mean((0, 2, 3), True)) / (h.var((0, 2, 3), False, True) + 1e-5).sqrt()
        expected[f"conv{i}"] = h = h.clamp(min=0)
        h = F.max_pool2d(h, 2)
    fc = module.get_submodule("fc1"), module.get_submodule("head")
    expected["fc1"] = (h.flatten(1) @ fc[0].weight.T + fc[0].bias).clamp(min=0)
    logits, taps = recorded(module, x)
    for key, value in expected.items():
        torch.testing.assert_close(taps[key], value)
    torch.testing.assert_close(logits, expected["fc1"] @ fc[1].weight.T + fc[1].bias)


# --- Laws -------------------------------------------------------------------------------------


def draws(name: str, seed: int, **keys: Any) -> dict[str, Tensor]:
    made = network(build(name, **keys), seed)
    return {block.name: block.view.clone() for block in made.blocks}


def stds(name: str, shape: tuple[int, int, int], **keys: Any) -> dict[str, tuple[float, Block]]:
    module = build_model(ModelConfig(name, **keys), shape, 10)
    made = rlplast.Network("model", module)
    made.initialise(torch_stream(1, "init", "model"))
    return {b.name: (float(b.view.std()), b) for b in made.blocks if b.view.numel() > 4000}


@pytest.mark.parametrize(
    ("name", "keys"), [("resnet18", {"width": 16}), ("vgg16", {"width": 16, "hidden": [256, 256]})]
)
def test_convs_of_torchvisions_models_are_drawn_by_fan_out(name: str, keys: dict) -> None:
    found = stds(name, (3, 32, 32), **keys)
    convs = [key for key in found if "conv" in key]
    assert len(convs) > 8
    for key in convs:
        std, block = found[key]
        shape = block.view.shape
        assert std == pytest.approx(math.sqrt(2 / (shape[0] * shape[2] * shape[3])), rel=0.05), key
    if name == "vgg16":
        assert found["fc2.weight"][0] == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "vgg16", "resnet18"])
def test_laws_of_a_config_hold_for_every_layer(name: str) -> None:
    for key, value in draws(name, 1, init="normal", init_std=0.2).items():
        if value.numel() > 200 and "bn" not in key:  # biases too
            assert float(value.std()) == pytest.approx(0.2, rel=0.15), key
    for key, value in draws(name, 1, init="he").items():
        if value.ndim > 1 and value.numel() > 200:
            expected = math.sqrt(2 / value[0].numel())
            assert float(value.std()) == pytest.approx(expected, rel=0.15), key
        elif key.endswith("bias"):
            assert not value.any(), key
    for init in ("xavier", "torch"):
        for key, value in draws(name, 1, init=init).items():
            if value.ndim > 1 and value.numel() > 60:
                fans = value[0].numel() + value[:, 0].numel()
                bound = math.sqrt(6 / fans) if init == "xavier" else value[0].numel() ** -0.5
                assert 0.8 * bound < float(value.abs().max()) <= bound, (init, key)
            elif init == "xavier" and key.endswith("bias"):
                assert not value.any(), key


@torch.no_grad()
def test_an_mlp_with_tanh_is_its_layers_one_by_one() -> None:
    module = build("mlp", activation="tanh")
    x = images("mlp")
    logits, taps = recorded(module, x)
    fc1, fc2, head = (module.get_submodule(n).parameters() for n in ("fc1", "fc2", "head"))
    first = torch.tanh(F.linear(x.flatten(1), *fc1))
    second = torch.tanh(F.linear(first, *fc2))
    assert torch.equal(taps["fc1"], first) and torch.equal(taps["fc2"], second)
    assert torch.equal(logits, F.linear(second, *head))
    groups = rlplast.Network("model", module).units().groups
    assert [g.name for g in groups] == ["fc1", "fc2"]


def test_frozen_layers_neither_train_nor_move_their_statistics() -> None:
    module = build("cnn_bn", freeze=["conv*", "bn1", "fc1.bias"])
    made = network(module)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for _ in range(3):
        made.optimizers[0].zero_grad()
        F.cross_entropy(module(images("cnn_bn")), torch.tensor([0, 1, 2, 3])).backward()
        made.optimizers[0].step()
    after = module.state_dict()
    still = {name for name, tensor in after.items() if torch.equal(tensor, before[name])}
    frozen = {name for name in before if name.startswith(("conv", "bn1."))} | {"fc1.bias"}
    assert still == frozen


def test_a_vision_transformer_is_drawn_as_timms() -> None:
    found = stds("vit_tiny", (3, 32, 32), depth=2)
    linear = [key for key in found if "attn" in key or "mlp" in key]
    assert len(linear) == 2 * (3 + 1 + 2)  # q, k, v; proj; fc1, fc2
    for key in [*linear, "pos_embed"]:
        assert found[key][0] == pytest.approx(0.02, rel=0.05), key
    patch, block = found["patch_embed.proj.weight"]
    assert patch == pytest.approx(1 / math.sqrt(3 * block.view[0].numel()), rel=0.05)
    values = draws("vit_tiny", 1)
    assert 0 < float(values["cls_token"].abs().max()) < 1e-5
    assert not values["head.bias"].any() and not values["blocks.0.attn.qkv.q.bias"].any()


def test_fires_vision_transformer_is_drawn_by_torchs_laws_and_its_tokens_are_normal() -> None:
    values = draws("vit_tiny_fire", 1, width=48)
    for key in ("cls_token", "pos_embed"):
        assert float(values[key].std()) == pytest.approx(1.0, rel=0.2), key
    matrices = [key for key in values if key.endswith("weight") and values[key].ndim == 2]
    assert len(matrices) == 1 + 2 * 6 + 1
    for key in matrices:
        bound = 1 / math.sqrt(values[key].shape[1])
        assert 0.98 * bound < float(values[key].abs().max()) <= bound, key
        bias = values.get(key.removesuffix("weight") + "bias")
        assert (bias is None) == (".to_" in key)
        assert bias is None or 0 < float(bias.abs().max()) <= bound, key


def test_laws_agree_with_what_timm_draws() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = library("timm").create_model("tf_efficientnetv2_s", num_classes=10).state_dict()
    ours = network(
        build_model(ModelConfig("efficientnetv2_s"), (3, 32, 32), 10)
    ).module.state_dict()
    assert [(k, v.shape) for k, v in ours.items()] == [(k, v.shape) for k, v in other.items()]
    for key, value in ours.items():
        if value.numel() > 2000:
            assert float(value.std()) == pytest.approx(float(other[key].std()), rel=0.1), key
        elif not key.endswith("weight"):
            torch.testing.assert_close(value, other[key])


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "mambaout_base_plus_rw"])
def test_what_timm_has_besides_torchs_layers_is_drawn_as_timm_does(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = library("timm").create_model(name, num_classes=10).state_dict()
    ours = network(build_model(ModelConfig("timm", timm=name), (3, 224, 224), 10)).module
    ending = ("relative_position_bias_table", "gamma")
    keys = [key for key, value in ours.state_dict().items() if key.endswith(ending)]
    assert keys
    for key in keys:
        value, expected = ours.state_dict()[key], other[key]
        assert float(value.mean()) == pytest.approx(float(expected.mean()), abs=5e-3), key
        assert float(value.std()) == pytest.approx(float(expected.std()), rel=0.2), key


# --- Sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keys", "shape", "classes", "parameters"),
    [
        ("mlp", {}, (1, 28, 28), 10, 784 * 100 + 100 + 100 * 100 + 100 + 1010),
        ("cnn", {}, (1, 28, 28), 10, 416 + 6416 + 40_100 + 1010),
        ("cnn_bn", {}, (1, 28, 28), 10, 400 + 32 + 6400 + 32 + 40_100 + 1010),
        ("lenet5", {}, (1, 28, 28), 10, 61_706),  # LeCun et al. 1998, with full connections
        ("alexnet", {}, (3, 32, 32), 10, 2_469_696 + 2570),  # torchvision's convs, and one layer
        ("vgg16", {}, (3, 224, 224), 1000, 138_357_544),  # torchvision's
        # torchvision's has a 7×7 stem.
        ("resnet18", {}, (3, 32, 32), 1000, 11_689_512 - 64 * 3 * (49 - 9)),
        ("resnet18", {"hidden": [512]}, (3, 32, 32), 10, 11_173_962 + 512 * 513),
        ("vit_tiny", {"patch": 16}, (3, 224, 224), 1000, 5_717_416),  # timm's
        ("deit_tiny", {}, (3, 224, 224), 1000, 5_717_416),
        (  # patches, positions and class token, blocks, norm, head
            "vit_tiny_fire",
            {},
            (3, 32, 32),
            100,
            (96 + 49 * 192 + 384)
            + 66 * 192
            + 12 * (4 * 192**2 + 192 + 768 + 768 * 193 + 192 * 769)
            + 384
            + 193 * 100,
        ),
    ],
)
def test_full_size_models_have_the_published_numbers_of_parameters(
    name: str, keys: dict, shape: tuple[int, int, int], classes: int, parameters: int
) -> None:
    with torch.device("meta"):
        module = build_model(ModelConfig(name, **keys), shape, classes)
    assert sum(p.numel() for p in module.parameters()) == parameters


@pytest.mark.parametrize(
    ("stride", "sides"),  # after the stem, and after the first block of each of 6 stages
    [
        (None, [16, 16, 8, 4, 2, 2, 1]),
        (8, [32, 32, 32, 16, 8, 8, 4]),
    ],
)
def test_efficientnet_leaves_out_its_first_strides(stride: int | None, sides: list[int]) -> None:
    library("timm")
    module = build_model(ModelConfig("efficientnetv2_s", stride=stride), (3, 32, 32), 10).eval()
    found: list[torch.Size] = []
    layers = ["conv_stem", *(f"blocks.{i}.0" for i in range(6))]
    for name in layers:
        module.get_submodule(name).register_forward_hook(lambda m, x, y: found.append(y.shape[2:]))
    with torch.no_grad():
        module(torch.zeros(1, 3, 32, 32))
    assert [tuple(shape) for shape in found] == [(side, side) for side in sides]
    assert sum(p.numel() for p in module.parameters()) == 20_190_298  # timm's, with 10 classes


@torch.no_grad()
def test_timms_models_are_built_for_the_size_of_the_images() -> None:
    library("timm")
    for name in ("swin_tiny_patch4_window7_224", "resnet18"):
        for side in (32, 48):
            module = build_model(ModelConfig("timm", timm=name), (3, side, side), 10).eval()
            assert module(torch.zeros(1, 3, side, side)).shape == (1, 10), name


# --- Images and keys --------------------------------------------------------------------------


@torch.no_grad()
def test_models_adapt_to_the_images() -> None:
    for name in ("mlp", "cnn", "cnn_bn", "vgg16", "resnet18", "vit_tiny", "vit_tiny_fire"):
        config = ModelConfig(name, **SMALL[name][1])
        for shape in ((1, 8, 8), (3, 24, 16), (3, 64, 64)):
            made = build_model(config, shape, 7)
            assert made(torch.zeros(2, *shape)).shape == (2, 7), (name, shape)


# What the JSON Schema does not say; the rest: tests/run/test_schema_inputs.py.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "lenet5"}, "smallest are 10x10"),
    ({"name": "mlp", "patch": 4}, "model.patch = 4: mlp does not read it, only vit_tiny, "),
    ({"name": "cnn", "batch_norm": True}, "batch_norm = True: cnn does not"),
    ({"name": "vit_tiny", "hidden": []}, "model.hidden = []: vit_tiny does not read it"),
    ({"name": "vit_tiny", "width": 16}, "model.width = 16: allowed is a multiple of 3"),
    ({"name": "vit_tiny_fire", "pretrained": True}, "pretrained = True: vit_tiny_fire does not"),
    ({"name": "vit_tiny", "patch": 5}, "model.patch = 5: allowed is a divisor of 8 and 8"),
    ({"name": "mlp", "init": "normal"}, "init_std = None"),
    ({"name": "mlp", "init_std": 0.1}, "init_std = 0.1, model.init = None"),
    ({"name": "cnn", "activation": "tanh"}, "activation = 'tanh': cnn does not read it"),
    ({"name": "cnn", "stride": 8}, "model.stride = 8: cnn does not read it"),
    ({"name": "efficientnetv2_s", "stride": 12}, "stride = 12: allowed is one of 1, 2, 4, "),
    ({"name": "timm"}, "model.timm = None, model.name = 'timm'"),
    ({"name": "mlp", "timm": "resnet50"}, "model.timm = 'resnet50': mlp does not read it"),
    ({"name": "mlp", "freeze": ["fc7"]}, "model.freeze: 'fc7' names no parameter"),
    ({"name": "mlp", "freeze": ["fc*", "head"]}, "nothing is left to"),
    ({"name": "vit_tiny", "pretrained": True, "depth": 2}, "model.pretrained: "),
]


def test_keys_out_of_range_or_not_read_are_refused() -> None:
    check_refused(lambda keys: build_model(ModelConfig(**keys), (3, 8, 8), 10), REFUSED)
    build_model(ModelConfig("lenet5"), (1, 10, 10), 10)


def timm_of(create_model: Callable[..., nn.Module]) -> SimpleNamespace:
    """Return a pretended timm."""
    return SimpleNamespace(create_model=create_model, get_pretrained_cfg=lambda name: None)


def test_weights_are_blamed_only_if_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, **options: Any) -> nn.Module:
        raise error

    model = ModelConfig("timm", timm="resnet10t", pretrained=True)
    for error, words in (
        (FileNotFoundError("offline"), "pretrained = True: .* resnet10t could not be loaded"),
        (RuntimeError("Unknown model (resnet10t)"), "timm cannot build resnet10t: Unknown model"),
        (None, r'pip install "rlplast\[vision\]"'),
    ):
        monkeypatch.setitem(sys.modules, "timm", timm_of(create_model) if error else None)
        with pytest.raises(ConfigError, match=words):
            build_model(model, (3, 32, 32), 10)


@torch.no_grad()
def test_published_weights_are_loaded_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    published = randomise(build_model(ModelConfig("vit_tiny"), (3, 32, 32), 10), 1)
    asked: dict[str, Any] = {}

    def create_model(name: str, **options: Any) -> nn.Module:
        asked.update(name=name, **options)
        return published

    monkeypatch.setitem(sys.modules, "timm", timm_of(create_model))
    drawn = build_model(ModelConfig("vit_tiny"), (3, 32, 32), 10)
    assert not asked
    loaded = build_model(ModelConfig("vit_tiny", pretrained=True), (3, 32, 32), 10)
    assert asked["name"] == "vit_tiny_patch16_224" and asked["pretrained"] is True
    head = published.get_parameter("head.weight")
    assert torch.equal(loaded.get_parameter("head.weight"), head)
    assert not torch.equal(drawn.get_parameter("head.weight"), head)
