"""Slow twins of networks whose hidden layers give two entries per unit, from weights by name."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Join = Callable[[Tensor, int], Tensor]


def crelu(z: Tensor, dim: int) -> Tensor:
    """The positive parts of all units, then their negative parts."""
    return torch.cat([z.clamp(min=0), -z.clamp(max=0)], dim)


def fourier(z: Tensor, dim: int) -> Tensor:
    """The sines of all units, then their cosines."""
    return torch.cat([torch.sin(z), torch.sin(z + torch.pi / 2)], dim)


def forward(net: str, w: Mapping[str, Tensor], x: Tensor, join: Join) -> Tensor:
    """Return the output of one of the networks of tests/methods/unit_nets.py."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def conv(name: str, x: Tensor) -> Tensor:
        return F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"])

    if net == "mlp":
        return linear("4", join(linear("2", join(linear("0", x), 1)), 1))
    if net.startswith("conv"):
        for layer, norm in (("0", "1"), ("4", "5")):
            x = conv(layer, x)
            if net == "conv_batchnorm":
                stats = w[f"{norm}.running_mean"], w[f"{norm}.running_var"]
                x = F.batch_norm(x, *stats, w[f"{norm}.weight"], w[f"{norm}.bias"])
            x = join(x, 1)
            x = F.max_pool2d(x, 2) if layer == "0" else x.flatten(1)
        return linear("10", join(linear("8", x), 1))
    if net == "residual":
        x = linear("inp", x)
        for b in ("one", "two"):
            normed = F.layer_norm(x, x.shape[1:], w[f"{b}.norm.weight"], w[f"{b}.norm.bias"])
            x = x + linear(f"{b}.fc2", join(linear(f"{b}.fc1", normed), 1))
        return linear("head", x)
    members = []
    for slot in range(2):
        own = {name: t[slot] for name, t in w.items()}
        h = x
        for name in ("fc1", "fc2"):
            h = join(h @ own[f"{name}.weight"].T + own[f"{name}.bias"], 1)
        members.append(h @ own["head.weight"].T + own["head.bias"])
    return torch.stack(members)
