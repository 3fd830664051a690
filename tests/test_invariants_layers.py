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
from tests.cases import ACCEPTED, CASES, INSIDE, hooks, ready
from tests.models import FORMS, OPTIMIZERS, Subject, assert_same

# The layers of each family, in forward order.
LAYERS = {
    "mlp": ["0", "2", "4"],
    "conv": ["0", "2", "5"],
    "conv_batchnorm": ["0", "1", "3", "4", "7"],
    "residual": ["inp", "norm", "fc", "head"],
    "tied": ["embed", "fc", "head"],
    "stacked": ["fc1", "fc2", "head"],
}
# What belongs to the units of a layer beside its own entries: norms, and weights that read them.
BELONGS = {
    "mlp": {"0": ["2.weight"], "2": ["4.weight"]},
    "conv": {"0": ["2.weight"], "2": ["5.weight"]},
    "conv_batchnorm": {"0": ["1.", "3.weight"], "3": ["4.", "7.weight"]},
    "stacked": {"fc1": ["fc2.weight"], "fc2": ["head.weight"]},
}
OF_UNITS = ("cbp", "redo", "regrama", "snr")
POLICIES = list(product(["network", "parameter", "touched", "keep"], ["copy", "same_edit"]))
Tensors = dict[str, Tensor]

scheduled = [(m, f) for m, f in ACCEPTED if m != "plasticity_injection"]


def fired(
    made: Subject, method: str, inside: bool = False, **keys: Any
) -> tuple[Tensors, Tensors, list[Receipt], dict[str, Tensor]]:
    """Make three updates, after the last of which the hook fires.

    Returns:
        All tensors before and after that, the receipts, and the method's own tensors.
    """
    when = {"every": "1 updates"} if inside else {"at": "3 updates"}
    params = dict(CASES[method].params) | ({"eps": 1e6} if method == "snr" else {})
    driven = hooks(method, made.network, **when, **keys, params=params)
    before: Tensors = {}
    receipts: list[Receipt] = []
    for update in range(1, 4):
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
    if method in OF_UNITS:
        named += [part for layer in layers for part in BELONGS[family].get(layer, [])]
    if family == "tied" and {"embed", "head"} & set(layers):
        named += ["embed.", "head."]
    return tuple(named + [f"target.{name}" for name in named])


@pytest.mark.parametrize(
    ("method", "family", "policies", "inside"),
    [(*case, policies, False) for case, policies in zip(scheduled, cycle(POLICIES), strict=False)]
    + [(*case, None, True) for case in INSIDE],
)
def test_nothing_outside_of_the_layers_changes(
    method: str, family: str, policies: tuple[str, str] | None, inside: bool
) -> None:
    served = 0
    for layers in [[layer] for layer in LAYERS[family]] + [LAYERS[family][-2:]]:
        made = ready(method, family)
        keys = dict(zip(("optimizer", "followers"), policies or (), strict=False))
        try:
            before, after, receipts, _ = fired(made, method, inside, layers=layers, **keys)
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


@pytest.mark.parametrize(
    ("method", "family", "policies", "optimizer", "inside"),
    [
        (*case, policies, optimizer, False)
        for case, policies, optimizer in zip(
            scheduled, cycle(POLICIES), cycle([*OPTIMIZERS, "trac"]), strict=False
        )
    ]
    + [(*case, (), "adam", True) for case in INSIDE],
)
def test_all_layers_are_no_layers(
    method: str, family: str, policies: tuple[str, ...], optimizer: str, inside: bool
) -> None:
    keys: dict[str, Any] = dict(zip(("optimizer", "followers"), policies, strict=False))
    make = FORMS["trac"] if optimizer == "trac" else optimizer
    plain = fired(ready(method, family, make), method, inside, **keys)
    for layers in (["*"],) if inside else (["*"], LAYERS[family]):
        named = fired(ready(method, family, make), method, inside, layers=layers, **keys)
        for left, right in zip((plain[1], plain[3]), (named[1], named[3]), strict=True):
            assert_same(left, right)
        assert [comparable(r) for r in named[2]] == [comparable(r) for r in plain[2]]


MEMBERS = [m for m, f in scheduled if f == "stacked" and CASES[m].edits_weights]


@pytest.mark.parametrize("followers", ["copy", "same_edit"])
@pytest.mark.parametrize("method", MEMBERS)
def test_one_member_of_an_ensemble_leaves_every_bit_of_the_other(
    method: str, followers: str
) -> None:
    """Compared with the members of an ensemble of which both are reset, too."""
    keys: dict[str, Any] = {"optimizer": "touched", "followers": followers}
    before, after, receipts, _ = fired(ready(method, "stacked"), method, layers=["[1].*"], **keys)
    assert receipts[0].entries_touched > 0
    assert changed(before, after)
    for name, tensor in after.items():
        if tensor.ndim == 0:
            assert torch.equal(tensor, before[name])
        else:
            assert torch.equal(tensor[0], before[name][0]), name
    if not CASES[method].draws:
        _, both, _, _ = fired(ready(method, "stacked"), method, **keys)
        pair = ({n: t[1] for n, t in found.items() if t.ndim} for found in (after, both))
        assert_same(*pair)


@pytest.mark.parametrize("policy", ["network", "parameter"])
def test_state_that_members_share_is_not_reset_for_one(policy: str) -> None:
    made = ready("full_reset", "stacked")
    with pytest.raises(ConfigError) as caught:
        hooks("full_reset", made.network, at="50%", layers=["[0].fc1", "head"], optimizer=policy)
    assert str(caught.value) == (
        "hooks[0] (full_reset).layers names net[0].fc1.weight and leaves net[1].fc1.weight, a "
        f"part of the same tensor: optimizer {policy!r} would reset the step of both; allowed are "
        "'touched' and 'keep', or layers that name both, such as 'fc1'"
    )
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
