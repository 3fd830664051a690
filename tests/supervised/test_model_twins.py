"""Models compute the same as other people's, and as their definitions say."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.supervised.models import ModelConfig, build_model
from tests.methods.nets import randomise
from tests.supervised.small_models import build, images, library, network


def resnet_twin(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """He et al. 2015 by the letter, in evaluation mode, with a 3×3 stem."""

    def conv_bn(x: Tensor, conv: str, bn: str, stride: int) -> Tensor:
        w = weights[f"{conv}.weight"]
        x = F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
        mean, var = weights[f"{bn}.running_mean"], weights[f"{bn}.running_var"]
        return F.batch_norm(x, mean, var, weights[f"{bn}.weight"], weights[f"{bn}.bias"])

    x = conv_bn(x, "conv1", "bn1", 1).relu()
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"layer{layer}.{block}."
            stride = 2 if layer > 1 and block == 0 else 1
            h = conv_bn(x, at + "conv1", at + "bn1", stride).relu()
            h = conv_bn(h, at + "conv2", at + "bn2", 1)
            down = at + "downsample.0.weight" in weights
            x = conv_bn(x, at + "downsample.0", at + "downsample.1", stride) if down else x
            assert down == (stride == 2)
            x = (h + x).relu()
    x = F.linear(x.mean((2, 3)), weights["fc1.weight"], weights["fc1.bias"]).relu()
    return F.linear(x, weights["head.weight"], weights["head.bias"])


@torch.no_grad()
def test_resnet18_computes_what_its_definition_says() -> None:
    module = randomise(build("resnet18"), 1, std=0.3).double().eval()
    x = images("resnet18", dtype=torch.float64)
    torch.testing.assert_close(module(x), resnet_twin(dict(module.state_dict()), x))


@torch.no_grad()
@pytest.mark.parametrize("batch_norm", [False, True])
def test_vgg16_convs_compute_what_torchvisions_do(batch_norm: bool) -> None:
    models = library("torchvision").models
    make = models.vgg.make_layers(models.vgg.cfgs["D"], batch_norm=batch_norm)
    config = ModelConfig("vgg16", hidden=[8, 8], batch_norm=batch_norm)
    module = network(build_model(config, (3, 32, 32), 10)).module.eval()
    convs = [v for k, v in module.state_dict().items() if not k.startswith(("fc", "head"))]
    make.load_state_dict(dict(zip(make.state_dict(), convs, strict=True)))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ours = nn.Sequential(*list(module.children())[: len(make)])
    torch.testing.assert_close(ours(x), make.eval()(x))


def test_alexnet_has_the_convs_of_torchvisions() -> None:
    models = library("torchvision").models
    with torch.device("meta"):
        theirs = models.alexnet().features
        ours = build_model(ModelConfig("alexnet"), (3, 32, 32), 10)
    shapes = [tuple(m.weight.shape) for m in theirs if isinstance(m, nn.Conv2d)]
    assert [tuple(m.weight.shape) for m in ours.modules() if isinstance(m, nn.Conv2d)] == shapes


@torch.no_grad()
def test_vision_transformer_computes_what_torchs_encoder_does() -> None:
    module = randomise(build("vit_tiny"), 1, std=0.2).double()
    state, width = module.state_dict(), 12
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(
            width, 3, 4 * width, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True
        ),
        num_layers=2,
        norm=nn.LayerNorm(width, eps=1e-6),
        enable_nested_tensor=False,
    ).double()
    names = {
        "self_attn.in_proj_": "attn.qkv.",
        "self_attn.out_proj.": "attn.proj.",
        "linear1.": "mlp.fc1.",
        "linear2.": "mlp.fc2.",
    }
    theirs = {}
    for key in encoder.state_dict():
        ours = key.replace("layers.", "blocks.")
        for there, here in names.items():
            ours = ours.replace(there, here)
        theirs[key] = state[ours]
    encoder.load_state_dict(theirs)
    x = images("vit_tiny", dtype=torch.float64)
    patches = F.unfold(x, 4, stride=4).mT @ state["patch_embed.proj.weight"].flatten(1).T
    tokens = patches + state["patch_embed.proj.bias"]
    cls = state["cls_token"].expand(4, -1, -1)
    encoded = encoder(torch.cat([cls, tokens], 1) + state["pos_embed"])
    expected = F.linear(encoded[:, 0], state["head.weight"], state["head.bias"])
    torch.testing.assert_close(module(x), expected)


def fire_vit_twin(w: dict[str, Tensor], image: Tensor) -> Tensor:
    """FIRE's vision transformer (lucidrains') on one image, patch by patch and head by head."""

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    cells = [(i, j) for i in range(0, image.shape[1], 4) for j in range(0, image.shape[2], 4)]
    patches = torch.stack([image[:, i : i + 4, j : j + 4].flatten() for i, j in cells])
    tokens = norm(patches, "patch_embed.norm_pixels")
    tokens = norm(linear(tokens, "patch_embed.proj"), "patch_embed.norm")
    x = torch.cat([w["cls_token"][0], tokens]) + w["pos_embed"][0]
    for block in ("blocks.0", "blocks.1"):
        h = norm(x, f"{block}.norm1")
        q, k, v = (h @ w[f"{block}.attn.to_{part}.weight"].T for part in "qkv")
        heads = []
        for start in range(0, 12, 4):
            own = slice(start, start + 4)
            heads.append((q[:, own] @ k[:, own].T / 4**0.5).softmax(-1) @ v[:, own])
        x = x + linear(torch.cat(heads, -1), f"{block}.attn.proj")
        h = linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1")
        gelu = 0.5 * h * (1 + torch.erf(h / 2**0.5))
        x = x + linear(gelu, f"{block}.mlp.fc2")
    return linear(norm(x[0], "norm"), "head")


@torch.no_grad()
def test_fires_vision_transformer_computes_what_its_definition_says() -> None:
    module = randomise(build("vit_tiny_fire"), 1, std=0.2).double()
    x = images("vit_tiny_fire", dtype=torch.float64)
    twin = torch.stack([fire_vit_twin(dict(module.state_dict()), image) for image in x])
    torch.testing.assert_close(module(x), twin)
