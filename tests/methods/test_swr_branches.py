"""Soft Weight Rescaling where a network branches: exact pieces, refusals, what is approximate."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.gpt.model import GPT, GPTModelConfig
from tests.methods.nets import changed, normal, randomise, snapshot
from tests.supervised.small_models import build, images

COEF = 0.3


@torch.no_grad()
def grown(module: nn.Module) -> rlplast.Network:
    """A float64 network whose tensors have left their initial values, each by its own factor."""
    network = rlplast.Network("net", randomise(module, 1, std=0.3).double())
    generator = torch.Generator().manual_seed(2)
    for view in (b.view for b in network.trainable()):  # each part of a packed projection too
        view.mul_(1.5 + 2 * torch.rand((), generator=generator))
        view.add_(0.05 * torch.randn(view.shape, generator=generator, dtype=view.dtype))
    return network


def resnet(eps: float = 1e-30) -> nn.Module:
    module = build("resnet18")
    for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.eps = eps  # whose scale does not quite go out else
    return module


def wanted(network: rlplast.Network, before: dict[str, Tensor], name: str) -> float:
    norm, start = (float(t[name].norm()) for t in (before, network.initial))
    return (COEF * start + (1 - COEF) * norm) / norm


def rest_of(before: Tensor, after: Tensor) -> tuple[float, float]:
    factor = float((before * after).sum() / before.square().sum())
    return factor, float((after - factor * before).norm() / (factor * before).norm())


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_what_a_norm_follows_is_rescaled_exactly(training: bool) -> None:
    network = grown(resnet())
    module, x = network.module.train(training), images("resnet18", 16, torch.float64)
    frozen = copy.deepcopy(module)
    before, old = frozen(x), snapshot(module)
    rlplast.swr(network, scope="resnet", coef=COEF, rescale_running_stats=True)
    factor, rest = rest_of(before, copy.deepcopy(module)(x))
    assert rest < 1e-9
    ends = [wanted(network, old, f"{name}.weight") for name in ("fc1", "head")]
    assert factor == pytest.approx(ends[0] * ends[1], rel=1e-9)  # what leads to the outputs
    for name, value in snapshot(module).items():
        if "conv" in name or "downsample.0" in name or "fc1.weight" in name:
            torch.testing.assert_close(value, wanted(network, old, name) * old[name])
        elif "bn" in name and name.endswith(("weight", "bias")):
            assert torch.equal(value, old[name]), name


@torch.no_grad()
def test_a_norm_inside_a_branch_is_one_that_another_norm_follows() -> None:
    """conv, norm, ReLU, conv, norm beside a shortcut: all but the last norm's scale is free."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4, eps=1e-30)
            self.conv2, self.norm2 = nn.Conv2d(4, 3, 3, padding=1), nn.GroupNorm(1, 3, eps=1e-30)
            self.norm2.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))

    network = grown(Branch())
    x = normal(5, 3, 6, 6)
    before, old = network.module(x), snapshot(network.module)
    rlplast.swr(network, coef=COEF)
    torch.testing.assert_close(network.module(x), before, rtol=1e-9, atol=1e-9)
    new = snapshot(network.module)
    conv1, norm1, conv2 = (wanted(network, old, f"{n}.weight") for n in ("conv1", "norm1", "conv2"))
    for name, factor in {
        "conv1.weight": conv1,
        "conv1.bias": conv1,
        "norm1.weight": norm1,
        "norm1.bias": norm1,  # the product starts anew at a norm
        "conv2.weight": conv2,
        "conv2.bias": norm1 * conv2,
        "norm2.weight": 1.0,
        "norm2.bias": 1.0,
    }.items():
        torch.testing.assert_close(new[name], factor * old[name])


def test_norms_of_a_residual_stream_are_refused_by_name() -> None:
    network = grown(resnet())
    before = snapshot(network.module)
    with pytest.raises(ConfigError, match=r"branches: add joins .* set approximate: true") as error:
        rlplast.swr(network, coef=COEF)
    named = set(re.findall(r"net\.([\w.]+)", str(error.value)))
    stream = {"bn1.weight"} | {f"layer{i}.{j}.bn2.weight" for i in (1, 2, 3, 4) for j in (0, 1)}
    assert named == stream | {f"layer{i}.0.downsample.1.weight" for i in (2, 3, 4)}
    assert not changed(before, network.module)


ATTENTIONS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "vit_tiny": (lambda: build("vit_tiny"), "blocks.{}.attn.qkv.{}"),
    "vit_tiny_fire": (lambda: build("vit_tiny_fire"), "blocks.{}.attn.to_{}"),
    "gpt": (lambda: GPT(GPTModelConfig(2, 3, 12, 8, 16, bias=True)), "h.{}.attn.c_attn.{}"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", ATTENTIONS)
def test_queries_and_keys_are_balanced_and_logits_stay(name: str) -> None:
    make, path = ATTENTIONS[name]
    network = grown(make())
    x = torch.arange(12).view(2, 6) if name == "gpt" else images(name, 4, torch.float64)
    output = network.module(x)
    before = {b.name: b.view.clone() for b in network.blocks}
    rlplast.swr(network, scope="vit", coef=COEF)
    torch.testing.assert_close(network.module(x), output, rtol=1e-9, atol=1e-9)
    for depth in (0, 1):
        q, k = (path.format(depth, part) for part in "qk")
        factors = [wanted(network, before, f"{layer}.weight") for layer in (q, k)]
        ratio = (factors[0] / factors[1]) ** 0.5
        assert abs(ratio - 1) > 1e-4
        for block in network.blocks:
            factor = {q: ratio, k: 1 / ratio}.get(block.layer)
            if factor is not None:
                torch.testing.assert_close(block.view, factor * before[block.name])
    moved = {b.name for b in network.blocks if not torch.equal(b.view, before[b.name])}
    kinds = ("weight",) if name == "vit_tiny_fire" else ("weight", "bias")
    assert moved == {f"{path.format(i, p)}.{kind}" for i in (0, 1) for p in "qk" for kind in kinds}


@torch.no_grad()
@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 3}], ids=["packed", "separate"])
def test_values_and_the_output_projection_are_balanced(sizes: dict[str, int]) -> None:
    network = grown(nn.MultiheadAttention(6, 2, batch_first=True, **sizes))
    q, k, v = (normal(4, 7, sizes.get(key, 6)) for key in ("", "kdim", "vdim"))
    output, before = network.module(q, k, v)[0], {b.name: b.view.clone() for b in network.blocks}
    rlplast.swr(network, coef=COEF)
    torch.testing.assert_close(network.module(q, k, v)[0], output, rtol=1e-9, atol=1e-9)
    names = ("v.weight", "out_proj.weight")
    ratio = wanted(network, before, names[0]) / wanted(network, before, names[1])
    after = {b.name: b.view for b in network.blocks}
    torch.testing.assert_close(after[names[0]], ratio**0.5 * before[names[0]])
    torch.testing.assert_close(after[names[1]], before[names[1]] / ratio**0.5)
    assert torch.equal(after["out_proj.bias"], before["out_proj.bias"])
    assert not torch.equal(after["q.weight"], before["q.weight"])


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_approximate_rescales_all_and_says_how_far_outputs_moved(name: str) -> None:
    network = grown(resnet(1e-5) if name == "resnet18" else build(name))
    module, x = network.module.eval(), images(name, 16, torch.float64)
    before, old = module(x), {b.name: b.view.clone() for b in network.blocks}
    receipt = rlplast.swr(network, coef=COEF, approximate=True, inputs=x)
    _, rest = rest_of(before, module(x))
    assert rest > 1e-3
    assert receipt.deviation == pytest.approx(rest, rel=1e-9)
    last = "layer4.1.bn2" if name == "resnet18" else "blocks.1.mlp.fc2"
    factor = wanted(network, old, f"{last}.weight")
    for block in network.blocks:
        if block.layer == last and block.trainable:
            torch.testing.assert_close(block.view, factor * old[block.name])
    every = {b.name for b in network.trainable() if b.kind in ("linear", "conv", "norm")}
    still = {b.name for b in network.blocks if torch.equal(b.view, old[b.name])}
    assert not {n for n in every & still if not n.endswith("attn.proj.bias")}


def test_a_deviation_is_measured_without_a_trace_at_every_flush() -> None:
    def train(flush: bool) -> tuple[dict[str, Tensor], list[Any]]:
        module = randomise(build("vit_tiny"), 1, std=0.3)
        optimizer = torch.optim.Adam(module.parameters(), 1e-2)
        network = rlplast.Network("net", module, optimizer)
        row = {"method": "swr", "every": "1 updates", "params": {"coef": 0.1, "approximate": True}}
        x = images("vit_tiny", 8)
        hooks = rlplast.Hooks([row], network, "6 updates", probe=x)
        receipts = []
        for update in range(1, 7):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
            hooks.step(updates=update)
            receipts += hooks.flush() if flush else []
        return snapshot(module), receipts or hooks.flush()

    (every, often), (once, summary) = train(True), train(False)
    assert all(torch.equal(every[key], once[key]) for key in once)
    assert len(often) == 6 and all(0 < r.deviation < 1 for r in often)
    assert len({r.deviation for r in often}) == 6
    assert summary[0].deviation == often[-1].deviation


def test_approximate_needs_a_probe_and_changes_nothing_in_a_chain() -> None:
    network = grown(build("mlp"))
    with pytest.raises(ConfigError, match="measures how far outputs move: pass probe="):
        rlplast.swr(network, approximate=True)
    before, x = snapshot(network.module), images("mlp", 8, torch.float64)
    receipt = rlplast.swr(network, coef=COEF, approximate=True, inputs=x)
    assert receipt.deviation is not None and receipt.deviation < 1e-12
    other = grown(build("mlp"))
    assert rlplast.swr(other, coef=COEF).deviation is None
    assert changed(before, network.module)
    assert not changed(snapshot(other.module), network.module)
    with pytest.raises(ConfigError, match=r"swr\.approximate with rule = 'printed'"):
        rlplast.swr(network, rule="printed", approximate=True)
