"""CPU time of `fire`, receipt included, beside the papers' loop over slices in float32."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

import rlplast
from benchmarks.tools import Row, alternate, medians, row
from rlplast.agents.networks import ARCHITECTURES, QNetwork
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.supervised.models import ModelConfig, build_model


@torch.no_grad()
def loop_fire(
    network: torch.nn.Module, scope: str, iterations: int, start: dict[str, torch.Tensor]
) -> None:
    """FIRE as the papers' scripts do it: one slice after the other in float32."""
    for name, module in network.named_modules():
        if not isinstance(module, torch.nn.Conv2d | torch.nn.Linear) or name == "lm_head":
            continue
        if scope == "dqn" and isinstance(module, torch.nn.Linear):
            for key, tensor in module.named_parameters(prefix=name):
                tensor.copy_(start[key])
            continue
        for part in module.weight.chunk(3 if name.endswith("c_attn") else 1):
            weight = (part[:, :, None, None] if part.ndim == 2 else part).clone()
            d_out, d_in, height, width = weight.shape
            for i in range(height):
                for j in range(width):
                    weight[:, :, i, j] = newton_schulz(weight[:, :, i, j], iterations)
            part.copy_(weight.view(part.shape) * ((d_out / d_in) ** 0.5 / (height * width)))


def newton_schulz(weight: torch.Tensor, iterations: int) -> torch.Tensor:
    """Return Algorithm 1's iterate for one matrix."""
    wide = weight.shape[0] < weight.shape[1]
    x = weight.T if wide else weight
    x = x / x.norm()
    for _ in range(iterations):
        x = 1.5 * x - 0.5 * x @ (x.T @ x)
    return x.T if wide else x


def nature() -> QNetwork:
    return QNetwork(ARCHITECTURES["nature"], (4, 84, 84), 9)


def classifier(name: str, size: int, hidden: list[int], num_classes: int) -> torch.nn.Module:
    """Return a classifier as FIRE's experiments have it."""
    config = ModelConfig(name, hidden=hidden, init="torch")
    return build_model(config, (3, size, size), num_classes)


FIRED: dict[str, tuple[Callable[[], torch.nn.Module], str, int]] = {  # network, scope, iterations
    "Nature CNN": (nature, "all", 10),
    "Nature CNN, scope dqn": (nature, "dqn", 10),
    "ResNet-18": (lambda: classifier("resnet18", 32, [512], 10), "resnet", 10),
    "VGG-16": (lambda: classifier("vgg16", 64, [1024, 1024], 200), "vgg", 10),
    "12-layer GPT": (lambda: GPT(GPTModelConfig(vocab_size=1024)), "gpt", 5),
}


def fire(threads: int, rounds: int) -> Iterator[Row]:
    """Yield CPU time of `fire`, of the loop, and their ratio."""
    for name, (make, scope, iterations) in FIRED.items():
        network, theirs = rlplast.Network("model", make()), make()
        start = {key: tensor.clone() for key, tensor in theirs.state_dict().items()}
        sides = {
            "ours": partial(rlplast.fire, network, scope=scope, iterations=iterations),
            "loop": partial(loop_fire, theirs, scope, iterations, start),
        }
        seconds = alternate(sides, rounds, 1, time.process_time)
        ms = {side: 1e3 * value for side, value in medians(seconds).items()}
        for side in sides:
            yield row(f"fire, {name}, {side}", ms[side], "CPU ms", seconds[side])
        yield row(f"fire, {name}, ours over the loop", ms["ours"] / ms["loop"], "x")
