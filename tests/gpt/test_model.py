import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from rlplast.gpt.model import GPT, GPTModelConfig
from tests.methods.nets import randomise
from tests.models import recorded

SMALL = {"layers": 2, "heads": 3, "width": 12, "context": 7, "vocab_size": 11}


def drawn(seed: int = 0, **config: object) -> GPT:
    """A small GPT in float64 whose every parameter is drawn, biases and norms too."""
    model = GPT(GPTModelConfig(**(SMALL | config))).double()  # type: ignore[arg-type]
    return randomise(model, seed, std=0.3)


def tokens(length: int = 7, seed: int = 0) -> Tensor:
    return torch.randint(11, (3, length), generator=torch.Generator().manual_seed(seed))


def twin(model: GPT, sequence: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits of one sequence and the MLPs' activations, head by head, position by position."""
    w, config = model.state_dict(), model.config
    size = config.width // config.heads

    def linear(x: Tensor, name: str) -> Tensor:
        y = x @ w[f"{name}.weight"].T
        return y + w[f"{name}.bias"] if config.bias else y

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return y * w[f"{name}.weight"] + (w[f"{name}.bias"] if config.bias else 0)

    def gelu(x: Tensor) -> Tensor:
        if config.gelu == "exact":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    x = torch.stack([w["wte.weight"][t] + w["wpe.weight"][i] for i, t in enumerate(sequence)])
    activations = []
    for layer in range(config.layers):
        packed = linear(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn")
        q, k, v = (packed[:, i * config.width : (i + 1) * config.width] for i in range(3))
        mixed = torch.zeros_like(x)
        for head in range(config.heads):
            own = slice(head * size, (head + 1) * size)
            for i in range(len(sequence)):
                scores = q[i, own] @ k[: i + 1, own].T / math.sqrt(size)
                mixed[i, own] = scores.softmax(0) @ v[: i + 1, own]
        x = x + linear(mixed, f"h.{layer}.attn.c_proj")
        activations.append(gelu(linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")))
        x = x + linear(activations[-1], f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T, activations


@pytest.mark.parametrize(("bias", "gelu"), [(False, "exact"), (True, "tanh")])
@torch.no_grad()
def test_logits_and_taps_are_those_of_a_slow_twin(bias: bool, gelu: str):
    model = drawn(bias=bias, gelu=gelu)
    for length in (1, 5, 7):
        x = tokens(length=length)
        logits, taps = recorded(model, x)
        assert torch.equal(logits, model(x))
        assert list(taps) == ["h.0.mlp.c_fc", "h.1.mlp.c_fc"]
        for row, sequence in enumerate(x):
            expected, activations = twin(model, sequence)
            torch.testing.assert_close(logits[row], expected, rtol=1e-10, atol=1e-10)
            own = slice(row * length, (row + 1) * length)  # (batch·time, 4·width)
            for tap, activation in zip(taps.values(), activations, strict=True):
                assert tap.shape == (3 * length, 48)
                torch.testing.assert_close(tap[own], activation, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_loss_is_the_mean_negative_log_probability_of_the_targets():
    model, x, y = drawn(), tokens(), tokens(seed=1)
    probabilities = model(x).softmax(-1)
    terms = [-math.log(probabilities[i, j, y[i, j]]) for i in range(3) for j in range(7)]
    assert model.loss(x, y).item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_defaults_are_gpt_0_1b():
    with torch.device("meta"):
        model = GPT(GPTModelConfig())
    per_layer = 12 * 768**2 + 2 * 768
    expected = 50304 * 768 + 1024 * 768 + 12 * per_layer + 768  # the head is the embedding
    assert sum(p.numel() for p in model.parameters()) == expected == 124_373_760


def test_initial_weights_follow_gpt_2s_law():
    config = GPTModelConfig(layers=8, heads=2, width=64, context=64, vocab_size=256, bias=True)
    network = Network("gpt", GPT(config))
    network.initialise(torch_stream(0, "init"))
    weights = dict(network.module.named_parameters())
    assert network.module.lm_head.weight is weights["wte.weight"]
    for name, weight in weights.items():
        if name.endswith(".bias"):
            assert not weight.count_nonzero()
        elif ".ln_" in name or name.startswith("ln_"):
            assert torch.equal(weight, torch.ones(64))
        else:
            std = 0.02 / 4 if name.endswith("c_proj.weight") else 0.02
            assert weight.std().item() == pytest.approx(std, rel=0.05)
            assert abs(weight.mean().item()) < 4 * std / math.sqrt(weight.numel())
    assert sum(name.endswith(".bias") for name in weights) == 8 * 6 + 1


@torch.no_grad()
def test_dropout_drops_in_training_only_and_draws_from_torchs_stream():
    model, plain, x = drawn(dropout=0.5), drawn(), tokens()
    assert torch.equal(model.eval()(x), plain.eval()(x))
    assert torch.equal(plain.train()(x), plain.eval()(x))
    model.train()
    outputs = []
    for seed in (0, 0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_dropout_is_after_the_embedding_in_attention_and_on_what_is_added(
    monkeypatch: pytest.MonkeyPatch,
):
    seen: list[float] = []
    dropout, attention = F.dropout, F.scaled_dot_product_attention
    monkeypatch.setattr(F, "dropout", lambda x, p, on: seen.append(p * on) or dropout(x, p, on))
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *a, dropout_p, **k: seen.append(dropout_p) or attention(*a, dropout_p=0, **k),
    )
    drawn(dropout=0.25)(tokens())
    assert seen == [0.25] * (1 + 2 * 3)


def test_heads_that_do_not_divide_the_width_and_too_many_tokens_are_refused():
    with pytest.raises(ConfigError, match=r"model\.width = 12 with model\.heads = 5"):
        GPT(GPTModelConfig(**(SMALL | {"heads": 5})))
    with pytest.raises(ConfigError, match="8 tokens in a sequence"):
        drawn()(tokens(length=8))
