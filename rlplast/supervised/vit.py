"""Vision transformer.

- `ViT`: Dosovitskiy et al. 2021, with layers called as in timm, whose weights fit.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.units import UnitSpec

__all__ = ["HEADS", "ViT"]

HEADS = 3  # of attention, in ViT-Tiny and DeiT-Tiny
_MLP_RATIO = 4
_EPS = 1e-6  # of LayerNorm


class _Attention(nn.Module):
    """Self-attention; query, key and value are one packed layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, tokens, width) for (n, tokens, width)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _Block(nn.Module):
    """Attention and an MLP, each after a LayerNorm and added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.attn = _Attention(width)
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(width, _MLP_RATIO * width),
                "fc2": nn.Linear(_MLP_RATIO * width, width),
            }
        )

    def unit_specs(self) -> list[UnitSpec]:
        """Return the heads of the attention and the MLP's hidden units."""
        heads = UnitSpec("attn.qkv", ("attn.proj",), heads=HEADS)
        return [heads, UnitSpec("mlp.fc1", ("mlp.fc2",), nonlinearity=F.gelu)]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the block gives, and the MLP's activation."""
        x = x + self.attn(self.norm1(x))
        inside = F.gelu(self.mlp["fc1"](self.norm2(x)))
        return x + self.mlp["fc2"](inside), inside


class ViT(nn.Module):
    """A vision transformer with a class token and learnt position embeddings, no dropout.

    Args:
        input_shape: (channels, height, width) of an image.
        num_classes: outputs.
        patch: side of a patch, in pixels; it divides the image's sides.
        width: size of a token, a multiple of 3 heads.
        depth: number of blocks.

    Raises:
        ConfigError: if patch or width do not divide.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        patch: int = 4,
        width: int = 192,
        depth: int = 12,
    ) -> None:
        super().__init__()
        channels, *sides = input_shape
        if any(side % patch for side in sides):
            raise ConfigError(
                f"model.patch = {patch}: allowed is a divisor of {sides[0]} and {sides[1]}, the "
                "sides of the images"
            )
        if width % HEADS:
            raise ConfigError(f"model.width = {width}: allowed is a multiple of {HEADS} heads")
        patches = (sides[0] // patch) * (sides[1] // patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + patches, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(channels, width, patch, patch)})
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, channels, height, width)."""
        return self.forward_taps(x)[0]

    def forward_taps(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits and each MLP's activation after its GELU, (n, units, tokens)."""
        x = self.patch_embed["proj"](x).flatten(2).mT
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        taps: dict[str, Tensor] = {}
        for i, block in enumerate(self.blocks):
            x, inside = block(x)
            taps[f"blocks.{i}.mlp.fc1"] = inside.mT
        return self.head(self.norm(x[:, 0])), taps
