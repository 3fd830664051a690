"""Which tensors of a GPT a method touches: a list of names, and every other bit as it was."""

import re

import pytest
import torch

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.gpt.model import GPT, GPTModelConfig
from tests.cases import CASES, fire, install
from tests.methods.nets import changed, randomise, relative_error, snapshot
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


def small(bias: bool = False) -> GPT:
    return randomise(GPT(GPTModelConfig(2, 2, WIDTH, 6, VOCABULARY, bias)), 1)


def network(model: GPT) -> Network:
    return Network("gpt", model, torch.optim.AdamW(model.parameters()))


@pytest.mark.parametrize("scope", ["gpt", "all"])
@pytest.mark.parametrize(("bias", "include_tied"), [(False, True), (True, False)])
def test_fire_edits_exactly_the_linear_layers(scope: str, bias: bool, include_tied: bool):
    model = small(bias)
    before = snapshot(model)
    assert set(before) == FIRED | SPARED | (BIASES if bias else set())
    receipt = rlplast.fire(model, scope=scope, iterations=5, include_tied=include_tied)
    after = snapshot(model)
    tied = {"wte.weight", "lm_head.weight"} if include_tied else set()
    assert changed(before, model) == FIRED | tied
    for name in FIRED | tied:
        # The packed projection is three square matrices, the others are one matrix each.
        rows = WIDTH if "c_attn" in name else len(after[name])
        for ours, start in zip(*(w[name].split(rows) for w in (after, before)), strict=True):
            assert relative_error(ours, fire_twin(start.numpy(), 5, "cubic")) <= 1e-5, name
    assert model.lm_head.weight is model.wte.weight
    linear = 2 * 12 * WIDTH**2
    assert receipt.entries_touched == linear + (VOCABULARY * WIDTH if include_tied else 0)


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
def test_a_method_edits_tied_tensors_once_or_refuses_the_tie_by_name(method: str):
    case = CASES[method]
    for twice in (False, True):  # a layer of two blocks too
        model = small()
        first, second = (model.h[i].mlp.c_fc for i in (0, 1))  # type: ignore[union-attr]
        if twice:
            second.weight = first.weight
        net = network(model)
        shared = [b.aliases for b in net.blocks if b.name == "h.0.mlp.c_fc.weight"]
        assert shared == [("h.1.mlp.c_fc.weight",) if twice else ()]
        before = snapshot(randomise(model, 2))  # away from θ0
        try:
            install(method, model)
            receipt = fire(method, net, inputs=TOKENS)
        except ConfigError as error:
            message = str(error)
            assert not changed(before, model)
            assert re.search(case.refuses.get("gpt", "is tied to" if twice else "(?!)"), message)
            continue
        assert "gpt" not in case.refuses
        assert model.lm_head.weight is model.wte.weight
        assert (first.weight is second.weight) is twice
        assert receipt.entries_touched <= sum(p.numel() for p in model.parameters())
        assert bool(changed(before, model)) is (case.edits_weights and not case.follows)
        if twice and method == "fire":  # as every tied tensor without include_tied
            both = {"h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight"}
            assert changed(before, model) == FIRED - both
