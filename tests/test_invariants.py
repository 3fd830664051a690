"""What must hold of every registered intervention, on every family of models.

Compiled updates are in test_invariants_compiled.py, bad inputs in
test_invariants_bad_inputs.py, masked edits and the policies of `apply` in core/test_edits.py.
"""

import copy
import random
from collections import Counter
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rlplast
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method import readings
from rlplast.core.method.readings import OwnSource
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.registry import rows
from rlplast.methods import recycling
from tests.cases import (
    ACCEPTED,
    CASES,
    INSIDE,
    REFUSED,
    Tape,
    drive,
    fire,
    hooks,
    install,
    loss,
    method_of,
    ready,
    schedule,
)
from tests.marks import slow
from tests.models import OPTIMIZERS, Critic, Subject, assert_same, observed, subject

# conv_batchnorm has all that conv has.
every_model = pytest.mark.parametrize(
    ("method", "family"), [slow(m, f) if f == "conv" else (m, f) for m, f in ACCEPTED]
)
every_model_and_optimizer = pytest.mark.parametrize(
    ("method", "family", "optimizer"),
    [(*case, optimizer) for case, optimizer in zip(ACCEPTED, cycle(OPTIMIZERS), strict=False)],
)


def test_every_method_has_a_case() -> None:
    assert CASES.keys() == {row.name for row in rows("interventions")}  # see tests/cases.py


@pytest.mark.parametrize(("method", "family"), REFUSED)
def test_refusal_names_the_tensor_and_changes_nothing(method: str, family: str) -> None:
    made = subject(family)
    before, modules = made.snapshot(), list(made.module.modules())
    with pytest.raises(ConfigError, match=CASES[method].refuses[family]):
        install(method, made.module)
        fire(method, made.network)
    assert_same(before, made.snapshot())
    assert modules == list(made.module.modules())


@pytest.mark.parametrize("method", [m for m, case in CASES.items() if case.refuses_inside])
def test_every_update_is_refused_where_it_has_no_meaning(method: str) -> None:
    with pytest.raises(ConfigError, match=CASES[method].refuses_inside):
        hooks(method, ready(method, "mlp").network, every="1 updates")


# 1. A hook that never fires equals no hook.


@every_model_and_optimizer
def test_hook_that_never_fires_equals_no_hook(method: str, family: str, optimizer: str) -> None:
    plain, hooked = subject(family, optimizer, 0), ready(method, family, optimizer, 0)
    never = [hooks(method, hooked.network, at="99%")]
    if not CASES[method].refuses_inside:
        never += [hooks(method, hooked.network, every="1 updates", **{"from": "99%"})]
    stream = torch.get_rng_state()
    for update in range(1, 5):
        plain.update()
        hooked.update()
        assert [driven.step(updates=update) for driven in never] == [[]] * len(never)
    assert torch.equal(stream, torch.get_rng_state())
    assert [driven.flush(Clock()) for driven in never] == [[]] * len(never)
    after = hooked.snapshot()  # which has the buffers of installed modules too
    assert_same(plain.snapshot(), {name: after[name] for name in plain.state()})


# 2. Tensors keep identity, address, dtype, device, strides, requires_grad.


def passport(made: Subject) -> dict[str, tuple[Any, ...]]:
    return {
        name: (id(t), t.data_ptr(), t.dtype, t.device, t.stride(), t.requires_grad, t.shape)
        for name, t in made.state().items()
    }


@pytest.mark.parametrize(
    ("method", "family", "optimizer", "policy"),
    [
        (*case, optimizer, policy)
        for case, optimizer, policy in zip(
            ACCEPTED,
            cycle(OPTIMIZERS),
            cycle(["network", "parameter", "touched", "keep"]),
            strict=False,
        )
    ],
)
def test_edit_keeps_every_tensor_in_place(
    method: str, family: str, optimizer: str, policy: str
) -> None:
    made = ready(method, family, optimizer)
    before, weights = passport(made), made.snapshot()
    fire(method, made.network, optimizer_policy=policy)
    assert passport(made) == before
    changed = any(not torch.equal(weights[n], t) for n, t in made.module.state_dict().items())
    assert changed is not CASES[method].follows


def test_models_cover_channels_last_and_buffers() -> None:
    made = subject("conv_batchnorm")
    weight = made.module.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert len(list(made.module.buffers())) == 6


# 3. Every trainable parameter is in exactly one optimizer, and goes on training.


@every_model_and_optimizer
def test_trainables_are_exactly_optimizer_params(method: str, family: str, optimizer: str) -> None:
    made = ready(method, family, optimizer)
    fire(method, made.network, optimizer_policy="network")
    held = Counter(id(p) for g in made.optimizer.param_groups for p in g["params"])
    trainable = [id(p) for p in made.module.parameters() if p.requires_grad]
    assert held == Counter(trainable)
    assert {id(p) for p in made.optimizer.state} <= set(trainable)
    weights = {n: p.detach().clone() for n, p in made.module.named_parameters()}
    made.update()
    for name, param in made.module.named_parameters():
        assert param.grad is not None
        # the first update after a reset of all state: where there is a gradient, it moves
        moved = (param != weights[name])[param.grad.abs() > 1e-4]
        assert moved.all(), name


# Frozen layers and layers out of scope are left alone.


def edited(method: str, made: Subject, **options: Any) -> set[str]:
    """Fire; return the tensors of which a bit has changed, none of them if it is refused."""
    before = made.snapshot()
    try:
        fire(method, made.network, **options)
    except ConfigError:
        assert_same(before, made.snapshot())
    return {name for name, tensor in made.state().items() if not torch.equal(tensor, before[name])}


def edits_at_once(method: str) -> bool:
    """Whether a firing without an update before it changes weights."""
    return CASES[method].edits_weights and not CASES[method].follows


@pytest.mark.parametrize("method", CASES)
def test_frozen_tensors_keep_every_bit(method: str) -> None:
    served = 0
    for layer, (role, policy) in product("017", (("weight", "same_edit"), ("bias", "copy"))):
        frozen = f"{layer}.{role}"

        def freeze(module: torch.nn.Module, frozen: str = frozen) -> None:
            parameter = module.get_parameter(frozen).requires_grad_(False)
            parameter.mul_(0.9).sub_(0.1)  # where no method would put it
            install(method, module)

        made = subject("conv_batchnorm", install=freeze)
        changed = edited(method, made, follower_policy=policy)
        assert frozen not in changed
        served += not changed.isdisjoint(made.module.state_dict())
    assert served >= 3 * edits_at_once(method)  # the others were refused


@pytest.mark.parametrize("method", CASES)
def test_layers_out_of_scope_keep_every_bit(method: str) -> None:
    made = ready(method, "conv_batchnorm")
    changed = edited(method, made, scope="sac", optimizer_policy="touched")
    assert all(name.startswith(("7.", "target.")) for name in changed)  # the linear layer
    of_units = "no hidden units" in CASES[method].refuses.get("residual", "")
    served = not changed.isdisjoint(made.module.state_dict())
    assert served is (edits_at_once(method) and not of_units)  # a head has none


# 6. Followers obey their policy; a tied tensor is edited once.


@every_model
def test_follower_policy_copies_or_leaves_them(method: str, family: str) -> None:
    made = ready(method, family)
    before = copy.deepcopy(made.follower.state_dict())
    receipt = fire(method, made.network, follower_policy="leave")
    assert receipt.followers == {"target": "leave"}
    assert_same(dict(before), dict(made.follower.state_dict()))
    made = ready(method, family)
    fire(method, made.network, follower_policy="copy")
    assert_same(dict(made.module.state_dict()), dict(made.follower.state_dict()))


@every_model
def test_follower_policy_same_edit_edits_their_own_weights(
    method: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tape = ready(method, family), Tape(monkeypatch)
    with torch.no_grad():  # away from θ0, where some methods would leave it
        for param in made.follower.parameters():
            param.mul_(1.5)
    twin = copy.deepcopy(made.follower).requires_grad_(True)
    alone = Network("net", twin, initial=made.network.initial)
    fire(method, made.network, follower_policy="same_edit")
    tape.rewind()  # what it reads of data is the network's
    fire(method, alone)
    assert_same(dict(twin.state_dict()), dict(made.follower.state_dict()))
    untouched = ready(method, family).module.state_dict()
    changed = any(not torch.equal(untouched[n], t) for n, t in made.module.state_dict().items())
    assert changed is not CASES[method].follows


def test_tied_tensor_is_edited_once() -> None:
    made = subject("tied")
    theta, start = made.module.get_parameter("embed.weight").clone(), made.network.initial
    receipt = rlplast.apply("shrink_perturb", made.network, coef=0.25)
    expected = 0.75 * theta + 0.25 * start["embed.weight"]
    torch.testing.assert_close(made.module.get_parameter("embed.weight"), expected)
    assert receipt.entries_touched == sum(p.numel() for p in made.module.parameters())


def test_fire_edits_a_tied_tensor_only_when_asked() -> None:
    made = subject("tied")
    before = made.module.get_parameter("embed.weight").clone()
    rlplast.apply("fire", made.network)
    assert torch.equal(before, made.module.get_parameter("head.weight"))
    receipt = rlplast.apply("fire", made.network, include_tied=True, polynomial="exact")
    head = made.module.get_parameter("head.weight")
    assert receipt.entries_touched == head.numel() + made.module.get_parameter("fc.weight").numel()
    gram = head.T @ head * (head.shape[1] / head.shape[0])  # scale √(d_out/d_in), once
    torch.testing.assert_close(gram, torch.eye(head.shape[1]), atol=1e-5, rtol=0)


# 8. On stacked critics = on two separate critics.


def law(block: Block, generator: torch.Generator) -> Tensor:
    """An initialisation that draws nothing: streams of separate networks differ."""
    return torch.linspace(-0.3, 0.4, block.view.numel()).view(block.view.shape)


def hash_law(
    dtype: torch.dtype, seed: Tensor, tag: int, units: Tensor, number: Tensor, entries: Tensor
) -> Tensor:
    """The same for rows that are drawn from a hash: tags number the layers of all members."""
    return (units - entries + number).to(dtype) / 9


def separate(method: str, made: Subject, index: int, make: str) -> Subject:
    """Return member `member` of a stacked pair as a network of its own, in the same state."""

    def member(stacked: torch.nn.Module) -> Critic:
        critic = Critic()
        install(method, critic)
        tensors = stacked.state_dict().items()
        critic.load_state_dict({n: t[index] if t.ndim else t for n, t in tensors})
        return critic

    own, target = member(made.module), member(made.follower).requires_grad_(False)
    optimizer = OPTIMIZERS[make](own.parameters())
    for name, param in made.module.named_parameters():
        state = made.optimizer.state[param]
        optimizer.state[own.get_parameter(name)] = {
            key: (value if value.ndim == 0 else value[index]).detach().clone()
            for key, value in state.items()
        }
    prefix = f"[{index}]."
    initial = {
        n.removeprefix(prefix): t for n, t in made.network.initial.items() if n.startswith(prefix)
    }
    initial |= {n: t for n, t in made.network.initial.items() if not n.startswith("[")}
    network = Network("net", own, optimizer, {"target": target}, init=law, initial=initial)
    return Subject(own, network, optimizer, made.x, made.y[index])


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [*zip([m for m, f in ACCEPTED if f == "stacked"], cycle(OPTIMIZERS), strict=False)],
)
def test_stacked_critics_equal_separate_critics(
    method: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked = ready(method, "stacked", optimizer)
    stacked.network.init = law
    monkeypatch.setattr(recycling, "symmetric", hash_law)
    members = [separate(method, stacked, index, optimizer) for index in range(2)]
    receipts = [fire(method, made.network) for made in (stacked, *members)]
    shared = CASES[method].shared  # counted once, or once in each
    sfe = receipts[1].sfe + receipts[2].sfe - shared
    assert receipts[0].sfe == pytest.approx(sfe, rel=1e-4)
    assert receipts[0].entries_touched == sum(r.entries_touched for r in receipts[1:]) - shared
    for made in (stacked, *members):
        made.update(2)
    both = stacked.snapshot()
    for index, made in enumerate(members):
        for name, tensor in made.snapshot().items():
            of_pair = both[name] if tensor.ndim == 0 else both[name][index]
            torch.testing.assert_close(of_pair, tensor, rtol=1e-6, atol=1e-6, msg=name)


# Streams, receipts, resumption.


@every_model
def test_draws_come_from_the_firings_own_stream_and_leave_the_others(
    method: str, family: str
) -> None:
    results = []
    for global_seed, seed in ((0, 7), (1, 7), (0, 8)):
        made = ready(method, family)
        torch.random.default_generator.manual_seed(global_seed)
        random.seed(1)
        np.random.seed(1)
        before = (torch.get_rng_state(), random.getstate(), np.random.get_state())
        fire(method, made.network, follower_policy="same_edit", seed=seed)
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1] == random.getstate()
        after = np.random.get_state()
        assert all(np.array_equal(a, b) for a, b in zip(before[2], after, strict=True))
        results.append(made.snapshot())
    assert_same(results[0], results[1])
    same = all(torch.equal(t, results[2][n]) for n, t in results[0].items())
    assert same is not CASES[method].draws


@every_model
def test_receipt_tells_what_happened(method: str, family: str) -> None:
    made = ready(method, family)

    def weights() -> dict[str, Tensor]:
        tensors = {**dict(made.module.named_parameters()), **dict(made.module.named_buffers())}
        return {n: t.detach().double().clone() for n, t in tensors.items()}

    def norm(of: dict[str, Tensor]) -> float:
        names = [n for n, _ in made.module.named_parameters()]
        return float(torch.cat([of[n].flatten() for n in names]).norm())

    before = weights()
    receipt = fire(method, made.network, optimizer_policy="touched")
    after = weights()
    changed = {n: int((after[n] != before[n]).sum()) for n in after}
    assert receipt.sfe == pytest.approx(
        sum(float((after[n] - before[n]).square().sum()) for n in after), rel=1e-6
    )
    whole = sum(after[n].numel() for n, count in changed.items() if count)
    # buffers and masks aside, tensors are written whole; a value may stay by chance
    assert sum(changed.values()) <= receipt.entries_touched
    assert receipt.entries_touched >= whole or family == "stacked" or not CASES[method].whole
    assert receipt.entries_touched <= sum(t.numel() for t in after.values())
    assert receipt.norm_before == pytest.approx(norm(before))
    assert receipt.norm_after == pytest.approx(norm(after))
    assert (receipt.method, receipt.network) == (method, "net")
    assert receipt.optimizer_policy == "touched"
    assert receipt.followers == {"target": method_of(method).policies[1]}
    assert receipt.row()["time/seconds"] >= 0


@every_model
def test_saved_and_restored_hooks_continue_identically(method: str, family: str) -> None:
    whole, first = (ready(method, family, updates=0) for _ in range(2))
    whole_hooks, first_hooks = (
        hooks(method, m.network, **schedule(method)) for m in (whole, first)
    )
    receipts: list[Any] = []
    for update in range(1, 9):
        if update == 4:  # a new process: new networks, saved tensors
            saved = copy.deepcopy(first_hooks.state_dict())
            second = ready(method, family, updates=1)
            with torch.no_grad():
                for name, tensor in second.state().items():
                    tensor.copy_(first.state()[name])
            first, first_hooks = second, hooks(method, second.network, **schedule(method))
            first_hooks.load_state_dict(saved)
        for made, driven in ((whole, whole_hooks), (first, first_hooks)):
            fired = drive(made, driven, update)
            receipts.append([(r.sfe, r.clock, r.crossings, r.norm_after, r.units) for r in fired])
    assert receipts[0::2] == receipts[1::2]
    left, right = (
        [(r.sfe, r.firings, r.log_factor, r.units) for r in h.flush(Clock(updates=8))]
        for h in (whole_hooks, first_hooks)
    )
    assert left == right
    assert any(receipts) or left
    assert_same(whole.snapshot(), first.snapshot())
    assert_same(*(h.hooks[0].states["net"] for h in (whole_hooks, first_hooks)))


# Inside an update.


@pytest.mark.parametrize(("method", "family"), INSIDE)
def test_inside_an_update_it_does_what_a_scheduled_firing_does(
    method: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outer = ready(method, family), ready(method, family)
    # There a gradient is that of the update, here that of a probe: both read the update's.
    monkeypatch.setattr(
        readings,
        "_gradients",
        lambda *_: readings.Inside(inner.network, None, "").gradients,
    )
    inside = hooks(method, inner.network, every="1 updates").hooks[0]
    moments = tuple(Time(update, "updates") for update in range(1, 5))
    source = OwnSource({"net": outer.network}, outer.x, loss(outer.network))
    outside = replace(
        inside,
        schedule=Schedule(at=moments),
        networks=(outer.network,),
        source=source,
        states={},
        sums={},
    )
    receipts = []
    for update in range(1, 5):
        clock = Clock(updates=update)
        found = {}
        if "activations" in method_of(method).reads:
            found["net"] = observed(inner.network, inner.x)
        inside.after_update(clock, 0, found)
        receipts += outside.fire(clock, 1, 0)
        assert_same(inner.snapshot(), outer.snapshot())
        assert_same(uncounted(inside.states["net"]), uncounted(outside.states["net"]))
        inner.update()
        outer.update()
    [summary] = inside.flush(Clock(updates=4))
    assert summary.sfe == pytest.approx(sum(r.sfe for r in receipts), rel=1e-5)
    assert (summary.sfe > 0) is CASES[method].edits_weights
    units = [r.units for r in receipts]
    total = None if units[0] is None else {n: sum(u[n] for u in units if u) for n in units[0]}
    assert summary.units == total


def uncounted(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A method's state without what its next receipt tells and clears."""
    return {name: t for name, t in state.items() if not name.startswith("count/")}
