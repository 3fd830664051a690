"""GPT-2's architecture, with its names of tensors; the defaults are GPT-0.1B of FIRE A.4.2."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.network.units import UnitSpec, activated
from rlplast.core.validation import Section, check_section

__all__ = ["GPT", "GPTModelConfig", "cross_entropy"]

INIT_STD = 0.02  # GPT-2's


@dataclass
class GPTModelConfig(Section):
    """A GPT as data, section `model:` of a config.

    Attributes:
        layers: number of transformer blocks.
        heads: attention heads per block; a divisor of `width`.
        width: size of a token's vector. The hidden layer of the MLP has 4·width units.
        context: largest number of tokens in a sequence.
        vocab_size: rows of the embedding; may be more than the tokenizer's ids.
        bias: whether linear and norm layers have biases.
        dropout: dropout rate in training, in [0, 1): after the embedding, on attention weights, and
            on the output of each block's branches.
        gelu: GELU of the MLPs: ``tanh`` for the approximation of GPT-2, ``exact`` for nanoGPT's.
    """

    layers: PositiveInt = 12
    heads: PositiveInt = 12
    width: PositiveInt = 768
    context: PositiveInt = 1024
    vocab_size: PositiveInt = 50304
    bias: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    gelu: Literal["tanh", "exact"] = "tanh"

    def check(self) -> None:
        """Raise ConfigError for a value out of range, or heads that do not divide the width."""
        check_section(self, "model")
        if self.width % self.heads:
            raise ConfigError(
                f"model.width = {self.width} with model.heads = {self.heads}: allowed is a "
                "multiple of the heads"
            )


_GELU = {"tanh": partial(F.gelu, approximate="tanh"), "exact": F.gelu}


class Attention(nn.Module):
    """Causal self-attention; query, key and value come from one packed projection."""

    def __init__(self, config: GPTModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def unit_specs(self) -> list[UnitSpec]:
        """Return the heads."""
        return [UnitSpec("c_attn", ("c_proj",), heads=self.heads)]

    def forward(self, x: Tensor) -> Tensor:
        """Return what attention adds, shape (batch, time, width) as `x`."""
        packed = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in packed)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with a GELU in between."""

    def __init__(self, config: GPTModelConfig) -> None:
        super().__init__()
        self.gelu = _GELU[config.gelu]
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=config.bias)

    def unit_specs(self) -> list[UnitSpec]:
        """Return the hidden units."""
        return [UnitSpec("c_fc", ("c_proj",), nonlinearity=self.gelu, replaceable=True)]

    def forward(self, x: Tensor) -> Tensor:
        """Return what the MLP adds, (batch, time, width)."""
        return self.c_proj(activated(self.c_fc, self.c_fc(x), self.gelu))


class TransformerBlock(nn.Module):
    """Attention and MLP, each on the normalised stream and added to it."""

    def __init__(self, config: GPTModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, bias=config.bias)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, bias=config.bias)
        self.mlp = MLP(config)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream, (batch, time, width)."""
        x = x + F.dropout(self.attn(self.ln_1(x)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.ln_2(x)), self.dropout, self.training)


class GPT(nn.Module):
    """A GPT: tokens in, logits of the next token out; `Network.initialise` draws its weights."""

    def __init__(self, config: GPTModelConfig) -> None:
        super().__init__()
        config.check()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, bias=config.bias)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        vars(self.lm_head)["is_head"] = True

    def residual_branches(self) -> list[list[str]]:
        """Return the layers whose outputs each block adds to the stream."""
        return [[f"h.{i}.attn.c_proj", f"h.{i}.mlp.c_proj"] for i in range(len(self.h))]

    def init_block(self, block: Block, generator: torch.Generator) -> Tensor:
        """Draw one Block by GPT-2's initializer: N(0, 0.02²), norms 1 and 0, biases 0.

        Projections back into the stream have 0.02/√(2·layers) for 0.02.
        """
        shape = block.view.shape
        if block.role in ("scale", "shift", "bias"):
            return torch.full(shape, 1.0 if block.role == "scale" else 0.0)
        into_stream = block.path.endswith(".c_proj")
        std = INIT_STD / math.sqrt(2 * self.config.layers) if into_stream else INIT_STD
        return torch.randn(shape, generator=generator) * std

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, time, vocab_size) of tokens (batch, time), int64."""
        time = tokens.shape[1]
        if time > self.config.context:
            raise ConfigError(
                f"{time} tokens in a sequence: this GPT's context has {self.config.context}"
            )
        x = self.wte(tokens) + self.wpe.weight[:time]
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token, of int64 (batch, time) each."""
        return cross_entropy(self(tokens), targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per token of logits (batch, time, vocab_size)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
