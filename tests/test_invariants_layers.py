"""What must hold of the hook key ``layers`` with every registered intervention."""

from contextlib import nullcontext
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.method.receipt import Receipt
from tests.cases import ACCEPTED, CASES, about, hooks, ready
from tests.models import FORMS, OPTIMIZERS, Subject, assert_same

# The layers of each family, in forward order; conv_batchnorm and stacked have all that mlp has.
LAYERS = {
    "conv_batchnorm": ["0", "1", "3", "4", "7"],
    "residual": ["inp", "norm", "fc", "head"],
    "tied": ["embed", "fc", "head"],
    "stacked": ["fc1", "fc2", "head"],
}
# What belongs to the units of a layer beside its own entries: norms, and weights that read them.
BELONGS = {
    "conv_batchnorm": {"0": ["1.", "3.weight"], "3": ["4.", "7.weight"]},
    "stacked": {"fc1": ["fc2.weight"], "fc2": ["head.weight"]},
}
POLICIES = list(product(["network", "parameter", "touched", "keep"], ["copy", "same_edit"]))
Tensors = dict[str, Tensor]

# Each method on the family that has most, and on another one in turn.
METHODS = [m for m in CASES if m != "plasticity_injection"]
OTHERS = cycle(["residual", "tied", "stacked"])
SERVED = [
    (method, family)
    for method in METHODS
    for family in ("conv_batchnorm", next(f for f in OTHERS if (method, f) in ACCEPTED))
    if (method, family) in ACCEPTED
]


def fired(
    made: Subject, method: str, inside: bool = False, **keys: Any
) -> tuple[Tensors, Tensors, list[Receipt], dict[str, Tensor]]:
    """Make two updates, after the last of which the hook fires.

    Returns:
        All tensors before and after that, the receipts, and the method's own tensors.
    """
    when = {"every": "1 updates"} if inside else {"at": "2 updates"}
    params = dict(CASES[method].params) | ({"eps": 1e6} if method == "snr" else {})
    driven = hooks(method, made.network, **when, **keys, params=params)
    before: Tensors = {}
    receipts: list[Receipt] = []
    for update in range(1, 3):
        with rlplast.record(made.network) if driven.recorded() else nullcontext() as found:
            made.update()
        before = made.snapshot()
        receipts += driven.step(updates=update, activations=found)
    return before, made.snapshot(), receipts + driven.flush(), driven.hooks[0].states["net"]


def changed(before: Tensors, after: Tensors) -> set[str]:
    return {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}


def allowed(method: str, family: str, layers: list[str]) -> tuple[str, ...]:
    """What the names of tensors that may change begin with."""
    named = [f"{layer}." for layer in layers]
    if CASES[method].of_units and not CASES[method].whole:
        named += [part for layer in layers for part in BELONGS[family].get(layer, [])]
    if family == "tied" and {"embed", "head"} & set(layers):
        named += ["embed.", "head."]
    return tuple(named + [f"target.{name}" for name in named])


@pytest.mark.parametrize(
    ("method", "family", "policies", "make"),
    [
        (*case, policies, optimizer)
        for case, policies, optimizer in zip(
            SERVED, cycle(POLICIES), cycle([*OPTIMIZERS, "trac"]), strict=False
        )
    ],
)
def test_layers(method: str, family: str, policies: tuple[str, str], make: str) -> None:
    keys: list[dict[str, Any]] = [{"optimizer": policies[0], "followers": policies[1]}]
    keys += [] if CASES[method].refuses_inside else [{"inside": True}]
    for options in keys:
        with about(*options.items()):
            nothing_outside_of_them_changes(method, family, options)
            all_layers_are_no_layers(method, family, options, make)


def nothing_outside_of_them_changes(method: str, family: str, keys: dict[str, Any]) -> None:
    served = 0
    every = LAYERS[family]
    for layers in (
        [every[:1], every[-2:]] if "inside" in keys else [*([e] for e in every), every[-2:]]
    ):
        made = ready(method, family)
        try:
            before, after, receipts, _ = fired(made, method, layers=layers, **keys)
        except ConfigError as error:  # it has nothing there, or a layer after it would have to move
            assert method in str(error)
            continue
        moved = changed(before, after)
        assert all(name.startswith(allowed(method, family, layers)) for name in moved), layers
        assert all(receipt.row()["layers"] == layers for receipt in receipts)
        edits = CASES[method].edits_weights
        served += any((receipt.sfe > 0) is edits for receipt in receipts)
    assert served


def comparable(receipt: Receipt) -> dict[str, Any]:
    return {k: v for k, v in receipt.row().items() if k not in ("layers", "time/seconds")}


def all_layers_are_no_layers(method: str, family: str, keys: dict[str, Any], name: str) -> None:
    make = FORMS["trac"] if name == "trac" else name
    plain = fired(ready(method, family, make), method, **keys)
    layers = ["*"] if "inside" in keys else LAYERS[family]
    named = fired(ready(method, family, make), method, layers=layers, **keys)
    for left, right in zip((plain[1], plain[3]), (named[1], named[3]), strict=True):
        assert_same(left, right)
    assert [comparable(r) for r in named[2]] == [comparable(r) for r in plain[2]]


@pytest.mark.parametrize("method", [m for m in METHODS if CASES[m].edits_weights])
def test_one_member_of_an_ensemble_leaves_every_bit_of_the_other(method: str) -> None:
    """Compared with the members of an ensemble of which both are reset, too."""
    for followers in ("copy", "same_edit"):
        keys: dict[str, Any] = {"optimizer": "touched", "followers": followers}
        made = ready(method, "stacked")
        before, after, receipts, _ = fired(made, method, layers=["[1].*"], **keys)
        assert receipts[0].entries_touched > 0
        assert changed(before, after)
        for name, tensor in after.items():
            other = (tensor, before[name]) if tensor.ndim == 0 else (tensor[0], before[name][0])
            assert torch.equal(*other), (followers, name)
        if not CASES[method].draws:
            _, both, _, _ = fired(ready(method, "stacked"), method, **keys)
            pair = ({n: t[1] for n, t in found.items() if t.ndim} for found in (after, both))
            assert_same(*pair)


@pytest.mark.parametrize("policy", ["network", "parameter"])
def test_state_that_members_share_is_not_reset_for_one(policy: str) -> None:
    made = ready("full_reset", "stacked")
    with pytest.raises(ConfigError, match=r"net\[0\]\.fc1\.weight .*net\[1\]\.fc1\.weight"):
        hooks("full_reset", made.network, at="50%", layers=["[0].fc1", "head"], optimizer=policy)
    hooks("full_reset", made.network, at="50%", layers=["[?].fc1", "head"], optimizer=policy)


def test_policy_network_forgets_all_of_the_layers_and_keeps_what_all_parameters_share() -> None:
    """`fire` edits weights; the policy is about the whole layer, `step` included."""
    made = ready("fire", "mlp")
    before, after, _, _ = fired(made, "fire", layers=["2"], optimizer="network", followers="leave")
    state = {n: t for n, t in after.items() if n.startswith("2.") and ":" in n}
    assert {n.split(":")[1] for n in state} == {"step", "exp_avg", "exp_avg_sq"}
    assert not any(t.any() for t in state.values())
    assert changed(before, after) == {"2.weight", *state}

    trac = ready("full_reset", "mlp", FORMS["trac"])
    shared: Any = trac.optimizer.state["shared"]  # type: ignore[index]
    driven = hooks("full_reset", trac.network, at="1 updates", layers=["0", "2"])
    trac.update()
    kept = {n: t.clone() for n, t in shared.items()}
    assert any(t.any() for t in kept.values())
    driven.step(updates=1)
    assert_same(kept, dict(shared))
