"""Which tensors of a GPT a method touches: a list of names, and every other bit as it was."""

import pytest
import torch

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.gpt.model import GPT, GPTModelConfig
from tests.cases import CASES, fire, install
from tests.methods.nets import (
    changed,
    randomise,
    relative_error,
    snapshot,
)
from tests.naive.interventions import fire_twin

# docs/methods/fire.md: weights of linear layers; no biases, norms, embeddings, tied tensors.
LINEAR = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
FIRED = {f"h.{i}.{layer}.weight" for i in (0, 1) for layer in LINEAR}
SPARED = {"wte.weight", "lm_head.weight", "wpe.weight", "ln_f.weight"} | {
    f"h.{i}.ln_{j}.weight" for i in (0, 1) for j in (1, 2)
}
BIASES = {f"h.{i}.{layer}.bias" for i in (0, 1) for layer in ("ln_1", "ln_2", *LINEAR)}
BIASES |= {"ln_f.bias"}
WIDTH, VOCABULARY = 8, 20
TOKENS = torch.randint(VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(0))


def small(bias: bool = False, seed: int = 1) -> GPT:
    return randomise(GPT(GPTModelConfig(2, 2, WIDTH, 6, VOCABULARY, bias)), seed)


def network(model: GPT) -> Network:
    return Network("gpt", model, torch.optim.AdamW(model.parameters()))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("include_tied", [False, True])
@pytest.mark.parametrize("scope", ["gpt", "all"])
def test_fire_edits_exactly_the_linear_layers(scope: str, bias: bool, include_tied: bool):
    model = small(bias)
    before = snapshot(model)
    assert set(before) == FIRED | SPARED | (BIASES if bias else set())
    receipt = rlplast.fire(model, scope=scope, iterations=5, include_tied=include_tied)
    after = snapshot(model)
    tied = {"wte.weight", "lm_head.weight"} if include_tied else set()
    assert changed(before, model) == FIRED | tied
    for name in FIRED:
        # The packed projection is three square matrices, the others one matrix each.
        for ours, start in zip(*(w[name].split(rows(name)) for w in (after, before)), strict=True):
            assert relative_error(ours, fire_twin(start.numpy(), 5, "cubic")) <= 1e-5
    assert model.lm_head.weight is model.wte.weight
    if include_tied:  # once, as a head: √(vocabulary/width)
        twin = fire_twin(before["wte.weight"].numpy(), 5, "cubic")
        assert relative_error(after["wte.weight"], twin) <= 1e-5
    linear = 2 * 12 * WIDTH**2
    assert receipt.entries_touched == linear + (VOCABULARY * WIDTH if include_tied else 0)


def rows(name: str) -> int:
    return 4 * WIDTH if name.endswith("c_fc.weight") else WIDTH


@pytest.mark.parametrize("method", ["full_reset", "shrink_perturb"])
def test_methods_that_edit_everything_edit_the_tied_tensor_once(method: str):
    model = small(bias=True)
    net = network(model)
    before = snapshot(model)
    start = {block.name: block.view.clone() for block in net.blocks}
    receipt = fire(method, net)
    assert changed(before, model) == set(before)
    assert model.lm_head.weight is model.wte.weight
    assert receipt.entries_touched == sum(p.numel() for p in model.parameters())
    # 1 − coef of the old, once; coef of a fresh draw is at most a few times 0.02.
    old = 1 - CASES[method].params["coef"] if method == "shrink_perturb" else 0
    assert (model.wte.weight - old * start["wte.weight"]).abs().max() < 0.02 * 6


@pytest.mark.parametrize("method", sorted(CASES))
def test_a_method_edits_a_gpt_or_refuses_the_tie_by_name(method: str):
    model = small()
    net = network(model)
    randomise(model, 2)  # away from θ0
    before = snapshot(model)
    says = CASES[method].refuses.get("gpt")
    if says is None:
        fire(method, net, inputs=TOKENS)
        assert bool(changed(before, model)) is not CASES[method].follows
        return
    with pytest.raises(ConfigError, match=says):
        install(method, model)
        fire(method, net, inputs=TOKENS)
    assert not changed(before, model)


@pytest.mark.parametrize("method", sorted(CASES))
def test_two_layers_that_share_a_weight_are_edited_once_left_alone_or_refused(method: str):
    model = small()
    model.h[1].mlp.c_fc.weight = model.h[0].mlp.c_fc.weight  # type: ignore[union-attr]
    net = network(model)
    (shared,) = net.select(lambda block: block.name == "h.0.mlp.c_fc.weight")
    assert shared.aliases == ("h.1.mlp.c_fc.weight",)
    before = snapshot(randomise(model, 2))  # away from θ0
    try:
        install(method, model)
        receipt = fire(method, net, inputs=TOKENS)
    except ConfigError as error:
        assert "is tied to" in str(error)
        assert not changed(before, model)
        return
    assert "gpt" not in CASES[method].refuses
    assert model.h[1].mlp.c_fc.weight is model.h[0].mlp.c_fc.weight  # type: ignore[union-attr]
    assert receipt.entries_touched <= sum(p.numel() for p in model.parameters())
    edits = CASES[method].edits_weights and not CASES[method].follows
    assert bool(changed(before, model)) is edits
    if method == "fire":  # as every tied tensor without include_tied
        assert changed(before, model) == FIRED - {"h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight"}
