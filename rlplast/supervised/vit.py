"""Vision transformers (Dosovitskiy et al. 2021), built as in two libraries."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.units import UnitSpec, activated

__all__ = ["HEADS", "FireViT", "ViT"]

HEADS = 3  # of attention, in ViT-Tiny and DeiT-Tiny
_MLP_RATIO = 4


class _Attention(nn.Module):
    """Self-attention; query, key and value are one packed layer."""

    units = UnitSpec("attn.qkv", ("attn.proj",), heads=HEADS)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _FireAttention(nn.Module):
    """Self-attention; query, key and value are three layers without biases."""

    units = UnitSpec("attn.to_q", ("attn.proj",), heads=HEADS, beside=("attn.to_k", "attn.to_v"))

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        projections = self.to_q, self.to_k, self.to_v
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in projections)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _Block(nn.Module):
    """Attention and an MLP, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, attention: _Attention | _FireAttention, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = attention
        self.norm2 = nn.LayerNorm(width, eps=eps)
        hidden = _MLP_RATIO * width
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})

    def unit_specs(self) -> list[UnitSpec]:
        mlp = UnitSpec("mlp.fc1", ("mlp.fc2",), nonlinearity=F.gelu, replaceable=True)
        return [self.attn.units, mlp]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        fc1 = self.mlp["fc1"]
        return x + self.mlp["fc2"](activated(fc1, fc1(self.norm2(x)), F.gelu))


class ViT(nn.Module):
    """A vision transformer with a class token and learnt position embeddings, no dropout.

    Its layers are called as in timm, whose weights fit. `patch` is a patch's side in pixels,
    `width` the size of a token.

    Raises:
        ConfigError: if patch does not divide the image's sides, or 3 heads the width.
    """

    attention: ClassVar[type[_Attention | _FireAttention]] = _Attention
    eps: ClassVar[float] = 1e-6  # of timm's LayerNorm

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
        self.patch, eps = patch, self.eps
        self.patch_embed = nn.ModuleDict(self._layers_of_patches(channels, width))
        blocks = (_Block(width, self.attention(width), eps) for _ in range(depth))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.head = nn.Linear(width, num_classes)
        vars(self.head)["is_head"] = True

    def _layers_of_patches(self, channels: int, width: int) -> dict[str, nn.Module]:
        return {"proj": nn.Conv2d(channels, width, self.patch, self.patch)}

    def _tokens(self, x: Tensor) -> Tensor:
        return self.patch_embed["proj"](x).flatten(2).mT

    def residual_branches(self) -> list[list[str]]:
        """Return the layers whose outputs each block adds to the stream."""
        return [[f"blocks.{i}.attn.proj", f"blocks.{i}.mlp.fc2"] for i in range(len(self.blocks))]

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, channels, height, width)."""
        x = self._tokens(x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class FireViT(ViT):
    """A vision transformer as FIRE's code (lucidrains/vit-pytorch) builds it, with `ViT`'s names.

    Query, key and value are layers of their own without biases, patches pass a LayerNorm, a
    linear layer and another LayerNorm, and LayerNorms have torch's ε. A patch's pixels come
    channel by channel, those of FIRE's code pixel by pixel.
    """

    attention = _FireAttention
    eps = 1e-5

    def _layers_of_patches(self, channels: int, width: int) -> dict[str, nn.Module]:
        pixels = channels * self.patch**2
        return {
            "norm_pixels": nn.LayerNorm(pixels),
            "proj": nn.Linear(pixels, width),
            "norm": nn.LayerNorm(width),
        }

    def _tokens(self, x: Tensor) -> Tensor:
        x = F.unfold(x, self.patch, stride=self.patch).mT
        for layer in self.patch_embed.values():
            x = layer(x)
        return x
